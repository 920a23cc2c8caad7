package admission

// choose looks for ranks with room for t and sets them; it books nothing. It
// returns what is lacking, or ResourceNone.
func (c *Core) choose(t *Ticket) Resource {
	m := t.Target.model
	if t.Target.shape == Aggregated {
		return c.chooseRegular(t, m.pools[RoleRegular])
	}
	p, d := m.pools[RolePrefill], m.pools[RoleDecode]
	if p.roomN == 0 || d.roomN == 0 {
		switch {
		case p.candN == 0 || d.candN == 0:
			return ResourceWorker
		case p.roomN == 0:
			return ResourcePrefillSlot
		}
		return ResourceDecode
	}
	c.viewP = View{set: p.room, n: p.roomN, pool: p, whole: true, group: -1}
	c.viewD = View{set: d.room, n: d.roomN, pool: d, whole: true, group: -1}
	sole := m.soleGroup()
	if t.Target.pinnedAny() || !t.Exclude.empty() || !sole {
		avoid := c.avoid(t, p, d)
		if !c.narrow(t.Target, &t.Exclude, p.room, d.room, avoid) {
			return c.lackOfPair(t, p, d, avoid)
		}
		c.viewP = View{set: c.scratchP, n: c.scratchP.count(), pool: p, group: -1}
		c.viewD = View{set: c.scratchD, pool: d, group: -1}
	}
	pi := p.policy.Pick(&c.viewP, t.Hints[PrefillLeg])
	pr := c.ranks[pi]
	if !c.viewD.whole {
		if !sole {
			c.scratchD.and(c.groups[pr.groupID])
			c.viewD.group = pr.groupID
		}
		c.viewD.n = c.scratchD.count()
	}
	t.Prefill = pr
	t.Decode = c.ranks[d.policy.Pick(&c.viewD, t.Hints[DecodeLeg])]
	return ResourceNone
}

// avoid tells on which legs the excluded ranks of t are avoided. A leg on which
// nothing else is left has them serve again, whatever holds for the other.
func (c *Core) avoid(t *Ticket, p, d *pool) legSet {
	if t.Exclude.empty() {
		return 0
	}
	for _, legs := range [...]legSet{onPrefill | onDecode, onPrefill, onDecode} {
		if c.narrow(t.Target, &t.Exclude, p.cand, d.cand, legs) {
			return legs
		}
	}
	return 0
}

// lackOfPair names the side that has no room: prefill when even with every
// candidate decode rank free no prefill rank would do.
func (c *Core) lackOfPair(t *Ticket, p, d *pool, avoid legSet) Resource {
	if !c.hasPair(t.Target) {
		return ResourceWorker
	}
	if !c.narrow(t.Target, &t.Exclude, p.room, d.cand, avoid) {
		return ResourcePrefillSlot
	}
	return ResourceDecode
}

func (c *Core) chooseRegular(t *Ticket, p *pool) Resource {
	if p.roomN == 0 {
		if p.candN == 0 {
			return ResourceWorker
		}
		return ResourceRegular
	}
	v := &c.viewD
	*v = View{set: p.room, n: p.roomN, pool: p, whole: true, group: -1}
	pin := t.Target.bits[DecodeLeg]
	if pin != nil || !t.Exclude.empty() {
		s := c.scratchD
		s.copyFrom(p.cand)
		if pin != nil {
			s.and(pin)
		}
		t.Exclude.drop(DecodeLeg, s)
		if s.empty() { // nothing else is left: the excluded ranks serve again
			s.copyFrom(p.cand)
			if pin != nil {
				s.and(pin)
			}
		}
		if s.empty() {
			return ResourceWorker
		}
		s.and(p.room)
		*v = View{set: s, n: s.count(), pool: p, group: -1}
		if v.n == 0 {
			return ResourceRegular
		}
	}
	t.Decode = c.ranks[p.policy.Pick(v, t.Hints[DecodeLeg])]
	return ResourceNone
}
