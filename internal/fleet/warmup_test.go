package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
)

// warming are the ids of the ranks that the gate gives a share only.
func (b *testbed) warming() []string {
	ids := []string{}
	for _, r := range b.gate.Stats().Ranks {
		if r.Candidate && r.State.Share > 0 {
			ids = append(ids, r.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

func (b *testbed) wantWarming(what string, want ...string) {
	b.t.Helper()
	if got := b.warming(); !slices.Equal(got, want) && len(got)+len(want) > 0 {
		b.t.Errorf("%s: %q warm up, want %q", what, got, want)
	}
}

// A rank warms up for a minute from each time that it comes or comes back, whatever it was
// away for.
func TestWhoComesBackWarmsUp(t *testing.T) {
	for name, tc := range map[string]struct{ away, back func(b *testbed) }{
		"unhealthy": {
			func(b *testbed) { b.prober.set(vanished, urlA); b.pass(time.Minute) },
			func(b *testbed) { b.prober.set(well, urlA); b.pass(20 * time.Second) },
		},
		"drained": {
			func(b *testbed) { _, _ = b.SetDrained(urlA, true) },
			func(b *testbed) { _, _ = b.SetDrained(urlA, false) },
		},
		"not ready": {
			func(b *testbed) { b.declareA(Declared{NotReady: "rolling"}) },
			func(b *testbed) { b.declareA(Declared{}) },
		},
		"removed": {
			func(b *testbed) { b.declareOnly(); b.pass(time.Second) },
			func(b *testbed) { b.declareA(Declared{}); b.pass(10 * time.Second) },
		},
		"another engine": {
			func(b *testbed) {},
			func(b *testbed) { b.declareA(Declared{Identity: "other"}) },
		},
		"breaker open": {
			func(b *testbed) {
				w, _ := b.Get(urlA)
				for range 10 {
					w.Ranks()[0].ReportFailure(Proven, 0)
				}
			},
			func(b *testbed) { b.pass(b.cfg.CircuitBreaker.TimeoutDuration + time.Second) },
		},
		"wedged": {
			func(b *testbed) {
				w, _ := b.Get(urlA)
				w.Ranks()[0].wedged.Store(true)
				b.refresh(w)
			},
			func(b *testbed) {
				w, _ := b.Get(urlA)
				w.Ranks()[0].wedged.Store(false)
				b.refresh(w)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
				b.prober.set(well, urlA, urlB)
				b.declareA(Declared{})
				b.add(WorkerSpec{URL: urlB})
				b.pass(time.Second)
				b.wantCandidates(urlA, urlB)
				b.wantWarming("at the start of the router")
				b.pass(time.Hour)
				tc.away(b)
				tc.back(b)
				b.wantCandidates(urlA, urlB)
				b.wantWarming("back", urlA)
				if i := b.info(urlA).Ranks[0]; i.WarmingSecs <= 0 || i.WarmingSecs > 60 {
					t.Errorf("told to warm up for %g s", i.WarmingSecs)
				}
				b.pass(time.Minute)
				b.wantWarming("after a minute")
				b.wantCandidates(urlA, urlB)
			})
		})
	}
}

// refresh passes what is known of w on to the gate.
func (b *testbed) refresh(w *Worker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var changes []admission.Change
	b.applyStatesLocked(w, &changes)
	b.gate.Apply(changes...)
}

func (b *testbed) info(url string) Info {
	w, _ := b.Get(url)
	return w.Info()
}

func (b *testbed) declareA(d Declared) {
	d.Worker = WorkerSpec{URL: urlA, Type: config.WorkerRegular}
	d.Identity = cmp.Or(d.Identity, "one")
	b.declareOnly(d)
}

func (b *testbed) declareOnly(ds ...Declared) {
	b.t.Helper()
	if err := b.Reconcile(b.t.Context(), "pods", ds); err != nil {
		b.t.Fatal(err)
	}
	synctest.Wait()
}

func TestWhoStaysDoesNotWarmUp(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		b.add(WorkerSpec{URL: urlA})
		b.pass(time.Hour)
		b.add(WorkerSpec{URL: urlA, Labels: map[string]string{"a": "b"}})
		b.pass(time.Second)
		b.wantWarming("with another label")
		b.add(WorkerSpec{URL: urlA, APIKey: "k"})
		b.pass(time.Second)
		b.wantWarming("with another key")
		b.add(WorkerSpec{URL: urlA, Type: config.WorkerDecode})
		b.pass(time.Second)
		b.wantWarming("in another role")
		b.add(WorkerSpec{URL: urlA, ModelID: "other"})
		b.pass(time.Second)
		b.wantWarming("with another model")
		b.add(WorkerSpec{URL: urlA})
		b.add(WorkerSpec{URL: urlB})
		b.pass(time.Second)
		b.wantWarming("a new one", urlB)
		b.add(WorkerSpec{URL: urlB, APIKey: "k"})
		b.pass(30 * time.Second)
		b.wantWarming("replaced while it warms up", urlB)
		b.pass(30 * time.Second)
		b.wantWarming("a minute after it came")
		// Removed in the middle of it, nothing is left to happen.
		b.add(WorkerSpec{URL: urlB, ModelID: "other"})
		b.Remove(urlB)
		b.pass(2 * time.Minute)
		b.wantCandidates(urlA)
	})
}

// A worker that is removed and registered again is another, however new the router is.
func TestReAddedWorkerOfANewRouterWarmsUp(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		b.add(WorkerSpec{URL: urlA})
		b.add(WorkerSpec{URL: urlB})
		b.pass(time.Second)
		b.wantWarming("at the start of the router")
		b.Remove(urlB)
		b.pass(time.Second)
		b.add(WorkerSpec{URL: urlB})
		b.pass(time.Second)
		b.wantWarming("registered again", urlB)
	})
}

func TestWarmUpCanBeTurnedOff(t *testing.T) {
	inBubble(t, settings{ModelID: "m", config: func(c *config.Config) { c.Fleet.WorkerWarmup = 0 }}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		b.add(WorkerSpec{URL: urlA})
		b.pass(time.Hour)
		b.add(WorkerSpec{URL: urlB})
		b.pass(time.Second)
		b.wantCandidates(urlA, urlB)
		b.wantWarming("a new one")
	})
}

// Under load the share holds through the gate, and the sole worker that is left is used
// at once.
func TestWarmUpUnderLoad(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		urls := []string{urlA, urlB, urlC}
		b.prober.set(well, urls...)
		for _, u := range urls {
			b.add(WorkerSpec{URL: u})
		}
		b.pass(time.Hour)
		if _, err := b.SetDrained(urlA, true); err != nil {
			t.Fatal(err)
		}
		if _, err := b.SetDrained(urlA, false); err != nil {
			t.Fatal(err)
		}
		got := 0
		for range 900 {
			tk := b.acquire("m")
			if tk == nil {
				t.Fatal("a request found no worker")
			}
			if tk.Decode.ID() == urlA {
				got++
			}
			tk.Release()
		}
		if due := 900 * 250 / 2250; got < due*8/10 || got > due*12/10 {
			t.Errorf("it got %d of 900, want about %d", got, due)
		}
		for _, u := range urls[1:] {
			if _, err := b.SetDrained(u, true); err != nil {
				t.Fatal(err)
			}
		}
		for range 10 {
			tk := b.acquire("m")
			if tk == nil {
				t.Fatal("a request waited for the end of a warm-up")
			}
			tk.Release()
		}
	})
}

// An open breaker whose time has come is tried by a check before a client's request is
// risked.
func TestOpenBreakerIsCheckedBeforeTheTrial(t *testing.T) {
	inBubble(t, settings{ModelID: "m", Health: config.Health{FailureThreshold: 20}, Breaker: config.CircuitBreaker{TimeoutDuration: 7 * time.Second}}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		w := b.add(WorkerSpec{URL: urlA})
		b.add(WorkerSpec{URL: urlB})
		b.pass(time.Minute)
		for range 10 {
			w.Ranks()[0].ReportFailure(Proven, 0)
		}
		b.wantCandidates(urlB)
		// It answers its checks badly, though not so often that it is unhealthy.
		b.prober.set(busy, urlA)
		checks := b.prober.count(urlA)
		b.pass(8 * time.Second)
		b.wantCandidates(urlB)
		if b.prober.count(urlA) == checks {
			t.Error("it was not checked")
		}
		b.prober.set(well, urlA)
		b.pass(5 * time.Second)
		b.wantCandidates(urlA, urlB)
		if s := b.info(urlA); s.Breaker != "half-open" {
			t.Errorf("its breaker is %s", s.Breaker)
		}
	})
	// Where nothing is checked, the trial comes at once.
	inBubble(t, settings{ModelID: "m", Health: config.Health{Disabled: true}}, func(b *testbed) {
		w := b.add(WorkerSpec{URL: urlA})
		b.add(WorkerSpec{URL: urlB})
		b.pass(time.Second)
		for range 10 {
			w.Ranks()[0].ReportFailure(Proven, 0)
		}
		b.pass(b.cfg.CircuitBreaker.TimeoutDuration - time.Second)
		b.wantCandidates(urlB)
		b.pass(2 * time.Second)
		b.wantCandidates(urlA, urlB)
	})
}

// A thousand workers that all come back in a second cost little: the end of each warm-up
// is one event.
func TestWarmUpsOfManyWorkersEnd(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		var ds []Declared
		for i := range 200 {
			url := fmt.Sprintf("http://w%d:1", i)
			b.prober.set(well, url)
			ds = append(ds, Declared{Worker: WorkerSpec{URL: url, Type: config.WorkerRegular}})
		}
		b.declareOnly(ds...)
		b.pass(time.Minute)
		for i := range ds {
			ds[i].NotReady = "rolling"
		}
		b.declareOnly(ds...)
		for i := range ds {
			ds[i].NotReady = ""
		}
		b.declareOnly(ds...)
		if n := len(b.warming()); n != len(ds) {
			t.Errorf("%d of %d warm up", n, len(ds))
		}
		b.pass(time.Minute)
		b.wantWarming("after a minute")
	})
}
