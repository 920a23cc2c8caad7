package admission

import "slices"

// fenceHolds tells whether the owner of a fence may still run on its ranks. Not on a pair
// in quarantine, while another is left to it.
func (ch *chooser) fenceHolds(x *fence) bool {
	var s candidates
	p, d := x.prefill, x.decode
	switch {
	case !ch.eligible(x.owner, &s) || d == nil || d.index < 0 || !s.of(DecodeLeg).set.has(d.index):
		return false
	case p == nil:
		return true
	}
	return p.index >= 0 && s.of(PrefillLeg).set.has(p.index) && x.owner.Target.pairs(p, d) &&
		!(s.apart && slices.Contains(p.quarantined, d))
}

// fenceable returns the ranks that t lacks least on, relative to what they have.
// It looks at all of them: a fence is rare.
func (ch *chooser) fenceable(t *Ticket) (prefill, decode *Rank) {
	var s candidates
	if !ch.eligible(t, &s) {
		return nil, nil
	}
	answers := s.of(DecodeLeg).set
	if s.single() {
		return nil, ch.leastShort(t, DecodeLeg, answers, nil, nil)
	}
	best := 0.0
	for _, g := range ch.index.groupsOf(t.Target) {
		p := ch.leastShort(t, PrefillLeg, s.of(PrefillLeg).set, g, nil)
		if p == nil {
			continue
		}
		d := ch.leastShort(t, DecodeLeg, answers, g, p.quarantined)
		if d == nil {
			if d = ch.leastShort(t, DecodeLeg, answers, g, nil); d == nil {
				continue
			}
		}
		short := ch.shortage(t, PrefillLeg, p).relative() + ch.shortage(t, DecodeLeg, d).relative()
		if decode == nil || short < best {
			prefill, decode, best = p, d, short
		}
	}
	return prefill, decode
}

// leastShort returns the rank of set and group, if any, on which t lacks least in leg l.
func (ch *chooser) leastShort(t *Ticket, l Leg, set, group bitmap, without []*Rank) *Rank {
	var best *Rank
	least := 0.0
	for i := range set.all() {
		r := ch.index.ranks[i]
		if group != nil && !group.has(i) || slices.Contains(without, r) {
			continue
		}
		if s := ch.shortage(t, l, r).relative(); best == nil || s < least {
			best, least = r, s
		}
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
func (ch *chooser) shortage(t *Ticket, l Leg, r *Rank) (s Shortage) {
	single := t.Target.shape != Disaggregated
	if n := ch.limits.slotLimit(r); l == PrefillLeg && n > 0 {
		s.add(ResourcePrefillSlot, int64(r.slots+1-n), int64(n))
	}
	if n := r.bounds.Running; n > 0 {
		s.add(lackOfRoom(r.role), r.load()+1-n, n)
	}
	if i := t.class.prefillThreshold; i >= 0 && (single || l == PrefillLeg) {
		if limit, counted := ch.index.prefillThresholds[i].limit(r); !counted {
			s.add(ResourcePrefillTokens, r.load()+1-ch.index.assumed(r), ch.index.assumed(r))
		} else {
			s.add(ResourcePrefillTokens, r.tokens-limit, max(limit, r.capacity.MaxBatchedTokens))
		}
	}
	if i := t.class.blockThreshold; i >= 0 && (single || l == DecodeLeg) {
		switch headroom := ch.index.headroom(ch.index.blockThresholds[i].frac, r, 0, 0); {
		case headroom == unlimited:
		case r.capacity.KVBlocks == 0:
			s.add(ResourceDecodeBlocks, r.load()+1-ch.index.assumed(r), ch.index.assumed(r))
		default:
			s.add(ResourceDecodeBlocks, t.blocks(r.blockSize())-headroom, r.capacity.KVBlocks)
		}
	}
	if r.over {
		s.add(ResourceOverloaded, 1, 1)
	}
	if r.vetoed {
		s.add(ResourceReportedLoad, 1, 1)
	}
	if r.state.Breaker == BreakerHalfOpen && r.probes >= r.probesLimit() {
		s.also++
	}
	return s
}

// roomAfter tells whether the owner of a fence has room on r once t is booked
// there.
func (f *filter) roomAfter(o, t *Ticket, r *Rank) bool {
	legs := int64(t.legs())
	single := o.Target.shape != Disaggregated
	if r.state.Breaker == BreakerHalfOpen && r.probes+1 >= r.probesLimit() {
		return false
	}
	if f.limits.full(r, 1, legs) {
		return false
	}
	if i := o.class.prefillThreshold; i >= 0 && (r.role == RolePrefill || single) {
		tokens := int64(0)
		switch {
		case r.role == RolePrefill:
			tokens = t.uncachedOn(PrefillLeg, r)
		case t.Target.shape != Disaggregated:
			tokens = t.uncachedOn(DecodeLeg, r)
		}
		if !f.index.notBusy(f.index.prefillThresholds[i], r, tokens, legs) {
			return false
		}
	}
	if i := o.class.blockThreshold; i >= 0 && r.role != RolePrefill {
		return f.index.headroom(f.index.blockThresholds[i].frac, r, t.blocks(r.blockSize()), legs) >= o.blocks(r.blockSize())
	}
	return true
}
