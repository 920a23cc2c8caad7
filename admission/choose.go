package admission

// choose looks for ranks with room for t and sets them; it books nothing. It
// returns what is lacking, or ResourceNone.
func (c *Core) choose(t *Ticket) Resource { return c.find(t, true) }

// hasRoom tells whether choose would find ranks for t. It asks no policy and
// changes nothing.
func (c *Core) hasRoom(t *Ticket) bool { return c.find(t, false) == ResourceNone }

// find is choose; without pick no ranks are chosen where there is room.
func (c *Core) find(t *Ticket, pick bool) Resource {
	m := t.Target.model
	if t.Target.shape != Disaggregated {
		return c.findSingle(t, m.pools[t.Target.role(DecodeLeg)], pick)
	}
	p, d := m.pools[RolePrefill], m.pools[RoleDecode]
	if p.roomN == 0 || d.roomN == 0 {
		switch {
		case p.candN == 0 || d.candN == 0:
			return ResourceWorker
		case c.rejecting && c.allOverloaded(t):
			return ResourceOverloaded
		case p.roomN == 0:
			return ResourcePrefillSlot
		}
		return ResourceDecode
	}
	x := &m.family.fence
	if x.owner == nil || x.owner == t {
		x = nil // it does not bar its owner
	}
	sole := m.soleGroup()
	c.viewP = View{set: p.room, n: p.roomN, pool: p, whole: true, group: -1}
	c.viewD = View{set: d.room, n: d.roomN, pool: d, whole: true, group: -1}
	if t.Target.free && t.Exclude.empty() && sole && x == nil && len(c.bars) == 0 {
		return c.findFree(t, p, d, pick)
	}
	avoid := c.avoid(t, p, d)
	cl := t.class
	if cl.ratio > 0 && cl.prefillGate >= 0 && !c.fenced(t) {
		if !c.narrow(t.Target, &t.Exclude, p.cand, d.cand, avoid) {
			return c.lackOfPair(t, p, d)
		}
		if c.busy(cl, c.scratchP) {
			return c.lackOf(t, ResourcePrefillTokens)
		}
	}
	c.withinGates(t, p, d)
	if x != nil {
		c.keepOff(x, t, c.scratchP)
		c.keepOff(x, t, c.scratchD)
	}
	if !c.restrict(t.Target, &t.Exclude, avoid) {
		return c.lackOfPair(t, p, d)
	}
	if pick {
		c.pick(t, p, d, sole, avoid)
	}
	return ResourceNone
}

// pick lets the policies choose from the scratch sets: prefill among ranks for
// which there is a decode rank, then decode among those that may follow it.
func (c *Core) pick(t *Ticket, p, d *pool, sole bool, avoid legSet) {
	if t.Target.prefers {
		c.preferPrefill(t)
	}
	c.viewP = View{set: c.scratchP, n: c.scratchP.count(), pool: p, group: -1}
	c.viewD = View{set: c.scratchD, pool: d, group: -1}
	pr := c.ranks[p.policy.Pick(&c.viewP, t.Hints[PrefillLeg])]
	c.follow(t, pr, avoid)
	if !sole {
		c.viewD.group = pr.groupID
	}
	c.viewD.n = c.scratchD.count()
	t.Prefill = pr
	t.Decode = c.ranks[d.policy.Pick(&c.viewD, t.Hints[DecodeLeg])]
}

// follow leaves in scratchD the ranks that may follow pr for t.
func (c *Core) follow(t *Ticket, pr *Rank, avoid legSet) {
	if t.Target.topology == TopologyRequired {
		c.scratchD.and(c.domains[pr.domainID])
	} else if !t.Target.model.soleGroup() {
		c.scratchD.and(c.groups[pr.groupID])
	}
	if avoid&onPairs != 0 {
		for _, b := range pr.barred {
			if b.index >= 0 {
				c.scratchD.clear(b.index)
			}
		}
	}
	if t.Target.prefers {
		c.preferDecode(t, pr)
	}
}

// findFree is find for a request that any pair of the model's ranks may serve.
func (c *Core) findFree(t *Ticket, p, d *pool, pick bool) Resource {
	cl := t.class
	if i := cl.prefillGate; i >= 0 {
		ok := c.prefillGates[i].ok
		if cl.ratio > 0 && !c.fenced(t) && c.busy(cl, p.cand) {
			return c.lackOf(t, ResourcePrefillTokens)
		}
		n := c.scratchP.intersect(p.room, ok)
		if n == 0 {
			return c.lackOf(t, ResourcePrefillTokens)
		}
		if n < p.roomN {
			c.viewP = View{set: c.scratchP, n: n, pool: p, group: -1}
		}
	}
	if i := cl.blockGate; i >= 0 {
		n := c.fitting(c.scratchD, d.room, t, i)
		if n == 0 {
			return c.lackOf(t, ResourceDecodeBlocks)
		}
		if n < d.roomN {
			c.viewD = View{set: c.scratchD, n: n, pool: d, group: -1}
		}
	}
	if !pick {
		return ResourceNone
	}
	t.Prefill = c.ranks[p.policy.Pick(&c.viewP, t.Hints[PrefillLeg])]
	t.Decode = c.ranks[d.policy.Pick(&c.viewD, t.Hints[DecodeLeg])]
	return ResourceNone
}

// lackOf is lack, unless every pair is over a reject threshold.
func (c *Core) lackOf(t *Ticket, lack Resource) Resource {
	if c.rejecting && c.allOverloaded(t) {
		return ResourceOverloaded
	}
	return lack
}

// busy tells whether so large a part of the eligible ranks is busy that the
// class waits, though some are not.
func (c *Core) busy(cl *class, eligible bitmap) bool {
	all, ok := 0, 0
	free := c.prefillGates[cl.prefillGate].ok
	for w, word := range eligible {
		all += ones(word)
		ok += ones(word & free[w])
	}
	return float64(all-ok) >= cl.ratio*float64(all)
}

// fenced tells whether a fence is there for t.
func (c *Core) fenced(t *Ticket) bool { return t.Target.model.family.fence.owner == t }

// avoidOrder is in which combinations a request's exclusions and the barred
// pairs hold, as long as something is left; the failed rank of this very request
// is the last to serve again.
var avoidOrder = [...]legSet{
	onPrefill | onDecode | onPairs, onPrefill | onDecode,
	onPrefill | onPairs, onPrefill,
	onDecode | onPairs, onDecode,
	onPairs,
}

// avoid tells on which legs the excluded ranks of t are avoided, and whether
// barred pairs are. A leg on which nothing else is left has them serve again,
// whatever holds for the other.
func (c *Core) avoid(t *Ticket, p, d *pool) legSet {
	for _, legs := range avoidOrder {
		switch {
		case len(c.bars) == 0 && legs&onPairs != 0:
			continue
		case t.Exclude.empty() && legs&(onPrefill|onDecode) != 0:
			continue
		}
		if c.narrow(t.Target, &t.Exclude, p.cand, d.cand, legs) {
			return legs
		}
	}
	return 0
}

// lackOfPair names the side that has no room: prefill when even with every
// candidate decode rank free no prefill rank would do.
func (c *Core) lackOfPair(t *Ticket, p, d *pool) Resource {
	if !c.hasPair(t.Target) {
		return ResourceWorker
	}
	if c.rejecting && c.allOverloaded(t) {
		return ResourceOverloaded
	}
	avoid := c.avoid(t, p, d)
	if !c.narrow(t.Target, &t.Exclude, p.room, d.cand, avoid) {
		return ResourcePrefillSlot
	}
	cl := t.class
	if cl.prefillGate >= 0 {
		c.scratchP.copyFrom(p.room)
		c.scratchP.and(c.prefillGates[cl.prefillGate].ok)
		c.scratchD.copyFrom(d.cand)
		if !c.restrict(t.Target, &t.Exclude, avoid) {
			return ResourcePrefillTokens
		}
	}
	if !c.narrow(t.Target, &t.Exclude, p.room, d.room, avoid) {
		return ResourceDecode
	}
	if cl.prefillGate < 0 && cl.blockGate < 0 {
		return ResourceFence
	}
	c.withinGates(t, p, d)
	if c.restrict(t.Target, &t.Exclude, avoid) {
		return ResourceFence
	}
	if cl.blockGate < 0 {
		return ResourceDecode // not for the prefill ranks that are not busy
	}
	return ResourceDecodeBlocks
}

// withinGates sets the scratch sets to the ranks of p and d that have room and keep
// to the gates of t's class.
func (c *Core) withinGates(t *Ticket, p, d *pool) {
	cl := t.class
	c.scratchP.copyFrom(p.room)
	if cl.prefillGate >= 0 {
		c.scratchP.and(c.prefillGates[cl.prefillGate].ok)
	}
	if cl.blockGate >= 0 {
		c.fitting(c.scratchD, d.room, t, cl.blockGate)
	} else {
		c.scratchD.copyFrom(d.room)
	}
}

// allOverloaded tells whether t has candidates and all of them, or one of each
// pair of them, are over a reject threshold.
func (c *Core) allOverloaded(t *Ticket) bool {
	m := t.Target.model
	if t.Target.shape != Disaggregated {
		p := m.pools[t.Target.role(DecodeLeg)]
		if p.overN == 0 || !c.singles(t, p) {
			return false
		}
		return !c.scratchD.intersectsNot(c.over)
	}
	p, d := m.pools[RolePrefill], m.pools[RoleDecode]
	if p.overN == 0 && d.overN == 0 {
		return false
	}
	avoid := c.avoid(t, p, d)
	if !c.narrow(t.Target, &t.Exclude, p.cand, d.cand, avoid) {
		return false
	}
	c.scratchP.copyFrom(p.cand)
	c.scratchP.andNot(c.over)
	c.scratchD.copyFrom(d.cand)
	c.scratchD.andNot(c.over)
	return !c.restrict(t.Target, &t.Exclude, avoid)
}

// singles leaves in scratchD the candidates for the one leg of t, excluded ones
// only when there are no others, and tells whether there are any.
func (c *Core) singles(t *Ticket, p *pool) bool {
	s := c.scratchD
	pin := t.Target.bits[DecodeLeg]
	s.copyFrom(p.cand)
	if pin != nil {
		s.and(pin)
	}
	if t.Exclude.empty() {
		return !s.empty()
	}
	t.Exclude.drop(DecodeLeg, s)
	if s.empty() { // nothing else is left: the excluded ranks serve again
		s.copyFrom(p.cand)
		if pin != nil {
			s.and(pin)
		}
	}
	return !s.empty()
}

// findSingle is find for a request that needs one rank: aggregated, or
// prefilled where it decodes. Both thresholds of its class are judged there.
func (c *Core) findSingle(t *Ticket, p *pool, pick bool) Resource {
	none := ResourceRegular
	if p.role == RoleDecode {
		none = ResourceDecode
	}
	cl := t.class
	x := &p.model.family.fence
	barred := x.owner != nil && x.owner != t
	v := &c.viewD
	if p.roomN > 0 && t.Target.free && t.Exclude.empty() && !barred && cl.prefillGate < 0 && cl.blockGate < 0 {
		*v = View{set: p.room, n: p.roomN, pool: p, whole: true, group: -1}
	} else {
		if !c.singles(t, p) {
			return ResourceWorker
		}
		s := c.scratchD
		if c.rejecting && p.overN > 0 && !s.intersectsNot(c.over) {
			return ResourceOverloaded
		}
		if cl.prefillGate >= 0 && cl.ratio > 0 && !c.fenced(t) && c.busy(cl, s) {
			return ResourcePrefillTokens
		}
		if s.and(p.room); s.empty() {
			return none
		}
		if cl.prefillGate >= 0 {
			if s.and(c.prefillGates[cl.prefillGate].ok); s.empty() {
				return ResourcePrefillTokens
			}
		}
		if cl.blockGate >= 0 {
			if c.fitting(s, s, t, cl.blockGate) == 0 {
				return ResourceDecodeBlocks
			}
		}
		if barred {
			if c.keepOff(x, t, s); s.empty() {
				return ResourceFence
			}
		}
		if pick && t.Target.prefers {
			c.preferSingle(t)
		}
		*v = View{set: s, n: s.count(), pool: p, group: -1}
	}
	if !pick {
		return ResourceNone
	}
	t.Decode = c.ranks[p.policy.Pick(v, t.Hints[DecodeLeg])]
	return ResourceNone
}
