package admission

// Passed requests hold nothing and wait for nobody: tokenizing, say, needs no KV
// cache. Pins, labels, adapters and the policy choose their rank as for any other
// request, among all candidates, with room or not.

// Pass chooses a rank of the role for a request that holds nothing, and counts it
// there until EndPass. It is nil when no candidate is eligible. s names the target
// as for a request that needs one rank, by DecodeLeg; its shape means nothing here.
// exclude are ranks that failed it before.
//
// The policy is one of its own for the pool: if it shared the turns of admitted
// requests, two sorts of requests that come by turns would each stay on one half of
// the ranks. The loads it sees are those of admitted and passed requests together.
func (g *Gate) Pass(s TargetSpec, role Role, h Hint, exclude ...*Rank) *Rank {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.Pass(s, role, h, exclude)
}

// EndPass ends what Pass has counted.
func (g *Gate) EndPass(r *Rank) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.core.EndPass(r)
}

// Serves tells whether any registered rank of the role, a candidate or not, is in
// the pool that requests for the model go to.
func (g *Gate) Serves(model string, role Role) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.core.modelOf(model)
	return m != nil && len(m.pools[role].workers) > 0
}

// modelOf is the model that requests for a name go to: where nobody serves it that
// of ranks whose model is not known; nil where there are none.
func (c *Core) modelOf(name string) *model {
	m := c.models[name]
	if m == nil || m.ranks == 0 {
		m = c.models[""]
	}
	if m == nil || m.ranks == 0 {
		return nil
	}
	return m
}

// Pass is [Gate.Pass].
func (c *Core) Pass(s TargetSpec, role Role, h Hint, exclude []*Rank) *Rank {
	s.Shape = passShape(role)
	s.Topology = TopologyAny // of two ranks
	t := c.resolve(s)
	if t == nil {
		return nil
	}
	defer c.unref(t)
	p := t.model.pools[role]
	set := c.scratchD
	set.copyFrom(p.cand)
	if b := t.bits[DecodeLeg]; b != nil {
		set.and(b)
	}
	for _, r := range exclude {
		if r.index >= 0 {
			set.clear(r.index)
		}
	}
	if set.empty() {
		return nil
	}
	if t.prefers {
		c.preferSingle(&Ticket{Target: t})
	}
	c.viewD = View{set: set, n: set.count(), pool: p, group: -1, ranks: c.ranks}
	policy := c.passing(p)
	i := policy.Pick(&c.viewD, h)
	policy.Booked(i, h)
	c.ranks[i].passed++
	return c.ranks[i]
}

// EndPass is [Gate.EndPass].
func (c *Core) EndPass(r *Rank) {
	if r.passed--; r.passed < 0 {
		panic("BUG: a passed request of " + r.id + " ended twice")
	}
}

func passShape(role Role) Shape {
	switch role {
	case RolePrefill:
		return onPrefillOnly
	case RoleDecode:
		return Bypass
	}
	return Aggregated
}

// passing is the policy that chooses for passed requests. Most pools never have any,
// so it is made with the first.
func (c *Core) passing(p *pool) Policy {
	if p.passing == nil {
		p.passing = c.newPolicy(p.model.name, p.role)
		for i := p.members.next(-1); i >= 0; {
			p.passing.RankAdded(i, c.ranks[i].id)
			next := p.members.next(i)
			if next <= i {
				break
			}
			i = next
		}
	}
	return p.passing
}
