package fleet

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/policy"
)

func regular(url string, change ...func(*Declared)) Declared {
	d := Declared{Worker: WorkerSpec{URL: url, Type: config.WorkerRegular}}
	for _, c := range change {
		c(&d)
	}
	return d
}

func notReady(why string) func(*Declared) { return func(d *Declared) { d.NotReady = why } }

func identity(id string) func(*Declared) { return func(d *Declared) { d.Identity = id } }

func leaving(by time.Time) func(*Declared) {
	return func(d *Declared) { d.Leaving, d.LeaveBy = true, by }
}

// declare reconciles the source "pods" and fails on an error.
func (b *testbed) declare(specs ...Declared) {
	b.t.Helper()
	if err := b.Reconcile(b.t.Context(), "pods", specs); err != nil {
		b.t.Error(err)
	}
	synctest.Wait()
}

func (b *testbed) must(url string) *Worker {
	b.t.Helper()
	w, ok := b.Get(url)
	if !ok {
		b.t.Fatalf("there is no worker %s", url)
	}
	return w
}

func TestNotReadyKeepsWhatIsKnown(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		b.prober.says(urlA, serves("m"))
		b.prober.says(urlB, serves("m"))
		b.declare(regular(urlA), regular(urlB))
		b.wantCandidates(urlA, urlB)
		w := b.must(urlA)
		facts, rank, generation := w.Facts(), w.Ranks()[0], w.Generation()
		alive := w.Alive()
		b.acquire("m")

		b.declare(regular(urlA, notReady("pod is not Ready")), regular(urlB))
		b.wantCandidates(urlB)
		i := b.must(urlA).Info()
		if i.Status != StatusNotReady || i.NotReady != "pod is not Ready" || i.Reason != "pod is not Ready" || !i.IsHealthy || i.Source != "pods" {
			t.Errorf("status %s, %q, reason %q, healthy %v, source %q", i.Status, i.NotReady, i.Reason, i.IsHealthy, i.Source)
		}
		b.pass(time.Minute) // its checks go on, and succeed
		b.wantCandidates(urlB)
		if alive.Err() != nil {
			t.Error("a running request was ended")
		}

		b.declare(regular(urlA), regular(urlB))
		b.wantCandidates(urlA, urlB)
		if now := b.must(urlA); now != w || now.Ranks()[0] != rank || now.Generation() != generation || now.Facts().ServedName != facts.ServedName {
			t.Error("the worker was made anew")
		}
	})
}

// A pod is declared while its engine loads, and ready once that serves: it must not wait
// for a check whose pause has grown meanwhile.
func TestReadyWorkerIsCheckedAtOnce(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(vanished, urlA)
		b.prober.says(urlA, serves("m"))
		b.declare(regular(urlA, notReady("it loads")))
		b.pass(time.Minute)
		b.prober.set(well, urlA)
		b.declare(regular(urlA))
		b.wantCandidates(urlA)

		// One whose check is under way, and fails, is checked again soon.
		b.prober.set(vanished, urlB)
		b.prober.says(urlB, serves("m"))
		b.declare(regular(urlA), regular(urlB, notReady("it loads")))
		b.pass(time.Minute)
		b.prober.takes(urlB, 2*time.Second)
		b.pass(time.Minute)
		checks := b.prober.count(urlB)
		for b.prober.count(urlB) == checks {
			b.pass(100 * time.Millisecond)
		}
		b.declare(regular(urlA), regular(urlB))
		b.pass(2 * time.Second) // the check ends
		b.prober.set(well, urlB)
		b.prober.takes(urlB, 0)
		b.pass(2 * firstRetry)
		b.wantCandidates(urlA, urlB)
	})
}

func TestSourceTakesLeavingBack(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		b.prober.says(urlA, serves("m"))
		b.declare(regular(urlA))
		w := b.must(urlA)
		rank, checks := w.Ranks()[0], b.prober.count(urlA)
		b.acquire("m")

		b.declare(regular(urlA, leaving(time.Now().Add(time.Hour))))
		b.wantCandidates()
		if i := w.Info(); i.Status != StatusDraining || i.LeaveBy == nil {
			t.Errorf("status %s, leave by %v", i.Status, i.LeaveBy)
		}
		b.pass(time.Minute)
		b.declare(regular(urlA))
		b.wantCandidates(urlA)
		if now := b.must(urlA); now != w || now.Ranks()[0] != rank {
			t.Error("the worker was made anew")
		}
		if b.prober.count(urlA) == checks {
			t.Error("it was not checked when it came back")
		}
	})
}

func TestLeavingEndsByItsBound(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		b.declare(regular(urlA))
		w := b.must(urlA)
		b.acquire("m")
		alive := w.Alive()
		at := time.Now().Add(30 * time.Second)
		for range 3 {
			b.declare(regular(urlA, leaving(at)))
			b.pass(9 * time.Second)
		}
		if alive.Err() != nil {
			t.Error("its request was ended early")
		}
		b.pass(3*time.Second + time.Millisecond)
		if alive.Err() == nil {
			t.Error("its request outlived the engine")
		}
		if _, ok := b.Get(urlA); ok {
			t.Error("the worker is registered after its bound")
		}
		// It is still declared, as a pod with a finalizer is.
		b.declare(regular(urlA, leaving(at)))
		if _, ok := b.Get(urlA); ok {
			t.Error("a worker that had left came back as leaving")
		}
	})
}

func TestIdleWorkerLeavesAtOnce(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		b.declare(regular(urlA), regular(urlB))
		b.declare(regular(urlA, leaving(time.Now().Add(time.Hour))), regular(urlB))
		if _, ok := b.Get(urlA); ok {
			t.Error("it waits for nothing")
		}
		b.wantCandidates(urlB)
	})
}

func TestOtherIdentityIsAnotherEngine(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		b.declare(regular(urlA, identity("uid-1")))
		w := b.must(urlA)
		b.acquire("m")
		alive, generation, checks := w.Alive(), w.Generation(), b.prober.count(urlA)
		w.Ranks()[0].NoteFailure("x", "y")

		b.prober.takes(urlA, time.Second)
		b.prober.says(urlA, serves("m", "other"))
		b.declare(regular(urlA, identity("uid-2")))
		b.wantCandidates(urlA) // no gap
		if alive.Err() == nil {
			t.Error("a request on the former engine was not ended")
		}
		if now := b.must(urlA); now.Generation() == generation || now.Alive().Err() != nil {
			t.Error("it counts as the same engine")
		}
		b.pass(2 * time.Second)
		if b.prober.count(urlA) == checks {
			t.Error("it was not checked at once")
		}
		b.wantModels(map[string]string{urlA: "m,other"})

		// A source that cannot tell any more says nothing new.
		generation = b.must(urlA).Generation()
		b.declare(regular(urlA))
		b.declare(regular(urlA, identity("uid-2")))
		if b.must(urlA).Generation() != generation {
			t.Error("an engine was replaced that is the same")
		}
	})
}

// An engine was replaced and the one after it is deleted before the source could be read
// again: the worker is not kept for the sake of the former, which is gone.
func TestOtherIdentityThatLeaves(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		b.prober.says(urlA, serves("m"))
		b.prober.says(urlB, serves("m"))
		b.declare(regular(urlA, identity("uid-1")))
		alive := b.must(urlA).Alive()
		b.acquire("m")
		b.declare(regular(urlA, identity("uid-2"), leaving(time.Now().Add(time.Hour))), regular(urlB))
		b.wantCandidates(urlB)
		b.pass(time.Millisecond)
		if alive.Err() == nil {
			t.Error("a request on the former engine was not ended")
		}
		if _, ok := b.Get(urlA); ok {
			t.Error("the worker is still registered")
		}
		b.declare(regular(urlA, identity("uid-3")), regular(urlB))
		b.wantCandidates(urlA, urlB)
	})
}

// What a check reads that began at the former engine does not count.
func TestOtherIdentityDuringACheck(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		b.declare(regular(urlA, identity("uid-1")))
		b.prober.takes(urlA, 2*time.Second)
		checks := b.prober.count(urlA)
		for b.prober.count(urlA) == checks {
			b.pass(100 * time.Millisecond)
		}
		b.declare(regular(urlA, identity("uid-2")))
		b.prober.set(vanished, urlA)
		b.pass(2 * time.Second) // the check that began before is over, and the next has begun
		if n := b.prober.count(urlA); n != checks+2 {
			t.Errorf("%d checks began, want 2", n-checks)
		}
	})
}

func TestRemovedByRequestStaysOutOfItsSource(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		b.declare(regular(urlA), regular(urlB))
		b.Remove(urlA)
		b.declare(regular(urlA), regular(urlB))
		b.wantCandidates(urlB)
		if out := b.HeldOut("pods"); len(out) != 1 || out[0] != urlA {
			t.Error("it does not say so")
		}
		// Its source drops it and brings it again: that is a new decision.
		b.declare(regular(urlB))
		b.declare(regular(urlA), regular(urlB))
		b.wantCandidates(urlA, urlB)

		// Another engine at its address.
		b.declare(regular(urlA, identity("1")), regular(urlB))
		b.Remove(urlA)
		b.declare(regular(urlA, identity("1")), regular(urlB))
		b.wantCandidates(urlB)
		b.declare(regular(urlA, identity("2")), regular(urlB))
		b.wantCandidates(urlA, urlB)

		// A registration by request makes it the operator's; its removal is one of what
		// the source declares too.
		b.Remove(urlA)
		b.add(regular(urlA).Worker)
		synctest.Wait()
		b.wantCandidates(urlA, urlB)
		if err := b.Reconcile(t.Context(), "pods", []Declared{regular(urlA), regular(urlB)}); err == nil {
			t.Error("the source took an operator's worker")
		}
		b.Remove(urlA)
		b.declare(regular(urlA), regular(urlB))
		b.wantCandidates(urlB)
	})
}

func TestFirstOfTwoWithOneURLCounts(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA)
		one, two := regular(urlA), regular(urlA+"/")
		one.ModelID, two.ModelID = "first", "second"
		err := b.Reconcile(t.Context(), "pods", []Declared{one, two})
		if err == nil || b.must(urlA).Spec().ModelID != "first" {
			t.Errorf("error %v, model %q", err, b.must(urlA).Spec().ModelID)
		}
	})
}

// BenchmarkReconcile is the time to put 5,000 workers in force that are all new, to see
// that none has changed, and to remove them again.
func BenchmarkReconcile(b *testing.B) {
	const n = 5000
	specs := make([]Declared, n)
	for i := range specs {
		specs[i] = regular(fmt.Sprintf("http://10.%d.%d.1:30000", i/250, i%250), identity(fmt.Sprint(i)))
		specs[i].ModelID = "m"
	}
	flipped := make([]Declared, n)
	for i := range flipped {
		flipped[i] = specs[i]
		flipped[i].NotReady = "pod is not Ready"
	}
	step := func(b *testing.B, f *Fleet, specs []Declared) {
		if err := f.Reconcile(b.Context(), "pods", specs); err != nil {
			b.Fatal(err)
		}
	}
	bench := func(name string, before, specs []Declared) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				clock := admission.NewSystemClock()
				newPolicy, err := policy.New(policy.PowerOfTwo, 1)
				if err != nil {
					b.Fatal(err)
				}
				gate := admission.NewGate(admission.Options{NewPolicy: newPolicy}, clock, nil)
				f := newFleet(gate, settings{}.options(), clock, newFakeProber())
				step(b, f, before)
				b.StartTimer()
				step(b, f, specs)
				b.StopTimer()
				f.start()
				f.Close()
				gate.Close()
				b.StartTimer()
			}
		})
	}
	bench("new", nil, specs)
	bench("same", specs, specs)
	bench("not_ready", specs, flipped)
	bench("gone", specs, nil)
}

// In a large fleet what concerns all workers together follows a moment later: the names of
// models, and workers of unknown models, which get nothing once others name theirs.
func TestLargeFleetFollowsItsWorkers(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		var specs []Declared
		for i := range 2 * largeFleet {
			url := fmt.Sprintf("http://w%d:1", i)
			specs = append(specs, regular(url))
			b.prober.set(well, url)
			if i > 0 {
				b.prober.says(url, serves(fmt.Sprintf("m%d", i%3)))
			}
		}
		b.declare(specs...)
		b.pass(othersPause)
		if n := len(b.Models()); n != 3 {
			t.Errorf("%d models are listed", n)
		}
		if n := len(b.candidates()); n != len(specs)-1 {
			t.Errorf("%d candidates of %d", n, len(specs))
		}
		if i := b.must("http://w0:1").Info(); i.Status != StatusPending {
			t.Errorf("the worker that names no model is %s", i.Status)
		}
		// The workers of one model go: its name goes with them.
		var rest []Declared
		for i, s := range specs {
			if i%3 != 1 {
				rest = append(rest, s)
			}
		}
		b.declare(rest...)
		b.pass(othersPause)
		if n := len(b.Models()); n != 2 {
			t.Errorf("%d models are listed after those of one went", n)
		}
	})
}

func TestAwaited(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		b.prober.says(urlA, serves("m"))
		b.prober.says(urlB, serves("m"))
		want := func(what string, going, stay []string) {
			t.Helper()
			if got := b.Awaited("pods", going); !slices.Equal(got, stay) {
				t.Errorf("%s: %q stay of %q, want %q", what, got, going, stay)
			}
		}
		both := []string{urlA, urlB}
		b.declare(regular(urlA), regular(urlB))
		want("nobody comes", both, nil)
		want("the other one is ready", []string{urlA}, nil)

		b.declare(regular(urlA), regular(urlB), regular(urlC))
		want("one is coming", both, both)
		want("the other one is ready", []string{urlA}, nil)
		b.declare(regular(urlA), regular(urlB, notReady("no")), regular(urlC))
		want("the other one is not ready", []string{urlA}, []string{urlA})
		b.declare(regular(urlA), regular(urlB), regular(urlC, notReady("no")))
		want("the one that comes must not be chosen", both, nil)

		other := func(d *Declared) { d.ModelID = "other" }
		b.declare(regular(urlA), regular(urlB), regular(urlC, other))
		want("the one that comes serves another model", both, nil)
		decode := func(d *Declared) { d.Type = config.WorkerDecode }
		b.declare(regular(urlA), regular(urlB), regular(urlC, decode))
		want("the one that comes has another role", both, nil)

		b.prober.set(well, urlC)
		b.prober.says(urlC, serves("m"))
		b.declare(regular(urlA), regular(urlB), regular(urlC))
		b.pass(time.Minute)
		want("it has come", both, nil)

		b.prober.set(vanished, urlA, urlB, urlC)
		b.pass(time.Minute)
		want("they are down", both, nil)
	})
}
