package kv

import (
	"math"
	"sync/atomic"
	"time"
)

// Heat counts how often prompts came lately whose longest beginning that is known is the same:
// what many share is worth to be held by more than one rank. It takes 512 KiB, whatever
// comes; a beginning may lose its count to another one, and then counts as new.
//
// Methods are safe for concurrent use.
type Heat struct{ slots [heatSlots]atomic.Uint64 }

const (
	heatSlots = 1 << 16
	// heatFades is how long it takes until a prompt counts for 1/e.
	heatFades = 10 * time.Second

	// A slot has, from its upper end, a part of the key, when it was touched last, and the
	// count then, in sixteenths.
	heatTimeBits  = 24
	heatCountBits = 16
	heatTick      = 64 * time.Millisecond // heatTimeBits of them are 12 days
	heatUnit      = 16
)

// Touch counts a prompt whose longest known beginning ends with the block of key k. It returns
// how many others counted lately, 4,095 at most, fewer the longer they are ago. now is a time since any
// moment, the same for all calls.
func (h *Heat) Touch(k Key, now time.Duration) float64 {
	slot := &h.slots[k%heatSlots]
	tag := uint64(k) >> (heatTimeBits + heatCountBits)
	tick := uint64(now/heatTick) & (1<<heatTimeBits - 1)
	was := slot.Load()
	ticks := (tick - was>>heatCountBits) & (1<<heatTimeBits - 1)
	if ticks >= 1<<(heatTimeBits-1) { // somebody has touched it who read the clock later
		ticks, tick = 0, was>>heatCountBits&(1<<heatTimeBits-1)
	}
	age := time.Duration(ticks) * heatTick
	count := float64(was&(1<<heatCountBits-1)) / heatUnit * math.Exp(-float64(age)/float64(heatFades))
	if was>>(heatTimeBits+heatCountBits) != tag {
		if count >= 1 {
			return 0 // the slot is another's, who is here more often
		}
		count = 0
	}
	counted := min(uint64((count+1)*heatUnit+0.5), 1<<heatCountBits-1)
	// Of two prompts at the same time one may not count.
	slot.CompareAndSwap(was, tag<<(heatTimeBits+heatCountBits)|tick<<heatCountBits|counted)
	return count
}
