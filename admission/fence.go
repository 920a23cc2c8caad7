package admission

// placeFence sets a fence for the oldest head that has waited long enough and could be
// served by some rank. It tells whether it did: then the owner may have room at once,
// because it is not judged by the part of busy ranks.
func (c *Core) placeFence(now Instant, f *modelGroup) bool {
	if c.limits.StarvationGuard <= 0 || f.fence.owner != nil || now < f.fenceAt {
		return false
	}
	f.fenceAt, f.fenceWaits = never, false
	var oldest *Ticket
	for _, p := range f.profiles {
		for _, q := range p.classes {
			for _, l := range q.all.All() {
				switch due := l.since.Add(c.limits.StarvationGuard); {
				case l.since == 0, !hasCandidate(l.head()): // who waits for a worker is not overtaken
				case due > now:
					f.fenceAt = min(f.fenceAt, due)
				case l.granted == f.grants:
					f.fenceWaits = true // nobody was granted since: there is nothing to guard against
				case oldest == nil || l.head().before(oldest):
					oldest = l.head()
				}
			}
		}
	}
	if oldest == nil {
		return false
	}
	p, d := c.chooser.fenceable(oldest)
	f.fence = fence{oldest, p, d}
	c.fences++
	return true
}

// endFence opens the fenced ranks; heads that were kept off them are looked at
// again.
func (qs *queues) endFence(f *modelGroup) {
	f.fence, f.fenceEnded = fence{}, true
	f.fenceAt = 0 // the next one may be due
	qs.wake(f, nil)
}

// moveFence finds other ranks for a fence whose ranks cannot serve its owner any
// more.
func (ch *chooser) moveFence(f *modelGroup) {
	x := &f.fence
	if x.owner != nil && !ch.fenceHolds(x) {
		x.prefill, x.decode = ch.fenceable(x.owner)
	}
}
