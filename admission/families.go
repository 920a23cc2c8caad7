package admission

import "slices"

// recheckTarget finds the waiters of a target that has no candidate any more,
// for endLost, or starts the time they still have.
func (c *Core) recheckTarget(now Instant, t *Target) {
	if t.waiters.first == nil {
		return
	}
	pair := c.hasPair(t)
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
			c.lost = append(c.lost, w)
		}
	}
}

// endLost ends the waiters in c.lost, the oldest first.
func (c *Core) endLost(now Instant, why Reason, lack Resource, out *[]*Ticket) {
	slices.SortFunc(c.lost, (*Ticket).compare)
	for i, t := range c.lost {
		c.dequeue(now, t)
		c.refuse(now, t, why, lack, 0, out)
		c.lost[i] = nil
	}
	c.lost = c.lost[:0]
}

// restructure finds the families anew when models came or went or a rank
// serves several of them; waiters keep their place.
func (c *Core) restructure(now Instant, shared bool) {
	if c.structure == 0 && !shared {
		return
	}
	c.structure = 0
	root := make(map[*model]*model, len(c.models))
	find := func(m *model) *model {
		for root[m] != nil && root[m] != m {
			m = root[m]
		}
		return m
	}
	for _, r := range c.ranks {
		if r == nil || len(r.pools) < 2 {
			continue
		}
		for _, p := range r.pools[1:] {
			if a, b := find(r.pools[0].model), find(p.model); a != b {
				if a.name > b.name {
					a, b = b, a
				}
				root[b] = a
			}
		}
	}
	used := map[*family]bool{}
	for _, m := range c.ordered {
		if find(m) == m {
			if used[m.family] { // it was split off a shared one
				m.family = &family{fenceAt: never}
			}
			used[m.family] = true
		}
	}
	// The waiters of models that change their family leave their queues before
	// these are found anew, and keep their place.
	var waiters []*Ticket
	for _, f := range c.families {
		f.eachWaiter(func(t *Ticket) {
			if find(t.Target.model).family != f {
				waiters = append(waiters, t)
			}
		})
	}
	slices.SortFunc(waiters, (*Ticket).compare)
	for _, t := range waiters {
		c.extract(now, t)
	}
	c.families = c.families[:0:0]
	for _, m := range c.ordered {
		if r := find(m); r == m {
			c.families = append(c.families, m.family)
		}
	}
	for _, m := range c.ordered {
		if f := find(m).family; m.queues == nil || m.family != f || !slices.Contains(f.profiles, m.queues) {
			c.join(m, f)
		}
	}
	for _, t := range waiters {
		c.insert(now, t)
	}
	for _, f := range c.families {
		f.profiles = slices.DeleteFunc(f.profiles, func(p *profileQueue) bool {
			return !slices.ContainsFunc(c.ordered, func(m *model) bool { return m.queues == p })
		})
	}
}

// revive finds a target anew whose model had lost all ranks. The class stays: a
// request that is under way has the one it was granted with.
func (c *Core) revive(now Instant, t *Ticket) {
	old := t.Target
	t.Target = c.intern(c.model(old.model.name), old.spec.withShape(old.shape))
	if !old.free {
		if t.Target.gate == nil {
			t.Target.gate = old.gate
		}
		c.unref(old)
	}
	c.restructure(now, false)
}

func (s TargetSpec) withShape(shape Shape) TargetSpec {
	s.Shape = shape
	return s
}

// buryModels forgets models that no rank serves and nobody waits for.
func (c *Core) buryModels() {
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
		c.ordered = slices.DeleteFunc(c.ordered, func(o *model) bool { return o == m })
		shared := false
		for _, o := range c.models {
			shared = shared || o.family == m.family
		}
		if !shared {
			c.families = slices.DeleteFunc(c.families, func(f *family) bool { return f == m.family })
		}
	}
}
