package admission

import (
	"cmp"
	"math"
	"slices"
)

// refFence is what is kept for a starving request.
type refFence struct {
	owner           *refTicket
	prefill, decode *refRank
}

// spared tells whether the owner of a fence would have room after t got c.
func (m *reference) spared(t *refTicket, c refPair, x *refFence) bool {
	for _, r := range []*refRank{c.prefill, c.decode} {
		if r == nil || r != x.prefill && r != x.decode {
			continue
		}
		after := *r
		n := t.real.legs()
		if r == c.prefill {
			after.slots++
			after.legs += n
			after.tokens += t.uncachedOn(PrefillLeg, r)
		} else {
			after.pending += n
			after.blocks[0] += t.need(r)
			if t.single() {
				after.tokens += t.uncachedOn(DecodeLeg, r)
			}
		}
		if r.state.Breaker == BreakerHalfOpen {
			after.probes++
		}
		if !m.ownerFits(x, &after) {
			return false
		}
	}
	return true
}

// ownerFits tells whether the owner of a fence has room on r, but for the reject
// thresholds.
func (m *reference) ownerFits(x *refFence, r *refRank) bool {
	if r.state.Breaker == BreakerHalfOpen && r.probes >= r.probesLimit() {
		return false
	}
	if !m.withinLimits(r) {
		return false
	}
	if r.real.role == RolePrefill {
		return x.owner.calm(r)
	}
	return x.owner.fitsOn(r) && (!x.owner.single() || x.owner.calm(r))
}

func (t *refTicket) group() *modelGroup { return t.target.model.modelGroup }

// look notes that the queues of f are looked at in this step, so that a fence that is due
// is set.
func (m *reference) look(f *modelGroup) { m.looked[f] = true }

// lookAll is look for everybody who waits.
func (m *reference) lookAll() {
	for _, t := range m.waiters {
		m.look(t.group())
	}
}

// lookFor is look for those who may use r, where something was given back.
func (m *reference) lookFor(r *refRank) {
	if slices.Contains(m.ranks, r) {
		m.look(r.real.pools[0].model.modelGroup)
	}
}

// lookWithout is look for those behind t, before it leaves: its lane, or whom its fence kept
// off.
func (m *reference) lookWithout(t *refTicket) {
	x := m.fences[t.group()]
	if h := m.laneHead(t); h == nil || t.ahead(h) || x != nil && x.owner == t || m.unblocked(t.group()) {
		m.look(t.group())
	}
}

// overs is how many ranks are over a reject threshold.
func (m *reference) overs() (n int) {
	for _, r := range m.ranks {
		if m.over(r) {
			n++
		}
	}
	return n
}

// lookIfOver is lookFor if r is over a reject threshold when the returned function is
// called, and is not now.
func (m *reference) lookIfOver(r *refRank) func() {
	was := m.over(r)
	return func() {
		if !was && m.over(r) {
			m.lookFor(r)
		}
	}
}

// block notes since when t, the head of its lane, cannot start, and how many of its model
// group had been granted then.
func (m *reference) block(now Instant, t *refTicket) {
	if t.blockedAt == 0 {
		t.blockedAt, t.grantsThen = now, m.groupGrants[t.group()]
	}
}

// placeFence sets a fence for the oldest head that has been blocked for the guard while
// others were granted. It tells whether it did.
func (m *reference) placeFence(now Instant, f *modelGroup) bool {
	guard := m.limits.StarvationGuard
	if guard <= 0 || m.fences[f] != nil {
		return false
	}
	var oldest *refTicket
	for _, t := range m.waiters {
		if t.group() == f && t.blockedAt != 0 && t.blockedAt.Add(guard) <= now && t.grantsThen != m.groupGrants[f] &&
			m.hasCandidate(t) && (oldest == nil || t.older(oldest)) {
			oldest = t
		}
	}
	if oldest == nil {
		return false
	}
	m.fenced++
	m.fences[f] = &refFence{owner: oldest}
	m.chooseFence(f)
	return true
}

// chooseFence gives the fence of f the pair that its owner lacks least on, of those that
// it may run on; none where there is none. It follows the choice of the code, if it is a
// right one, and where that is not to be seen any more the order of the ranks.
func (m *reference) chooseFence(f *modelGroup) {
	x := m.fences[f]
	x.prefill, x.decode = nil, nil
	all := m.choices(x.owner, (*refRank).candidate, m.avoid(x.owner))
	if len(all) == 0 {
		return
	}
	short := func(c refPair) float64 {
		sum := m.shortage(x.owner, c.decode)
		if c.prefill != nil {
			sum += m.shortage(x.owner, c.prefill)
		}
		return sum
	}
	chosen := slices.MinFunc(all, func(a, b refPair) int {
		order := cmp.Compare(a.decode.real.index, b.decode.real.index)
		if a.prefill != nil {
			order = cmp.Or(cmp.Compare(a.prefill.real.groupID, b.prefill.real.groupID), cmp.Compare(a.prefill.real.index, b.prefill.real.index), order)
		}
		return cmp.Or(cmp.Compare(short(a), short(b)), order)
	})
	if seen := &f.fence; seen.owner == x.owner.real {
		i := slices.IndexFunc(all, func(c refPair) bool {
			return c.decode.real == seen.decode && (c.prefill == nil) == (seen.prefill == nil) && (c.prefill == nil || c.prefill.real == seen.prefill)
		})
		switch {
		case i < 0:
			m.complain("a pair is fenced that its owner may not run on")
		case len(m.quarantines) == 0 && short(all[i]) > short(chosen)+1e-9:
			m.complain("a pair is fenced on which its owner lacks %g, on another it lacks %g", short(all[i]), short(chosen))
		default:
			chosen = all[i]
		}
	}
	x.prefill, x.decode = chosen.prefill, chosen.decode
}

// moveFences chooses anew for the fences whose ranks their owners may not run on any more.
func (m *reference) moveFences() {
	for f, x := range m.fences {
		if !slices.Contains(m.choices(x.owner, (*refRank).candidate, m.avoid(x.owner)), refPair{x.prefill, x.decode}) {
			m.chooseFence(f)
		}
	}
}

// endFence ends the fence of t, if it has one.
func (m *reference) endFence(t *refTicket) {
	for f, x := range m.fences {
		if x.owner == t {
			delete(m.fences, f)
			m.fencesEnded++
		}
	}
}

// shortage is by how much t lacks room on r, as parts of what there is.
func (m *reference) shortage(t *refTicket, r *refRank) (sum float64) {
	add := func(short, of float64) {
		if short > 0 {
			sum += short / max(of, 1)
		}
	}
	assumed := 64.0
	if n := r.real.capacity.MaxRunning; n > 0 {
		assumed = float64(n)
	}
	assumed = float64(plainCount(r.real, int(assumed)))
	if most := int(r.real.bounds.Running); most > 0 {
		add(float64(r.load()+1-most), float64(most))
	}
	if most := m.slotLimit(r); r.real.role == RolePrefill && most > 0 {
		add(float64(r.slots+1-most), float64(most))
	}
	if tokens, frac, batched := t.class.PrefillBusyTokens, t.class.PrefillBusyFrac, r.real.capacity.MaxBatchedTokens; r.real.role == RolePrefill || t.single() {
		limit := math.Inf(1)
		if tokens != nil {
			limit = r.most(float64(*tokens))
		}
		switch {
		case frac != nil && batched == 0:
			add(float64(r.load()+1)-assumed, assumed)
		case frac != nil:
			limit = min(limit, math.Floor(r.most(part(*frac, batched))))
			fallthrough
		case tokens != nil:
			add(float64(r.tokens)-limit, max(limit, float64(batched)))
		}
	}
	if frac := t.class.DecodeBusyFrac; frac != nil && r.real.role != RolePrefill && !r.fitsAll() {
		if all := r.real.capacity.KVBlocks; all == 0 {
			add(float64(r.load()+1)-assumed, assumed)
		} else {
			add(float64(t.need(r)+r.blocks[0]+r.blocks[1]+r.unbooked)-math.Floor(r.most(part(*frac, all))), float64(all))
		}
	}
	if m.over(r) {
		sum++
	}
	if r.vetoed {
		sum++
	}
	if r.state.Breaker == BreakerHalfOpen && r.probes >= r.probesLimit() {
		sum++
	}
	return sum
}
