package kv

import (
	"math"
	"testing"
	"time"
)

func TestHeatCountsAndFades(t *testing.T) {
	h := new(Heat)
	k, other := Key(0x123456789abcdef0), Key(0x99995678_9abc_0001)
	for i := range 5 {
		if got := h.Touch(k, time.Hour); math.Abs(got-float64(i)) > 0.01 {
			t.Errorf("%v others, want %d", got, i)
		}
	}
	if got := h.Touch(other, time.Hour); got != 0 {
		t.Errorf("another beginning counts %v", got)
	}
	if got, want := h.Touch(k, time.Hour+heatFades), 5/math.E; math.Abs(got-want) > 0.1 {
		t.Errorf("after a while %v, want %v", got, want)
	}
	if got := h.Touch(k, time.Hour+20*heatFades); got > 0.01 {
		t.Errorf("after a long while %v", got)
	}
	h.Touch(k, time.Hour+21*heatFades)
	if got := h.Touch(k, time.Hour+20*heatFades); got < 1 {
		t.Errorf("%v by a clock that was read earlier", got)
	}
	for range 10000 {
		h.Touch(k, 2*time.Hour)
	}
	if got := h.Touch(k, 2*time.Hour); got < 4000 || got > 4096 {
		t.Errorf("the count is %v at its bound", got)
	}
}

// A slot belongs to the one that came more often, until that fades.
func TestHeatOfOneSlot(t *testing.T) {
	h := new(Heat)
	often, rare := Key(0x1111110000000007), Key(0x2222220000000007)
	for range 3 {
		h.Touch(often, time.Second)
	}
	if first, second := h.Touch(rare, time.Second), h.Touch(rare, time.Second); first != 0 || second != 0 || h.Touch(often, time.Second) < 2.9 {
		t.Error("the rare one took the slot")
	}
	later := time.Second + 5*heatFades
	if h.Touch(rare, later) != 0 || h.Touch(rare, later) < 0.9 || h.Touch(often, later) != 0 {
		t.Error("the slot was not given away")
	}
}

func BenchmarkHeat(b *testing.B) {
	h := new(Heat)
	for i := range b.N {
		h.Touch(Key(i%1000)*0x9e3779b97f4a7c15, time.Duration(i)*time.Microsecond)
	}
}
