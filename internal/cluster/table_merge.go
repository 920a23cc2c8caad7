package cluster

import (
	"cmp"
	"maps"
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// sighting is what one member last said of a rank.
type sighting struct {
	member   Incarnation
	lost     bool // the member is: what it said of health counts no more
	spec     admission.RankSpec
	stamp    uint64
	checks   Trial
	legs     Trial
	reportAt admission.Instant // when its engine's report was made, by this member's clock
}

// describes tells whether two sightings are of one rank at all, though they may say
// different things of it.
func (s *sighting) describes(spec *admission.RankSpec) bool {
	return s.spec.Role == spec.Role && s.spec.Worker == spec.Worker
}

// merged is what all members together know of a rank.
type merged struct {
	spec admission.RankSpec
	// differs is a member whose attributes are others than those of spec, and what differs
	// first; "": they agree.
	differs Incarnation
	what    string
}

// merge brings what members said of one rank together. There is at least one sighting.
// inherited is the state of a breaker that an earlier keeper knew and that nobody here has
// tried since.
//
// The result depends on what each member said last, not on who said it first.
func merge(seen []sighting, inherited admission.RankState) (m merged) {
	first := best(seen)
	m.spec = first.spec
	m.spec.Generation, m.spec.Data, m.spec.Aside = 0, nil, admission.Aside{}
	m.spec.State = admission.RankState{}
	for i := range seen {
		s := &seen[i]
		if s == first || !s.describes(&m.spec) {
			continue
		}
		fill(&m.spec.Capacity, s.spec.Capacity)
	}
	m.spec.State = mergeStates(seen, &m.spec, inherited)
	m.spec.Reported = newestReport(seen, &m.spec)
	for i := range seen {
		s := &seen[i]
		if s == first || s.lost || !s.spec.State.Healthy || !first.spec.State.Healthy {
			continue
		}
		if what := firstDifference(&first.spec, &s.spec); what != "" {
			m.differs, m.what = s.member, what
			break
		}
	}
	return m
}

// best is the sighting whose description counts: of a member that is there and has the rank
// for healthy, and was told most by its engine; of these that which changed last.
func best(seen []sighting) *sighting {
	first := &seen[0]
	for i := 1; i < len(seen); i++ {
		s := &seen[i]
		if c := cmp.Or(
			cmp.Compare(b2i(s.usable()), b2i(first.usable())),
			cmp.Compare(b2i(!s.lost), b2i(!first.lost)),
			cmp.Compare(s.knows(), first.knows()),
			cmp.Compare(s.stamp, first.stamp),
			cmp.Compare(s.member, first.member),
		); c > 0 {
			first = s
		}
	}
	return first
}

// knows counts what the member knows of the rank beside its settings. An engine may tell one
// member less than another, whose key it takes, say.
func (s *sighting) knows() int {
	c := &s.spec.Capacity
	n := b2i(c.MaxBatchedTokens != 0) + b2i(c.KVBlocks != 0) + b2i(c.BlockSize != 0) + b2i(c.MaxRunning != 0)
	if len(s.spec.Models) > 0 && s.spec.Models[0] != "" {
		n += 5 // the pool it is in matters most
	}
	return n
}

// usable tells whether the member could be granted the rank, as far as it knows itself.
func (s *sighting) usable() bool {
	return !s.lost && s.spec.State.Healthy && s.spec.State.Breaker != admission.BreakerOpen
}

// fill gives c what it does not have.
func fill(c *admission.Capacity, from admission.Capacity) {
	c.MaxBatchedTokens = cmp.Or(c.MaxBatchedTokens, from.MaxBatchedTokens)
	c.KVBlocks = cmp.Or(c.KVBlocks, from.KVBlocks)
	c.BlockSize = cmp.Or(c.BlockSize, from.BlockSize)
	c.MaxRunning = cmp.Or(c.MaxRunning, from.MaxRunning)
}

// mergeStates is the state of a rank for all members.
func mergeStates(seen []sighting, spec *admission.RankSpec, inherited admission.RankState) (s admission.RankState) {
	// Of health: who takes it for well, who was lately answered or refused by it, and whose
	// requests it lets hang.
	var well, answers, refuses, hangs bool
	// Of its breaker.
	var opened, serves bool
	probes, share := 0, uint16(0)
	for i := range seen {
		o := &seen[i]
		if !o.describes(spec) {
			continue
		}
		st := &o.spec.State
		s.Draining = s.Draining || st.Draining // even of a lost one: who drained it wanted that
		if o.lost {
			continue
		}
		served := st.Healthy && st.Breaker != admission.BreakerOpen && o.legs == Succeeded
		if st.Healthy {
			well = true
			answers = answers || o.checks == Succeeded || served
		} else {
			refuses = refuses || o.checks == Failed
			hangs = hangs || o.legs == Failed && o.checks != Failed
		}
		switch st.Breaker {
		case admission.BreakerOpen:
			opened = true
		case admission.BreakerHalfOpen:
			probes = max(probes, st.Probes, 1)
		default:
			serves = serves || served
		}
		if o.usable() {
			share = max(share, fullShare(st.Share))
		}
	}
	s.Healthy = well && (!refuses || answers) && (!hangs || serves)
	switch {
	case serves:
	case probes > 0:
		s.Breaker, s.Probes = admission.BreakerHalfOpen, probes
	case opened:
		s.Breaker = admission.BreakerOpen
	case inherited.Breaker != admission.BreakerClosed:
		s.Breaker, s.Probes = admission.BreakerHalfOpen, max(inherited.Probes, 1)
	}
	if share < 1000 {
		s.Share = share
	}
	return s
}

// fullShare is a share of a warm-up in thousandths; a rank that does not warm up has all.
func fullShare(share uint16) uint16 {
	if share == 0 {
		return 1000
	}
	return min(share, 1000)
}

// tried tells whether some member knows by itself whether the rank serves.
func tried(seen []sighting) bool {
	return slices.ContainsFunc(seen, func(s sighting) bool {
		return !s.lost && (s.legs != Untried || s.spec.State.Breaker != admission.BreakerClosed)
	})
}

// masked tells whether requests of the member that said s must not use the rank, whatever
// others say: it does not have it as it is described, or was not served by it.
func (s *sighting) masked(spec *admission.RankSpec) bool {
	return !s.describes(spec) || !s.usable()
}

// newestReport is the latest report of the rank's engine, whoever asked it.
func newestReport(seen []sighting, spec *admission.RankSpec) (r admission.ReportedLoad) {
	at := admission.Instant(0)
	found := false
	for i := range seen {
		s := &seen[i]
		if s.lost || !s.describes(spec) || s.spec.Reported.RankReport == (admission.RankReport{}) {
			continue
		}
		if !found || s.reportAt > at {
			found, at, r.RankReport = true, s.reportAt, s.spec.Reported.RankReport
		}
	}
	return r
}

// firstDifference names the first attribute that differs; "": none. What a member does not know
// is no difference.
func firstDifference(a, b *admission.RankSpec) string {
	known := func(a, b int64) bool { return a != 0 && b != 0 && a != b }
	switch {
	case a.Role != b.Role:
		return "worker_type"
	case !sameSet(a.Models, b.Models):
		return "models"
	case a.PairGroup != b.PairGroup:
		return "pairing"
	case a.Topology != b.Topology:
		return "topology_domain"
	case !maps.Equal(a.Labels, b.Labels):
		return "labels"
	case !sameSet(a.Adapters, b.Adapters):
		return "adapters"
	case known(a.Capacity.MaxBatchedTokens, b.Capacity.MaxBatchedTokens):
		return "max_num_batched_tokens"
	case known(a.Capacity.KVBlocks, b.Capacity.KVBlocks):
		return "total_kv_blocks"
	case known(a.Capacity.BlockSize, b.Capacity.BlockSize):
		return "block_size"
	case known(a.Capacity.MaxRunning, b.Capacity.MaxRunning):
		return "max_running_requests"
	case a.Limits != b.Limits:
		return "limits"
	case a.Priority != b.Priority:
		return "priority"
	}
	return ""
}

// sameSet compares lists whose order means nothing.
func sameSet(a, b []string) bool {
	if slices.Equal(a, b) {
		return true
	}
	if len(a) != len(b) {
		return false
	}
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// sameAttributes tells whether nothing of what SetAttributes sets differs.
func sameAttributes(a, b *admission.RankSpec) bool {
	return slices.Equal(a.Models, b.Models) && a.PairGroup == b.PairGroup && a.Topology == b.Topology &&
		maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Adapters, b.Adapters) &&
		a.Capacity == b.Capacity && a.Limits == b.Limits && a.Priority == b.Priority
}

func attributesOf(s *admission.RankSpec) admission.RankAttributes {
	return admission.RankAttributes{
		Models: s.Models, PairGroup: s.PairGroup, Topology: s.Topology, Labels: s.Labels, Adapters: s.Adapters,
		Capacity: s.Capacity, Limits: s.Limits, Priority: s.Priority,
	}
}
