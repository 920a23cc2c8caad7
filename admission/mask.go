package admission

import "slices"

// mask is the ranks that the requests of one origin may not use, because it cannot reach
// them though others can. For those requests they are no candidates. A waiter whom only
// that holds back keeps nobody from starting: it stands in a lane of its own, also in strict
// order.
type mask struct {
	origin uint64
	ranks  []*Rank // registered or not
	bits   bitmap  // of those that are
}

// index brings the bits in line with which ranks are registered.
func (m *mask) index(words int) {
	m.bits = m.bits.grow(words)
	clear(m.bits)
	for _, r := range m.ranks {
		if r.index >= 0 {
			m.bits.set(r.index)
		}
	}
}

// take takes the masked ranks from the candidates.
func (m *mask) take(f *filter, s *candidates) {
	for l := s.gating(); l < numLegs; l++ {
		f.andNot(s, l, m.bits)
	}
}

// maskOf returns the mask of an origin, or nil.
func maskOf(ix *rankIndex, origin uint64) *mask {
	for _, m := range ix.masks {
		if m.origin == origin {
			return m
		}
	}
	return nil
}

// heldByMask tells whether t would have room if its origin had no mask.
func (f *filter) heldByMask(t *Ticket) bool {
	m := t.mask
	if m == nil {
		return false
	}
	t.mask = nil
	room := f.hasRoom(t)
	t.mask = m
	return room
}

// barred tells whether t has to wait because of another lane: in strict order, where lanes
// are there only for masks, behind each head without room that would have none without its
// mask either.
func (f *filter) barred(q *classQueue, t *Ticket) bool {
	if len(q.masked) == 0 && t.mask == nil || q.closed.queues.laned {
		return false
	}
	for _, l := range q.all.All() {
		if o := l.head(); o != t && o.ahead(t) && f.blocks(o) {
			return true
		}
	}
	return false
}

// blocks tells whether t, the head of a lane, has no room, whatever its mask.
func (f *filter) blocks(t *Ticket) bool {
	var s candidates
	lack := f.find(t, &s)
	return lack != ResourceNone && lack != ResourceOverloaded && !f.heldByMask(t)
}

// bar keeps the heads of q from being looked at that are not ahead of t, which is barred, until
// unbar: the next look. They count as not blocked: it is not for want of anything.
func (q *classQueue) bar(t *Ticket) {
	for _, l := range q.all.All() {
		if !l.head().ahead(t) && !l.barred() {
			q.barLane(l.lane)
		}
	}
}

func (q *classQueue) barLane(l *lane) {
	if l.blocked() {
		q.unpark(l)
	} else {
		q.ready.Remove(l.readyPos)
	}
	l.lack, l.since, l.heldUp = ResourceTurn, 0, 0
	park(l, nil)
}

// barred tells whether l was not looked at because of another lane.
func (l *lane) barred() bool { return l.blocked() && l.lack == ResourceTurn }

// anyBarred tells whether that is so of a lane of q.
func (q *classQueue) anyBarred() bool {
	return len(q.masked) > 0 && slices.ContainsFunc(q.wide, (*lane).barred)
}

// unbar lets those heads be looked at again.
func (q *classQueue) unbar() {
	for i := len(q.wide) - 1; i >= 0; i-- {
		if l := q.wide[i]; l.barred() {
			q.unblock(l)
		}
	}
}

// barred is filter.barred.
func (a *affinity) barred(q *classQueue, t *Ticket) bool {
	a.preview.target = nil // the memory of its sets is used
	return a.core.chooser.barred(q, t)
}

// maskedLane is lane for a waiter with a mask. These have lanes by what they need in strict
// order, too: barred keeps the order.
func (q *classQueue) maskedLane(qs *queues, t *Ticket) *lane {
	var rest *lane
	for _, l := range q.masked {
		switch {
		case l.mask != t.mask:
		case l.target == nil:
			rest = l
		case l.target == t.Target && l.exclude.equal(&t.Exclude):
			return l
		}
	}
	if qs.lanes < maxLanes {
		return nil
	}
	return rest
}

// openMasked makes l, which is new, the lane of a waiter with a mask.
func (q *classQueue) openMasked(qs *queues, l *lane, t *Ticket) {
	if qs.lanes < maxLanes {
		l.target = t.Target
		for leg, ranks := range t.Exclude {
			l.exclude[leg] = slices.Clone(ranks)
		}
		qs.lanes++
	}
	q.masked = append(q.masked, l)
}

func (q *classQueue) closeMasked(qs *queues, l *lane) {
	if l.target != nil {
		qs.lanes--
	}
	if q.masked = slices.DeleteFunc(q.masked, func(o *lane) bool { return o == l }); len(q.masked) == 0 {
		q.unbar()
	}
}

// hasCandidate tells whether there was a candidate for t, which waits, at the last fleet
// event.
func hasCandidate(t *Ticket) bool {
	if t.mask != nil {
		return t.lostAt == never
	}
	return t.Target.paired
}

// recheckMasked is recheckTarget for the waiters with a mask.
func recheckMasked(c *Core, now Instant) {
	if len(c.masks) == 0 {
		return
	}
	for _, f := range c.modelGroups {
		f.eachWaiter(func(t *Ticket) {
			if t.mask != nil {
				recheckOne(c, now, t, c.chooser.servable(t.Target, t.mask))
			}
		})
	}
}

// recheckOne is recheckTarget for one waiter.
func recheckOne(c *Core, now Instant, t *Ticket, pair bool) {
	if pair != (t.lostAt == never) || !pair && c.limits.NoWorkerWait <= 0 {
		recheck(&c.queues, now, t, pair)
	}
}

// setMask makes ranks those that an origin may not use; none: it may use all. tickets are
// those of the origin.
func setMask(c *Core, now Instant, origin uint64, ranks []*Rank, tickets []*Ticket, out *[]*Ticket) {
	m := maskOf(&c.rankIndex, origin)
	switch {
	case len(ranks) == 0:
		c.masks = slices.DeleteFunc(c.masks, func(o *mask) bool { return o == m })
		m = nil
	case m == nil:
		m = &mask{origin: origin}
		c.masks = append(c.masks, m)
	}
	if m != nil {
		m.ranks = ranks
		m.index(c.words)
	}
	slices.SortFunc(tickets, (*Ticket).compare)
	for _, t := range tickets {
		if t.mask == m {
			continue
		}
		if t.state == stateQueued {
			relane(c, now, t, m)
		} else {
			t.mask = m
		}
	}
	// Who has no mask any more is judged with the others of its target.
	for _, t := range tickets {
		if t.state != stateQueued {
			continue
		}
		pair := c.chooser.servable(t.Target, m)
		if m == nil {
			t.Target.paired = pair
		}
		recheckOne(c, now, t, pair)
	}
	c.refuseUnservable(now, NoWorkers, ResourceWorker, out)
	for _, f := range c.modelGroups {
		c.chooser.moveFence(f)
		c.wake(f, nil)
		c.drain(now, f, out)
	}
}

// relane gives a waiter another mask, and the lane that goes with it. Its class and its
// place in it stay.
func relane(c *Core, now Instant, t *Ticket, m *mask) {
	q, f := t.lane.queue, t.modelGroup()
	deficit, since, granted := q.deficit, q.pace.since, q.pace.grantedThen
	x := f.fence
	if x.owner == t {
		f.fence = fence{} // it leaves and comes back at once
	}
	c.extract(now, t)
	t.mask = m
	c.insert(now, t)
	if x.owner == t {
		f.fence = x
	}
	q.deficit, q.pace.since, q.pace.grantedThen = deficit, since, granted
}
