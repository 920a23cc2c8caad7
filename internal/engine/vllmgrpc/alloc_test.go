//go:build !race

package vllmgrpc

import (
	"testing"

	"github.com/sluice-router/sluice/internal/generate"
)

func TestChunkIsReadWithoutAllocating(t *testing.T) {
	plain, full := encoded(t, chunk(0, 12345)), encoded(t, logprobChunk())
	var m message
	var e generate.Event
	for _, raw := range [][]byte{plain, full} {
		if n := testing.AllocsPerRun(100, func() {
			if m.decode(raw) != nil || m.event(&e, 0, 0, true) != nil {
				t.Fatal("it cannot be read")
			}
		}); n != 0 {
			t.Errorf("a chunk of %d bytes takes %v allocations", len(raw), n)
		}
	}
}
