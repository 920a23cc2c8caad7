package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-router/sluice/admission"
)

// seenBy is what a member says of a rank, in words: "well" or "ill" by its checks, "idle" if
// it was not checked lately, "served", "open", "half", "hung", "draining", "away".
func seenBy(words string) (o RankObservation, there bool) {
	if words == "" {
		return o, false
	}
	o = RankObservation{ID: "http://w", Spec: admission.RankSpec{ID: "http://w", Worker: "http://w", Role: admission.RolePrefill}}
	s := &o.Spec.State
	o.Checks = Succeeded
	s.Healthy = true
	for _, w := range strings.Fields(words) {
		switch w {
		case "well":
		case "ill":
			s.Healthy, o.Checks = false, Failed
		case "new":
			s.Healthy, o.Checks = false, Untried
		case "idle":
			o.Checks = Untried
		case "served":
			o.Legs = Succeeded
		case "open":
			s.Breaker, o.Legs = admission.BreakerOpen, Failed
		case "half":
			s.Breaker, s.Probes = admission.BreakerHalfOpen, 3
		case "hung":
			s.Healthy, o.Legs = false, Failed
		case "draining":
			s.Draining = true
		default:
			panic(w)
		}
	}
	return o, true
}

func stateInWords(s admission.RankState) string {
	var words []string
	if !s.Healthy {
		words = append(words, "ill")
	}
	if s.Draining {
		words = append(words, "draining")
	}
	if s.Breaker != admission.BreakerClosed {
		words = append(words, s.Breaker.String())
	}
	if len(words) == 0 {
		return "well"
	}
	return strings.Join(words, " ")
}

// One member's trouble with a rank is its own as long as another is served by it.
func TestARankIsIllOnlyWhenNobodyWhoTriedWasServed(t *testing.T) {
	for _, c := range []struct {
		says   []string // by members 1, 2 …
		want   string
		masked []Incarnation
	}{
		{says: []string{"well", "well"}, want: "well"},
		{says: []string{"ill", "ill"}, want: "ill", masked: []Incarnation{1, 2}},
		{says: []string{"well", "ill"}, want: "well", masked: []Incarnation{2}},
		{says: []string{"idle", "ill"}, want: "ill", masked: []Incarnation{2}},         // nobody else has tried
		{says: []string{"idle served", "ill"}, want: "well", masked: []Incarnation{2}}, // requests are trials too
		{says: []string{"idle", "new"}, want: "well", masked: []Incarnation{2}},        // it has not checked yet
		{says: []string{"well", ""}, want: "well", masked: []Incarnation{2}},           // it does not have it
		{says: []string{"new", "new"}, want: "ill", masked: []Incarnation{1, 2}},

		{says: []string{"well open", "well"}, want: "open", masked: []Incarnation{1}},
		{says: []string{"well open", "well served"}, want: "well", masked: []Incarnation{1}},
		{says: []string{"well open", "well half"}, want: "half-open", masked: []Incarnation{1}},
		{says: []string{"well half", "well"}, want: "half-open"},
		{says: []string{"well half", "well served"}, want: "well"},
		{says: []string{"well open", "well open", "well"}, want: "open", masked: []Incarnation{1, 2}},
		{says: []string{"well open", "ill", "well served"}, want: "well", masked: []Incarnation{1, 2}},

		// The health route may answer while the scheduler hangs.
		{says: []string{"hung", "well"}, want: "ill", masked: []Incarnation{1}},
		{says: []string{"hung", "well served"}, want: "well", masked: []Incarnation{1}},

		{says: []string{"well", "well draining"}, want: "draining"},
		{says: []string{"well", "ill draining"}, want: "draining", masked: []Incarnation{2}},
	} {
		t.Run(strings.Join(c.says, ", "), func(t *testing.T) {
			x := newTable(Epoch{Number: 1, Keeper: 1})
			for i, words := range c.says {
				o := Observation{Full: true}
				if r, there := seenBy(words); there {
					o.Ranks = append(o.Ranks, r)
				}
				x.observe(0, Incarnation(i+1), &o)
			}
			x.changes(0, nil, nil)
			r := x.byID["http://w"]
			if got := stateInWords(r.spec.State); got != c.want {
				t.Errorf("the rank is %s, want %s", got, c.want)
			}
			if !slices.Equal(r.masked, c.masked) {
				t.Errorf("masked for %v, want %v", r.masked, c.masked)
			}
		})
	}
}

// A member that is lost has no say in whether a rank is well, but ranks that only it had
// stay for what is held there, and go when it is forgotten.
func TestALostMembersRanksStayUntilItIsForgotten(t *testing.T) {
	x := newTable(Epoch{Number: 1, Keeper: 1})
	p := newPortCheck(t)
	own, _ := seenBy("well")
	own.ID = "http://only"
	common, _ := seenBy("well")
	ill, _ := seenBy("ill")
	x.observe(0, 1, &Observation{Full: true, Ranks: []RankObservation{ill}})
	x.observe(0, 2, &Observation{Full: true, Ranks: []RankObservation{common, own}})
	p.take(x.changes(0, nil, nil))
	p.want("http://only well, http://w well")
	x.lose(2)
	p.take(x.changes(0, nil, nil))
	p.want("http://only ill, http://w ill")
	generation := x.at("http://only").Generation
	x.observe(0, 2, &Observation{Full: true, Ranks: []RankObservation{common, own}})
	p.take(x.changes(0, nil, nil))
	p.want("http://only well, http://w well")
	if g := x.at("http://only").Generation; g != generation {
		t.Errorf("its generation is %x, was %x: what it holds would not count any more", g, generation)
	}
	x.lose(2)
	x.forget(0, 2)
	p.take(x.changes(0, nil, nil))
	p.want("http://w ill")
	x.observe(0, 2, &Observation{Full: true, Ranks: []RankObservation{own}})
	p.take(x.changes(0, nil, nil))
	if g := x.at("http://only").Generation; g <= generation {
		t.Errorf("it came back with generation %x, as before (%x)", g, generation)
	}
}

// A rank that one member registers anew, with others still having it, is the same rank: the
// requests that run there count. Another role is another rank.
func TestARankIsNewWhenNobodyHadItOrItsRoleChanged(t *testing.T) {
	x := newTable(Epoch{Number: 7, Keeper: 1})
	p := newPortCheck(t)
	o, _ := seenBy("well")
	gone := RankObservation{ID: o.ID, Gone: true}
	observe := func(m Incarnation, r RankObservation) {
		x.observe(0, m, &Observation{Ranks: []RankObservation{r}})
		p.take(x.changes(0, nil, nil))
	}
	observe(1, o)
	observe(2, o)
	first := x.at(o.ID)
	observe(1, gone)
	observe(1, o)
	if x.at(o.ID) != first {
		t.Error("it is another rank although a member had it all the time")
	}
	observe(1, gone)
	observe(2, gone)
	p.want("")
	observe(2, o)
	second := x.at(o.ID)
	if second.Generation <= first.Generation || second.Generation>>32 != 7 {
		t.Errorf("generation %x after %x", second.Generation, first.Generation)
	}
	if x.ref(first) != (admission.RankRef{}) {
		t.Error("the former rank is still known by its number")
	}
	other := o
	other.Spec.Role = admission.RoleDecode
	observe(2, other)
	if third := x.at(o.ID); third.Generation <= second.Generation {
		t.Errorf("generation %x after %x: its role is another one", third.Generation, second.Generation)
	}
	p.want("http://w well")
}

// What members say differently of a rank is told once, and the one counts that said
// something new last, whoever it is.
func TestTheLastChangeOfAnAttributeCounts(t *testing.T) {
	o := func(stamp uint64, blocks, running int64) *Observation {
		r, _ := seenBy("well")
		if running == 0 {
			r.Spec.Capacity.MaxBatchedTokens = 1 // as much is known of it
		}
		r.Stamp, r.Spec.Capacity.KVBlocks, r.Spec.Capacity.MaxRunning = stamp, blocks, running
		return &Observation{Ranks: []RankObservation{r}}
	}
	x := newTable(Epoch{Number: 1, Keeper: 1})
	x.observe(0, 1, o(20, 100, 0))
	x.observe(0, 2, o(10, 200, 8))
	x.changes(0, nil, nil)
	if c := x.spec("http://w").Capacity; c.KVBlocks != 100 || c.MaxRunning != 8 {
		t.Errorf("capacity %+v, want the blocks that were told last, and what only the other knows", c)
	}
	if d := x.differences(10); len(d) != 1 || d[0] != (difference{"http://w", 2, "total_kv_blocks"}) {
		t.Errorf("differences %v", d)
	}
	x.observe(0, 2, o(10, 200, 8))
	x.changes(0, nil, nil)
	if d := x.differences(10); len(d) != 0 {
		t.Errorf("told again: %v", d)
	}
	x.observe(0, 2, o(30, 200, 8))
	x.changes(0, nil, nil)
	if c := x.spec("http://w").Capacity; c.KVBlocks != 200 {
		t.Errorf("%d blocks, want 200", c.KVBlocks)
	}
	// Whoever does not know the model says nothing of it.
	with := o(10, 200, 8)
	with.Ranks[0].Spec.Models = []string{"model"}
	x.observe(0, 1, with)
	x.observe(0, 2, o(50, 300, 8))
	x.changes(0, nil, nil)
	if s := x.spec("http://w"); len(s.Models) != 1 || s.Capacity.KVBlocks != 200 {
		t.Errorf("models %q, %d blocks, want those of the member that knows the model", s.Models, s.Capacity.KVBlocks)
	}
	x.observe(0, 1, o(20, 100, 0))

	ill, _ := seenBy("new")
	ill.Stamp = 40
	x.observe(0, 2, &Observation{Ranks: []RankObservation{ill}})
	x.changes(0, nil, nil)
	if c := x.spec("http://w").Capacity; c.KVBlocks != 100 {
		t.Errorf("%d blocks, want those of the member that has asked the engine", c.KVBlocks)
	}
}

// The report of an engine that was made last counts, whoever asked.
func TestTheNewestReportCounts(t *testing.T) {
	x := newTable(Epoch{Number: 1, Keeper: 1})
	tell := func(m Incarnation, waiting int64, age time.Duration) int64 {
		r, _ := seenBy("well")
		r.Spec.Reported.RankReport = admission.RankReport{Requests: waiting, Waiting: waiting}
		r.ReportAge = age
		now := admission.Instant(time.Minute)
		x.observe(now, m, &Observation{Ranks: []RankObservation{r}})
		x.changes(now, nil, nil)
		return x.spec("http://w").Reported.Waiting
	}
	if n := tell(1, 5, 2*time.Second); n != 5 {
		t.Errorf("%d", n)
	}
	if n := tell(2, 7, 3*time.Second); n != 5 {
		t.Errorf("%d, an older one counts", n)
	}
	if n := tell(2, 8, time.Second); n != 8 {
		t.Errorf("%d, want the newest", n)
	}
	if n := tell(2, 0, 0); n != 5 {
		t.Errorf("%d, want that of the other, since this one has none any more", n)
	}
}

// The next keeper begins with the copy: ranks keep their generations, and of a breaker that
// only the former keeper had open a few requests try first.
func TestTheNextKeeperBeginsWithTheCopy(t *testing.T) {
	x := newTable(Epoch{Number: 3, Keeper: 1})
	open, _ := seenBy("well open")
	well, _ := seenBy("well")
	decode := well
	decode.ID, decode.Spec.ID, decode.Spec.Role = "http://d", "http://d", admission.RoleDecode
	x.observe(0, 1, &Observation{
		Full: true, Ranks: []RankObservation{open, decode}, Pairs: []PairObservation{{"http://w", "http://d", time.Hour}},
	})
	x.observe(0, 2, &Observation{Full: true, Ranks: []RankObservation{well}})
	x.changes(0, nil, nil)
	var c tableCopy
	for _, part := range x.rowsSince(0, 0) {
		c.apply(&part)
	}
	at := x.at("http://w")

	y := newTable(Epoch{Number: 4, Keeper: 2})
	y.restore(c.whole())
	y.restorePairs(0, c.whole().Pairs)
	if ch := y.changes(0, nil, nil); ch[len(ch)-1].Op != admission.QuarantinePair {
		t.Errorf("the pair in quarantine was forgotten: %v", ch)
	}
	if at := y.next(); at != admission.Instant(releasedPairTime) {
		t.Errorf("its quarantine ends at %v", at)
	}
	if got := stateInWords(y.spec("http://w").State); got != "ill open" {
		t.Errorf("it is %s before any member has told of it", got)
	}
	y.observe(0, 2, &Observation{Full: true, Ranks: []RankObservation{well}})
	y.changes(0, nil, nil)
	if y.at("http://w").Generation != at.Generation {
		t.Error("it has another generation")
	}
	if got := stateInWords(y.spec("http://w").State); got != "half-open" {
		t.Errorf("it is %s, want a few trials", got)
	}
	served, _ := seenBy("well served")
	y.observe(0, 2, &Observation{Ranks: []RankObservation{served}})
	y.changes(0, nil, nil)
	if got := stateInWords(y.spec("http://w").State); got != "well" {
		t.Errorf("it is %s", got)
	}

	z := newTable(Epoch{Number: 5, Keeper: 3})
	z.restore(c.whole())
	z.changes(0, nil, nil)
	z.dropRestored()
	if ch := z.changes(0, nil, nil); len(ch) != 2 || ch[1].Op != admission.RemoveRank || ch[0].Op != admission.RemoveRank {
		t.Errorf("a rank that no member tells of stays: %v", ch)
	}
}

// A pair is in quarantine until the last member that reported it says that it is over; what
// one that ended has reported stays for a while.
func TestAPairIsQuarantinedForAll(t *testing.T) {
	x := newTable(Epoch{Number: 1, Keeper: 1})
	p, _ := seenBy("well")
	d, _ := seenBy("well")
	p.ID, d.ID, d.Spec.Role = "http://p", "http://d", admission.RoleDecode
	ops := func(now time.Duration) (list []admission.ChangeOp) {
		for _, ch := range x.changes(admission.Instant(now), nil, nil) {
			if ch.Op == admission.QuarantinePair || ch.Op == admission.EndQuarantine {
				list = append(list, ch.Op)
			}
		}
		return list
	}
	want := func(got []admission.ChangeOp, want ...admission.ChangeOp) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("told %v, want %v", got, want)
		}
	}
	pair := func(m Incarnation, left time.Duration) {
		x.observe(0, m, &Observation{Pairs: []PairObservation{{"http://p", "http://d", left}}})
	}
	x.observe(0, 1, &Observation{Full: true, Ranks: []RankObservation{p, d}})
	x.observe(0, 2, &Observation{Full: true})
	pair(1, time.Hour)
	want(ops(0), admission.QuarantinePair)
	pair(2, time.Hour)
	pair(1, 0)
	want(ops(0))
	if at := x.next(); at != admission.Instant(maxPairTime) {
		t.Errorf("it would end at %v", at)
	}
	x.forget(0, 2)
	want(ops(0))
	want(ops(releasedPairTime - 1))
	want(ops(releasedPairTime), admission.EndQuarantine)
}

// The copies of members are the table, whatever happens between two messages.
func TestCopiesFollowTheTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newTable(Epoch{Number: 1, Keeper: 1})
		var c tableCopy
		sent := uint64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			m := Incarnation(rapid.IntRange(1, 3).Draw(t, "member"))
			id := fmt.Sprintf("http://w%d", rapid.IntRange(0, 5).Draw(t, "rank"))
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				x.observe(0, m, &Observation{Ranks: []RankObservation{{ID: id, Gone: true}}})
			case 1:
				x.lose(m)
			case 2:
				x.forget(0, m)
			case 3:
				x.setLoad(x.ref(x.at(id)), Load{Active: rapid.IntRange(0, 9).Draw(t, "load")})
			default:
				x.observe(0, m, &Observation{Ranks: []RankObservation{drawObservation(t, id)}})
			}
			x.changes(0, nil, nil)
			if rapid.Bool().Draw(t, "send") {
				for _, part := range x.rowsSince(0, sent) {
					c.apply(&part)
					sent = part.Version
				}
				checkCopy(t, x, &c)
			}
		}
	})
}

func drawObservation(t *rapid.T, id string) RankObservation {
	r, _ := seenBy(rapid.SampledFrom([]string{"well", "ill", "new", "well served", "well open", "well half", "hung", "well draining"}).Draw(t, "says"))
	r.ID, r.Spec.ID, r.Spec.Worker = id, id, id
	r.Stamp = rapid.Uint64Range(1, 3).Draw(t, "stamp")
	r.Spec.Priority = rapid.IntRange(0, 2).Draw(t, "priority")
	if rapid.IntRange(0, 9).Draw(t, "role") == 0 {
		r.Spec.Role = admission.RoleDecode
	}
	return r
}

func checkCopy(t *rapid.T, x *table, c *tableCopy) {
	if len(c.byID) != len(x.byID) {
		t.Fatalf("the copy has %v, the table %v", slices.Sorted(maps.Keys(c.byID)), slices.Sorted(maps.Keys(x.byID)))
	}
	for id, r := range x.byID {
		k := c.byID[id]
		if k == nil || k.At != r.at || !sameSpec(k.Spec, &r.spec) || k.Load != r.load || !slices.Equal(k.Masked, r.masked) {
			t.Fatalf("the copy of %s is %+v, the table has %+v", id, k, r)
		}
		if c.id(r.at) != id || c.at(id) != r.at {
			t.Fatalf("%s is not found by its number", id)
		}
	}
}

// Whatever order messages of several members come in, the table says the same of each rank,
// and the core was told what the table says.
func TestTheTableDoesNotDependOnWhoSpokeFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const members = 3
		last := [members + 1]map[string]RankObservation{}
		x, p := newTable(Epoch{Number: 1, Keeper: 1}), newPortCheck(t)
		masked := map[string]bool{}
		masks := func(m Incarnation, r admission.RankRef, on bool) {
			key := fmt.Sprint(m, " ", r)
			if masked[key] == on {
				t.Fatalf("mask of %s told twice", key)
			}
			masked[key] = on
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			m := rapid.IntRange(1, members).Draw(t, "member")
			if last[m] == nil {
				last[m] = map[string]RankObservation{}
			}
			id := fmt.Sprintf("http://w%d", rapid.IntRange(0, 4).Draw(t, "rank"))
			o := RankObservation{ID: id, Gone: true}
			if rapid.IntRange(0, 4).Draw(t, "gone") > 0 {
				o = drawObservation(t, id)
				last[m][id] = o
			} else {
				delete(last[m], id)
			}
			for range rapid.IntRange(1, 2).Draw(t, "times") {
				x.observe(0, Incarnation(m), &Observation{Ranks: []RankObservation{o}})
			}
			if rapid.Bool().Draw(t, "settle") {
				p.take(x.changes(0, nil, masks))
			}
		}
		p.take(x.changes(0, nil, masks))

		// Another table, told only what is so in the end, the last member first.
		y := newTable(Epoch{Number: 2, Keeper: 1})
		for m := members; m > 0; m-- {
			if last[m] == nil {
				continue
			}
			o := Observation{Full: true}
			for _, id := range slices.Sorted(maps.Keys(last[m])) {
				o.Ranks = append(o.Ranks, last[m][id])
			}
			y.observe(0, Incarnation(m), &o)
		}
		y.changes(0, nil, nil)
		if len(x.byID) != len(y.byID) {
			t.Fatalf("one table has %d ranks, the other %d", len(x.byID), len(y.byID))
		}
		for id, r := range y.byID {
			if o := x.byID[id]; o == nil || !sameSpec(&r.spec, &o.spec) || !slices.Equal(r.masked, o.masked) {
				t.Fatalf("%s is %+v in one and %+v in the other", id, r, o)
			}
		}
		p.same(x)
		for id, r := range x.byID {
			for m := Incarnation(1); m <= members; m++ {
				key := fmt.Sprint(m, " ", admission.RankRef{ID: id, Generation: r.at.Generation})
				if masked[key] != slices.Contains(r.masked, m) {
					t.Fatalf("the core was told %v of the mask of %s", masked[key], key)
				}
			}
		}
	})
}

// What a fleet tells its gate becomes what the member observes.
func TestObserverTellsWhatChanged(t *testing.T) {
	var b Observer
	spec := admission.RankSpec{ID: "http://w", Generation: 1, Worker: "http://w"}
	ref := admission.RankRef{ID: "http://w", Generation: 1}
	b.Changes(5, []admission.FleetChange{{Op: admission.AddRank, Add: &spec}})
	o, ok := b.Observation()
	if !ok || len(o.Ranks) != 1 || o.Ranks[0].Stamp != 5 || o.Ranks[0].Spec.State.Healthy {
		t.Fatalf("%+v", o)
	}
	b.Changes(6, []admission.FleetChange{
		{Op: admission.SetState, Rank: ref, State: admission.RankState{Healthy: true}},
		{Op: admission.SetReport, Rank: ref, Report: admission.RankReport{Requests: 3}},
	})
	b.Trials([]RankTrial{{"http://w", Succeeded, Untried}, {"http://unknown", Failed, Failed}})
	if o, _ = b.Observation(); len(o.Ranks) != 1 || !o.Ranks[0].Spec.State.Healthy || o.Ranks[0].Checks != Succeeded || o.Ranks[0].Stamp != 5 || o.Ranks[0].Spec.Reported.Requests != 3 {
		t.Fatalf("%+v", o)
	}
	// It is registered anew, in one step or two: that is no rank that went.
	again := spec
	again.Generation, again.Priority = 2, 9
	b.Changes(7, []admission.FleetChange{{Op: admission.RemoveRank, Rank: ref}, {Op: admission.AddRank, Add: &again}})
	b.Changes(8, []admission.FleetChange{{Op: admission.SetState, Rank: ref, State: admission.RankState{Draining: true}}}) // late
	if o, _ = b.Observation(); len(o.Ranks) != 1 || o.Ranks[0].Gone || o.Ranks[0].Stamp != 7 || o.Ranks[0].Spec.State.Draining {
		t.Fatalf("%+v", o)
	}
	b.Changes(9, []admission.FleetChange{{Op: admission.QuarantinePair, Rank: ref, Other: ref}, {Op: admission.RemoveRank, Rank: admission.RankRef{ID: "http://w", Generation: 2}}})
	if o, _ = b.Observation(); len(o.Ranks) != 1 || !o.Ranks[0].Gone || len(o.Pairs) != 1 || o.Pairs[0].Left <= 0 {
		t.Fatalf("%+v", o)
	}
	if _, ok = b.Observation(); ok {
		t.Error("told although nothing changed")
	}
	var all observations
	all.add(0, &Observation{Full: true, Ranks: []RankObservation{{ID: "a"}, {ID: "b"}}})
	all.add(0, &Observation{Ranks: []RankObservation{{ID: "a", Gone: true}}})
	if w := all.whole(0); !w.Full || len(w.Ranks) != 1 || w.Ranks[0].ID != "b" {
		t.Fatalf("%+v", w)
	}
}

// portCheck follows the changes that the core is told, as it would.
type portCheck struct {
	t interface {
		Helper()
		Fatalf(string, ...any)
	}
	ranks map[admission.RankRef]admission.RankSpec
}

func newPortCheck(t interface {
	Helper()
	Fatalf(string, ...any)
}) *portCheck {
	return &portCheck{t, map[admission.RankRef]admission.RankSpec{}}
}

func (p *portCheck) take(changes []admission.FleetChange) {
	p.t.Helper()
	for _, ch := range changes {
		s, there := p.ranks[ch.Rank]
		switch ch.Op {
		case admission.AddRank:
			if there {
				p.t.Fatalf("%v is added twice", ch.Rank)
			}
			s = *ch.Add
		case admission.RemoveRank:
			delete(p.ranks, ch.Rank)
			if !there {
				p.t.Fatalf("%v is removed and was not there", ch.Rank)
			}
			continue
		case admission.SetState:
			s.State = ch.State
		case admission.SetAttributes:
			setAttributes(&s, &ch.Attributes)
		case admission.SetReport:
			s.Reported.RankReport = ch.Report
		default:
			continue
		}
		if !there && ch.Op != admission.AddRank {
			p.t.Fatalf("%v is changed and was not there", ch.Rank)
		}
		p.ranks[ch.Rank] = s
	}
}

func (p *portCheck) want(want string) {
	p.t.Helper()
	var list []string
	for ref, s := range p.ranks {
		list = append(list, ref.ID+" "+stateInWords(s.State))
	}
	slices.Sort(list)
	if got := strings.Join(list, ", "); got != want {
		p.t.Fatalf("the core has %s, want %s", got, want)
	}
}

func (p *portCheck) same(x *table) {
	p.t.Helper()
	if len(p.ranks) != len(x.byID) {
		p.t.Fatalf("the core has %d ranks, the table %d", len(p.ranks), len(x.byID))
	}
	for id, r := range x.byID {
		s, ok := p.ranks[admission.RankRef{ID: id, Generation: r.at.Generation}]
		if !ok || !sameSpec(&s, &r.spec) {
			p.t.Fatalf("the core has %+v of %s, the table %+v", s, id, r.spec)
		}
	}
}
