package admission

import "time"

// Advance lets time pass: waits that are over end, and the safety net looks for
// room that no event told of.
func (c *Core) Advance(now Instant, out *[]*Ticket) {
	c.expire(now, out)
	c.askDue(now)
	if now < c.nextRecheck {
		return
	}
	c.nextRecheck = now.Add(recheckEvery)
	for _, f := range c.modelGroups {
		if f.waiting > 0 {
			if c.placeFence(now, f) {
				c.drain(now, f, out) // that it was due is no missed event
			}
			c.wake(f, nil)
			c.missed += uint64(c.drain(now, f, out))
			if !c.laned {
				c.chooser.noteHeldUp(now, f)
			}
		}
	}
	c.refuseTooLate(now, out)
	if c.waiting == 0 {
		c.nextRecheck = never
	}
}

// NextDeadline is when Advance must be called at the latest.
func (qs *queues) NextDeadline() Instant {
	return min(qs.deadlines.next(), qs.nextRecheck, qs.nextRefresh)
}

// expire ends the waits whose time is over, then serves those behind them.
func (c *Core) expire(now Instant, out *[]*Ticket) {
	for c.deadlines.next() <= now {
		t := c.deadlines.First().Ticket
		f := t.modelGroup()
		if t.declining() && t.wakeAt < t.bound() { // it takes now what it declined
			c.endDecline(now, t)
			if t.wakeAt > now {
				c.drain(now, f, out)
			}
			continue
		}
		lack := t.lane.queue.lackFor(ResourceTurn)
		before := t.waited
		others := c.dequeue(now, t)
		c.refuseAtBound(now, t, lack, before, out)
		if others {
			c.drain(now, f, out)
		}
	}
}

// refuseAtBound refuses t, whose wait is over; it had waited for so long before that wait.
func (ds *decisions) refuseAtBound(now Instant, t *Ticket, lack Resource, before time.Duration, out *[]*Ticket) {
	switch t.wakeAt { // what ends first names the reason
	case t.lostAt:
		ds.refuse(now, t, NoWorkers, ResourceWorker, 0, out)
	case t.Deadline:
		ds.refuseLate(now, t, LimitClientWait, lack, t.patience(), out)
	case t.classAt:
		ds.refuseLate(now, t, LimitClassWait, lack, t.classLimit, out)
	default:
		ds.refuse(now, t, QueueTimeout, lack, int64(t.limitAt.Sub(t.queuedAt)+before), out)
	}
}
