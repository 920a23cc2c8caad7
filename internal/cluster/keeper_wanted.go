package cluster

// While somebody waits, members tell of steps at once, because each may give back what the
// waiter lacks; else steps ride with the next envelope that goes out anyway. Members are
// told which it is in each envelope.

// somebodyWaits tells whether requests wait, or did a moment ago: the answer is to change
// some times a second at most.
func (k *keeper) somebodyWaits() bool {
	for _, s := range k.order {
		if s.waits > 0 {
			k.waitedUntil = k.m.now.Add(k.m.o.Beat)
			break
		}
	}
	return k.m.now < k.waitedUntil
}

// waitsNow tells members that somebody waits, if they do not know.
func (k *keeper) waitsNow() {
	if k.m.now >= k.waitedUntil {
		for _, p := range k.m.order {
			p.ackNow = true
		}
	}
	k.waitedUntil = k.m.now.Add(k.m.o.Beat)
}
