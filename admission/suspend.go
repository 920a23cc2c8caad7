package admission

import "slices"

// suspend takes waiters out of their queues until putBackAll: whoever sent them cannot be
// told that they are granted. They keep their place, and block nobody meanwhile. Their
// waits go on, but are ended by nobody here: a bound that has passed ends them when they
// are put back. They count in no bound of a queue.
func suspend(c *Core, now Instant, tickets []*Ticket, out *[]*Ticket) {
	c.tick(now)
	var left []*modelGroup
	for _, t := range tickets {
		if t.state != stateQueued {
			continue
		}
		f := t.modelGroup()
		if c.dequeue(now, t) && !slices.Contains(left, f) {
			left = append(left, f)
		}
		t.waited -= now.Sub(t.queuedAt)
		t.state = stateSuspended
	}
	for _, f := range left {
		c.drain(now, f, out)
	}
}

// putBackAll queues suspended waiters again, in their place, whatever the bounds of queues are.
func putBackAll(c *Core, now Instant, tickets []*Ticket, out *[]*Ticket) {
	c.tick(now)
	waiters := slices.DeleteFunc(slices.Clone(tickets), func(t *Ticket) bool { return t.state != stateSuspended })
	slices.SortFunc(waiters, (*Ticket).compare)
	for _, t := range waiters {
		putBack(c, now, t, out)
	}
	c.dropUnusedModels(&c.rankIndex)
	for _, f := range c.modelGroups {
		c.drain(now, f, out)
	}
}

// putBack queues t, which was suspended or waited at another core, or ends its wait.
func putBack(c *Core, now Instant, t *Ticket, out *[]*Ticket) {
	t.state = stateIdle
	if t.Target.model.dead {
		c.requeue(now, t)
	}
	c.classify(t)
	pair := c.chooser.servable(t.Target, t.mask)
	why := reasonNone
	switch {
	case c.noWaits:
		why = Draining
	case pair:
		t.lostAt = never
	case t.lostAt != never:
	case c.noWorkerWait(t) > 0:
		t.lostAt = now.Add(c.noWorkerWait(t))
	default:
		why = NoWorkers
	}
	if why != reasonNone {
		t.waited += now.Sub(t.queuedAt)
		c.refuse(now, t, why, ResourceWorker, 0, out)
		return
	}
	t.setWake()
	if t.wakeAt <= now {
		before := t.waited
		t.waited += now.Sub(t.queuedAt)
		c.refuseAtBound(now, t, t.queue().lackFor(ResourceTurn), before, out)
		return
	}
	t.state = stateQueued
	c.enter(now, t, pair)
}
