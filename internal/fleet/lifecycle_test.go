package fleet

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-router/sluice/internal/config"
)

// holds is how many requests the gate counts on a rank.
func (b *testbed) holds(id string) int {
	b.t.Helper()
	for _, r := range b.gate.Stats().Ranks {
		if r.ID == id {
			return r.PendingDecode + r.ActiveDecode
		}
	}
	b.t.Fatalf("%s is not at the gate", id)
	return 0
}

func TestSettingsChangeUnderRunningRequests(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA)
		w := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		running := b.acquire("m")
		again, changed, err := b.Add(t.Context(), WorkerSpec{URL: urlA, Labels: map[string]string{"zone": "x"}, TotalKVBlocks: 7, TopologyDomain: "r1", Adapters: []string{"lora"}})
		if err != nil || !changed || again != w {
			t.Fatalf("another worker: %t, %v", changed, err)
		}
		if n := b.holds(urlA); n != 1 {
			t.Errorf("%d requests are counted on it, one runs", n)
		}
		if s := b.gateRank(urlA); s.Capacity.KVBlocks != 7 || s.Topology != "r1" {
			t.Errorf("at the gate: %+v", s)
		}
		if _, adapter := b.Resolve("lora"); adapter != "lora" {
			t.Error("the adapter is not known")
		}
		b.wantCandidates(urlA)
		running.Release()
		if n := b.holds(urlA); n != 0 {
			t.Errorf("%d requests are left", n)
		}

		// Another role is other work: nothing of the former stays.
		other, _, err := b.Add(t.Context(), WorkerSpec{URL: urlA, Type: config.WorkerDecode})
		if err != nil || other == w || other.ID() != w.ID() {
			t.Errorf("the same worker in another role: %v", err)
		}
		if ranks := b.gate.Stats().Ranks; len(ranks) != 1 || ranks[0].Role != other.Role() {
			t.Errorf("ranks %+v", ranks)
		}
	})
}

func (p *Patch) named(fields ...string) *Patch { p.Set = fields; return p }

func TestPatchOfARegistration(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA)
		w := b.add(WorkerSpec{URL: urlA, MaxRunningRequests: 9, Labels: map[string]string{"a": "1", "b": "2"}})
		synctest.Wait()
		patch := func(p *Patch) {
			t.Helper()
			if got, err := b.Patch(t.Context(), w.ID(), p); err != nil || got.ID() != w.ID() {
				t.Fatal(err)
			}
		}
		p := 70
		patch((&Patch{Values: WorkerSpec{Priority: &p, TotalKVBlocks: 5, Labels: map[string]string{"c": "3"}}, UnsetLabels: []string{"a"}}).named("priority", "total_kv_blocks"))
		if s := w.Spec(); *s.Priority != 70 || s.TotalKVBlocks != 5 || s.MaxRunningRequests != 9 || !maps.Equal(s.Labels, map[string]string{"b": "2", "c": "3"}) {
			t.Errorf("in force: %+v", s)
		}
		patch(&Patch{Unset: []string{"priority", "max_running_requests"}, UnsetAllLabels: true})
		if s := w.Spec(); s.Priority != nil || s.MaxRunningRequests != 0 || s.TotalKVBlocks != 5 || len(s.Labels) != 0 {
			t.Errorf("in force: %+v", s)
		}
		if got := b.Registrations(); len(got) != 1 || got[0].TotalKVBlocks != 5 || got[0].MaxRunningRequests != 0 {
			t.Errorf("registrations %+v", got)
		}
		var wrong *SpecError
		if _, err := b.Patch(t.Context(), urlA, (&Patch{Values: WorkerSpec{BlockSize: -1}}).named("block_size")); !errors.As(err, &wrong) || wrong.Field != "block_size" {
			t.Errorf("a negative block size: %v", err)
		}
		if _, err := b.Patch(t.Context(), urlA, (&Patch{}).named("worker_type")); !errors.As(err, &wrong) || wrong.Field != "worker_type" {
			t.Errorf("a role: %v", err)
		}
		if _, err := b.Patch(t.Context(), urlB, &Patch{}); !errors.Is(err, ErrUnknownWorker) {
			t.Errorf("an unknown worker: %v", err)
		}
		// Another key is another endpoint.
		before := w.Endpoint()
		patch((&Patch{Values: WorkerSpec{APIKey: "k"}}).named("api_key"))
		if now, _ := b.Get(urlA); now.Endpoint() == before || now.Spec().TotalKVBlocks != 5 {
			t.Error("the new key is not in use")
		}
	})
}

func TestPatchesOfOneWorkerDoNotUndoEachOther(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA)
		w := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		done := make(chan error)
		for i := range 20 {
			go func() {
				_, err := b.Patch(t.Context(), urlA, &Patch{Values: WorkerSpec{Labels: map[string]string{fmt.Sprint(i): "x"}}})
				done <- err
			}()
		}
		for range 20 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if n := len(w.Spec().Labels); n != 20 {
			t.Errorf("%d labels are left of 20", n)
		}
	})
}

func TestPatchOfASourcesWorkerLiesOnTop(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA)
		declare := func(specs ...WorkerSpec) {
			t.Helper()
			if err := b.Reconcile(t.Context(), "pods", Declare(specs)); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		spec := WorkerSpec{URL: urlA, Type: config.WorkerRegular, MaxRunningRequests: 9, Labels: map[string]string{"zone": "x", "tier": "gold"}}
		declare(spec)
		w, _ := b.Get(urlA)
		p := 10
		patch := (&Patch{Values: WorkerSpec{Priority: &p, MaxRunningRequests: 2, Labels: map[string]string{"zone": "y"}}}).named("priority", "max_running_requests")
		if _, err := b.Patch(t.Context(), urlA, patch); err != nil {
			t.Fatal(err)
		}
		want := func(what string, running int64, labels map[string]string) {
			t.Helper()
			s := w.Spec()
			if s.Priority == nil || *s.Priority != 10 || s.MaxRunningRequests != running || !maps.Equal(s.Labels, labels) {
				t.Errorf("%s: %+v", what, s)
			}
		}
		want("patched", 2, map[string]string{"zone": "y", "tier": "gold"})
		declare(spec)
		want("declared again", 2, map[string]string{"zone": "y", "tier": "gold"})
		spec.Labels = map[string]string{"zone": "x", "tier": "silver"}
		declare(spec)
		want("declared otherwise", 2, map[string]string{"zone": "y", "tier": "silver"})
		if i := w.Info(); i.Source != "pods" || !slices.Equal(i.Patched, []string{"max_running_requests", "priority", "labels.zone"}) {
			t.Errorf("told as %q, patched %q", i.Source, i.Patched)
		}
		if _, err := b.Patch(t.Context(), urlA, &Patch{Unset: []string{"max_running_requests"}, UnsetLabels: []string{"zone"}}); err != nil {
			t.Fatal(err)
		}
		want("taken back", 9, map[string]string{"zone": "x", "tier": "silver"})
		if got := b.Registrations(); len(got) != 0 {
			t.Errorf("registrations %+v", got)
		}
		var wrong *SpecError
		if _, err := b.Patch(t.Context(), urlA, (&Patch{Values: WorkerSpec{APIKey: "k"}}).named("api_key")); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "pods") {
			t.Errorf("another key: %v", err)
		}

		// It goes with the worker, and a registration by request says all.
		declare()
		b.pass(time.Second)
		declare(spec)
		if w, _ = b.Get(urlA); w.Spec().Priority != nil {
			t.Error("the patch came back with the worker")
		}
		if _, err := b.Patch(t.Context(), urlA, patch); err != nil {
			t.Fatal(err)
		}
		if w = b.add(WorkerSpec{URL: urlA, Type: config.WorkerRegular}); w.Spec().Priority != nil || w.Spec().MaxRunningRequests != 0 || len(w.Info().Patched) != 0 {
			t.Errorf("registered by request: %+v", w.Spec())
		}
	})
}

func TestDrainedByRequest(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		if err := b.Reconcile(t.Context(), "pods", Declare([]WorkerSpec{{URL: urlA}})); err != nil {
			t.Fatal(err)
		}
		b.add(WorkerSpec{URL: urlB})
		synctest.Wait()
		w, _ := b.Get(urlA)
		drain := func(url string, drained bool) {
			t.Helper()
			if _, err := b.SetDrained(url, drained); err != nil {
				t.Fatal(err)
			}
		}
		drain(urlA, true)
		b.wantCandidates(urlB)
		if i := w.Info(); i.Status != StatusDrained || !i.Drained || !i.IsHealthy {
			t.Errorf("told as %+v", i)
		}
		checks := b.prober.count(urlA)
		b.pass(10 * time.Minute)
		if b.prober.count(urlA) == checks {
			t.Error("it is not checked any more")
		}
		if _, ok := b.Get(urlA); !ok {
			t.Error("it is gone")
		}
		// Neither its source nor other settings end it.
		if err := b.Reconcile(t.Context(), "pods", Declare([]WorkerSpec{{URL: urlA, Type: config.WorkerRegular, ModelID: "n"}})); err != nil {
			t.Fatal(err)
		}
		b.wantCandidates(urlB)
		drain(urlA, false)
		b.wantCandidates(urlA, urlB) // at once
		drain(urlB, true)
		if got := b.Registrations(); len(got) != 1 || !got[0].Drained || got[0].URL != urlB {
			t.Errorf("registrations %+v", got)
		}
		b.Remove(urlB)
		if _, err := b.SetDrained(urlB, false); !errors.Is(err, ErrLeaving) && !errors.Is(err, ErrUnknownWorker) {
			t.Errorf("a removed worker: %v", err)
		}
		if _, err := b.SetDrained("w0", true); !errors.Is(err, ErrUnknownWorker) {
			t.Errorf("an unknown worker: %v", err)
		}
	})
}

func TestRemovalEndsRequestsAtItsBound(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA)
		w := b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		running := b.acquire("m")
		alive := w.Alive()
		b.RemoveWithin(urlA, time.Minute)
		b.pass(59 * time.Second)
		if alive.Err() != nil {
			t.Error("ended before its time")
		}
		b.pass(2 * time.Second)
		if _, ok := b.Get(urlA); ok || alive.Err() == nil {
			t.Error("it is still there after its time")
		}
		running.Release()

		// One that drains already gets the new bound.
		w = b.add(WorkerSpec{URL: urlA})
		synctest.Wait()
		running = b.acquire("m")
		b.Remove(urlA)
		b.pass(time.Second)
		if _, ok := b.RemoveWithin(urlA, 0); !ok {
			t.Error("it cannot be hurried")
		}
		if _, ok := b.Get(urlA); ok || w.Alive().Err() == nil {
			t.Error("it is still there")
		}
		running.Release()
	})
}

func TestRegistrationsTellOfTheirChanges(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		b.prober.set(well, urlA, urlB)
		told := func(what string, want bool) {
			t.Helper()
			select {
			case <-b.RegistrationsChanged():
				if !want {
					t.Errorf("told of %s", what)
				}
			default:
				if want {
					t.Errorf("not told of %s", what)
				}
			}
		}
		b.add(WorkerSpec{URL: urlA, APIKey: "k"})
		told("a registration", true)
		b.add(WorkerSpec{URL: urlA, APIKey: "k"})
		told("the same registration", false)
		if _, err := b.Patch(t.Context(), urlA, (&Patch{Values: WorkerSpec{BlockSize: 32}}).named("block_size")); err != nil {
			t.Fatal(err)
		}
		told("a patch", true)
		if _, err := b.SetDrained(urlA, true); err != nil {
			t.Fatal(err)
		}
		told("a drain", true)
		saved := b.Registrations()
		if len(saved) != 1 || saved[0].APIKey != "k" || saved[0].BlockSize != 32 || !saved[0].Drained {
			t.Errorf("registrations %+v", saved)
		}
		if err := b.Reconcile(t.Context(), "pods", Declare([]WorkerSpec{{URL: urlB}})); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		told("a source's worker", false)
		b.add(WorkerSpec{URL: urlB})
		told("a take-over", true)
		b.Remove(urlA)
		told("a removal", true)
		b.pass(time.Second)
		if err := b.AddRegistration(t.Context(), saved[0]); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if w, ok := b.Get(urlA); !ok || !w.Info().Drained || w.Spec().BlockSize != 32 {
			t.Error("it did not come back as it was")
		}
	})
}
