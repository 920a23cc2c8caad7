package admission

// Passed requests hold nothing and wait for nobody: tokenizing, say, needs no KV
// cache. Pins, labels, adapters and the policy choose their rank as for any other
// request, among all candidates, with room or not.

// Pass chooses a rank of the role for a request that holds nothing, and counts it
// there until EndPass. It is nil when no candidate is eligible. s names the target
// as for a request that needs one rank, by DecodeLeg; its shape means nothing here.
// exclude are ranks that failed it before; the other ranks of their workers are avoided
// while those of others are left.
//
// The policy is one of its own for the pool: if it shared the turns of admitted
// requests, two sorts of requests that come by turns would each stay on one half of
// the ranks. The loads it sees are those of admitted and passed requests together.
func (g *Gate) Pass(s TargetSpec, role Role, h *Hint, exclude ...*Rank) *Rank {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.chooser.Pass(s, role, h, exclude)
}

// EndPass ends what Pass has counted.
func (g *Gate) EndPass(r *Rank) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.endPass()
}

// Serves tells whether any registered rank of the role, a candidate or not, is in
// the pool that requests for the model go to.
func (g *Gate) Serves(model string, role Role) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := g.core.modelOf(model)
	return m != nil && len(m.pools[role].workers) > 0
}

// Pass is [Gate.Pass].
func (ch *chooser) Pass(s TargetSpec, role Role, h *Hint, exclude []*Rank) *Rank {
	s.Shape = passShape(role)
	s.Topology = TopologyAny // of two ranks
	t := ch.index.Resolve(s)
	if t == nil {
		return nil
	}
	defer ch.index.unref(t)
	return ch.pass(t, h, exclude)
}

// pass chooses a candidate for a request that holds nothing, and counts it there. nil:
// none is eligible.
func (ch *chooser) pass(t *Target, h *Hint, exclude []*Rank) *Rank {
	p := t.model.pools[t.role(DecodeLeg)]
	var s candidates
	s.pools[DecodeLeg] = p
	x := s.of(DecodeLeg)
	*x = rankSet{set: p.cand, n: p.candN}
	if b := t.bits[DecodeLeg]; b != nil {
		ch.and(&s, DecodeLeg, b)
	}
	for _, r := range exclude {
		ch.drop(&s, DecodeLeg, r)
	}
	if x.set.empty() {
		return nil
	}
	if len(exclude) > 0 {
		ch.spare.copyFrom(x.set)
		for _, r := range exclude {
			ch.dropWorker(&s, DecodeLeg, r)
		}
		if x.set.empty() { // only other ranks of the workers that failed are left
			ch.keepSpare(&s, DecodeLeg)
		}
	}
	if t.prefers {
		ch.preferSingle(t, &s)
	}
	if ch.index.ranked(p) {
		ch.preferRanks(&s, DecodeLeg)
	}
	v := &ch.views[DecodeLeg]
	*v = View{set: x.set, n: x.count(), pool: p, group: -1, ranks: ch.index.ranks, passing: true}
	policy := ch.index.passing(p)
	i := policy.Pick(v, h)
	policy.Booked(i, h)
	r := ch.index.ranks[i]
	if p.warmUp.n > 0 {
		p.countTurns(r)
	}
	r.passed++
	return r
}

// endPass is [Gate.EndPass].
func (r *Rank) endPass() {
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
func (ix *rankIndex) passing(p *pool) Policy {
	if p.passing == nil {
		p.passing = ix.newPolicy(p.model.name, p.role)
		for i := p.members.next(-1); i >= 0; {
			p.passing.RankAdded(i, ix.ranks[i].id)
			next := p.members.next(i)
			if next <= i {
				break
			}
			i = next
		}
	}
	return p.passing
}
