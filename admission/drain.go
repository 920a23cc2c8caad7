package admission

// drainAfter lets the waiters have what was given back on r.
func (c *Core) drainAfter(now Instant, r *Rank, out *[]*Ticket) {
	if f := c.wakeFor(r); f != nil {
		c.drain(now, f, out)
	}
}

// Cancel takes a waiter out of the queue. It reports false when the ticket was
// not waiting: then it was decided before, and a granted one must be released.
func (c *Core) Cancel(now Instant, t *Ticket, out *[]*Ticket) bool {
	if t.state != stateQueued {
		return false
	}
	f := t.modelGroup()
	if c.dequeue(now, t) {
		c.drain(now, f, out)
	}
	return true
}

// EndPrefill ends the prefill slot and the prefill load of a ticket. Repeated
// calls do nothing.
func (c *Core) EndPrefill(now Instant, t *Ticket, out *[]*Ticket) {
	if c.endPrefill(now, t) {
		c.drainAfter(now, t.Prefill, out)
	}
}

// EndDecode ends the decode holds of a ticket, or all of an aggregated one's.
// Repeated calls do nothing.
func (c *Core) EndDecode(now Instant, t *Ticket, out *[]*Ticket) {
	if c.endDecode(now, t) {
		c.drainAfter(now, t.Decode, out)
	}
}

// Release ends every hold of a ticket. Repeated calls do nothing.
func (c *Core) Release(now Instant, t *Ticket, out *[]*Ticket) {
	p, d := c.endPrefill(now, t), c.endDecode(now, t)
	if t.state == stateGranted {
		t.state = stateIdle
	}
	// Both ends come free together: who needs both sees both.
	var fp, fd *modelGroup
	if p {
		fp = c.wakeFor(t.Prefill)
	}
	if d {
		fd = c.wakeFor(t.Decode)
	}
	if fp != nil && fp != fd {
		c.drain(now, fp, out)
	}
	if fd != nil {
		c.drain(now, fd, out)
	}
}

// drain grants to waiters of a model group while there is room for a head.
//
// Heads that are found without room stay blocked until something happens that
// concerns them, so a drain looks at each lane that was woken at most once for
// each grant of it, and once more. The end of a fence wakes lanes that were looked at
// before in the same round.
func (c *Core) drain(now Instant, f *modelGroup, out *[]*Ticket) int {
	granted := 0
	for f.waiting > 0 {
		f.fenceEnded = false
		t := c.nextOf(now, f, out)
		if t == nil && f.fenceEnded {
			continue
		}
		if t == nil {
			break
		}
		q := t.lane.queue
		q.deficit -= t.cost()
		if len(q.passed) > 0 {
			q.pass(t)
		}
		c.dequeue(now, t)
		c.grant(now, t, f, out)
		granted++
	}
	f.note(now)
	if c.matchers > 0 {
		c.askAll(now, f)
	}
	return granted
}

// nextOf returns the waiter of f to be granted next, with its ranks chosen.
func (c *Core) nextOf(now Instant, f *modelGroup, out *[]*Ticket) *Ticket {
	c.placeFence(now, f)
	if o := f.fence.owner; o != nil {
		if c.chooser.choose(o) == ResourceNone {
			o.lane.queue.passedBy = nil
			return o
		}
	}
	if len(f.profiles) == 1 {
		return c.nextIn(now, f.profiles[0], out)
	}
	var first *Ticket
	for _, p := range f.profiles {
		if p.waiting == 0 {
			continue
		}
		if t := c.nextIn(now, p, out); t != nil && (first == nil || t.before(first)) {
			first = t
		}
	}
	return first
}

// nextIn returns the waiter of a profile to be granted next, with its ranks chosen.
func (c *Core) nextIn(now Instant, p *profileQueue, out *[]*Ticket) *Ticket {
	round := c.newRound(p)
	for i := range p.classes {
		at := p.turn(i)
		if t := c.startable(now, p.classes[at], out); t != nil && round.offer(at, t) {
			return t
		}
	}
	return c.settle(&round)
}

// startable returns the first head of q, in the order of the class, that has
// room, with its ranks chosen. Those before it are blocked. With a lookahead it is one of
// the first waiters.
func (c *Core) startable(now Instant, q *classQueue, out *[]*Ticket) *Ticket {
	if c.limits.AffinityLookahead > 1 {
		return c.affinity.startable(now, q, out)
	}
	if len(q.masked) > 0 {
		q.unbar()
	}
	for len(q.declining) > 0 { // there was a lookahead
		c.endDecline(now, q.declining[0])
	}
	for q.ready.Len() > 0 {
		l := q.ready.First().lane
		t := l.head()
		if c.chooser.barred(q, t) {
			q.bar(t)
			break
		}
		if c.reconsider(now, t) {
			continue
		}
		switch lack := c.chooser.choose(t); lack {
		case ResourceNone:
			return t
		case ResourceOverloaded:
			c.dequeue(now, t)
			c.refuse(now, t, AllOverloaded, lack, 0, out)
		default:
			c.block(now, l, lack, c.few(t.Target, l.waitsOn(lack)))
		}
	}
	return nil
}

// grant books what choose chose. It tells whether that took a rank over a reject
// threshold, so that heads whose last candidate it was have to be refused.
func (c *Core) grant(now Instant, t *Ticket, f *modelGroup, out *[]*Ticket) bool {
	turns := c.overTurns
	c.book(t)
	m := t.Target.model
	if t.Prefill != nil {
		m.pools[RolePrefill].booked(t.Prefill, &t.Hints[PrefillLeg])
	}
	m.pools[t.Target.role(DecodeLeg)].booked(t.Decode, &t.Hints[DecodeLeg])
	c.beginRuns(now, t)
	c.lost.count(now, &t.choice)
	f.grants++
	if f.fenceWaits {
		f.fenceWaits, f.fenceAt = false, now
	}
	c.decide(t, stateGranted, out)
	if c.overTurns == turns {
		return false
	}
	c.wake(f, nil)
	return true
}
