package admission

import "slices"

// Apply makes fleet changes take effect together. Waiters that are left without
// a candidate are ended, those for whom there is room now are granted.
func (c *Core) Apply(now Instant, changes []Change, out *[]*Ticket) {
	c.tick(now)
	if onlyReports(changes) {
		c.applyReports(now, changes, out)
		return
	}
	structure, described := false, false // which models share ranks; what ranks are
	for _, ch := range changes {
		described = described || ch.Op == AddRank || ch.Op == RemoveRank || ch.Op == SetAttributes
		switch ch.Op {
		case AddRank:
			structure = structure || len(ch.Rank.models) > 1
			c.addRank(ch.Rank)
		case RemoveRank:
			structure = structure || len(ch.Rank.models) > 1
			c.removeRank(ch.Rank)
		case SetState:
			if ch.Rank.present {
				c.setState(ch.Rank, ch.State)
			}
		case SetAttributes:
			if ch.Rank.present {
				structure = structure || len(ch.Rank.models) > 1 || len(ch.Attributes.Models) > 1
				c.setAttributes(ch.Rank, ch.Attributes)
			}
		case QuarantinePair:
			c.quarantines.add(ch.Rank, ch.Other)
		case EndQuarantine:
			c.quarantines.end(ch.Rank, ch.Other)
		case SetReport:
			if ch.Rank.present {
				c.setReport(ch.Rank, ch.Report)
			}
		case SetAside:
			setAside(&c.rankIndex, ch.Rank, ch.Aside)
		}
	}
	c.chooser.grow()
	for _, m := range c.masks {
		m.index(c.words)
	}
	if described {
		publishAllPartners(&c.rankIndex)
	}
	c.restructure(now, &c.rankIndex, structure)
	for _, m := range c.modelsByName {
		for _, t := range m.targets {
			if t.waiters.first != nil {
				c.recheckTarget(now, t, c.chooser.servable(t, nil))
			}
		}
	}
	for _, t := range c.pinned {
		if t.waiters.first != nil {
			c.recheckTarget(now, t, c.chooser.servable(t, nil))
		}
	}
	recheckMasked(c, now)
	c.refuseUnservable(now, NoWorkers, ResourceWorker, out)
	c.dropUnusedModels(&c.rankIndex)
	for _, f := range c.modelGroups {
		c.chooser.moveFence(f)
		c.wake(f, nil)
		c.drain(now, f, out)
	}
}

// onlyReports tells whether no change is of anything but what engines report.
func onlyReports(changes []Change) bool {
	for i := range changes {
		if changes[i].Op != SetReport {
			return false
		}
	}
	return len(changes) > 0
}

// applyReports is Apply for reports alone. It looks at the ranks that are named and at the
// waiters they may have room for, and at nothing else.
func (c *Core) applyReports(now Instant, changes []Change, out *[]*Ticket) {
	for i := range changes {
		r := changes[i].Rank
		if !r.present {
			continue
		}
		f := r.pools[0].model.modelGroup
		switch more := c.setReport(r, changes[i].Report); {
		case f.waiting == 0, !more && !c.open(f):
			continue
		case more:
			c.wake(f, r)
		}
		if !slices.Contains(c.touched, f) {
			c.touched = append(c.touched, f)
		}
	}
	for _, f := range c.touched {
		c.drain(now, f, out)
	}
	clear(c.touched)
	c.touched = c.touched[:0]
}

// recheckTarget finds the waiters of a target that has no candidate any more,
// for refuseUnservable, or starts the time they still have. pair: it has one.
func (qs *queues) recheckTarget(now Instant, t *Target, pair bool) {
	if pair == t.paired && (pair || qs.limits.NoWorkerWait > 0) {
		return
	}
	t.paired = pair
	for w := t.waiters.first; w != nil; w = w.next {
		if w.mask == nil {
			recheck(qs, now, w, pair)
		}
	}
}

// recheck starts or ends the time that a waiter has until there is a candidate for it; it is
// unservable where there is no such time.
func recheck(qs *queues, now Instant, w *Ticket, pair bool) {
	switch {
	case pair:
		w.lostAt = never
		w.setWake()
		qs.deadlines.Fix(int(w.deadlinePos))
		w.modelGroup().fenceAt = 0 // a fence may be due for it
	case qs.limits.NoWorkerWait > 0:
		w.lostAt = now.Add(qs.noWorkerWait(w))
		w.setWake()
		qs.deadlines.Fix(int(w.deadlinePos))
	default:
		qs.unservable = append(qs.unservable, w)
	}
}

// refuseUnservable ends the waiters in c.unservable, the oldest first.
func (c *Core) refuseUnservable(now Instant, why Reason, lack Resource, out *[]*Ticket) {
	slices.SortFunc(c.unservable, (*Ticket).compare)
	for i, t := range c.unservable {
		c.dequeue(now, t)
		c.refuse(now, t, why, lack, 0, out)
		c.unservable[i] = nil
	}
	c.unservable = c.unservable[:0]
}

// requeue finds the targets of t anew, whose model had lost all ranks. The class stays: a
// request that is under way has the one it was granted with.
func (c *Core) requeue(now Instant, t *Ticket) {
	old := t.Target.model
	t.Target = c.renew(t.Target)
	if t.Instead != nil && t.Instead.model == old {
		t.Instead = c.renew(t.Instead)
	}
	c.restructure(now, &c.rankIndex, false)
}

// renew returns the target that old is on the model that has its name now.
func (ix *rankIndex) renew(old *Target) *Target {
	t := ix.intern(ix.model(old.model.name), old.spec.withShape(old.shape))
	if !old.free {
		if t.gate == nil {
			t.gate = old.gate
		}
		ix.unref(old)
	}
	return t
}

func (s TargetSpec) withShape(shape Shape) TargetSpec {
	s.Shape = shape
	return s
}

// dropUnusedModels forgets models that no rank serves and nobody waits for.
func (qs *queues) dropUnusedModels(ix *rankIndex) {
	for name, m := range ix.models {
		if m.ranks > 0 {
			continue
		}
		waits := false
		for _, t := range m.targets {
			waits = waits || t.waiters.first != nil
		}
		for _, t := range ix.pinned {
			waits = waits || t.model == m
		}
		if waits {
			continue
		}
		m.dead = true
		ix.idle = slices.DeleteFunc(ix.idle, func(t *Target) bool {
			if t.model == m {
				delete(ix.pinned, t.key)
			}
			return t.model == m
		})
		delete(ix.models, name)
		ix.modelsByName = slices.DeleteFunc(ix.modelsByName, func(o *model) bool { return o == m })
		shared := false
		for _, o := range ix.models {
			shared = shared || o.modelGroup == m.modelGroup
		}
		if !shared {
			qs.modelGroups = slices.DeleteFunc(qs.modelGroups, func(f *modelGroup) bool { return f == m.modelGroup })
		}
	}
}
