//go:build !race

package dispatch

import (
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

// Once its memory has grown. Not under the race detector, which has a sync.Pool forget at
// random.
func TestHashingAllocatesNothing(t *testing.T) {
	p, err := openai.Peek(openai.RouteChatCompletions, []byte(`{"messages":[{"role":"user","content":"`+words+`"}]}`), openai.PeekOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	c := cachesOfM()
	if n := testing.AllocsPerRun(100, func() { c.hashPrompt(p, "m", "", 1000, countedPrompt{}).release() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
