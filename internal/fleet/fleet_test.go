package fleet

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
)

const (
	urlA = "http://a:1"
	urlB = "http://b:1"
	urlC = "http://c:1"
)

// TestFleetStartsWithDeadWorkers guards against a router that refuses to start,
// or waits, because a configured worker is down.
func TestFleetStartsWithDeadWorkers(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		b.prober.says(urlB, serves("m"))
		wa, wb := b.add(WorkerSpec{URL: urlA}), b.add(WorkerSpec{URL: urlB})
		synctest.Wait()
		if wa.Status() != StatusReady || wb.Status() != StatusPending {
			t.Errorf("statuses %s, %s", wa.Status(), wb.Status())
		}
		b.wantCandidates(urlA)
		b.pass(time.Minute)
		b.wantCandidates(urlA)
		b.prober.set(well, urlB)
		b.pass(6 * time.Second)
		b.wantCandidates(urlA, urlB)
		if b.acquire("m") == nil {
			t.Error("no grant")
		}
	})
	t.Run("all dead", func(t *testing.T) {
		inBubble(t, settings{}, func(b *testbed) {
			b.add(WorkerSpec{URL: urlA})
			b.pass(time.Hour)
			if !b.Expecting() || b.Ready(false) {
				t.Errorf("expecting %t, ready %t", b.Expecting(), b.Ready(false))
			}
			if n := b.prober.count(urlA); n < 600 || n > 900 {
				t.Errorf("asked %d times in an hour", n)
			}
		})
	})
}

// TestReadyNeedsBothRoles guards against a front end that says ready
// when all workers of one role are dead.
func TestReadyNeedsBothRoles(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		if b.Ready(true) {
			t.Error("ready without workers")
		}
		b.prober.set(well, urlA, urlB)
		b.add(WorkerSpec{URL: urlA, Type: config.WorkerPrefill})
		b.add(WorkerSpec{URL: urlB, Type: config.WorkerDecode})
		synctest.Wait()
		for _, u := range []string{urlA, urlB} {
			if !b.Ready(true) {
				t.Fatal("not ready")
			}
			b.prober.set(vanished, u)
			b.pass(2 * defaultHealthInterval)
			if b.Ready(true) {
				t.Errorf("ready without %s", u)
			}
			b.prober.set(well, u)
			b.pass(2 * defaultHealthInterval)
		}
		if !b.Ready(true) {
			t.Error("not ready again")
		}
		if b.Ready(false) {
			t.Error("ready for whole requests without a regular worker")
		}
	})
}

// TestBusyWorkerIsNotDead guards against a checker that takes the only worker
// out because it is too busy to answer the health route.
func TestBusyWorkerIsNotDead(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA)
		w := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		request := b.acquire("m")
		b.prober.set(busy, urlA)
		b.pass(100 * time.Second)
		b.wantCandidates(urlA)
		if !w.Info().Busy {
			t.Error("not shown as busy")
		}
		for range 60 { // bytes keep coming: no grace is needed
			w.NoteProgress()
			b.pass(5 * time.Second)
		}
		b.wantCandidates(urlA)
		request.Release()
		b.pass(30 * time.Second) // idle, and still not well
		b.wantCandidates()
		if w.Alive().Err() != nil {
			t.Error("a worker that answers was taken for dead")
		}
		b.prober.set(well, urlA)
		b.pass(10 * time.Second)
		b.wantCandidates(urlA)
	})
}

func TestDeathIsToldOnceAndEndsWithRecovery(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA)
		w := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		life := w.Alive()
		b.prober.set(vanished, urlA)
		for range 20 { // bytes came from it: nobody is told
			w.NoteProgress()
			b.pass(time.Second)
		}
		if life.Err() != nil {
			t.Fatal("dead while bytes came")
		}
		b.pass(20 * time.Second)
		if life.Err() == nil {
			t.Fatal("not dead")
		}
		if !w.Info().Dead || w.Status() != StatusUnhealthy {
			t.Errorf("shown as %+v", w.Info())
		}
		b.prober.set(well, urlA)
		b.pass(20 * time.Second)
		if w.Alive().Err() != nil || w.Alive() == life {
			t.Error("the life after the death is over too")
		}
	})
}

// TestRemovedWorkersAreNotProbed guards against probes of workers that a
// reload removed.
func TestRemovedWorkersAreNotProbed(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		wa := b.add(WorkerSpec{URL: urlA})
		b.add(WorkerSpec{URL: urlB})
		b.pass(time.Minute)
		b.prober.takes(urlA, time.Second) // removed in the middle of a check
		b.pass(5 * time.Second)
		if _, ok := b.Remove(wa.ID()); !ok {
			t.Fatal("unknown")
		}
		n := b.prober.count(urlA)
		b.pass(10 * time.Minute)
		if got := b.prober.count(urlA); got != n {
			t.Errorf("asked %d times after its removal", got-n)
		}
		if _, ok := b.Get(wa.ID()); ok {
			t.Error("still listed")
		}
		if b.prober.count(urlB) < 100 {
			t.Error("the other one is not asked any more")
		}
	})
}

// TestSuspectLineCountsRequests: who reads the log at night sees how many requests hang
// at a worker that fails its check.
func TestSuspectLineCountsRequests(t *testing.T) {
	log := &logBook{}
	inBubble(t, settings{ModelID: "m", Log: log.logger()}, func(b *testbed) {
		b.prober.set(well, urlA)
		b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		for range 3 {
			defer b.acquire("m").Release()
		}
		b.prober.set(busy, urlA)
		b.pass(10 * time.Second)
	})
	if s := log.String(); !strings.Contains(s, "worker is suspect") || !strings.Contains(s, " requests=3 why=busy") {
		t.Errorf("the log:\n%s", s)
	}
}

// TestHealthChecksDoNotResetLoad guards against a checker that resets load
// figures while requests run.
func TestHealthChecksDoNotResetLoad(t *testing.T) {
	inBubble(t, settings{ModelID: "m", Health: config.Health{Interval: time.Second}}, func(b *testbed) {
		b.prober.set(well, urlA)
		wa := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		var held []*admission.Ticket
		for range 20 {
			held = append(held, b.acquire("m"))
		}
		b.prober.set(well, urlB)
		b.add(WorkerSpec{URL: urlB})
		for range 20 {
			b.pass(time.Second)
			if n := wa.Info().Load; n != 20 {
				t.Fatalf("load %d", n)
			}
		}
		b.prober.set(vanished, urlA)
		b.pass(10 * time.Second)
		b.prober.set(well, urlA)
		b.pass(10 * time.Second)
		if n := wa.Info().Load; n != 20 {
			t.Errorf("load %d after an outage", n)
		}
		for range 5 {
			if t2 := b.acquire("m"); t2.Decode.ID() != urlB {
				t.Errorf("placed on %s", t2.Decode.ID())
			} else {
				t2.Release()
			}
		}
		for _, r := range held {
			r.Release()
		}
		if n := wa.Info().Load; n != 0 {
			t.Errorf("load %d at the end", n)
		}
	})
}

// TestRestartUnderTheSameAddressStartsCountsAnew guards against counts that outlive a
// worker and make the new one at its address look idle or full.
func TestRestartUnderTheSameAddressStartsCountsAnew(t *testing.T) {
	inBubble(t, settings{ModelID: "m", config: func(c *config.Config) { c.Fleet.WorkerWarmup = 0 }}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		b.add(WorkerSpec{URL: urlA})
		wb := b.add(WorkerSpec{URL: urlB})
		synctest.Wait()
		var held []*admission.Ticket
		for range 30 {
			held = append(held, b.acquire("m"))
		}
		b.Remove(wb.ID())
		if wb.Status() != StatusDraining {
			t.Errorf("status %s", wb.Status())
		}
		again := b.add(WorkerSpec{URL: urlB})
		synctest.Wait()
		if again == wb || again.ID() != wb.ID() || again.Generation() <= wb.Generation() {
			t.Errorf("not a new generation of the same worker: %d after %d", again.Generation(), wb.Generation())
		}
		if n := again.Info().Load; n != 0 {
			t.Errorf("the new generation starts with load %d", n)
		}
		for _, r := range held { // those on the old generation end there
			r.Release()
		}
		share := map[string]int{}
		for range 100 {
			r := b.acquire("m")
			share[r.Decode.ID()]++
			held = append(held, r)
		}
		if share[urlA] < 30 || share[urlB] < 30 {
			t.Errorf("shares %v", share)
		}
		for _, r := range held {
			r.Release()
		}
		for _, i := range b.Infos() {
			if i.Load != 0 {
				t.Errorf("%s has load %d at the end", i.URL, i.Load)
			}
		}
	})
}

// TestAnotherModelOrRoleReplacesTheWorker guards against entries of the old model
// and role that stay behind.
func TestAnotherModelOrRoleReplacesTheWorker(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA)
		first := b.add(WorkerSpec{URL: urlA, ModelID: "m0"})
		synctest.Wait()
		second, created, err := b.Add(t.Context(), WorkerSpec{URL: "HTTP://A:1/", ModelID: "m1", Type: config.WorkerDecode})
		if err != nil || !created || second.ID() != first.ID() {
			t.Fatalf("%v %t", err, created)
		}
		if b.gate.Resolve(admission.TargetSpec{Model: "m0"}) != nil {
			t.Error("m0 still has a pool")
		}
		if b.gate.Resolve(admission.TargetSpec{Model: "m1", Shape: admission.Disaggregated}) == nil {
			t.Error("m1 has none")
		}
		infos := b.Infos()
		if len(infos) != 1 || infos[0].ModelID != "m1" || infos[0].WorkerType != "decode" {
			t.Errorf("listed as %+v", infos)
		}
		b.wantCandidates(urlA) // at once: it was healthy
		if got := b.Models(); len(got) != 1 || got[0].ID != "m1" {
			t.Errorf("models %+v", got)
		}
	})
}

// TestReplacingLeavesNoGap guards against a replacement by removal, in
// which for a moment no worker exists.
func TestReplacingLeavesNoGap(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA)
		b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		done := make(chan bool)
		go func() {
			ok := true
			for range 2000 {
				r := b.acquire("m")
				if ok = ok && r != nil; r != nil {
					r.Release()
				}
			}
			done <- ok
		}()
		for i := range 1000 {
			b.add(WorkerSpec{URL: urlA, Labels: map[string]string{"version": fmt.Sprint(i / 2)}})
		}
		if !<-done {
			t.Error("a request found no worker")
		}
		b.pass(time.Minute)
		if n := len(b.gate.Stats().Ranks); n != 1 {
			t.Errorf("%d ranks at the end", n)
		}
	})
}

// TestSameSettingsAreTheSameWorker guards against a second registration
// that is neither refused nor takes effect.
func TestSameSettingsAreTheSameWorker(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		spec := WorkerSpec{URL: urlA, Type: config.WorkerPrefill, BootstrapPort: 9000, Labels: map[string]string{"zone": "x"}}
		w := b.add(spec)
		for _, same := range []string{urlA, "http://A:1/", "http://a:1/v1/"} {
			s := spec
			s.URL = same
			if got, created, err := b.Add(t.Context(), s); got != w || created || err != nil {
				t.Errorf("%s: another worker (created %t, %v)", same, created, err)
			}
		}
		spec.BootstrapPort = config.BootstrapNone
		got, created, _ := b.Add(t.Context(), spec)
		if !created || got.Info().BootstrapPort != nil {
			t.Errorf("the change did not take effect: %+v", got.Info())
		}
		var bad *SpecError
		if _, _, err := b.Add(t.Context(), WorkerSpec{URL: "ftp://a"}); !errors.As(err, &bad) || bad.Field != "url" {
			t.Errorf("a bad URL: %v", err)
		}
		if _, _, err := b.Add(t.Context(), WorkerSpec{URL: "http://b", APIKey: "a\nb"}); !errors.As(err, &bad) || bad.Field != "api_key" {
			t.Errorf("a bad key: %v", err)
		}
	})
}

func TestRemovedWorkerDrains(t *testing.T) {
	inBubble(t, settings{ModelID: "m", drainTimeout: time.Minute}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		wa := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		first := b.acquire("m")
		b.Remove(wa.ID())
		if b.acquire("m") != nil {
			t.Error("new work on a draining worker")
		}
		if b.Ready(false) {
			t.Error("ready")
		}
		b.pass(10 * time.Second)
		if got, ok := b.Get(wa.ID()); !ok || got.Status() != StatusDraining {
			t.Error("gone before its request was over")
		}
		first.Release()
		b.pass(time.Second)
		if _, ok := b.Get(wa.ID()); ok {
			t.Error("not gone")
		}

		wb := b.add(WorkerSpec{URL: urlB})
		synctest.Wait()
		stuck := b.acquire("m")
		b.Remove(urlB)
		b.pass(59 * time.Second)
		if _, ok := b.Get(wb.ID()); !ok {
			t.Error("gone before the drain timeout")
		}
		b.pass(2 * time.Second)
		if _, ok := b.Get(wb.ID()); ok {
			t.Error("not gone after the drain timeout")
		}
		stuck.Release()
		if _, ok := b.Remove(wb.ID()); ok {
			t.Error("removed twice")
		}
	})
}

// TestHangingWorkersDelayNoOtherCheck guards against checks that queue behind
// those of workers which never answer.
func TestHangingWorkersDelayNoOtherCheck(t *testing.T) {
	o := settings{ModelID: "m", maxProbes: 8, Health: config.Health{Interval: 2 * time.Second}}
	inBubble(t, o, func(b *testbed) {
		b.prober.set(well, urlA)
		b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		for i := range 40 {
			u := fmt.Sprintf("http://hang-%d:1", i)
			b.prober.takes(u, 5*time.Second)
			b.add(WorkerSpec{URL: u})
		}
		b.pass(time.Minute) // all of them have been found out
		for range 30 {
			b.pass(time.Second)
			if late := time.Since(b.prober.last(urlA)); late > 3*time.Second {
				t.Fatalf("the healthy worker was last asked %s ago", late)
			}
		}
		b.wantCandidates(urlA)
	})
}

func TestDisabledChecks(t *testing.T) {
	inBubble(t, settings{Health: config.Health{Disabled: true}}, func(b *testbed) {
		b.prober.says(urlA, serves("m"))
		w := b.add(WorkerSpec{URL: urlA})
		b.wantCandidates(urlA)
		b.pass(time.Hour)
		if n := b.prober.count(urlA); n != 0 {
			t.Errorf("asked %d times", n)
		}
		b.wantModels(map[string]string{urlA: "m"})
		if w.Status() != StatusReady {
			t.Errorf("status %s", w.Status())
		}
	})
}

func TestModelNames(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA, urlB, urlC)
		pool := func(model, want string) {
			t.Helper()
			if got := b.Pool(model); got != want {
				t.Errorf("%q is served by pool %q, want %q", model, got, want)
			}
		}
		sole := func(want string, wantN int) {
			t.Helper()
			if got, n := b.SolePool(); n != wantN || n == 1 && got != want {
				t.Errorf("sole pool %q of %d, want %q of %d", got, n, want, wantN)
			}
		}
		sole("", 0)
		// Nobody knows the model of the only worker: it serves whatever is asked.
		wa := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		b.wantModels(map[string]string{urlA: ""})
		sole("", 1)
		if b.acquire("anything") == nil {
			t.Error("no grant of an unknown model")
		}
		// Another one says what it serves: the first may serve something else, and
		// gets nothing until it says so.
		b.prober.says(urlB, &Facts{Facts: engine.Facts{
			Models:    []ModelInfo{{ID: "base"}, {ID: "base-2"}},
			Adapters:  []ModelInfo{{ID: "lora", Parent: "base-2"}, {ID: "lora-2", Parent: "?"}},
			ModelPath: "/models/base",
		}})
		b.add(WorkerSpec{URL: urlB})
		synctest.Wait()
		b.wantModels(map[string]string{urlB: "base,base-2"})
		if i := wa.Info(); i.Status != StatusPending || !strings.Contains(i.Reason, "set model_id") {
			t.Errorf("a worker that names no model beside one that does: %+v", i)
		}
		pool("base", "base")
		pool("base-2", "base-2")
		pool("lora", "base-2")
		pool("lora-2", "base")
		pool("/models/base", "base")
		pool("other", "other")
		sole("base", 1)
		if b.gate.Resolve(admission.TargetSpec{Model: "other"}) != nil {
			t.Error("a model that nobody serves has a pool")
		}
		// A second model.
		b.add(WorkerSpec{URL: urlC, ModelID: "named"})
		synctest.Wait()
		b.wantModels(map[string]string{urlB: "base,base-2", urlC: "named"})
		sole("", 2)
		var ids []string
		for _, m := range b.Models() {
			ids = append(ids, m.ID)
		}
		if want := []string{"base", "base-2", "lora", "lora-2", "named"}; !slices.Equal(ids, want) {
			t.Errorf("models %q, want %q", ids, want)
		}
		// It goes, and all is as it was.
		b.Remove(urlC)
		b.wantModels(map[string]string{urlB: "base,base-2"})
		sole("base", 1)
		// The first is the only one again.
		b.Remove(urlB)
		b.pass(time.Second)
		b.wantModels(map[string]string{urlA: ""})
		if wa.Status() != StatusReady {
			t.Errorf("status %s", wa.Status())
		}
	})
}

// TestSetModelThatTheEngineDoesNotKnow guards against the engine's 404 for a name that
// the list shows, and the engine's own name, which it does not show.
func TestSetModelThatTheEngineDoesNotKnow(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		vllm := serves("own")
		vllm.Backend = dialectVLLM
		b.prober.says(urlA, vllm)
		b.prober.says(urlB, serves("own")) // SGLang looks at no name
		wa, wb := b.add(WorkerSpec{URL: urlA, ModelID: "alias"}), b.add(WorkerSpec{URL: urlB, ModelID: "alias-2"})
		synctest.Wait()
		if i := wa.Info(); i.Status != StatusPending || !strings.Contains(i.Reason, `"own"`) || !slices.Contains(i.Warnings, i.Reason) {
			t.Errorf("vLLM under a name it does not know: %+v", i)
		}
		if wb.Status() != StatusReady {
			t.Errorf("SGLang under a name it does not know: %+v", wb.Info())
		}
		b.wantModels(map[string]string{urlB: "alias-2"})
		if list := b.Models(); len(list) != 1 || list[0].ID != "alias-2" || b.acquire("own") != nil {
			t.Errorf("models %v", list)
		}
		vllm = serves("own", "alias")
		vllm.Backend = dialectVLLM
		b.prober.says(urlA, vllm)
		b.pass(2 * defaultHealthInterval)
		b.wantModels(map[string]string{urlA: "alias", urlB: "alias-2"})
	})
}

// TestKnownModelWithoutHealthyWorkersIsUnavailable guards against "not found" for a
// model whose workers are all away: the pool stays, without candidates.
func TestKnownModelWithoutHealthyWorkersIsUnavailable(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		w := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		for range 10 {
			w.Ranks()[0].ReportFailure(Proven, 0)
		}
		b.wantCandidates(urlA) // the last one stays, half-open
		b.prober.set(vanished, urlA)
		b.pass(time.Minute)
		b.wantCandidates()
		if b.gate.Resolve(admission.TargetSpec{Model: "m"}) == nil {
			t.Error("the model is not known any more")
		}
		if got := b.Models(); len(got) != 1 {
			t.Errorf("models %v", got)
		}
		if b.Expecting() {
			t.Error("expecting an unknown model of a worker that was seen")
		}
	})
}

// TestOpenBreakerHalfOpensWithoutRequests guards against a breaker that waits for a
// request which is never sent, or never closes.
func TestOpenBreakerHalfOpensWithoutRequests(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		w := b.add(WorkerSpec{URL: urlA})
		b.add(WorkerSpec{URL: urlB}) // else the breaker would not open at all
		synctest.Wait()
		rank := w.Ranks()[0]
		open := func() {
			t.Helper()
			for range 10 {
				rank.ReportFailure(Proven, 0)
			}
			b.wantCandidates(urlB)
			if w.Info().Breaker != "open" {
				t.Errorf("breaker %s", w.Info().Breaker)
			}
		}
		open()
		b.pass(59 * time.Second)
		b.wantCandidates(urlB)
		b.pass(2 * time.Second)
		b.wantCandidates(urlA, urlB)
		b.Remove(urlB)
		b.pass(time.Second)
		b.wantCandidates(urlA)
		var probes []*admission.Ticket
		for range 3 {
			probes = append(probes, b.acquire("m"))
		}
		if slices.Contains(probes, nil) {
			t.Fatal("no probe")
		}
		if b.gate.RankStats(probes[0].Decode).Room {
			t.Error("room for a fourth probe")
		}
		for _, p := range probes {
			p.Release()
			rank.ReportSuccess()
		}
		if w.Info().Breaker != "closed" {
			t.Errorf("breaker %s after three successes", w.Info().Breaker)
		}
		// A worker that was away and is back need not wait.
		b.add(WorkerSpec{URL: urlB})
		synctest.Wait()
		open()
		b.prober.set(vanished, urlA)
		b.pass(20 * time.Second)
		b.prober.set(well, urlA)
		b.pass(10 * time.Second)
		b.wantCandidates(urlA, urlB)
		if w.Info().Breaker != "half-open" {
			t.Errorf("breaker %s after the recovery", w.Info().Breaker)
		}
	})
}

// TestPinToARankThatDoesNotExistIsNotFound guards against a rank number beyond the
// worker's size.
func TestPinToARankThatDoesNotExistIsNotFound(t *testing.T) {
	inBubble(t, settings{ModelID: "m", DPAware: true}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		b.prober.says(urlA, &Facts{Facts: engine.Facts{DPSize: 2}})
		wa := b.add(WorkerSpec{URL: urlA})
		wb := b.add(WorkerSpec{URL: urlB, Type: config.WorkerDecode, DPSize: 3})
		synctest.Wait()
		b.wantCandidates(urlA+"@0", urlA+"@1", urlB+"@0", urlB+"@1", urlB+"@2")
		if r := wa.Ranks()[1]; r.DPRank() != 1 || r.DPSize() != 2 {
			t.Errorf("rank %d of %d", r.DPRank(), r.DPSize())
		}
		for want, pin := range map[string]string{
			"0": urlA, urlA: urlA, "http://A:1/": urlA, wa.ID(): urlA,
			urlA + "@1": urlA + "@1", wa.ID() + "@0": urlA + "@0",
			"1": "", urlB: "", wb.ID(): "", urlA + "@2": "", urlA + "@7": "", urlA + "@-1": "", urlA + "@abc": "",
			urlA + "@99999999999999999999": "", "-1": "", "": "", "@": "", "0@0": "", "99999999999": "", "\x00": "",
		} {
			got, models, ok := b.ResolvePin(want, admission.RoleRegular)
			if got != pin || ok != (pin != "") {
				t.Errorf("pin %q gives %q, %t; want %q", want, got, ok, pin)
			}
			if ok && !slices.Equal(models, []string{"m"}) {
				t.Errorf("pin %q: models %q", want, models)
			}
		}
	})
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA)
		b.prober.says(urlA, &Facts{Facts: engine.Facts{DPSize: 8}})
		w := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		if r := w.Ranks(); len(r) != 1 || r[0].DPRank() != -1 || r[0].DPSize() != 1 {
			t.Error("scheduled by rank without being asked to")
		}
	})
}

func TestBootstrap(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		for _, tc := range []struct {
			url      string
			port     config.BootstrapPort
			told     int
			host     string
			wantPort int
			ok       bool
		}{
			{"http://p-1:30000", config.BootstrapAuto, 0, "p-1", 8998, true},
			{"http://p-2:30000", config.BootstrapAuto, 9001, "p-2", 9001, true},
			{"http://p-3:30000", 7000, 9001, "p-3", 7000, true},
			{"http://p-4:30000", config.BootstrapNone, 9001, "p-4", 0, false},
			{"http://[2001:DB8::1]:30000", 7000, 0, "[2001:db8::1]", 7000, true},
			{"http://[fe80::1%25eth0]:30000", 7000, 0, "[fe80::1]", 7000, true},
		} {
			w := b.add(WorkerSpec{URL: tc.url, Type: config.WorkerPrefill, BootstrapPort: tc.port})
			// A check may come at any moment: before the worker is well it reads no facts.
			b.prober.says(w.URL(), &Facts{Facts: engine.Facts{BootstrapPort: tc.told}})
			b.prober.set(well, w.URL())
			b.pass(10 * time.Second)
			host, port, ok := w.Ranks()[0].Bootstrap()
			if host != tc.host || port != tc.wantPort || ok != tc.ok {
				t.Errorf("%s: %s %d %t", tc.url, host, port, ok)
			}
		}
	})
}

func TestClosedFleet(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.add(WorkerSpec{URL: urlA})
		b.Close()
		b.Close()
		if _, _, err := b.Add(t.Context(), WorkerSpec{URL: urlB}); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		b.pass(time.Minute)
	})
}

// A failed request is news: the worker is checked at once, not at the next turn.
func TestFailedRequestsHurryTheCheck(t *testing.T) {
	inBubble(t, settings{ModelID: "m", Health: config.Health{Interval: time.Hour, FailureThreshold: 2}}, func(b *testbed) {
		b.prober.set(well, urlA)
		w := b.add(WorkerSpec{URL: urlA})
		b.pass(time.Minute)
		b.prober.set(vanished, urlA)
		for range 3 {
			w.Ranks()[0].CheckSoon()
			b.pass(2 * time.Second)
		}
		if w.Status() != StatusUnhealthy {
			t.Errorf("status %s", w.Status())
		}
		n := b.prober.count(urlA)
		for range 1000 { // a storm of failures is no storm of checks
			w.Ranks()[0].CheckSoon()
			b.pass(5 * time.Millisecond)
		}
		if n = b.prober.count(urlA) - n; n > 6 {
			t.Errorf("checked %d times in five seconds", n)
		}
	})
}

// A large idle fleet is looked at less often, its workers with requests are not.
func TestLargeFleetIsIdleCheaply(t *testing.T) {
	inBubble(t, settings{ModelID: "m", Health: config.Health{Interval: time.Second}}, func(b *testbed) {
		b.prober.set(well, urlA)
		wa := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		b.acquire("m")
		var urls []string
		for i := range 250 {
			urls = append(urls, fmt.Sprintf("http://w-%d:1", i))
		}
		b.prober.set(well, urls...)
		for _, u := range urls {
			b.add(WorkerSpec{URL: u})
		}
		b.pass(time.Minute)
		total, busy := -b.prober.total(), -b.prober.count(wa.URL())
		b.pass(time.Minute)
		total, busy = total+b.prober.total(), busy+b.prober.count(wa.URL())
		if total > 60*(maxIdleCheckRate+5) || total < 60*(maxIdleCheckRate-5) {
			t.Errorf("%d checks in a minute", total)
		}
		if busy < 50 {
			t.Errorf("the worker with a request was checked %d times in a minute", busy)
		}
		// Idle workers are checked several at a time.
		wakes, seen := 0, b.prober.total()
		for range 1000 {
			b.pass(10 * time.Millisecond)
			if n := b.prober.total(); n != seen {
				wakes, seen = wakes+1, n
			}
		}
		if most := int(10*time.Second/gatherPause) + 15; wakes > most {
			t.Errorf("checks began at %d times in 10 s, want %d at most", wakes, most)
		}
	})
}
