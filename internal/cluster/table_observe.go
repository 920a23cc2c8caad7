package cluster

import (
	"maps"
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// Observer turns what a fleet tells its gate of ranks into observations. The zero value is
// ready for use. It is not safe for concurrent use.
type Observer struct {
	ranks   map[string]*observed
	pairs   map[pairID]bool // whether it is in quarantine
	changed []string        // ids, in the order of their first change
	told    []pairID
}

// observed is a rank as the fleet has told of it.
type observed struct {
	o       RankObservation
	gone    bool
	changed bool
}

// Changes takes changes of the local gate. now is in Unix milliseconds.
func (b *Observer) Changes(now uint64, changes []admission.FleetChange) {
	if b.ranks == nil {
		b.ranks, b.pairs = map[string]*observed{}, map[pairID]bool{}
	}
	for i := range changes {
		c := &changes[i]
		switch c.Op {
		case admission.AddRank:
			if c.Add != nil {
				b.add(now, c.Add)
			}
		case admission.RemoveRank:
			if x := b.of(c.Rank); x != nil {
				x.gone = true
				b.mark(x)
			}
		case admission.SetState:
			if x := b.of(c.Rank); x != nil {
				x.o.Spec.State = c.State
				b.mark(x)
			}
		case admission.SetAttributes:
			if x := b.of(c.Rank); x != nil {
				setAttributes(&x.o.Spec, &c.Attributes)
				x.o.Stamp = now
				b.mark(x)
			}
		case admission.SetReport:
			if x := b.of(c.Rank); x != nil {
				x.o.Spec.Reported = admission.ReportedLoad{RankReport: c.Report}
				b.mark(x)
			}
		case admission.QuarantinePair, admission.EndQuarantine:
			b.pair(pairID{c.Rank.ID, c.Other.ID}, c.Op == admission.QuarantinePair)
		}
	}
}

// of is the registration that a change names; nil: it is not there any more.
func (b *Observer) of(ref admission.RankRef) *observed {
	x := b.ranks[ref.ID]
	if x == nil || x.gone || x.o.Spec.Generation != ref.Generation {
		return nil
	}
	return x
}

func (b *Observer) add(now uint64, spec *admission.RankSpec) {
	x := b.ranks[spec.ID]
	if x == nil {
		x = &observed{}
		x.o.ID = spec.ID
		b.ranks[spec.ID] = x
	}
	if x.gone || x.o.Stamp == 0 || !sameAttributes(&x.o.Spec, spec) || x.o.Spec.Role != spec.Role {
		x.o.Stamp = now
	}
	x.gone = false
	x.o.Spec = *spec
	x.o.Spec.Data = nil
	b.mark(x)
}

func setAttributes(s *admission.RankSpec, a *admission.RankAttributes) {
	s.Models, s.PairGroup, s.Topology, s.Labels, s.Adapters = a.Models, a.PairGroup, a.Topology, a.Labels, a.Adapters
	s.Capacity, s.Limits, s.Priority = a.Capacity, a.Limits, a.Priority
}

func (b *Observer) pair(id pairID, quarantined bool) {
	if quarantined {
		b.pairs[id] = true
	} else {
		delete(b.pairs, id)
	}
	if !slices.Contains(b.told, id) {
		b.told = append(b.told, id)
	}
}

func (b *Observer) mark(x *observed) {
	if !x.changed {
		x.changed = true
		b.changed = append(b.changed, x.o.ID)
	}
}

// RankTrial is what came lately of trying a rank.
type RankTrial struct {
	ID           string
	Checks, Legs Trial
}

// Trials takes what came lately of trying ranks.
func (b *Observer) Trials(list []RankTrial) {
	for _, t := range list {
		x := b.ranks[t.ID]
		if x == nil || x.gone || x.o.Checks == t.Checks && x.o.Legs == t.Legs {
			continue
		}
		x.o.Checks, x.o.Legs = t.Checks, t.Legs
		b.mark(x)
	}
}

// Observation is what changed since the last call; ok is false when nothing did.
func (b *Observer) Observation() (o Observation, ok bool) {
	for _, id := range b.changed {
		x := b.ranks[id]
		x.changed = false
		if x.gone {
			delete(b.ranks, id)
			o.Ranks = append(o.Ranks, RankObservation{ID: id, Gone: true})
			continue
		}
		o.Ranks = append(o.Ranks, x.o)
	}
	for _, id := range b.told {
		left := time.Duration(0)
		if b.pairs[id] {
			left = maxPairTime // the fleet tells when it is over
		}
		o.Pairs = append(o.Pairs, PairObservation{id.prefill, id.decode, left})
	}
	b.changed, b.told = b.changed[:0], b.told[:0]
	return o, len(o.Ranks)+len(o.Pairs) > 0
}

// observations are all that a member's fleet has told, for the next keeper.
type observations struct {
	ranks map[string]RankObservation
	at    map[string]admission.Instant // when its report was made
	pairs map[pairID]admission.Instant // until when
}

// add takes an observation.
func (s *observations) add(now admission.Instant, o *Observation) {
	if o.Full || s.ranks == nil {
		s.ranks, s.at, s.pairs = map[string]RankObservation{}, map[string]admission.Instant{}, map[pairID]admission.Instant{}
	}
	for i := range o.Ranks {
		r := &o.Ranks[i]
		if r.Gone {
			delete(s.ranks, r.ID)
			delete(s.at, r.ID)
			continue
		}
		if was, ok := s.ranks[r.ID]; !ok || was.Spec.Reported != r.Spec.Reported {
			s.at[r.ID] = now.Add(-r.ReportAge)
		}
		s.ranks[r.ID] = *r
	}
	for _, p := range o.Pairs {
		id := pairID{p.Prefill, p.Decode}
		if p.Left > 0 {
			s.pairs[id] = now.Add(p.Left)
		} else {
			delete(s.pairs, id)
		}
	}
}

// whole is all of it, as it is now.
func (s *observations) whole(now admission.Instant) *Observation {
	o := &Observation{Full: true}
	for _, id := range slices.Sorted(maps.Keys(s.ranks)) {
		r := s.ranks[id]
		r.ReportAge = now.Sub(s.at[id])
		o.Ranks = append(o.Ranks, r)
	}
	for id, until := range s.pairs {
		if left := until.Sub(now); left > 0 {
			o.Pairs = append(o.Pairs, PairObservation{id.prefill, id.decode, left})
		}
	}
	slices.SortFunc(o.Pairs, comparePairs)
	return o
}
