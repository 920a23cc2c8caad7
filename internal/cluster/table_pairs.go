package cluster

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// pairID is a pair of a prefill and a decode rank.
type pairID struct{ prefill, decode string }

// pairState is a pair in quarantine: until the last of the members that reported it says
// that it is over, or its time has come.
type pairState struct {
	by    map[Incarnation]admission.Instant // until when, by who reported it; 0 is an earlier keeper, or a member that ended
	told  bool
	p, d  admission.RankRef // as the core was told
	dirty bool
}

func (s *pairState) until() (at admission.Instant) {
	for _, t := range s.by {
		at = max(at, t)
	}
	return at
}

func (t *table) observePair(now admission.Instant, from Incarnation, o *PairObservation) {
	id := pairID{o.Prefill, o.Decode}
	s := t.pairs[id]
	if o.Left <= 0 {
		if s != nil {
			if _, ok := s.by[from]; ok {
				delete(s.by, from)
				s.dirty, t.pairsDirty = true, true
			}
		}
		return
	}
	if s == nil {
		if len(t.pairs) >= maxTablePairs {
			return
		}
		s = &pairState{by: map[Incarnation]admission.Instant{}}
		t.pairs[id] = s
	}
	s.by[from] = now.Add(min(o.Left, maxPairTime))
	s.dirty, t.pairsDirty = true, true
}

// restorePairs takes over the pairs that an earlier keeper knew, for a while: members tell
// of theirs anew.
func (t *table) restorePairs(now admission.Instant, pairs []PairObservation) {
	for _, p := range pairs {
		p.Left = min(p.Left, releasedPairTime)
		t.observePair(now, 0, &p)
	}
}

// forgetPairsOf takes back what a member said of pairs.
func (t *table) forgetPairsOf(from Incarnation) {
	for _, s := range t.pairs {
		if _, ok := s.by[from]; ok {
			delete(s.by, from)
			s.dirty, t.pairsDirty = true, true
		}
	}
}

// releasedPairTime is for how long a pair stays in quarantine whose member is not there to
// end it.
const releasedPairTime = time.Minute

// releasePairsOf keeps what an ended member said of pairs for a while.
func (t *table) releasePairsOf(now admission.Instant, from Incarnation) {
	for _, s := range t.pairs {
		if at, ok := s.by[from]; ok {
			delete(s.by, from)
			s.by[0] = max(s.by[0], min(at, now.Add(releasedPairTime)))
			s.dirty, t.pairsDirty = true, true
		}
	}
}

// settlePairs appends what the core does not know of pairs yet.
func (t *table) settlePairs(now admission.Instant, out []admission.FleetChange) []admission.FleetChange {
	t.pairsDirty, t.pairsNext = false, never
	ids := make([]pairID, 0, len(t.pairs))
	for id := range t.pairs {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b pairID) int {
		return cmp.Or(cmp.Compare(a.prefill, b.prefill), cmp.Compare(a.decode, b.decode))
	})
	changed := false
	for _, id := range ids {
		s := t.pairs[id]
		p, d := t.byID[id.prefill], t.byID[id.decode]
		over := s.until() <= now
		there := !over && p != nil && d != nil && p.added && d.added
		if s.told && (!there || s.p.Generation != p.at.Generation || s.d.Generation != d.at.Generation) {
			out = append(out, admission.FleetChange{Op: admission.EndQuarantine, Rank: s.p, Other: s.d})
			s.told, changed = false, true
		}
		if there && !s.told {
			s.p = admission.RankRef{ID: id.prefill, Generation: p.at.Generation}
			s.d = admission.RankRef{ID: id.decode, Generation: d.at.Generation}
			out = append(out, admission.FleetChange{Op: admission.QuarantinePair, Rank: s.p, Other: s.d})
			s.told, changed = true, true
		}
		changed = changed || s.dirty
		s.dirty = false
		if over {
			delete(t.pairs, id)
			changed = true
		} else {
			t.pairsNext = min(t.pairsNext, s.until())
		}
	}
	if changed {
		t.version++
		t.pairsVersion = t.version
	}
	return out
}

// next is when changes is to be called at the latest.
func (t *table) next() admission.Instant {
	if len(t.dirty) > 0 || t.pairsDirty {
		return 0
	}
	return t.pairsNext
}

func (t *table) pairList(now admission.Instant) (list []PairObservation) {
	for id, s := range t.pairs {
		if left := s.until().Sub(now); left > 0 {
			list = append(list, PairObservation{id.prefill, id.decode, left})
		}
	}
	slices.SortFunc(list, comparePairs)
	return list
}

func comparePairs(a, b PairObservation) int {
	return cmp.Or(cmp.Compare(a.Prefill, b.Prefill), cmp.Compare(a.Decode, b.Decode))
}
