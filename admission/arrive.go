package admission

// Arrive brings a ticket to the gate. It is granted, refused, or queued.
func (c *Core) Arrive(now Instant, t *Ticket, out *[]*Ticket) {
	c.tick(now)
	c.expire(now, out)
	if t.state == stateQueued || t.holdsPrefill || t.holdsDecode {
		panic("BUG: a ticket arrived that waits or holds something")
	}
	t.wasQueue = false
	t.Prefill, t.Decode = nil, nil
	if !t.arrived {
		t.arrived, t.arrival = true, now
		c.arrivals++
		t.epoch, t.seq = c.epoch, c.arrivals
	}
	c.arriving = t
	defer func() { c.arriving = nil }()

	if m := t.Target.model; m.dead && m.queues.profile != c.profileOf(m.name) {
		c.join(m, &modelGroup{fenceAt: never}) // it missed a reload
	}
	c.classify(t)
	if c.noArrivals && !t.Retry {
		c.refuse(now, t, Draining, ResourceNone, 0, out)
		return
	}
	if m := t.Target.model; m.dead {
		// The last rank left after the target was resolved; others may have
		// come since.
		if c.models[m.name] == nil && c.noWorkerWait(t) <= 0 {
			c.refuse(now, t, NoWorkers, ResourceWorker, 0, out)
			return
		}
		c.requeue(now, t)
		c.classify(t)
	}
	f := t.Target.model.modelGroup
	pair := c.chooser.servable(t.Target, t.mask)
	if !pair && c.noWorkerWait(t) <= 0 {
		c.refuse(now, t, NoWorkers, ResourceWorker, 0, out)
		return
	}
	q := t.queue()
	if c.placeFence(now, f) {
		c.drain(now, f, out)
	}
	lack := ResourceTurn
	// A request whose lane is empty starts when there is room: those who wait
	// have been found without. In its lane it may pass those that the order of
	// the class puts behind it, among them all that are younger than a retry.
	// It is looked at before the bounds, which are for those who have to wait.
	l := q.lane(&c.queues, t)
	declines := false
	if (l == nil || t.ahead(l.head()) || !l.blocked() && c.among(q, t)) && !c.chooser.barred(q, t) {
		lack = c.chooser.choose(t)
		declines = lack == ResourceNone && c.limits.AffinityLookahead > 1 && c.waits(now, t, q)
		if lack == ResourceNone && !declines {
			if l != nil {
				q.deficit -= t.cost()
			}
			if c.grant(now, t, f, out) {
				c.drain(now, f, out)
			}
			if f.waiting > 0 {
				c.lookAgain(now, f, out)
			}
			return
		}
		t.Prefill, t.Decode = nil, nil
		t.reconsidered = true // it was decided just now
	}
	if declines {
		c.enqueue(now, t, pair)
		c.drain(now, f, out) // it may stand before others now that are not known to be blocked
		return
	}
	if lack == ResourceOverloaded || lack == ResourceTurn && c.chooser.allOverloaded(t) {
		c.refuse(now, t, AllOverloaded, ResourceOverloaded, 0, out)
		return
	}
	t.classAt, t.classLimit = t.classWait(now)
	switch {
	case c.noWaits, pair && c.drainEnd != never && c.late(now, q, l.aheadOf(t), l.leg(t, lack)):
		c.refuse(now, t, Draining, ResourceNone, 0, out)
		return
	case t.Retry && (c.limits.QueueSize <= 0 || c.timeLeft(t) <= 0 || q.class.never || t.classAt <= now):
		c.refuse(now, t, RetryRefused, lack, 0, out)
		return
	case !t.Retry && c.refuseFull(now, t, q, pair, lack, out):
		return
	case c.timeLeft(t) <= 0:
		c.refuse(now, t, QueueTimeout, q.lackFor(lack), int64(c.limits.QueueTimeout), out)
		return
	case t.Deadline != 0 && t.Deadline <= now && t.Deadline <= t.classAt:
		c.refuseLate(now, t, LimitClientWait, q.lackFor(lack), t.patience(), out)
		return
	case t.classAt <= now:
		c.refuseLate(now, t, LimitClassWait, q.lackFor(lack), t.classLimit, out)
		return
	}
	if c.limits.RefuseEarly && pair && !t.Retry && c.refuseEarly(now, t, q, l, lack, out) {
		return
	}
	t.lacked = q.lackFor(lack)
	c.enqueue(now, t, pair)
	switch {
	case t.lane.head() != t:
	case lack == ResourceTurn:
		q.barLane(t.lane)
	default:
		c.block(now, t.lane, lack, c.few(t.Target, t.lane.waitsOn(lack)))
		f.note(now)
		if !c.laned && len(q.masked) > 0 {
			c.drain(now, f, out) // it may stand before the one that barred others, and not bar them
		}
	}
}
