package dispatch

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
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
	if _, _, err := r.fleet.Add(t.Context(), fleet.WorkerSpec{URL: w.URL(), Type: config.WorkerRegular}); err != nil {
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
		want := "no_available_workers"
		if stop {
			want = "draining"
		}
		if a := r.chat(""); a.status != 503 || a.code() != want || a.header.Get("Retry-After") != "1" {
			t.Errorf("%s: %d %s %q", name, a.status, a.body, a.header.Get("Retry-After"))
		}
	}
}

// A client that bounds its wait is not kept for longer by that for a worker.
func TestWaitForTheFirstWorkerIsNoLongerThanTheClientAllows(t *testing.T) {
	t.Parallel()
	limits := admission.Limits{QueueSize: 10, QueueTimeout: 2 * patience, NoWorkerWait: time.Hour}
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}, limits: limits})
	r.fleet.Remove(r.sim.Regular(0).URL())
	if a := r.chat("", "X-Sluice-Max-Queue-Ms", "20"); a.status != 503 || a.code() != "no_available_workers" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A request that waits when the router begins to stop is told that, as those in the
// queues are.
func TestWaitForTheFirstWorkerEndsWithTheRouter(t *testing.T) {
	t.Parallel()
	limits := admission.Limits{QueueSize: 10, QueueTimeout: 2 * patience, NoWorkerWait: time.Hour}
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}, limits: limits})
	r.fleet.Remove(r.sim.Regular(0).URL())
	done := make(chan answer, 1)
	go func() { done <- r.chat("") }()
	r.until("the request waits", func() bool { return r.calls.Load() == 1 })
	r.gate.StopArrivals()
	if a := <-done; a.status != 503 || a.code() != "draining" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A request that names no model, or one that nobody lists, is served by nobody before
// all workers that came together have told their models: the first one answered it,
// whatever it was meant for.
func TestNoModelIsServedWhileAWorkerHasNotTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}, health: rarely})
	told := make(chan struct{})
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		select {
		case <-told:
		case <-req.Context().Done():
			return
		}
		if req.URL.Path == "/v1/models" {
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"other","object":"model"}]}`)
		}
	}))
	t.Cleanup(other.Close)
	if _, _, err := r.fleet.Add(t.Context(), fleet.WorkerSpec{URL: other.URL, Type: config.WorkerRegular}); err != nil {
		t.Fatal(err)
	}
	nameless := func() answer { return r.do(t.Context(), "/v1/chat/completions", `{"messages":[]}`) }
	if a := nameless(); a.status != 503 || a.code() != "no_available_workers" || !strings.Contains(a.body, "names no model") {
		t.Errorf("a worker has not told: %d %s", a.status, a.body)
	}
	if a := r.chat(""); a.status != 200 {
		t.Errorf("a model that is known: %d %s", a.status, a.body)
	}
	close(told)
	r.until("the other has told", func() bool { _, n := r.fleet.SolePool(); return n == 2 })
	if a := nameless(); a.status != 400 || !strings.Contains(a.body, "2 models are served") {
		t.Errorf("both have told: %d %s", a.status, a.body)
	}
}
