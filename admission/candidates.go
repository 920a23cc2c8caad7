package admission

import "slices"

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

// all leaves in s the candidates of the model's pools.
func (f *filter) all(t *Target, s *candidates) {
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
func (f *filter) and(s *candidates, l Leg, b bitmap) bool {
	x := s.of(l)
	if x.is(s.pool(l).room) {
		return f.keep(s, l, b) // the policy may be shown the whole pool
	}
	some := f.own[l].and(x.set, b)
	*x = rankSet{set: f.own[l], n: -1}
	return some
}

// keep is and where how many are left matters.
func (f *filter) keep(s *candidates, l Leg, b bitmap) bool {
	x := s.of(l)
	if n := f.own[l].intersect(x.set, b); n != x.n { // else the set stays as it was
		*x = rankSet{set: f.own[l], n: n}
	}
	return x.n > 0
}

// andNot takes b from the candidates of a leg.
func (f *filter) andNot(s *candidates, l Leg, b bitmap) {
	x := s.of(l)
	f.own[l].subtract(x.set, b)
	*x = rankSet{set: f.own[l], n: -1}
}

// drop takes a rank from the candidates of a leg.
func (f *filter) drop(s *candidates, l Leg, r *Rank) {
	x := s.of(l)
	if r.index < 0 || !x.set.has(r.index) {
		return
	}
	if !x.is(f.own[l]) {
		f.own[l].copyFrom(x.set)
	}
	*x = rankSet{set: f.own[l], n: max(x.n-1, -1)}
	x.set.clear(r.index)
}

// dropExcluded takes the ranks of x from the candidates of the legs, and the other ranks
// of their workers. It tells whether any are left.
func (f *filter) dropExcluded(x *Exclusions, s *candidates) bool {
	for l := s.gating(); l < numLegs; l++ {
		for _, r := range x[l] {
			f.dropWorker(s, l, r)
		}
	}
	return !s.empty()
}

// dropWorker takes all ranks of the worker of r from the candidates of a leg.
func (f *filter) dropWorker(s *candidates, l Leg, r *Rank) {
	f.drop(s, l, r)
	for _, o := range f.index.named.ofWorker(r) {
		f.drop(s, l, o)
	}
}

// legSet says on which legs a ticket's exclusions hold, on which of them for all ranks of
// the failed ranks' workers, and whether pairs in quarantine are avoided.
type legSet uint8

const (
	onPrefill legSet = 1 << PrefillLeg
	onDecode  legSet = 1 << DecodeLeg
	onPairs   legSet = 1 << numLegs

	// With these the exclusions of the leg hold for whole workers.
	prefillWorkers = onPrefill << wholeWorkers
	decodeWorkers  = onDecode << wholeWorkers
	wholeWorkers   = numLegs + 1
)

// avoidOrder is in which combinations a request's exclusions and the pairs in
// quarantine hold, as long as something is left. The failed rank of this very request
// is the last to serve again, and before it the other ranks of its worker: they share a
// process, so that what failed on one is likely to fail on them.
var avoidOrder = func() (order []legSet) {
	for _, ranks := range [...]legSet{onPrefill | onDecode, onPrefill, onDecode, 0} {
		for _, pairs := range [...]legSet{onPairs, 0} {
			for _, workers := range [...]legSet{prefillWorkers | decodeWorkers, prefillWorkers, decodeWorkers, 0} {
				if workers>>wholeWorkers&^ranks == 0 {
					order = append(order, ranks|pairs|workers)
				}
			}
		}
	}
	return order
}()

// sharing returns the legs on which ranks of x share their worker with others, as
// prefillWorkers and decodeWorkers.
func (f *filter) sharing(x *Exclusions) (workers legSet) {
	for l, ranks := range x {
		for _, r := range ranks {
			if len(f.index.named.ofWorker(r)) > 1 {
				workers |= 1 << l << wholeWorkers
			}
		}
	}
	return workers
}

// eligible leaves in s the candidates that t may run on, room or not: what its target
// allows and can be paired, without the ranks that failed it and the pairs in
// quarantine where others are left. It tells whether there are any.
func (f *filter) eligible(t *Ticket, s *candidates) bool {
	return f.eligibleWithout(t.Target, &t.Exclude, t.mask, s)
}

// servable tells whether some candidate (disaggregated: some allowed pair of
// candidates) exists for t, room or not, beside the ranks of a mask.
func (f *filter) servable(t *Target, masked *mask) bool {
	if masked != nil {
		var s candidates
		return f.eligibleWithout(t, &Exclusions{}, masked, &s)
	}
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
	if t.topology != TopologyRequired && m.soleGroup() {
		return p.cand.shares(t.bits[PrefillLeg], nil) && d.cand.shares(t.bits[DecodeLeg], nil)
	}
	for _, g := range f.index.groupsOf(t) {
		if g.shares(p.cand, t.bits[PrefillLeg]) && g.shares(d.cand, t.bits[DecodeLeg]) {
			return true
		}
	}
	return false
}

func (f *filter) eligibleWithout(t *Target, x *Exclusions, masked *mask, s *candidates) bool {
	sharing := f.sharing(x)
	for _, legs := range avoidOrder {
		switch {
		case legs&(prefillWorkers|decodeWorkers)&^sharing != 0:
		case (t.shape != Disaggregated || len(f.index.quarantines) == 0) && legs&onPairs != 0:
		case t.shape != Disaggregated && legs&onPrefill != 0:
		case x.empty() && legs&(onPrefill|onDecode) != 0:
		default:
			f.all(t, s)
			if masked != nil {
				masked.take(f, s)
			}
			if f.allowed(t, x, legs, s) {
				return true
			}
		}
	}
	return false
}

// allowed takes from all candidates those that the target does not allow, the ranks of
// x on some legs or all of their workers, and those that cannot be paired. It tells whether any are left.
func (f *filter) allowed(t *Target, x *Exclusions, without legSet, s *candidates) bool {
	for l := s.gating(); l < numLegs; l++ {
		if b := t.bits[l]; b != nil && !f.and(s, l, b) {
			return false
		}
		for _, r := range x[l] {
			switch {
			case without&(1<<l<<wholeWorkers) != 0:
				f.dropWorker(s, l, r)
			case without&(1<<l) != 0:
				f.drop(s, l, r)
			}
		}
	}
	if without&onPairs != 0 {
		s.apart, s.pairing = true, true
	}
	return f.paired(t, s)
}

// paired takes the prefill ranks from s that none of its decode ranks may follow. It
// tells whether anything is left.
func (f *filter) paired(t *Target, s *candidates) bool {
	if !s.pairing {
		return !s.empty()
	}
	if t.topology == TopologyRequired || !t.model.soleGroup() {
		for _, g := range f.index.groupsOf(t) {
			if !g.intersects(s.sets[DecodeLeg].set) {
				f.andNot(s, PrefillLeg, g)
			}
		}
	}
	if s.apart {
		f.dropQuarantined(t, s)
	}
	return !s.empty()
}

// dropQuarantined takes the prefill ranks from s that are in quarantine with every
// decode rank in it that could follow them.
func (f *filter) dropQuarantined(t *Target, s *candidates) {
	decode := s.sets[DecodeLeg].set
	for i, q := range f.index.quarantines {
		p := q.prefill
		if !s.sets[PrefillLeg].set.has(p.index) || slices.ContainsFunc(f.index.quarantines[:i], func(o quarantinedPair) bool { return o.prefill == p }) {
			continue
		}
		partners := f.index.groups[p.groupID]
		if t.topology == TopologyRequired {
			partners = f.index.domains[p.domainID]
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
			f.drop(s, PrefillLeg, p)
		}
	}
}

// notOverloaded keeps the candidates that are under the reject thresholds. It tells
// whether any are left.
func (f *filter) notOverloaded(t *Ticket, s *candidates) bool {
	for l := s.gating(); l < numLegs; l++ {
		if s.pools[l].overN > 0 {
			f.andNot(s, l, f.index.over)
		}
	}
	return f.paired(t.Target, s)
}

// filter finds the ranks that a request could start on now, or what it lacks. It asks no
// policy and changes nothing.
type filter struct {
	index  *rankIndex
	limits *Limits
	own    [numLegs]bitmap // memory of the candidates, so that choosing allocates nothing
}

// chooser has the policies choose among them. It books nothing, and changes nothing but
// the ranks in the request it chooses for.
type chooser struct {
	filter
	spare bitmap
	views [numLegs]View // what the policies are shown
}

// grow makes room for all indexes of ranks.
func (ch *chooser) grow() {
	words := ch.index.words
	for l := range numLegs {
		ch.own[l] = ch.own[l].grow(words)
	}
	ch.spare = ch.spare.grow(words)
}
