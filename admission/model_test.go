package admission

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestModel drives the core and the reference with the same random steps and
// compares everything after each: who was decided and how, every hold of every
// generation, every index, the next deadline, and the time spent closed. At the
// end all requests end, and nothing may be left.
func TestModel(t *testing.T) {
	var sum reference
	steps, histories := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"arrive":     w.arrive,
			"arrive too": w.arrive, // more often than the rest
			"and again":  w.arrive,
			"retry":      w.retry,
			"cancel":     w.cancel,
			"start":      w.start,
			"endPrefill": w.endPrefill,
			"endDecode":  w.endDecode,
			"release":    w.release,
			"finish":     w.finish,
			"fleet":      w.fleet,
			"states":     w.states,
			"limits":     w.setLimits,
			"classes":    w.reload,
			"reject":     w.setReject,
			"grow":       w.grow,
			"output":     w.output,
			"first":      w.firstToken,
			"move":       w.moveDecode,
			"pairs":      w.quarantines,
			"attributes": w.setAttributes,
			"reports":    w.reports,
			"pass":       w.pass,
			"jump":       w.jump,
			"rebuild":    w.rebuild,
			"refresh":    w.refresh,
			"and hints":  w.refresh,
			"burst":      w.burst,
			"turns":      w.turns,
			"shut down":  w.shutDown,
			"suspend":    w.suspend,
			"put back":   w.putBack,
			"masks":      w.setMask,
			"set aside":  w.setAside,
			"grow to":    w.growTo,
			"adopt":      w.adopt,
			"":           w.check,
		})
		w.end(rt)
		sum.grants += w.ref.grants
		sum.refusals += w.ref.refusals
		sum.retried += w.ref.retried
		sum.postponed += w.ref.postponed
		sum.moved += w.ref.moved
		sum.credited += w.ref.credited
		sum.tooLate += w.ref.tooLate
		sum.earlyN += w.ref.earlyN
		sum.rebuilds += w.ref.rebuilds
		sum.withoutBypass += w.ref.withoutBypass
		sum.fenced += w.ref.fenced
		sum.warmed += w.ref.warmed
		sum.vetoes += w.ref.vetoes
		sum.unbooked += w.ref.unbooked
		sum.passedOver += w.ref.passedOver
		sum.declined += w.ref.declined
		sum.wentOn += w.ref.wentOn
		sum.held += w.ref.held
		sum.refreshed += w.ref.refreshed
		sum.suspended += w.ref.suspended
		sum.masked += w.ref.masked
		sum.barredN += w.ref.barredN
		sum.asides += w.ref.asides
		sum.adopted += w.ref.adopted
		sum.unshared += w.ref.unshared
		steps += w.steps
		histories++
		for i, n := range w.ref.reasons {
			sum.reasons[i] += n
		}
	})
	t.Logf("%d steps in %d histories", steps, histories)
	t.Logf("%d grants, %d refusals, %d retries, %d waits, %d staged legs moved, %d credits, %d too late for the drain, %d refused early, %d cores rebuilt, %d went on without their bypass, %d fences, %d by ranks that warm up, %d vetoes, %d reports of unbooked blocks", sum.grants, sum.refusals, sum.retried, sum.postponed, sum.moved, sum.credited, sum.tooLate, sum.earlyN, sum.rebuilds, sum.withoutBypass, sum.fenced, sum.warmed, sum.vetoes, sum.unbooked)
	t.Logf("%d passed over, %d looks at who declined, %d of these again, %d grants with a holder, %d refreshes", sum.passedOver, sum.declined, sum.wentOn, sum.held, sum.refreshed)
	t.Logf("%d suspended, %d grants with a mask, %d arrivals behind the head of another lane, %d amounts set aside, %d refused for want of a share, %d cores whose tickets were adopted", sum.suspended, sum.masked, sum.barredN, sum.asides, sum.unshared, sum.adopted)
	for r, n := range sum.reasons {
		t.Logf("%d × %s", n, Reason(r))
	}
	if !t.Failed() && (sum.grants == 0 || sum.refusals == 0 || sum.retried == 0 || sum.postponed == 0 || sum.rebuilds == 0 || sum.withoutBypass == 0 || sum.fenced == 0 || sum.warmed == 0 || sum.vetoes == 0 || sum.unbooked == 0 ||
		sum.suspended == 0 || sum.masked == 0 || sum.barredN == 0 || sum.asides == 0 || sum.unshared == 0 || sum.adopted == 0 ||
		sum.passedOver == 0 || sum.declined == 0 || sum.held == 0 || sum.refreshed == 0) {
		t.Error("the test tests nothing")
	}
}

// world is a core and its reference at one instant.
type world struct {
	port    *Port
	core    *Core // the port's
	options Options
	ref     *reference
	now     Instant
	tickets []*refTicket
	nth     int // ranks made so far
	came    int // tickets made so far
	steps   int // taken so far
	calm    bool
	members bool // several origins
	barring bool // pairs are quarantined, or else ranks preferred, where the policy is mostHeld
}

var (
	modelNames = []string{"a", "b", "c"}
	classNames = []string{"", "", "f", "g", "gold", "never", "nonsense"}
	someModels = [][]string{{"a"}, {"a"}, {"a"}, {"a"}, {"b"}, {"c"}, {"a", "b"}, {"b", "c"}, {}}
)

func newWorld(t *rapid.T) *world {
	calm, least := rapid.Bool().Draw(t, "calm"), rapid.Bool().Draw(t, "least loaded")
	o := Options{Limits: drawLimits(t), HealthInterval: 3 * time.Second, Classes: drawClasses(t), Reject: drawReject(t)}
	o.QueueMode = rapid.SampledFrom([]QueueMode{QueueAuto, QueueAuto, QueueStrict, QueueLanes}).Draw(t, "lanes")
	measure := rapid.SampledFrom([]Measure{ByRequests, ByTokens, ByTokensAndKV}).Draw(t, "measure")
	if least {
		o.NewPolicy = func(string, Role) Policy { return leastLoaded{measure: measure} }
	}
	late := rapid.IntRange(0, 2).Draw(t, "late binding") == 2
	if late {
		drawAffinity(t, &o.Limits)
		o.NewPolicy = func(string, Role) Policy { return mostHeld{} }
		least = false
		calm = calm || rapid.IntRange(0, 3).Draw(t, "mostly calm") > 0
	}
	port := NewPort(o)
	w := &world{port: port, core: port.core, options: o, now: 1, calm: calm, ref: &reference{
		limits: o.Limits, leastLoaded: least, measure: measure, classes: o.Classes, reject: o.Reject, strict: isStrict(o.QueueMode, o.Classes),
		deficit: map[refQueue]int64{}, cursor: map[*profileQueue]int{}, paces: map[refQueue]*refPace{}, now: 1, start: 1, drainEnd: never,
		fences: map[*modelGroup]*refFence{}, groupGrants: map[*modelGroup]int{}, warmUps: map[*pool]*refWarmUp{}, looked: map[*modelGroup]bool{},
	}}
	w.members = rapid.IntRange(0, 2).Draw(t, "members") > 0
	w.ref.predictable, w.barring = late, late && rapid.Bool().Draw(t, "barring")
	w.core.early = earlyEvidence{admissions: 2, stretch: 200 * time.Millisecond} // so little that it is come to
	w.ref.evidence = w.core.early
	add := []Change{w.pairRank(RolePrefill), w.pairRank(RoleDecode)}
	for range rapid.IntRange(0, 6).Draw(t, "ranks") {
		add = append(add, w.newRank(t))
	}
	if late { // all may be free at once, so that several may start
		add = append(add, w.pairRank(RolePrefill), w.pairRank(RolePrefill), w.pairRank(RoleDecode))
	}
	w.apply(t, add)
	return w
}

// step compares who was decided: the same requests, in the same order within a
// model.
func (w *world) step(t *rapid.T, out []*Ticket) {
	t.Helper()
	if w.ref.complaint != nil {
		t.Fatal(w.ref.complaint)
	}
	want := map[string][]*Ticket{}
	for _, k := range w.ref.decided {
		want[k.model] = append(want[k.model], k.real)
	}
	got := map[string][]*Ticket{}
	for _, k := range out {
		got[k.Target.model.name] = append(got[k.Target.model.name], k)
	}
	for _, name := range append([]string{""}, modelNames...) {
		if !slices.Equal(want[name], got[name]) {
			t.Fatalf("model %q: %d requests were decided, want %d; or in another order", name, len(got[name]), len(want[name]))
		}
	}
	w.ref.decided = nil
}

func (w *world) arrive(t *rapid.T) {
	spec := TargetSpec{Model: rapid.SampledFrom([]string{"a", "a", "a", "a", "a", "b", "c"}).Draw(t, "model"), Shape: Disaggregated}
	switch rapid.IntRange(0, 9).Draw(t, "shape") {
	case 8:
		spec.Shape = Aggregated
	case 7, 9:
		spec.Shape = Bypass
	}
	// Where waiters are looked at together there must be several.
	plain := w.ref.predictable && rapid.IntRange(0, 3).Draw(t, "plain") > 0
	if plain {
		spec = TargetSpec{Model: "a", Shape: Disaggregated}
	}
	if !plain && rapid.IntRange(0, 5).Draw(t, "picky") == 5 {
		drawWishes(t, &spec)
		if w.ref.predictable && w.barring {
			spec.Prefer, spec.Topology = [numLegs][]Preference{}, min(spec.Topology, TopologyAny) // what is preferred takes no account of pairs
		}
	}
	for l := range numLegs {
		if !plain && rapid.IntRange(0, 7).Draw(t, "pinned") == 2 {
			spec.Pins[l] = rapid.SampledFrom([]string{"w0", "w1", "w2@0", "w2@1", "@0", "@1"}).Draw(t, "pin")
		}
	}
	target := w.core.Resolve(spec)
	model := spec.Model
	if !slices.ContainsFunc(w.ref.ranks, func(r *refRank) bool { return r.serves(model) }) {
		model = ""
	}
	if known := slices.ContainsFunc(w.ref.ranks, func(r *refRank) bool { return r.serves(model) }); known != (target != nil) {
		t.Fatalf("model %q known: %t, want %t", spec.Model, target != nil, known)
	}
	if target == nil {
		return
	}
	w.came++
	k := &refTicket{number: uint64(w.came), real: &Ticket{Target: target, Legs: rapid.IntRange(0, 8).Draw(t, "legs")}, model: model}
	if w.members {
		k.origin = uint64(rapid.SampledFrom([]int{0, 1, 1, 2}).Draw(t, "origin"))
	}
	drawWeight(t, k.real)
	k.hints = w.drawHints(t)
	k.real.Hints = k.realHints()
	if k.renew = rapid.Bool().Draw(t, "renew"); k.renew {
		k.real.Matcher = atPort{}
	}
	if spec.Shape == Bypass {
		k.specs[1] = w.drawBypass(t, k.real, spec)
	}
	if rapid.IntRange(0, 9).Draw(t, "classified") == 9 {
		k.real.ClassDeadline = w.now.Add(time.Duration(rapid.IntRange(0, 4).Draw(t, "class deadline")) * time.Second)
	}
	if !plain && rapid.IntRange(0, 4).Draw(t, "impatient") == 2 {
		k.real.Deadline = w.now.Add(time.Duration(rapid.IntRange(0, 4).Draw(t, "patience")) * time.Second)
	}
	k.specs[0], k.drawn = &spec, *k.real
	w.tickets = append(w.tickets, k)
	w.come(t, k)
}

func (w *world) come(t *rapid.T, k *refTicket) {
	request := requestOf(k.real)
	request.Origin = k.origin
	if !k.arrived {
		w.core.unref(k.real.Target) // the port resolves it again
		if k.real.Instead != nil {
			w.core.unref(k.real.Instead)
		}
	}
	_, out := w.do(t, Step{Op: StepArrive, Ticket: k.number, Request: &request})
	k.real = w.port.tickets[k.number]
	w.ref.arrive(w.now, k)
	w.checkAsked(t, k)
	w.step(t, out)
}

// burst is several requests that come together, so that there is somebody to look at.
func (w *world) burst(t *rapid.T) {
	if !w.ref.predictable {
		t.Skip("not here")
	}
	for range rapid.IntRange(2, 6).Draw(t, "burst") {
		w.arrive(t)
	}
}

// turns ends several requests, one after the other.
func (w *world) turns(t *rapid.T) {
	if !w.ref.predictable {
		t.Skip("not here")
	}
	for range rapid.IntRange(2, 6).Draw(t, "turns") {
		w.release(t)
	}
}

// pick draws one of the requests for which ok holds.
func (w *world) pick(t *rapid.T, ok func(*refTicket) bool) *refTicket {
	var some []*refTicket
	for _, k := range w.tickets {
		if ok(k) {
			some = append(some, k)
		}
	}
	if len(some) == 0 {
		t.Skip("nobody")
	}
	return some[rapid.IntRange(0, len(some)-1).Draw(t, "request")]
}

func (t *refTicket) holds() bool   { return t.prefill != nil || t.decode != nil }
func (t *refTicket) granted() bool { return t.state == stateGranted }

func (w *world) retry(t *rapid.T) {
	k := w.pick(t, func(k *refTicket) bool {
		return k.granted() || k.state == stateIdle && k.real.Decode != nil && !k.queued
	})
	w.end1(t, k)
	k.real.Retry, k.drawn.Retry = true, true
	for l, r := range []*Rank{k.real.Prefill, k.real.Decode} {
		if r != nil && rapid.Bool().Draw(t, "exclude") && !slices.Contains(k.exclude[l], w.ref.find(r)) {
			k.real.Exclude.Add(Leg(l), r)
			k.exclude[l] = append(k.exclude[l], w.ref.find(r))
		}
	}
	w.ref.retried++
	w.come(t, k)
}

func (w *world) cancel(t *rapid.T) {
	k := w.pick(t, func(k *refTicket) bool { return k.queued || rapid.IntRange(0, 9).Draw(t, "late") == 9 })
	got, out := w.do(t, Step{Op: StepCancel, Ticket: k.number})
	if want := w.ref.cancel(w.now, k); got != want {
		t.Fatalf("cancelled: %t, want %t", got, want)
	}
	w.step(t, out)
}

func (w *world) start(t *rapid.T) {
	k := w.pick(t, (*refTicket).holds)
	w.do(t, Step{Op: StepStartDecode, Ticket: k.number})
	w.ref.startDecode(k)
}

func (w *world) endPrefill(t *rapid.T) {
	k := w.pick(t, (*refTicket).granted)
	_, out := w.do(t, Step{Op: StepEndPrefill, Ticket: k.number})
	w.ref.endPrefill(k)
	w.ref.drain(w.now)
	w.step(t, out)
}

func (w *world) endDecode(t *rapid.T) {
	k := w.pick(t, (*refTicket).granted)
	_, out := w.do(t, Step{Op: StepEndDecode, Ticket: k.number})
	w.ref.endDecode(k)
	w.ref.drain(w.now)
	w.step(t, out)
}

func (w *world) release(t *rapid.T) {
	w.end1(t, w.pick(t, (*refTicket).granted))
}

func (w *world) end1(t *rapid.T, k *refTicket) {
	_, out := w.do(t, Step{Op: StepRelease, Ticket: k.number})
	w.ref.endPrefill(k)
	w.ref.endDecode(k)
	if k.granted() {
		k.state = stateIdle
	}
	w.ref.drain(w.now)
	w.step(t, out)
}

// finish forgets a request that is over.
func (w *world) finish(t *rapid.T) {
	k := w.pick(t, func(k *refTicket) bool { return !k.queued && !k.holds() })
	w.do(t, Step{Op: StepForget, Ticket: k.number})
	w.tickets = slices.DeleteFunc(w.tickets, func(o *refTicket) bool { return o == k })
}

// rarely leaves most changes out of a calm history, so that queues grow long in it, and
// fences are due.
func (w *world) rarely(t *rapid.T) {
	if w.calm && rapid.IntRange(0, 7).Draw(t, "calm") > 0 {
		t.Skip("calm")
	}
}

// fleet adds, removes and replaces ranks, several at once.
func (w *world) fleet(t *rapid.T) {
	w.rarely(t)
	var changes []Change
	left := slices.Clone(w.ref.ranks)
	for range rapid.IntRange(1, 3).Draw(t, "changes") {
		op := rapid.SampledFrom([]string{"replace", "add", "remove"}).Draw(t, "op")
		if op == "add" && len(left) < 12 {
			changes = append(changes, w.newRank(t))
			continue
		}
		if op == "add" || len(left) == 0 {
			continue
		}
		i := rapid.IntRange(0, len(left)-1).Draw(t, "rank")
		old := left[i].real
		left = slices.Delete(left, i, i+1)
		remove := Change{Op: RemoveRank, Rank: old}
		if op == "remove" {
			changes = append(changes, remove)
			continue
		}
		again := NewRank(RankSpec{
			ID: old.id, Generation: w.generation(), Worker: old.worker, Role: old.role, Models: old.models, PairGroup: old.group,
			Topology: old.topology, Labels: old.labels, Capacity: old.capacity, Limits: old.bounds, Priority: old.priority, State: RankState{Healthy: true},
		})
		add := Change{Op: AddRank, Rank: again, State: again.state}
		if rapid.Bool().Draw(t, "new one first") {
			changes = append(changes, add, remove)
		} else {
			changes = append(changes, remove, add)
		}
	}
	w.apply(t, changes)
}

func (w *world) states(t *rapid.T) {
	w.rarely(t)
	if len(w.ref.ranks) == 0 {
		t.Skip("no ranks")
	}
	r := rapid.SampledFrom(w.ref.ranks).Draw(t, "rank")
	w.apply(t, []Change{{Op: SetState, Rank: r.real, State: drawState(t)}})
}

func (w *world) apply(t *rapid.T, changes []Change) {
	_, out := w.do(t, Step{Op: StepApply, Changes: written(changes)})
	for i := range changes {
		ch := &changes[i]
		switch ch.Op {
		case AddRank:
			ch.Attributes = attributesOf(ch.Rank)
			ch.Rank = w.port.rank(ch.Rank.ref())
		case SetAttributes:
			ch.Attributes = ch.Attributes.clone()
		}
	}
	w.ref.apply(w.now, changes)
	w.step(t, out)
}

func (w *world) setLimits(t *rapid.T) {
	w.rarely(t)
	l := drawLimits(t)
	if w.ref.predictable {
		drawAffinity(t, &l)
	}
	_, out := w.do(t, Step{Op: StepSetLimits, Settings: &Settings{Limits: l}})
	w.ref.limits = l
	for _, r := range w.ref.ranks {
		w.ref.judge(r)
	}
	if l.StarvationGuard <= 0 {
		clear(w.ref.fences)
	}
	w.ref.lookAll()
	w.ref.drain(w.now)
	w.step(t, out)
}

func (w *world) setReject(t *rapid.T) {
	w.rarely(t)
	h := drawReject(t)
	_, out := w.do(t, Step{Op: StepSetReject, Settings: &Settings{Reject: h}})
	w.ref.reject = h
	w.ref.lookAll()
	w.ref.drain(w.now)
	w.step(t, out)
}

func (w *world) reload(t *rapid.T) {
	if rapid.IntRange(0, 2).Draw(t, "reload") < 2 {
		t.Skip("not yet")
	}
	w.rarely(t)
	cs := drawClasses(t)
	old := map[*profileQueue]string{}
	for _, f := range w.core.modelGroups {
		for _, p := range f.profiles {
			old[p] = p.profile.name
		}
	}
	_, out := w.do(t, Step{Op: StepSetClasses, Settings: &Settings{Classes: cs}})
	w.ref.reload(w.now, cs, isStrict(w.core.mode, cs), old)
	w.step(t, out)
}

func (w *world) grow(t *rapid.T) {
	k := w.pick(t, (*refTicket).holds)
	n := int64(rapid.IntRange(1, 9).Draw(t, "blocks"))
	_, out := w.do(t, Step{Op: StepGrow, Ticket: k.number, Blocks: n})
	w.ref.grow(k, n)
	w.ref.drain(w.now)
	w.step(t, out)
}

// output is what the router makes of an answer that comes: growth, where that is more
// than was reserved.
func (w *world) output(t *rapid.T) {
	k := w.pick(t, func(k *refTicket) bool { return k.decode != nil })
	n := int64(rapid.SampledFrom([]int{1, 10, 17, 64, 300}).Draw(t, "tokens"))
	_, out := w.do(t, Step{Op: StepGrow, Ticket: k.number, Blocks: k.counter.Seen(int(k.output+n), 0)})
	w.ref.come(k, n)
	w.ref.drain(w.now)
	w.step(t, out)
}

func (w *world) firstToken(t *rapid.T) {
	k := w.pick(t, (*refTicket).holds)
	_, out := w.do(t, Step{Op: StepFirstToken, Ticket: k.number})
	w.ref.endTokens(k)
	w.ref.drain(w.now)
	w.step(t, out)
}

// refresh gives a request other hints, which matter only while it waits.
func (w *world) refresh(t *rapid.T) {
	k := w.pick(t, func(k *refTicket) bool { return k.queued || rapid.IntRange(0, 9).Draw(t, "late") == 9 })
	hints := w.drawHints(t)
	now := k.hints
	k.hints = hints
	fresh := k.realHints()
	k.hints = now
	written := [2]RequestHint{hintOf(&fresh[PrefillLeg]), hintOf(&fresh[DecodeLeg])}
	_, out := w.do(t, Step{Op: StepRefresh, Ticket: k.number, Hints: &written})
	w.ref.refreshed++
	w.ref.refresh(k, hints)
	w.ref.drain(w.now)
	w.checkAsked(t, k)
	w.step(t, out)
}

func (w *world) moveDecode(t *rapid.T) {
	k := w.pick(t, (*refTicket).granted)
	var exclude []*Rank
	if len(w.ref.ranks) > 0 && rapid.Bool().Draw(t, "exclude") {
		exclude = append(exclude, rapid.SampledFrom(w.ref.ranks).Draw(t, "excluded").real)
	}
	may := w.ref.staged(k, exclude)
	was := k.real.Decode
	moved, out := w.do(t, Step{Op: StepMoveDecode, Ticket: k.number, Exclude: refsOf(exclude)})
	if moved != (len(may) > 0) {
		t.Fatalf("moved: %t, with %d ranks to move to", moved, len(may))
	}
	k.renamed() // its model may have lost all ranks, and have others now
	if to := w.ref.find(k.real.Decode); !moved && k.real.Decode != was {
		t.Fatal("not moved, but elsewhere")
	} else if moved {
		if !slices.Contains(may, to) {
			t.Fatalf("moved to %s", to.real.id)
		}
		if p := k.target.model.pools[RoleDecode]; !k.target.prefers {
			w.ref.chosenAmong(w.ref.best(p, may), to)
		}
		w.ref.moved++
		w.ref.lookFor(k.decode)
		over := w.ref.lookIfOver(to)
		w.ref.dropDecode(k)
		w.ref.bookDecode(k, to)
		w.ref.took(k.target.model.pools[RoleDecode], to)
		over()
		w.ref.lookAgain(k.group())
		w.ref.drain(w.now)
	}
	w.step(t, out)
}

func (w *world) quarantines(t *rapid.T) {
	if w.ref.predictable && !w.barring {
		t.Skip("not here")
	}
	var ps, ds []*refRank
	for _, r := range w.ref.ranks {
		switch r.real.role {
		case RolePrefill:
			ps = append(ps, r)
		case RoleDecode:
			ds = append(ds, r)
		}
	}
	if len(ps) == 0 || len(ds) == 0 {
		t.Skip("no pair")
	}
	op := rapid.SampledFrom([]ChangeOp{QuarantinePair, EndQuarantine}).Draw(t, "op")
	w.apply(t, []Change{{Op: op, Rank: rapid.SampledFrom(ps).Draw(t, "prefill").real, Other: rapid.SampledFrom(ds).Draw(t, "decode").real}})
}

func (w *world) setAttributes(t *rapid.T) {
	w.rarely(t)
	if len(w.ref.ranks) == 0 {
		t.Skip("no ranks")
	}
	r := rapid.SampledFrom(w.ref.ranks).Draw(t, "rank")
	w.apply(t, []Change{{Op: SetAttributes, Rank: r.real, Attributes: drawAttributes(t)}})
}

// reports are what engines report, perhaps together with another change.
func (w *world) reports(t *rapid.T) {
	if len(w.ref.ranks) == 0 {
		t.Skip("no ranks")
	}
	var changes []Change
	for range rapid.IntRange(1, 4).Draw(t, "reports") {
		r := rapid.SampledFrom(w.ref.ranks).Draw(t, "rank")
		changes = append(changes, Change{Op: SetReport, Rank: r.real, Report: drawReport(t)})
	}
	if rapid.IntRange(0, 9).Draw(t, "and more") == 9 {
		changes = append(changes, Change{Op: SetState, Rank: rapid.SampledFrom(w.ref.ranks).Draw(t, "rank").real, State: drawState(t)})
	}
	w.apply(t, changes)
}

func (w *world) moveTo(now Instant) {
	w.ref.closed += int64(now-w.now) * int64(w.ref.queues())
	w.now, w.ref.now = now, now
}

// pass lets time pass as a punctual timer does.
func (w *world) pass(t *rapid.T) {
	until := w.now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
	for w.core.NextDeadline() <= until {
		w.moveTo(max(w.now, w.core.NextDeadline()))
		w.advance(t)
	}
	w.moveTo(until)
}

// jump lets time pass without telling the core, or tells it late.
func (w *world) jump(t *rapid.T) {
	w.moveTo(w.now.Add(time.Duration(rapid.IntRange(0, 2000).Draw(t, "ms")) * time.Millisecond))
	if rapid.Bool().Draw(t, "told") {
		w.advance(t)
	}
}

func (w *world) advance(t *rapid.T) {
	again := w.now >= w.core.nextRecheck
	_, out := w.do(t, Step{Op: StepAdvance})
	w.ref.expire(w.now)
	if again {
		w.ref.lookAll()
		w.ref.drain(w.now)
	}
	if again && w.ref.drainEnd != never {
		w.ref.refuseTooLate()
	}
	w.step(t, out)
}

func (w *world) shutDown(t *rapid.T) {
	switch rapid.IntRange(0, 60).Draw(t, "shut down") {
	case 55, 56, 57, 58:
		d := time.Duration(rapid.IntRange(0, 10).Draw(t, "drain")) * time.Second
		_, out := w.do(t, Step{Op: StepDrainWithin, Within: d})
		w.ref.drainEnd = w.now.Add(d)
		w.ref.refuseTooLate()
		w.step(t, out)
	case 59:
		w.do(t, Step{Op: StepStopArrivals})
		w.ref.stopped = true
	case 60:
		_, out := w.do(t, Step{Op: StepRefuseWaiters})
		w.ref.noWaits = true
		all := slices.Clone(w.ref.waiters)
		slices.SortFunc(all, func(a, b *refTicket) int {
			if a.older(b) {
				return -1
			}
			return 1
		})
		for _, k := range all {
			w.ref.leaveAt(w.now, k)
			w.ref.refuse(k, Draining)
		}
		w.step(t, out)
	default:
		t.Skip("not yet")
	}
}
