package admission

import (
	"math"
	"reflect"
	"slices"
	"time"

	"pgregory.net/rapid"
)

// check compares the two states and the core with itself.
func (w *world) check(t *rapid.T) {
	if err := checkIndexes(w.core); err != nil {
		t.Fatal(err)
	}
	for _, r := range append(slices.Clone(w.ref.ranks), w.ref.gone...) {
		x := r.real
		if x.present && !reflect.DeepEqual(attributesOf(x), r.attributes) {
			t.Fatalf("%s: %+v, want %+v", x.id, attributesOf(x), r.attributes)
		}
		if x.slots != r.slots || x.prefill != r.legs || x.pending != r.pending || x.active != r.active ||
			x.tokens != r.tokens || x.blocksPending != r.blocks[0] || x.blocksActive != r.blocks[1] {
			t.Fatalf("%s: %+v, want %+v", x.id, x.stats(), *r)
		}
		if p := (ReportedLoad{r.report, r.unbooked, r.vetoed}); x.present && x.reported() != p {
			t.Fatalf("%s: reported %+v, want %+v", x.id, x.reported(), p)
		}
		if x.slots < 0 || x.prefill < 0 || x.pending < 0 || x.active < 0 {
			t.Fatalf("%s: a negative hold: %+v", x.id, x.stats())
		}
		if x.present && x.state.Breaker == BreakerHalfOpen && x.probes != r.probes {
			t.Fatalf("%s: %d probes, want %d", x.id, x.probes, r.probes)
		}
	}
	if w.core.waiting != len(w.ref.waiters) || w.core.missed != 0 {
		t.Fatalf("%d wait, want %d; %d events missed", w.core.waiting, len(w.ref.waiters), w.core.missed)
	}
	for _, k := range w.tickets {
		r := k.real
		if r.state != k.state || r.holdsPrefill != (k.prefill != nil) || r.holdsDecode != (k.decode != nil) || int64(r.waited) != k.waited {
			t.Fatalf("a request is in state %d, want %d; holds %t %t; waited %s, want %s", r.state, k.state, r.holdsPrefill, r.holdsDecode, r.waited, time.Duration(k.waited))
		}
		if f := r.refusal; k.state == stateRefused && (f.Reason != k.reason || f.Depth != k.depth || f.RetryAfter < time.Second || f.RetryAfter > time.Minute || int64(f.Waited) != k.waited || f.Predicted != k.predicted || f.Predicted != (f.Estimate > 0) || f.LimitKind != k.kind || f.Current != k.current || k.reason == ClassQueueFull && f.Limit != k.limit) {
			t.Fatalf("refused %+v, want %s at depth %d", f, k.reason, k.depth)
		} else if k.predicted && k.state == stateRefused {
			if e := f.Estimate.Seconds(); math.Abs(e-k.estimate[PrefillLeg]) > 1e-6 && math.Abs(e-k.estimate[DecodeLeg]) > 1e-6 || f.RetryAfter.Seconds() != min(max(math.Ceil(e-1e-6), 1), 60) {
				t.Fatalf("refused %+v early, to come in %s; want estimates of %g s by leg", f, f.RetryAfter, k.estimate)
			}
		} else if k.state == stateRefused {
			if want := k.retryAfter[r.legOf(f.Resource)]; want != 0 && f.RetryAfter != want {
				t.Fatalf("refused %+v (%s), want to be told to come in %s, not %s", f, f.Resource, want, f.RetryAfter)
			}
		}
		// A clock may be stopped and go on at one instant.
		if int(r.passes) != k.passes || (r.declinesAt == 0) != (k.declinesAt == 0) || r.declinesAt.Sub(Instant(r.declined)) != k.declinesAt.Sub(Instant(k.declined)) || k.queued && r.wakeAt != k.endsAt() {
			t.Fatalf("a request was passed over %d times, declined for %s, does since %d, and is woken at %d; want %d, %s, %d, %d", r.passes, r.declined, r.declinesAt, r.wakeAt, k.passes, k.declined, k.declinesAt, k.endsAt())
		}
		if k.arrived && (r.Target != k.target || r.Instead != k.instead) {
			t.Fatalf("a request is %s, want %s; or may be placed on something else", r.Target.shape, k.target.shape)
		}
		if k.class != nil && (r.class == nil || r.class.Name != k.class.Name || r.orderBy != k.orderBy) {
			t.Fatalf("a request is of class %v, want %s; or has another deadline", r.class, k.class.Name)
		}
		if k.queued {
			w.checkMayUse(t, k)
		}
		// No lost wake-up: nobody waits while its head has room.
		if h := w.ref.laneHead(k); k.queued && (h == nil || k.ahead(h)) && !w.ref.behindDecliners(k) && !w.ref.barred(k) && len(w.ref.open(k)) > 0 {
			t.Fatal("a head waits though it has room")
		}
	}
	for _, f := range w.core.modelGroups {
		for _, p := range f.profiles {
			for _, q := range p.classes {
				if want := w.ref.deficit[refQueue{p, q.class.Name}]; q.deficit != want {
					t.Fatalf("class %s has a deficit of %d, want %d", q.class.Name, q.deficit, want)
				}
			}
		}
	}
	w.checkFences(t)
	next := never
	for _, k := range w.ref.waiters {
		next = min(next, k.endsAt())
	}
	if w.core.deadlines.next() != next {
		t.Fatalf("the next end of a wait is %d, want %d", w.core.deadlines.next(), next)
	}
	var closed time.Duration
	for _, d := range w.core.Stats(w.now).ClosedFor {
		closed += d
	}
	if int64(closed) != w.ref.closed {
		t.Fatalf("closed for %s, want %s", closed, time.Duration(w.ref.closed))
	}
}

// checkMayUse compares what k may ever run on with what its target allows in pairs.
func (w *world) checkMayUse(t *rapid.T, k *refTicket) {
	origin := k.origin
	k.origin = 99 // masks do not matter
	defer func() { k.origin = origin }()
	may := map[*refRank]bool{}
	for _, c := range w.ref.choices(k, func(*refRank) bool { return true }, 0) {
		may[c.prefill], may[c.decode] = true, true
	}
	for _, r := range append(slices.Clone(w.ref.ranks), w.ref.gone...) {
		for l := range numLegs {
			if want := may[r] && r.real.role == k.role(l) && (l == DecodeLeg || !k.single()); k.target.MayUse(l, r.real) != want {
				t.Fatalf("a request may run its %s leg on %s: %t, want %t", l, r.real.id, !want, want)
			}
		}
	}
}

func attributesOf(r *Rank) RankAttributes {
	return RankAttributes{
		Models: r.models, PairGroup: r.group, Topology: r.topology, Labels: r.labels, Adapters: r.adapters,
		Capacity: r.capacity, Limits: r.bounds, Priority: r.priority,
	}
}

// askedFields are those of a ticket that say what it asks for and that have no names of a
// core in them.
var askedFields = slices.DeleteFunc(reflect.VisibleFields(reflect.TypeFor[Ticket]()), func(f reflect.StructField) bool {
	return !f.IsExported() || slices.Contains([]string{"Target", "Instead", "Exclude", "Prefill", "Decode", "Hints", "Matcher"}, f.Name)
})

// checkAsked compares what a request asks for, after it was written down and read back,
// with what was drawn for it.
func (w *world) checkAsked(t *rapid.T, k *refTicket) {
	was, is := reflect.ValueOf(&k.drawn).Elem(), reflect.ValueOf(k.real).Elem()
	for _, f := range askedFields {
		if !reflect.DeepEqual(was.FieldByIndex(f.Index).Interface(), is.FieldByIndex(f.Index).Interface()) {
			t.Fatalf("%s of a request is %v, want %v", f.Name, is.FieldByIndex(f.Index), was.FieldByIndex(f.Index))
		}
	}
	if hints := k.realHints(); k.real.Hints != hints || (k.real.Matcher != nil) != k.renew {
		t.Fatalf("a request has hints %+v, want %+v", k.real.Hints, hints)
	}
	for l := range numLegs {
		if !slices.EqualFunc(k.exclude[l], k.real.Exclude[l], func(r *refRank, x *Rank) bool { return r.real == x }) {
			t.Fatalf("a request avoids %v in %s, want %v", refsOf(k.real.Exclude[l]), l, k.exclude[l])
		}
	}
	if o := k.instead; o != nil && o.model.name == k.target.model.name && o.model != k.target.model {
		t.Fatal("what a request may be placed on instead is of a model that is gone")
	}
	targets := []*Target{k.target, k.instead}
	if k.exchanged {
		slices.Reverse(targets)
	}
	for i, target := range targets {
		want := k.specs[i]
		if target == nil && want == nil {
			continue
		}
		if target == nil || want == nil || target.shape != want.Shape || target.free != want.free() {
			t.Fatalf("a request may be placed on %+v, want %+v", target, want)
		}
		spec := target.spec
		spec.Model, spec.Shape = want.Model, want.Shape // the model may be served by ranks of none
		if spec.Topology == TopologyAny {
			spec.TopologyWeight = want.TopologyWeight // it counts for nothing
		}
		if !target.free && !reflect.DeepEqual(spec, *want) {
			t.Fatalf("a request may be placed on %+v, want %+v", spec, *want)
		}
	}
}

func (w *world) checkFences(t *rapid.T) {
	there := 0
	for _, f := range w.core.modelGroups {
		if f.fence.owner == nil {
			continue
		}
		there++
		x := w.ref.fences[f]
		if x == nil || x.owner.real != f.fence.owner {
			t.Fatalf("a fence is there for another than it should be (none: %t)", x == nil)
		}
		if (x.prefill == nil) != (f.fence.prefill == nil) || x.prefill != nil && x.prefill.real != f.fence.prefill ||
			(x.decode == nil) != (f.fence.decode == nil) || x.decode != nil && x.decode.real != f.fence.decode {
			t.Fatalf("%+v and %+v are fenced, want %+v", f.fence.prefill, f.fence.decode, *x)
		}
	}
	if there != len(w.ref.fences) || w.core.fences != uint64(w.ref.fenced) {
		t.Fatalf("%d fences are there, want %d; %d were set, want %d", there, len(w.ref.fences), w.core.fences, w.ref.fenced)
	}
}

// end ends every request and demands that nothing is left.
func (w *world) end(t *rapid.T) {
	for _, k := range slices.Clone(w.tickets) {
		if k.queued || k.state == stateSuspended {
			_, out := w.do(t, Step{Op: StepCancel, Ticket: k.number})
			w.ref.cancel(w.now, k)
			w.step(t, out)
		}
	}
	// Cancelling may have granted others.
	for _, k := range slices.Clone(w.tickets) {
		w.end1(t, k)
		w.do(t, Step{Op: StepForget, Ticket: k.number})
	}
	w.tickets = nil
	w.endMembers(t)
	w.check(t)
	for _, r := range append(slices.Clone(w.ref.ranks), w.ref.gone...) {
		if !r.real.idle() {
			t.Fatalf("%s still holds: %+v", r.real.id, r.real.stats())
		}
	}
	if w.core.waiting != 0 || len(w.core.pinned) != len(w.core.idle) || w.core.lanes != 0 || w.core.NextDeadline() != never {
		t.Fatalf("%d wait, %d pinned targets, next deadline %d", w.core.waiting, len(w.core.pinned), w.core.NextDeadline())
	}
}
