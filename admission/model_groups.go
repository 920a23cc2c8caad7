package admission

import "slices"

// recheckTarget finds the waiters of a target that has no candidate any more,
// for refuseUnservable, or starts the time they still have.
func (c *Core) recheckTarget(now Instant, t *Target) {
	if t.waiters.first == nil {
		return
	}
	pair := c.chooser.servable(t)
	if pair == t.paired && (pair || c.limits.NoWorkerWait > 0) {
		return
	}
	t.paired = pair
	for w := t.waiters.first; w != nil; w = w.next {
		switch {
		case pair:
			w.lostAt = never
			w.setWake()
			c.deadlines.fix(w)
		case c.limits.NoWorkerWait > 0:
			w.lostAt = now.Add(c.noWorkerWait(w))
			w.setWake()
			c.deadlines.fix(w)
		default:
			c.unservable = append(c.unservable, w)
		}
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

// restructure finds the families anew when models came or went or a rank
// serves several of them; waiters keep their place.
func (qs *queues) restructure(now Instant, ix *rankIndex, shared bool) {
	if ix.structure == 0 && !shared {
		return
	}
	ix.structure = 0
	models := ix.modelsByName
	first := firstOfShared(models, ix.ranks)
	used := map[*family]bool{}
	for _, m := range models {
		if first[m] == m {
			if m.family == nil || used[m.family] { // new, or split off a shared one
				m.family = &family{fenceAt: never}
			}
			used[m.family] = true
		}
	}
	waiters := qs.takeOut(now, func(t *Ticket) bool { return first[t.Target.model].family != t.family })
	qs.families = qs.families[:0:0]
	for _, m := range models {
		if first[m] == m {
			qs.families = append(qs.families, m.family)
		}
	}
	for _, m := range models {
		if f := first[m].family; m.queues == nil || m.family != f || !slices.Contains(f.profiles, m.queues) {
			qs.join(m, f)
		}
	}
	for _, t := range waiters {
		qs.insert(now, t)
	}
	for _, f := range qs.families {
		f.profiles = slices.DeleteFunc(f.profiles, func(p *profileQueue) bool {
			return !slices.ContainsFunc(models, func(m *model) bool { return m.queues == p })
		})
	}
}

// firstOfShared returns, for each model, the first by name of those that share ranks
// with it, directly or by way of others. models are sorted.
func firstOfShared(models []*model, ranks []*Rank) map[*model]*model {
	first := make(map[*model]*model, len(models))
	for _, m := range models {
		first[m] = m
	}
	for changed := true; changed; {
		changed = false
		for _, r := range ranks {
			if r == nil || len(r.pools) < 2 {
				continue
			}
			least := first[r.pools[0].model]
			for _, p := range r.pools[1:] {
				if o := first[p.model]; o.name < least.name {
					least = o
				}
			}
			for _, p := range r.pools {
				if first[p.model] != least {
					first[p.model], changed = least, true
				}
			}
		}
	}
	return first
}

// takeOut takes the waiters for which leaves holds out of their queues, and returns them
// by their first arrival.
func (qs *queues) takeOut(now Instant, leaves func(*Ticket) bool) []*Ticket {
	var all []*Ticket
	for _, f := range qs.families {
		f.eachWaiter(func(t *Ticket) {
			if leaves(t) {
				all = append(all, t)
			}
		})
	}
	slices.SortFunc(all, (*Ticket).compare)
	for _, t := range all {
		qs.extract(now, t)
	}
	return all
}

// requeue finds a target anew whose model had lost all ranks. The class stays: a
// request that is under way has the one it was granted with.
func (c *Core) requeue(now Instant, t *Ticket) {
	old := t.Target
	t.Target = c.intern(c.model(old.model.name), old.spec.withShape(old.shape))
	if !old.free {
		if t.Target.gate == nil {
			t.Target.gate = old.gate
		}
		c.unref(old)
	}
	c.restructure(now, &c.rankIndex, false)
}

func (s TargetSpec) withShape(shape Shape) TargetSpec {
	s.Shape = shape
	return s
}

// dropUnusedModels forgets models that no rank serves and nobody waits for.
func (c *Core) dropUnusedModels() {
	for name, m := range c.models {
		if m.ranks > 0 {
			continue
		}
		waits := false
		for _, t := range m.targets {
			waits = waits || t.waiters.first != nil
		}
		for _, t := range c.pinned {
			waits = waits || t.model == m
		}
		if waits {
			continue
		}
		m.dead = true
		c.idle = slices.DeleteFunc(c.idle, func(t *Target) bool {
			if t.model == m {
				delete(c.pinned, t.key)
			}
			return t.model == m
		})
		delete(c.models, name)
		c.modelsByName = slices.DeleteFunc(c.modelsByName, func(o *model) bool { return o == m })
		shared := false
		for _, o := range c.models {
			shared = shared || o.family == m.family
		}
		if !shared {
			c.families = slices.DeleteFunc(c.families, func(f *family) bool { return f == m.family })
		}
	}
}
