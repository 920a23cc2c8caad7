package admission

import "math/bits"

// choose looks for ranks with room for t and sets them; it books nothing. It returns
// what is lacking, or ResourceNone.
func (ch *chooser) choose(t *Ticket) Resource {
	var s candidates
	lack := ch.find(t, &s)
	switch {
	case lack == ResourceNone:
		ch.pick(t, &s)
	case ch.index.vetoedN > 0:
		lack = ch.unlessVetoed(t, lack)
	}
	return lack
}

// unlessVetoed is lack, unless t lacks room because all ranks that it could have run on are
// vetoed by their reports.
func (f *filter) unlessVetoed(t *Ticket, lack Resource) Resource {
	leg := DecodeLeg
	switch lack {
	case ResourcePrefillSlot:
		leg = PrefillLeg
	case ResourceDecode, ResourceRegular:
	default:
		return lack
	}
	var s candidates
	if !f.eligible(t, &s) {
		return lack
	}
	f.andNot(&s, leg, f.index.vetoed)
	if f.paired(t.Target, &s) {
		return lack
	}
	return ResourceReportedLoad
}

// hasRoom tells whether choose would find ranks for t. It asks no policy and changes
// nothing.
func (f *filter) hasRoom(t *Ticket) bool {
	var s candidates
	return f.find(t, &s) == ResourceNone
}

// allOverloaded tells whether t has candidates and all of them, or one of each pair of
// them, are over a reject threshold.
func (f *filter) allOverloaded(t *Ticket) bool {
	if !f.index.rejecting {
		return false
	}
	var s candidates
	return f.eligible(t, &s) && !f.notOverloaded(t, &s)
}

// find leaves in s the ranks that t could start on now. It returns what is lacking, or
// ResourceNone.
//
// Which ranks may be paired, and whether all are overloaded, matters only in the end or
// to name the lack. So the steps are taken without that at first.
func (f *filter) find(t *Ticket, s *candidates) Resource {
	lack := full(t.Target)
	if lack != ResourceNone && !f.index.rejecting {
		return lack
	}
	switch {
	case f.unrestricted(t):
		lack = f.amongAll(t, s)
	case f.avoiding(t, s):
		return ResourceNone
	default:
		lack = f.narrow(t, s, false)
	}
	if lack != ResourceNone && lack != ResourceWorker && (f.index.rejecting || s.pairing) {
		lack = f.narrow(t, s, true)
	}
	return lack
}

// unrestricted tells whether nothing matters to t but room and the thresholds of its
// class. Most requests are so.
func (f *filter) unrestricted(t *Ticket) bool {
	target := t.Target
	if !target.free || !t.Exclude.empty() || len(f.index.quarantines) > 0 || t.class.ratio > 0 || t.mask != nil {
		return false
	}
	x := &target.model.modelGroup.fence
	return (x.owner == nil || x.owner == t) && (target.shape != Disaggregated || target.model.soleGroup())
}

// amongAll is narrow for a request that is unrestricted. It comes to the same by fewer
// steps.
func (f *filter) amongAll(t *Ticket, s *candidates) Resource {
	target, cl := t.Target, t.class
	s.pairing, s.apart = false, false
	d := target.model.pools[target.role(DecodeLeg)]
	s.pools[DecodeLeg], s.sets[DecodeLeg] = d, rankSet{set: d.room, n: d.roomN}
	gating, p := DecodeLeg, d
	s.pools[PrefillLeg] = nil
	if target.shape == Disaggregated {
		gating, p = PrefillLeg, target.model.pools[RolePrefill]
		s.pools[PrefillLeg], s.sets[PrefillLeg] = p, rankSet{set: p.room, n: p.roomN}
	}
	switch i, k := cl.prefillThreshold, cl.blockThreshold; {
	case p.roomN == 0:
		return lackOfRoom(p.role)
	case i >= 0 && !f.and(s, gating, f.index.prefillThresholds[i].ok):
		return ResourcePrefillTokens
	case d.roomN == 0:
		return ResourceDecode
	case k >= 0 && !f.fitting(t, s, k):
		return ResourceDecodeBlocks
	}
	return ResourceNone
}

// avoiding leaves in s the ranks that a retry could start on now without those that
// failed it. It tells whether there are any. Then narrow would come to the same; it has
// to find out before if there are candidates beside the failed ones, room or not.
func (f *filter) avoiding(t *Ticket, s *candidates) bool {
	if t.Exclude.empty() || t.byRatio() || t.mask != nil {
		return false
	}
	f.all(t.Target, s)
	if t.Target.shape == Disaggregated && len(f.index.quarantines) > 0 {
		s.apart, s.pairing = true, true
	}
	return f.narrowToRoom(t, s, &t.Exclude, false) == ResourceNone
}

// full is what is lacking where one of two pools has no rank with room at all.
func full(t *Target) Resource {
	if t.shape != Disaggregated {
		return ResourceNone
	}
	p, d := t.model.pools[RolePrefill], t.model.pools[RoleDecode]
	switch {
	case p.roomN > 0 && d.roomN > 0:
		return ResourceNone
	case p.candN == 0 || d.candN == 0:
		return ResourceWorker
	case p.roomN == 0:
		return ResourcePrefillSlot
	}
	return ResourceDecode
}

// narrow takes away from the candidates of t in steps, and stops at the first that
// leaves none, or no pair: what that step is about is lacking. In order: eligible for
// the request; not overloaded; with room; within the thresholds of its class; not
// fenced for another.
//
// exact pairs the ranks after each step, so that the lack is that of the first step
// without a pair; what is left in the end is the same.
func (f *filter) narrow(t *Ticket, s *candidates, exact bool) Resource {
	target := t.Target
	f.all(target, s)
	byRatio := t.byRatio()
	// With nothing to avoid, what has room among all ranks is narrowed to the target as
	// well as what is eligible would be.
	plain := !exact && t.mask == nil && t.Exclude.empty() && len(f.index.quarantines) == 0 && (!byRatio || target.free && !s.pairing)
	if !plain && !f.eligible(t, s) {
		return ResourceWorker
	}
	busy := byRatio && f.busy(t.class, s.of(s.gating()).set)
	if exact && f.index.rejecting {
		if !f.notOverloaded(t, s) {
			return ResourceOverloaded
		}
		// What is overloaded has no room. It counts as a candidate: prefill is lacking
		// only where no change of a decode rank would help.
		f.eligible(t, s)
	}
	if busy {
		return ResourcePrefillTokens
	}
	return f.narrowToRoom(t, s, nil, exact)
}

// narrowToRoom takes the steps of narrow from room on. without are ranks to leave out
// beside; nil: none. They are not looked at for what is lacking.
func (f *filter) narrowToRoom(t *Ticket, s *candidates, without *Exclusions, exact bool) Resource {
	target, cl := t.Target, t.class
	gating := s.gating()
	if !f.withRoom(target, s, gating) || exact && !f.paired(target, s) {
		return lackOfRoom(target.role(gating))
	}
	if i := cl.prefillThreshold; i >= 0 && (!f.and(s, gating, f.index.prefillThresholds[i].ok) || exact && !f.paired(target, s)) {
		return ResourcePrefillTokens
	}
	if gating != DecodeLeg && (!f.withRoom(target, s, DecodeLeg) || exact && !f.paired(target, s)) {
		return ResourceDecode
	}
	if i := cl.blockThreshold; i >= 0 && (!f.fitting(t, s, i) || exact && !f.paired(target, s)) {
		return ResourceDecodeBlocks
	}
	if x := &target.model.modelGroup.fence; x.owner != nil && x.owner != t && (!f.notFenced(x, t, s) || exact && !f.paired(target, s)) {
		return ResourceFence
	}
	if without != nil && !f.dropExcluded(without, s) {
		return ResourceWorker
	}
	if s.pairing && !exact && !f.paired(target, s) {
		return ResourceDecode // which it is, the exact steps tell
	}
	return ResourceNone
}

// lackOfRoom is what is lacking where no rank of the role has room.
func lackOfRoom(role Role) Resource {
	switch role {
	case RolePrefill:
		return ResourcePrefillSlot
	case RoleDecode:
		return ResourceDecode
	}
	return ResourceRegular
}

// byRatio tells whether t waits while too large a part of its ranks is busy.
func (t *Ticket) byRatio() bool {
	return t.class.ratio > 0 && t.class.prefillThreshold >= 0 && !ownsFence(t)
}

// ownsFence tells whether a fence is there for t.
func ownsFence(t *Ticket) bool { return t.Target.model.modelGroup.fence.owner == t }

// busy tells whether so large a part of the eligible ranks is busy that the class
// waits, though some are not.
func (f *filter) busy(cl *class, eligible bitmap) bool {
	all, ok := 0, 0
	free := f.index.prefillThresholds[cl.prefillThreshold].ok
	for w, word := range eligible {
		all += ones(word)
		ok += ones(word & free[w])
	}
	return float64(all-ok) >= cl.ratio*float64(all)
}

// withRoom keeps the candidates of leg l that have room, and that the target allows.
func (f *filter) withRoom(t *Target, s *candidates, l Leg) bool {
	x, p := s.of(l), s.pool(l)
	if !x.all {
		return f.and(s, l, p.room)
	}
	*x = rankSet{set: p.room, n: p.roomN} // all of the pool: no word needs to be looked at
	if b := t.bits[l]; b != nil {
		return f.and(s, l, b)
	}
	return p.roomN > 0
}

// fitting keeps the candidates for decode on which the KV blocks of t fit under a
// threshold.
func (f *filter) fitting(t *Ticket, s *candidates, threshold int) bool {
	g, sizes := f.index.blockThresholds[threshold], f.index.sizes
	live, last := 0, 0
	for k := range sizes {
		if z := &sizes[k]; z.n > 0 {
			z.need = g.encodeNeed(t.blocks(z.tokens))
			live++
			last = k
		}
	}
	x := s.of(DecodeLeg)
	dst := f.own[DecodeLeg]
	n := 0
	if live == 1 {
		n = g.among(dst, x.set, sizes[last].need)
	} else {
		for w, word := range x.set {
			some := uint64(0)
			if word != 0 {
				for k := range sizes {
					if z := &sizes[k]; z.n > 0 && word&z.members[w] != 0 {
						some |= g.atLeast(w, z.need, word&z.members[w])
					}
				}
				n += bits.OnesCount64(some)
			}
			dst[w] = some
		}
	}
	if n != x.n { // else the set stays as it was
		*x = rankSet{set: dst, n: n}
	}
	return n > 0
}

// notFenced keeps the candidates that may be given to t though a fence x is there for
// another: a fenced rank only where the owner would still have room afterwards.
func (f *filter) notFenced(x *fence, t *Ticket, s *candidates) bool {
	for _, r := range [...]*Rank{x.prefill, x.decode} {
		if r == nil || r.index < 0 {
			continue
		}
		for l := s.gating(); l < numLegs; l++ {
			if s.of(l).set.has(r.index) && !f.roomAfter(x.owner, t, r) {
				f.drop(s, l, r)
			}
		}
	}
	return !s.empty()
}

// pick lets the policies choose from s: prefill among ranks for which there is a decode
// rank, then decode among those that may follow it.
func (ch *chooser) pick(t *Ticket, s *candidates) {
	target := t.Target
	group := -1
	var best holding
	gating := s.gating()
	if t.Hints[gating].Holders[0].Rank != nil {
		best = ch.bestHolding(t, gating, s.of(gating).set)
	}
	if !s.single() {
		if target.prefers {
			ch.preferPrefill(target, s)
		}
		t.Prefill = ch.ask(s, PrefillLeg, &t.Hints[PrefillLeg], group)
		if s.pairing {
			ch.follow(target, s, t.Prefill)
			if !target.model.soleGroup() {
				group = t.Prefill.groupID
			}
		}
		if target.prefers {
			ch.preferDecode(target, s, t.Prefill)
		}
	} else if target.prefers {
		ch.preferSingle(target, s)
	}
	t.Decode = ch.ask(s, DecodeLeg, &t.Hints[DecodeLeg], group)
	best.explain(t, gating, t.prefillRank())
}

// follow keeps the candidates for decode that may follow the prefill rank pr.
func (ch *chooser) follow(t *Target, s *candidates, pr *Rank) {
	if t.topology == TopologyRequired {
		ch.keep(s, DecodeLeg, ch.index.domains[pr.domainID])
	} else if !t.model.soleGroup() {
		ch.keep(s, DecodeLeg, ch.index.groups[pr.groupID])
	}
	if s.apart {
		for _, d := range pr.quarantined {
			ch.drop(s, DecodeLeg, d)
		}
	}
}

// ask has the policy of a leg choose from its candidates. group is the pairing group of
// all of them, or -1.
func (ch *chooser) ask(s *candidates, l Leg, h *Hint, group int) *Rank {
	x, p, v := s.of(l), s.pool(l), &ch.views[l]
	if ch.index.ranked(p) {
		ch.preferRanks(s, l)
	}
	v.set, v.n, v.pool, v.whole, v.group, v.ranks, v.passing = x.set, x.count(), p, x.is(p.room), group, ch.index.ranks, false
	return ch.index.ranks[p.policy.Pick(v, h)]
}
