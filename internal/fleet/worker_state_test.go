package fleet

import (
	"math/bits"
	"reflect"
	"testing"
)

// Every request reads it of two workers, which in a large fleet come from memory.
func TestKnownFillsACacheLine(t *testing.T) {
	if n := reflect.TypeFor[workerState]().Size(); bits.UintSize == 64 && n != 64 {
		t.Errorf("it has %d bytes", n)
	}
}
