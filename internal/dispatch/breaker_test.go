package dispatch

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// One leg's error was charged to both legs' workers, so that with one of each
// two requests could close the service.
func TestOnlyTheFailingLegIsCharged(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		fault sim.Fault
		own   bool // it is the worker's own fault
	}{
		{"500", sim.Fault{Status: 500}, true},
		{"502", sim.Fault{Status: 502}, true},
		{"504", sim.Fault{Status: 504}, true},
		{"reset", sim.Fault{Do: sim.Reset, At: sim.AtBody}, true},
		{"garbage", sim.Fault{Kind: sim.Garbage}, true},
		{"400", sim.Fault{Status: 400}, false},
		{"422", sim.Fault{Status: 422}, false},
		{"429", sim.Fault{Status: 429}, false},
		{"501", sim.Fault{Status: 501}, false},
		{"503", sim.Fault{Status: 503}, false},
		{"a broken transfer", sim.Fault{Status: 500, Body: transferBroke}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for on := range 2 {
				r := newRig(t, pd(rigOptions{breaker: firstFault, bounds: Options{VerdictWait: 5 * time.Millisecond}}))
				w := r.sim.Workers()[on]
				w.SetFault(tc.fault)
				if a := r.chat(""); a.status < 400 {
					t.Errorf("got %d", a.status)
				}
				r.settled()
				if tc.own {
					r.charged(w)
				} else {
					r.charged()
				}
			}
		})
	}
}

// Prompts that were too long opened the breakers of healthy workers, and the
// whole fleet stopped answering.
func TestClientErrorsDoNotOpenBreakers(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{retries: 3, breaker: config.CircuitBreaker{FailureThreshold: 3, TimeoutDuration: time.Hour},
		sim: sim.Options{Prefill: 2, Decode: 2, Worker: sim.WorkerOptions{ContextLength: 200}}}))
	long := `{"model":"sim-model","messages":[{"role":"user","content":"` + strings.Repeat("x", 1000) + `"}]}`
	for range 30 {
		a := r.do(t.Context(), "/v1/chat/completions", long)
		if a.status != 400 || !strings.Contains(a.body, "longer than the context length of 200") {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	for range 10 {
		if a := r.chat(""); a.status != 200 {
			t.Errorf("a short prompt: %d %s", a.status, a.body)
		}
	}
	r.settled()
	r.charged()
}

// An engine's "queue full" counted as a fault; with one worker the router went on
// refusing after the engine had become idle.
func TestBusyDoesNotOpenBreakers(t *testing.T) {
	t.Parallel()
	for _, status := range []int{503, 429} {
		r := newRig(t, rigOptions{breaker: config.CircuitBreaker{FailureThreshold: 3, TimeoutDuration: time.Hour}, sim: sim.Options{Regular: 1}})
		w := r.sim.Regular(0)
		w.SetFault(sim.Fault{Status: status, Body: "the queue is full", Skip: 4})
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if a := r.chat(""); a.status != 200 && (a.status != status || a.body != "the queue is full") {
					t.Errorf("got %d %s", a.status, a.body)
				}
			})
		}
		wg.Wait()
		w.ClearFaults()
		if a := r.chat(""); a.status != 200 {
			t.Errorf("after the burst: %d %s", a.status, a.body)
		}
		r.settled()
		r.charged()
	}
}

// With prefill's breaker open decode was still sent requests, and half-open never
// closed.
func TestOpenPrefillSparesDecodeAndCloses(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{health: rarely, sim: sim.Options{Prefill: 2},
		breaker: config.CircuitBreaker{FailureThreshold: 2, SuccessThreshold: 2, TimeoutDuration: 2 * time.Second}}))
	p, d := r.sim.Prefill(0), r.sim.Decode(0)
	p.SetFault(sim.Fault{Status: 500, Count: 2})
	pinned := func() answer {
		return r.do(t.Context(), "/v1/chat/completions", chatBody(""), HeaderTargetWorker, p.URL())
	}
	for range 4 { // by turns, so that the other one is seen to be well
		r.chat("")
	}
	r.until("the breaker is open", func() bool { return r.of(p).State.Breaker == admission.BreakerOpen })
	r.settled()
	before := asked(d)
	if a := pinned(); a.status != 503 || a.code() != "no_available_workers" || a.header.Get("Retry-After") == "" {
		t.Errorf("while it is open: %d %s %v", a.status, a.body, a.header)
	}
	if n := asked(d) - before; n != 0 {
		t.Errorf("decode was sent %d requests", n)
	}
	r.until("the breaker is half open", func() bool { return r.of(p).State.Breaker == admission.BreakerHalfOpen })
	for range 2 {
		if a := pinned(); a.status != 200 {
			t.Errorf("a probe: %d %s", a.status, a.body)
		}
	}
	r.until("the breaker is closed", func() bool { return r.of(p).State.Breaker == admission.BreakerClosed })
	r.settled()
}

// Half-open let every request through to a worker that hangs. The last worker of a
// role gets one at a time.
func TestHalfOpenAdmitsFew(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{health: rarely, sim: sim.Options{Regular: 1},
		breaker: config.CircuitBreaker{FailureThreshold: 1, TimeoutDuration: 50 * time.Millisecond}})
	w := r.sim.Regular(0)
	w.SetFault(sim.Fault{Status: 500, Count: 1})
	r.chat("")
	w.SetFault(sim.Fault{Do: sim.Freeze, At: sim.AtBody})
	r.until("the breaker is half open", func() bool { return r.of(w).State.Breaker == admission.BreakerHalfOpen })
	var leaves []func()
	for range 20 {
		_, leave := r.begin("/v1/chat/completions", chatBody(""))
		leaves = append(leaves, leave)
	}
	r.until("the others wait", func() bool { return r.gate.Waiting() == 19 })
	r.wait(w, "the probes are there", func(s sim.Stats) bool { return s.Inflight >= 1 })
	if n := w.Stats().Inflight; n != 1 {
		t.Errorf("%d requests are at the worker, want the one probe", n)
	}
	for _, leave := range leaves {
		leave()
	}
	r.settled()
}
