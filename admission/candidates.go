package admission

// candidates are the ranks that are left for a request. The sets are those of the
// index as long as nothing was taken from them, and then the chooser's own.
type candidates struct {
	sets  [numLegs]rankSet
	pools [numLegs]*pool // no prefill: the request needs one rank
	// pairing: not every pair of the ranks will do; apart: pairs in quarantine are
	// avoided, because others are left.
	pairing, apart bool
}

// rankSet is the candidates for one leg.
type rankSet struct {
	set bitmap
	n   int  // how many; -1: not counted
	all bool // the candidates of the pool, without exception
}

func (x *rankSet) count() int {
	if x.n < 0 {
		x.n = x.set.count()
	}
	return x.n
}

// is tells whether x is b itself, and not a copy of it.
func (x *rankSet) is(b bitmap) bool { return len(b) > 0 && &x.set[0] == &b[0] }

func (s *candidates) of(l Leg) *rankSet { return &s.sets[l] }
func (s *candidates) pool(l Leg) *pool  { return s.pools[l] }
func (s *candidates) single() bool      { return s.pools[PrefillLeg] == nil }

// gating is the leg that prefills.
func (s *candidates) gating() Leg {
	if s.single() {
		return DecodeLeg
	}
	return PrefillLeg
}

func (s *candidates) empty() bool {
	return s.sets[DecodeLeg].set.empty() || !s.single() && s.sets[PrefillLeg].set.empty()
}

// noRoom tells whether one of two pools has no rank with room at all.
func (s *candidates) noRoom() bool {
	return !s.single() && (s.pools[PrefillLeg].roomN == 0 || s.pools[DecodeLeg].roomN == 0)
}

// noRoomLack is what is lacking then.
func (s *candidates) noRoomLack() Resource {
	switch p, d := s.pools[PrefillLeg], s.pools[DecodeLeg]; {
	case p.candN == 0 || d.candN == 0:
		return ResourceWorker
	case p.roomN == 0:
		return ResourcePrefillSlot
	}
	return ResourceDecode
}

// all leaves in s the candidates of the model's pools.
func (ch *chooser) all(t *Target, s *candidates) {
	d := t.model.pools[t.role(DecodeLeg)]
	s.pools[DecodeLeg], s.sets[DecodeLeg] = d, rankSet{set: d.cand, n: d.candN, all: true}
	if t.shape != Disaggregated {
		s.pools[PrefillLeg], s.pairing, s.apart = nil, false, false
		return
	}
	p := t.model.pools[RolePrefill]
	s.pools[PrefillLeg], s.sets[PrefillLeg] = p, rankSet{set: p.cand, n: p.candN, all: true}
	s.pairing, s.apart = t.topology == TopologyRequired || !t.model.soleGroup(), false
}

// and keeps what the candidates of a leg share with b. It tells whether any are left.
func (ch *chooser) and(s *candidates, l Leg, b bitmap) bool {
	x := s.of(l)
	if !x.is(s.pool(l).room) {
		some := ch.own[l].and(x.set, b)
		*x = rankSet{set: ch.own[l], n: -1}
		return some
	}
	if n := ch.own[l].intersect(x.set, b); n != x.n { // else the policy is shown the whole pool
		*x = rankSet{set: ch.own[l], n: n}
	}
	return x.n > 0
}

// andNot takes b from the candidates of a leg.
func (ch *chooser) andNot(s *candidates, l Leg, b bitmap) {
	x := s.of(l)
	ch.own[l].subtract(x.set, b)
	*x = rankSet{set: ch.own[l], n: -1}
}

// drop takes a rank from the candidates of a leg.
func (ch *chooser) drop(s *candidates, l Leg, r *Rank) {
	x := s.of(l)
	if r.index < 0 || !x.set.has(r.index) {
		return
	}
	if !x.is(ch.own[l]) {
		ch.own[l].copyFrom(x.set)
	}
	*x = rankSet{set: ch.own[l], n: -1}
	x.set.clear(r.index)
}

// legSet says on which legs a ticket's exclusions hold, and whether pairs in
// quarantine are avoided.
type legSet uint8

const (
	onPrefill legSet = 1 << PrefillLeg
	onDecode  legSet = 1 << DecodeLeg
	onPairs   legSet = 1 << numLegs
)

// avoidOrder is in which combinations a request's exclusions and the pairs in
// quarantine hold, as long as something is left; the failed rank of this very request
// is the last to serve again.
var avoidOrder = [...]legSet{
	onPrefill | onDecode | onPairs, onPrefill | onDecode,
	onPrefill | onPairs, onPrefill,
	onDecode | onPairs, onDecode,
	onPairs,
	0,
}

// eligible leaves in s the candidates that t may run on, room or not: what its target
// allows and can be paired, without the ranks that failed it and the pairs in
// quarantine where others are left. It tells whether there are any.
func (ch *chooser) eligible(t *Ticket, s *candidates) bool {
	return ch.eligibleWithout(t.Target, &t.Exclude, s)
}

// servable tells whether some candidate (disaggregated: some allowed pair of
// candidates) exists for t, room or not.
func (ch *chooser) servable(t *Target) bool {
	m := t.model
	if t.shape != Disaggregated {
		p := m.pools[t.role(DecodeLeg)]
		if t.bits[DecodeLeg] == nil {
			return p.candN > 0
		}
		return p.cand.intersects(t.bits[DecodeLeg])
	}
	p, d := m.pools[RolePrefill], m.pools[RoleDecode]
	if p.candN == 0 || d.candN == 0 {
		return false
	}
	if t.free {
		for g, n := range p.groupCand {
			if n > 0 && d.groupCand[g] > 0 {
				return true
			}
		}
		return false
	}
	var s candidates
	ch.all(t, &s)
	return ch.allowed(t, nil, 0, &s)
}

func (ch *chooser) eligibleWithout(t *Target, x *Exclusions, s *candidates) bool {
	for _, legs := range avoidOrder {
		switch {
		case (t.shape != Disaggregated || len(ch.index.quarantines) == 0) && legs&onPairs != 0:
		case t.shape != Disaggregated && legs&onPrefill != 0:
		case x.empty() && legs&(onPrefill|onDecode) != 0:
		default:
			ch.all(t, s)
			if ch.allowed(t, x, legs, s) {
				return true
			}
		}
	}
	return false
}

// allowed takes from all candidates those that the target does not allow, the ranks of
// x on some legs, and those that cannot be paired. It tells whether any are left.
func (ch *chooser) allowed(t *Target, x *Exclusions, without legSet, s *candidates) bool {
	for l := s.gating(); l < numLegs; l++ {
		if b := t.bits[l]; b != nil && !ch.and(s, l, b) {
			return false
		}
		if without&(1<<l) != 0 {
			for _, r := range x[l] {
				ch.drop(s, l, r)
			}
		}
	}
	if without&onPairs != 0 {
		s.apart, s.pairing = true, true
	}
	return ch.paired(t, s)
}

// paired takes the prefill ranks from s that none of its decode ranks may follow. It
// tells whether anything is left.
func (ch *chooser) paired(t *Target, s *candidates) bool {
	if !s.pairing {
		return !s.empty()
	}
	if t.topology == TopologyRequired || !t.model.soleGroup() {
		for _, g := range ch.index.groupsOf(t) {
			if !g.intersects(s.sets[DecodeLeg].set) {
				ch.andNot(s, PrefillLeg, g)
			}
		}
	}
	if s.apart {
		ch.dropQuarantined(t, s)
	}
	return !s.empty()
}

// dropQuarantined takes the prefill ranks from s that are in quarantine with every
// decode rank in it that could follow them.
func (ch *chooser) dropQuarantined(t *Target, s *candidates) {
	decode := s.sets[DecodeLeg].set
	for i, q := range ch.index.quarantines {
		p := q.prefill
		if !s.sets[PrefillLeg].set.has(p.index) || ch.index.quarantinedBefore(i) {
			continue
		}
		partners := ch.index.groups[p.groupID]
		if t.topology == TopologyRequired {
			partners = ch.index.domains[p.domainID]
		}
		left := 0
		for w, word := range decode {
			left += ones(word & partners[w])
		}
		for _, d := range p.quarantined {
			if decode.has(d.index) && partners.has(d.index) {
				left--
			}
		}
		if left == 0 {
			ch.drop(s, PrefillLeg, p)
		}
	}
}

// notOverloaded keeps the candidates that are under the reject thresholds. It tells
// whether any are left.
func (ch *chooser) notOverloaded(t *Ticket, s *candidates) bool {
	for l := s.gating(); l < numLegs; l++ {
		if s.pools[l].overN > 0 {
			ch.andNot(s, l, ch.index.over)
		}
	}
	return ch.paired(t.Target, s)
}

// chooser finds the ranks that a request can start on now, or what it lacks. It books
// nothing and changes nothing but the ranks in the request it chooses for.
type chooser struct {
	index  *rankIndex
	limits *Limits

	// Memory of the candidates, so that choosing allocates nothing.
	own   [numLegs]bitmap
	spare bitmap
	// What the policies are shown.
	views [numLegs]View
}

// grow makes room for all indexes of ranks.
func (ch *chooser) grow() {
	words := ch.index.words
	for l := range numLegs {
		ch.own[l] = ch.own[l].grow(words)
	}
	ch.spare = ch.spare.grow(words)
}
