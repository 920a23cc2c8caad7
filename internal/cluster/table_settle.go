package cluster

import (
	"cmp"
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// changes appends what the core must be told: ranks that came, went or changed since the
// last call, and pairs. masks is called for each rank that the requests of a member must
// not use, or may use again.
func (t *table) changes(now admission.Instant, out []admission.FleetChange, masks func(Incarnation, admission.RankRef, bool)) []admission.FleetChange {
	slices.SortFunc(t.dirty, func(a, b *row) int { return cmp.Compare(a.at.Number, b.at.Number) })
	for i, r := range t.dirty {
		t.dirty[i], r.dirty = nil, false
		if !r.gone {
			out = t.settle(r, out, masks)
		}
	}
	t.dirty = t.dirty[:0]
	if t.pairsDirty || now >= t.pairsNext {
		out = t.settlePairs(now, out)
	}
	return out
}

// settle merges a row anew and appends what that changes.
func (t *table) settle(r *row, out []admission.FleetChange, masks func(Incarnation, admission.RankRef, bool)) []admission.FleetChange {
	if len(r.seen) == 0 && !r.restored {
		return t.remove(r, out)
	}
	before := r.spec
	if len(r.seen) > 0 {
		r.restored = false
		if tried(r.seen) {
			r.inherited = admission.RankState{}
		}
		m := merge(r.seen, r.inherited)
		m.spec.Generation = r.at.Generation
		r.spec = m.spec
		t.noteDifference(r, m.differs, m.what)
	} else {
		r.spec.State.Healthy = false // until a member tells of it
		r.spec.Reported = admission.ReportedLoad{}
	}
	if r.added && (r.told.Role != r.spec.Role || r.told.Worker != r.spec.Worker) {
		// Another worker in its place: what it has in holds stays with the former.
		out = append(out, admission.FleetChange{Op: admission.RemoveRank, Rank: r.toldRef()})
		r.added, r.toldMask = false, nil
		t.renew(r)
	}
	t.pairsDirty = t.pairsDirty || !r.added && len(t.pairs) > 0
	out = r.tell(out)
	masksBefore := r.masked
	r.masked = t.maskedFor(r)
	r.tellMasks(masks)
	if before.Generation != r.spec.Generation || !sameSpec(&before, &r.spec) || !slices.Equal(masksBefore, r.masked) || r.changed == 0 {
		t.touch(r, true)
	}
	return out
}

// sameSpec compares all that members are told of a rank.
func sameSpec(a, b *admission.RankSpec) bool {
	return a.Role == b.Role && a.Worker == b.Worker && a.State == b.State && a.Reported == b.Reported && sameAttributes(a, b)
}

func (r *row) toldRef() admission.RankRef {
	return admission.RankRef{ID: r.told.ID, Generation: r.told.Generation}
}

// tell appends what the core does not know of r yet.
func (r *row) tell(out []admission.FleetChange) []admission.FleetChange {
	ref := admission.RankRef{ID: r.spec.ID, Generation: r.at.Generation}
	switch {
	case !r.added:
		spec := r.spec
		out = append(out, admission.FleetChange{Op: admission.AddRank, Rank: ref, Add: &spec})
		if spec.Reported.RankReport != (admission.RankReport{}) {
			out = append(out, admission.FleetChange{Op: admission.SetReport, Rank: ref, Report: spec.Reported.RankReport})
		}
		r.added = true
	default:
		if !sameAttributes(&r.told, &r.spec) {
			out = append(out, admission.FleetChange{Op: admission.SetAttributes, Rank: ref, Attributes: attributesOf(&r.spec)})
		}
		if r.told.State != r.spec.State {
			out = append(out, admission.FleetChange{Op: admission.SetState, Rank: ref, State: r.spec.State})
		}
		if r.told.Reported.RankReport != r.spec.Reported.RankReport {
			out = append(out, admission.FleetChange{Op: admission.SetReport, Rank: ref, Report: r.spec.Reported.RankReport})
		}
	}
	r.told = r.spec
	return out
}

// maskedFor is the members, of those that are not lost, whose requests must not use r.
func (t *table) maskedFor(r *row) (list []Incarnation) {
	for i := range t.members {
		m := &t.members[i]
		if m.lost {
			continue
		}
		if at, ok := r.sighted(m.id); !ok || r.seen[at].masked(&r.spec) {
			list = append(list, m.id)
		}
	}
	return list
}

func (r *row) tellMasks(masks func(Incarnation, admission.RankRef, bool)) {
	ref := admission.RankRef{ID: r.spec.ID, Generation: r.at.Generation}
	if masks != nil {
		for _, m := range r.toldMask {
			if _, still := slices.BinarySearch(r.masked, m); !still {
				masks(m, ref, false)
			}
		}
		for _, m := range r.masked {
			if _, was := slices.BinarySearch(r.toldMask, m); !was {
				masks(m, ref, true)
			}
		}
	}
	r.toldMask = r.masked
}

// remove takes a row out of the table that no member has any more.
func (t *table) remove(r *row, out []admission.FleetChange) []admission.FleetChange {
	if r.added {
		out = append(out, admission.FleetChange{Op: admission.RemoveRank, Rank: r.toldRef()})
	}
	t.noteDifference(r, 0, "")
	delete(t.byID, r.spec.ID)
	t.rows[r.at.Number] = nil
	t.free = append(t.free, r.at.Number)
	r.gone, r.seen, r.masked = true, nil, nil
	t.pairsDirty = t.pairsDirty || len(t.pairs) > 0
	t.touch(r, true)
	if t.gone++; t.gone > maxGoneRows {
		t.forgetGone()
	}
	return out
}

// forgetGone forgets the older half of the rows that went.
func (t *table) forgetGone() {
	for n := t.recent.First(); n != nil && t.gone > maxGoneRows/2; {
		next := n.Next()
		if r := n.Value; r.gone {
			t.recent.Remove(n)
			t.gone--
			t.since = r.changed
		}
		n = next
	}
}

// rowsSince is what changed after a version, in parts of some ranks; nil: nothing did. A
// version of 0, or one that is too long ago, gets all.
func (t *table) rowsSince(now admission.Instant, version uint64) (parts []Rows) {
	if version != 0 && version == t.version {
		return nil
	}
	full := version < t.since || version == 0 || version > t.version
	if full {
		version = 0
	}
	parts = []Rows{{Version: t.version, Full: full}}
	if full || t.pairsVersion > version {
		parts[0].HasPairs, parts[0].Pairs = true, t.pairList(now)
	}
	n := t.recent.Last()
	for n != nil && n.Prev() != nil && n.Prev().Value.changed > version {
		n = n.Prev()
	}
	for ; n != nil; n = n.Next() {
		r := n.Value
		if r.changed <= version || r.gone && full {
			continue
		}
		told := Row{At: r.at, Gone: r.gone}
		if !r.gone {
			told.Load = r.load
			if r.described > version {
				spec := r.spec
				told.Spec, told.Masked = &spec, r.masked
			}
		}
		if len(parts[len(parts)-1].Rows) == maxRowsPart {
			parts = append(parts, Rows{Version: t.version})
		}
		last := &parts[len(parts)-1]
		last.Rows = append(last.Rows, told)
	}
	return parts
}

// setLoad notes what is booked on a rank.
func (t *table) setLoad(ref admission.RankRef, l Load) {
	r := t.byID[ref.ID]
	if r == nil || r.at.Generation != ref.Generation || r.load == l || r.changed == 0 {
		return
	}
	r.load = l
	t.touch(r, false)
}

func (t *table) noteDifference(r *row, with Incarnation, what string) {
	if what != "" && r.what != what && !r.news {
		r.news = true
		t.news = append(t.news, r)
	}
	r.differs, r.what = with, what
}

// difference is an attribute of a rank of which a member says something else than the one
// whose word counts.
type difference struct {
	id     string
	member Incarnation
	what   string
}

// differences returns those that are new since the last call, some at most.
func (t *table) differences(most int) (list []difference) {
	for i, r := range t.news {
		t.news[i], r.news = nil, false
		if len(list) < most && r.what != "" {
			list = append(list, difference{r.spec.ID, r.differs, r.what})
		}
	}
	t.news = t.news[:0]
	return list
}
