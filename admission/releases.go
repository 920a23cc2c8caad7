package admission

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
	f := t.modelGroup
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
