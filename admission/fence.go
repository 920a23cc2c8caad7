package admission

// fence keeps a large request from starving: one rank, or one pair, is kept for
// the head of a queue that was blocked for the guard time while others were
// granted. Others may use it only as far as the owner would still have room
// afterwards, so that what runs there drains until the owner fits.
//
// A family has at most one. It is never taken from its owner: it ends when the
// owner is granted or leaves, and moves when its ranks are lost.
type fence struct {
	owner           *Ticket
	prefill, decode *Rank // nil: none that could serve at present
}

// placeFence sets a fence for the oldest head that has waited long enough. It
// tells whether it did: then the owner may have room at once, because it is not
// judged by the part of busy ranks.
func (c *Core) placeFence(now Instant, f *family) bool {
	if c.limits.StarvationGuard <= 0 || f.fence.owner != nil || now < f.fenceAt {
		return false
	}
	f.fenceAt, f.fenceWaits = never, false
	var oldest *Ticket
	for _, p := range f.profiles {
		for _, q := range p.classes {
			for _, l := range q.all.l {
				switch due := l.since.Add(c.limits.StarvationGuard); {
				case l.since == 0:
				case due > now:
					f.fenceAt = min(f.fenceAt, due)
				case l.granted == f.grants:
					f.fenceWaits = true // nobody was granted since: there is nothing to guard against
				case oldest == nil || l.head().before(oldest):
					oldest = l.head()
				}
			}
		}
	}
	if oldest == nil {
		return false
	}
	p, d := c.fenceable(oldest)
	if d == nil {
		f.fenceAt = min(f.fenceAt, now.Add(c.limits.StarvationGuard))
		return false
	}
	f.fence = fence{oldest, p, d}
	c.fences++
	return true
}

// endFence opens the fenced ranks; heads that were kept off them are looked at
// again.
func (c *Core) endFence(f *family) {
	f.fence = fence{}
	f.fenceAt = 0 // the next one may be due
	c.wake(f, nil)
}

// moveFence finds other ranks for a fence whose ranks cannot serve its owner any
// more.
func (c *Core) moveFence(f *family) {
	x := &f.fence
	if x.owner == nil {
		return
	}
	if c.eligible(x.owner) && x.decode != nil && x.decode.index >= 0 && c.scratchD.has(x.decode.index) &&
		(x.prefill == nil || x.prefill.index >= 0 && c.scratchP.has(x.prefill.index) && c.pairable(x.owner, x.prefill, x.decode)) {
		return
	}
	x.prefill, x.decode = c.fenceable(x.owner)
	c.fenceMoves++
}

// eligible leaves in the scratch sets the candidates for t, room or not, and
// tells whether there are any.
func (c *Core) eligible(t *Ticket) bool {
	m := t.Target.model
	if t.Target.shape != Disaggregated {
		return c.singles(t, m.pools[t.Target.role(DecodeLeg)])
	}
	p, d := m.pools[RolePrefill], m.pools[RoleDecode]
	return c.narrow(t.Target, &t.Exclude, p.cand, d.cand, c.avoid(t, p, d))
}

// pairable tells whether d may follow p for t.
func (c *Core) pairable(t *Ticket, p, d *Rank) bool {
	return p.group == d.group && (t.Target.topology != TopologyRequired || p.topology == d.topology)
}

// fenceable returns the ranks that t lacks least on, relative to what they have.
// It looks at all of them: a fence is rare.
func (c *Core) fenceable(t *Ticket) (prefill, decode *Rank) {
	if !c.eligible(t) {
		return nil, nil
	}
	if t.Target.shape != Disaggregated {
		return nil, c.leastShort(t, DecodeLeg, c.scratchD, nil, nil)
	}
	best := 0.0
	for _, g := range c.groupsOf(t.Target) {
		p := c.leastShort(t, PrefillLeg, c.scratchP, g, nil)
		if p == nil {
			continue
		}
		d := c.leastShort(t, DecodeLeg, c.scratchD, g, p.barred)
		if d == nil {
			if d = c.leastShort(t, DecodeLeg, c.scratchD, g, nil); d == nil {
				continue
			}
		}
		short := c.shortage(t, PrefillLeg, p).relative() + c.shortage(t, DecodeLeg, d).relative()
		if decode == nil || short < best {
			prefill, decode, best = p, d, short
		}
	}
	return prefill, decode
}

func (c *Core) leastShort(t *Ticket, l Leg, set, group bitmap, barred []*Rank) *Rank {
	var best *Rank
	least := 0.0
ranks:
	for i := set.next(-1); i >= 0; {
		r := c.ranks[i]
		if group == nil || group.has(i) {
			for _, b := range barred {
				if b == r {
					goto next
				}
			}
			if s := c.shortage(t, l, r).relative(); best == nil || s < least {
				best, least = r, s
			}
		}
	next:
		n := set.next(i)
		if n <= i {
			break ranks
		}
		i = n
	}
	return best
}

// Shortage is what a request lacks on one rank.
type Shortage struct {
	Resource Resource
	// Short is by how much, Of how much there is: requests, tokens or blocks by
	// the resource. Short is zero when nothing lacks.
	Short, Of int64
	also      float64 // other lacks, relative
}

func (s Shortage) relative() float64 {
	return float64(s.Short)/float64(max(s.Of, 1)) + s.also
}

func (s *Shortage) add(by Resource, short, of int64) {
	if short <= 0 {
		return
	}
	if s.Short > 0 {
		s.also += float64(short) / float64(max(of, 1))
		return
	}
	s.Resource, s.Short, s.Of = by, short, of
}

// shortage returns what t lacks on r in leg l.
func (c *Core) shortage(t *Ticket, l Leg, r *Rank) (s Shortage) {
	single := t.Target.shape != Disaggregated
	if l == PrefillLeg && c.limits.PrefillSlots > 0 {
		s.add(ResourcePrefillSlot, int64(r.slots+1-c.limits.PrefillSlots), int64(c.limits.PrefillSlots))
	}
	if i := t.class.prefillGate; i >= 0 && (single || l == PrefillLeg) {
		if limit, counted := c.prefillGates[i].limit(r); !counted {
			s.add(ResourcePrefillTokens, r.load()+1-c.assumed(r), c.assumed(r))
		} else {
			s.add(ResourcePrefillTokens, r.tokens-limit, max(limit, r.capacity.MaxBatchedTokens))
		}
	}
	if i := t.class.blockGate; i >= 0 && (single || l == DecodeLeg) {
		switch slack := c.slack(c.blockGates[i].frac, r, 0, 0); {
		case slack == unlimited:
		case r.capacity.KVBlocks == 0:
			s.add(ResourceDecodeBlocks, r.load()+1-c.assumed(r), c.assumed(r))
		default:
			s.add(ResourceDecodeBlocks, t.blocks(r.blockSize())-slack, r.capacity.KVBlocks)
		}
	}
	if r.over {
		s.add(ResourceOverloaded, 1, 1)
	}
	if r.state.Breaker == BreakerHalfOpen && r.probes >= r.state.Probes {
		s.also++
	}
	return s
}

// keepOff takes the fenced rank of leg l out of set unless the owner would have
// room on it with t there too.
func (c *Core) keepOff(x *fence, t *Ticket, set bitmap) {
	for _, r := range [...]*Rank{x.prefill, x.decode} {
		if r != nil && r.index >= 0 && set.has(r.index) && !c.roomAfter(x.owner, t, r) {
			set.clear(r.index)
		}
	}
}

// roomAfter tells whether the owner of a fence has room on r once t is booked
// there.
func (c *Core) roomAfter(o, t *Ticket, r *Rank) bool {
	legs := int64(t.legs())
	single := o.Target.shape != Disaggregated
	if r.state.Breaker == BreakerHalfOpen && r.probes+1 >= r.state.Probes {
		return false
	}
	if r.role == RolePrefill && c.limits.PrefillSlots > 0 && r.slots+1 >= c.limits.PrefillSlots {
		return false
	}
	if i := o.class.prefillGate; i >= 0 && (r.role == RolePrefill || single) {
		tokens := int64(0)
		if r.role == RolePrefill || t.Target.shape != Disaggregated {
			tokens = t.uncached()
		}
		if !c.notBusy(c.prefillGates[i], r, tokens, legs) {
			return false
		}
	}
	if i := o.class.blockGate; i >= 0 && r.role != RolePrefill {
		return c.slack(c.blockGates[i].frac, r, t.blocks(r.blockSize()), legs) >= o.blocks(r.blockSize())
	}
	return true
}
