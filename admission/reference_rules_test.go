package admission

import (
	"math"
	"slices"
)

func (r *refRank) serves(model string) bool {
	return slices.Contains(r.real.models, model) || len(r.real.models) == 0 && model == ""
}

func (r *refRank) candidate() bool {
	return r.state.Healthy && !r.state.Draining && r.state.Breaker != BreakerOpen && !r.real.bounds.Share.None
}

// part is frac of whole, with what floating point lacks to a decimal fraction.
func part(frac float64, whole int64) float64 { return frac*float64(whole) + 1e-6 }

func (m *reference) over(r *refRank) bool {
	c := r.real.capacity
	if v := m.reject.ActivePrefillTokens; v != nil && float64(r.tokens) > r.most(float64(*v)) {
		return true
	}
	if v := m.reject.ActivePrefillTokensFrac; v != nil && c.MaxBatchedTokens > 0 && float64(r.tokens) > r.most(part(*v, c.MaxBatchedTokens)) {
		return true
	}
	v := m.reject.ActiveDecodeBlocks
	return v != nil && r.real.role != RolePrefill && c.KVBlocks > 0 && float64(r.blocks[0]+r.blocks[1]) > r.most(part(*v, c.KVBlocks))
}

// most is what this gate has of a limit of tokens or blocks of r.
func (r *refRank) most(limit float64) float64 { return plainPart(r.real, limit) }

// probesLimit is how many requests at once may try r.
func (r *refRank) probesLimit() int { return plainCount(r.real, r.state.Probes) }

func (m *reference) room(r *refRank) bool {
	if !r.candidate() || r.vetoed || m.over(r) || r.state.Breaker == BreakerHalfOpen && r.probes >= r.probesLimit() {
		return false
	}
	return m.withinLimits(r)
}

// slotLimit is how many requests may be in prefill on r; zero or less: any number.
func (m *reference) slotLimit(r *refRank) int {
	if n := r.real.bounds.PrefillSlots; n > 0 {
		return n
	}
	return m.limits.PrefillSlots
}

func (m *reference) withinLimits(r *refRank) bool {
	if n := m.slotLimit(r); r.real.role == RolePrefill && n > 0 && r.slots >= n {
		return false
	}
	return r.real.bounds.Running <= 0 || int64(r.load()) < r.real.bounds.Running
}

func (r *refRank) assumed() bool {
	most := 64
	if r.real.capacity.MaxRunning > 0 {
		most = int(r.real.capacity.MaxRunning)
	}
	return r.load() < plainCount(r.real, most)
}

// calm tells whether a rank is not busy in prefill for the class of t.
func (t *refTicket) calm(r *refRank) bool {
	if v := t.class.PrefillBusyTokens; v != nil && float64(r.tokens) > r.most(float64(*v)) {
		return false
	}
	v := t.class.PrefillBusyFrac
	if v == nil {
		return true
	}
	if r.real.capacity.MaxBatchedTokens == 0 {
		return r.assumed()
	}
	return float64(r.tokens) <= r.most(part(*v, r.real.capacity.MaxBatchedTokens))
}

func (t *refTicket) need(r *refRank) int64 {
	size := r.real.capacity.BlockSize
	if size == 0 {
		size = 16
	}
	legs := int64(t.real.legs())
	leg := math.Ceil(float64(t.real.PromptTokens)/float64(legs)) + float64(t.real.ReserveTokens)
	return legs * int64(math.Ceil(leg/float64(size)))
}

// fitsOn tells whether the blocks of t fit on r for its class.
func (t *refTicket) fitsOn(r *refRank) bool {
	v := t.class.DecodeBusyFrac
	switch {
	case v == nil || r.fitsAll():
		return true
	case r.real.capacity.KVBlocks == 0:
		return r.assumed()
	}
	return float64(r.blocks[0]+r.blocks[1]+r.unbooked+t.need(r)) <= r.most(part(*v, r.real.capacity.KVBlocks))
}

// fitsAll tells whether r is idle, so that any request fits there.
func (r *refRank) fitsAll() bool {
	return r.pending+r.active == 0 && r.blocks[0]+r.blocks[1]+r.unbooked == 0 && !r.real.bounds.Share.NotFirst
}

// refPair is a choice; prefill is nil for a request that needs one rank.
type refPair struct{ prefill, decode *refRank }

func (t *refTicket) single() bool { return t.target.shape != Disaggregated }

func (t *refTicket) role(l Leg) Role {
	switch {
	case t.target.shape == Aggregated:
		return RoleRegular
	case t.target.shape == Disaggregated && l == PrefillLeg:
		return RolePrefill
	}
	return RoleDecode
}

func (m *reference) fits(t *refTicket, l Leg, r *refRank) bool {
	return r.real.role == t.role(l) && r.serves(t.model) && specAdmits(&t.target.spec, l, r.real) && !slices.Contains(m.masks[t.origin], r)
}

func (m *reference) choices(t *refTicket, ok func(*refRank) bool, avoid legSet) (all []refPair) {
	side := func(l Leg) (rs []*refRank) {
		for _, r := range m.ranks {
			if m.fits(t, l, r) && ok(r) && !(avoid&(1<<l) != 0 && slices.Contains(t.exclude[l], r)) &&
				!(avoid&(1<<l<<wholeWorkers) != 0 && slices.ContainsFunc(t.exclude[l], func(x *refRank) bool { return m.sameWorker(r, x) })) {
				rs = append(rs, r)
			}
		}
		return rs
	}
	for _, d := range side(DecodeLeg) {
		if t.single() {
			all = append(all, refPair{nil, d})
			continue
		}
		for _, p := range side(PrefillLeg) {
			if p.real.group == d.real.group &&
				(t.target.spec.Topology != TopologyRequired || p.real.topology == d.real.topology) &&
				!(avoid&onPairs != 0 && slices.Contains(m.quarantines, refBar{p, d})) {
				all = append(all, refPair{p, d})
			}
		}
	}
	return all
}

func (m *reference) hasCandidate(t *refTicket) bool {
	return len(m.choices(t, (*refRank).candidate, 0)) > 0
}

// sameWorker tells whether a and x, which must be registered still, are ranks of one worker.
func (m *reference) sameWorker(a, x *refRank) bool {
	return x.real.worker == a.real.worker && slices.Contains(m.ranks, x)
}

func (m *reference) avoid(t *refTicket) legSet {
	const both = prefillWorkers | decodeWorkers
	for _, legs := range []legSet{
		onPrefill | onDecode | onPairs | both, onPrefill | onDecode | onPairs | prefillWorkers, onPrefill | onDecode | onPairs | decodeWorkers, onPrefill | onDecode | onPairs,
		onPrefill | onDecode | both, onPrefill | onDecode | prefillWorkers, onPrefill | onDecode | decodeWorkers, onPrefill | onDecode,
		onPrefill | onPairs | prefillWorkers, onPrefill | onPairs, onPrefill | prefillWorkers, onPrefill,
		onDecode | onPairs | decodeWorkers, onDecode | onPairs, onDecode | decodeWorkers, onDecode,
		onPairs,
	} {
		if len(m.choices(t, (*refRank).candidate, legs)) > 0 {
			return legs
		}
	}
	return 0
}

// overloaded tells whether t has candidates and all are over a reject threshold.
func (m *reference) overloaded(t *refTicket) bool {
	avoid := m.avoid(t)
	return m.hasCandidate(t) && len(m.choices(t, func(r *refRank) bool { return r.candidate() && !m.over(r) }, avoid)) == 0
}

// open is what t could be given now.
func (m *reference) open(t *refTicket) []refPair { return m.openTo(t, m.fences[t.group()]) }

// openTo is open with a fence; the owner of it is not judged by the ratio of
// busy ranks.
func (m *reference) openTo(t *refTicket, x *refFence) []refPair {
	avoid := m.avoid(t)
	if v := t.class.BusyWorkerRatio; v != nil && (x == nil || x.owner != t) && (t.class.PrefillBusyTokens != nil || t.class.PrefillBusyFrac != nil) {
		eligible, busy := map[*refRank]bool{}, 0
		for _, c := range m.choices(t, (*refRank).candidate, avoid) {
			r := c.prefill
			if r == nil {
				r = c.decode
			}
			if !eligible[r] && !t.calm(r) {
				busy++
			}
			eligible[r] = true
		}
		if float64(busy) >= *v*float64(len(eligible)) {
			return nil
		}
	}
	open := m.choices(t, m.room, avoid)
	return slices.DeleteFunc(open, func(c refPair) bool {
		gate := c.prefill
		if gate == nil {
			gate = c.decode
		}
		return !t.calm(gate) || !t.fitsOn(c.decode) || x != nil && x.owner != t && !m.spared(t, c, x)
	})
}

// liking is what the labels a target prefers make of a pair.
func (t *refTicket) liking(c refPair) (sum int) {
	s := &t.target.spec
	add := func(l Leg, r *refRank) {
		for i, x := range s.Prefer[l] {
			if v, ok := r.real.labels[x.Key]; ok && v == x.Value && i < 4 {
				sum += x.Weight
			}
		}
	}
	if c.prefill != nil {
		add(PrefillLeg, c.prefill)
		if s.Topology == TopologyPreferred && c.prefill.real.topology == c.decode.real.topology {
			sum += max(s.TopologyWeight, 1)
		}
	}
	add(DecodeLeg, c.decode)
	return sum
}

func (r *refRank) load() int {
	if r.real.role == RolePrefill {
		return r.legs
	}
	return r.pending + r.active
}

// amount is what is booked on r, by a measure.
func (r *refRank) amount(by Measure) int64 {
	kv := (r.blocks[0] + r.blocks[1]) * r.real.blockSize()
	switch by {
	case ByTokens:
		return r.tokens
	case ByTokensAndKV:
		return 4*r.tokens + kv
	}
	return int64(r.load())
}
