package dispatch

import (
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/sim"
)

// A request that comes before any worker has told its models waits for one, as
// long as it may.
func TestWaitForTheFirstWorker(t *testing.T) {
	t.Parallel()
	limits := admission.Limits{QueueSize: 10, QueueTimeout: 2 * patience, NoWorkerWait: patience}
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}, limits: limits})
	w := r.sim.Regular(0)
	r.fleet.Remove(w.URL())
	done := make(chan answer, 1)
	go func() { done <- r.chat("") }()
	select {
	case a := <-done:
		t.Fatalf("nobody serves yet: %d %s", a.status, a.body)
	case <-time.After(3 * lookAgain):
	}
	if _, _, err := r.fleet.Add(t.Context(), fleet.WorkerSpec{URL: w.URL(), Role: admission.RoleRegular}); err != nil {
		t.Fatal(err)
	}
	if a := <-done; a.status != 200 {
		t.Errorf("got %d %s", a.status, a.body)
	}
	// Afterwards an unknown model is unknown, at once.
	if a := r.do(t.Context(), "/v1/chat/completions", `{"model":"other","messages":[]}`); a.status != 404 {
		t.Errorf("an unknown model: %d %s", a.status, a.body)
	}
}

func TestWaitForTheFirstWorkerIsBounded(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]bool{"its time is over": false, "the router stops": true} {
		limits := admission.Limits{QueueSize: 10, QueueTimeout: 2 * patience, NoWorkerWait: time.Millisecond}
		if stop {
			limits.NoWorkerWait = time.Hour
		}
		r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}, limits: limits})
		r.fleet.Remove(r.sim.Regular(0).URL())
		if stop {
			r.gate.StopArrivals()
		}
		if a := r.chat(""); a.status != 503 || a.code() != "no_available_workers" || a.header.Get("Retry-After") != "1" {
			t.Errorf("%s: %d %s %q", name, a.status, a.body, a.header.Get("Retry-After"))
		}
	}
}
