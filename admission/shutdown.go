package admission

import "time"

// stopping is how far a router that stops has come.
type stopping struct{ noArrivals, noWaits bool }

// StopArrivals refuses new requests from now on. Those who wait are served, and
// requests that were admitted before may still be retried.
func (x *stopping) StopArrivals() { x.noArrivals = true }

// DrainWithin tells that waiting ends in d, because the router stops. Those who
// cannot start before that, at the pace of their queue, are refused now, and so is
// who would have to wait from now on. It is looked at again once a second.
func (c *Core) DrainWithin(now Instant, d time.Duration, out *[]*Ticket) {
	c.drainEnd = now.Add(d)
	c.refuseTooLate(now, out)
}

// RefuseWaiters ends every wait because the router shuts down; from now on
// nobody may wait, retries included.
func (c *Core) RefuseWaiters(now Instant, out *[]*Ticket) {
	c.noWaits = true
	for _, f := range c.modelGroups {
		for _, t := range f.inOrder() {
			c.dequeue(now, t)
			c.refuse(now, t, Draining, ResourceNone, 0, out)
		}
	}
}

// refuseTooLate refuses the waiters who cannot start before the drain ends, the
// oldest first. Who waits for a worker may start whenever one comes.
func (c *Core) refuseTooLate(now Instant, out *[]*Ticket) {
	if c.drainEnd == never {
		return
	}
	for _, f := range c.modelGroups {
		for _, p := range f.profiles {
			for _, q := range p.classes {
				for _, l := range q.all.All() {
					c.findLate(now, l.lane)
				}
			}
		}
		if len(c.unservable) == 0 {
			continue
		}
		c.refuseUnservable(now, Draining, ResourceNone, out)
		c.drain(now, f, out)
	}
}
