package dispatch

import (
	"fmt"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// A request at which every engine fails in the same way opened the breakers of the
// whole fleet, for everybody.
func TestRequestThatFailsEverywhereChargesNobody(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]sim.Fault{
		"reset":   {Do: sim.Reset, At: sim.AtBody},
		"close":   {Do: sim.Close, At: sim.AtBody},
		"500":     {Status: 500},
		"502":     {Status: 502},
		"garbage": {Kind: sim.Garbage},
	} {
		for on := range 2 {
			t.Run(fmt.Sprint(name, " ", []string{"prefill", "decode"}[on]), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, pd(rigOptions{retries: 5, breaker: firstFault, health: rarely, sim: sim.Options{Prefill: 2, Decode: 2}}))
				for _, w := range r.sim.Workers()[2*on : 2*on+2] {
					w.SetFault(fault)
				}
				for range 5 {
					if a := r.chat(""); a.status < 500 {
						t.Errorf("got %d %s", a.status, a.body)
					}
				}
				r.settled()
				r.charged()
			})
		}
	}
}

// A failure is proven by another rank that serves the request.
func TestFailureIsProvenByAnotherRank(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{retries: 5, breaker: firstFault, health: rarely, sim: sim.Options{Prefill: 2, Decode: 2}}))
	w := r.sim.Decode(0)
	w.SetFault(sim.Fault{Do: sim.Reset, At: sim.AtBody})
	for range 4 {
		if a := r.chat(""); a.status != 200 {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	r.settled()
	r.charged(w)
}

// Two ranks that fail in ways of their own are both suspected: neither has a clean
// peer, so that no breaker opens, and nobody is refused.
func TestDifferentFailuresAreNoProof(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{retries: 1, breaker: config.CircuitBreaker{FailureThreshold: 3}, health: rarely, sim: sim.Options{Regular: 2}})
	r.sim.Regular(0).SetFault(sim.Fault{Do: sim.Reset, At: sim.AtBody})
	r.sim.Regular(1).SetFault(sim.Fault{Status: 502})
	for range 20 {
		if a := r.chat(""); a.status != 502 {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	r.settled()
	r.charged()
}

// Without retries nobody proves anything, yet a worker at which all fails while its
// peer serves is out.
func TestWithoutRetriesABadWorkerIsOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{breaker: config.CircuitBreaker{FailureThreshold: 4}, health: rarely, sim: sim.Options{Regular: 2}})
	w := r.sim.Regular(0)
	w.SetFault(sim.Fault{Do: sim.Reset, At: sim.AtBody})
	for range 8 {
		r.chat("")
	}
	r.settled()
	r.charged(w)
	for range 10 {
		if a := r.chat(""); a.status != 200 {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
}

// A request is one request: its attempts at the only worker count once.
func TestAttemptsOfOneRequestCountOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{retries: 5, breaker: config.CircuitBreaker{FailureThreshold: 3}, health: rarely, sim: sim.Options{Regular: 1}})
	w := r.sim.Regular(0)
	w.SetFault(sim.Fault{Do: sim.Reset, At: sim.AtBody})
	for range 2 {
		r.chat("")
	}
	r.settled()
	r.charged()
	r.chat("")
	r.settled()
	r.charged(w)
	if s := r.of(w).State; s.Breaker != admission.BreakerHalfOpen {
		t.Errorf("the last worker's breaker: %+v", s)
	}
	w.ClearFaults()
	for range 3 {
		if a := r.chat(""); a.status != 200 {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	r.settled()
	r.charged()
}

// Streams that break off cannot be tried elsewhere. They open a breaker where the
// peers' streams are well, and nothing where all break off.
func TestStreamsThatBreakOff(t *testing.T) {
	t.Parallel()
	for _, all := range []bool{true, false} {
		r := newRig(t, rigOptions{breaker: config.CircuitBreaker{FailureThreshold: 4}, health: rarely, sim: sim.Options{Regular: 2}})
		w := r.sim.Regular(0)
		for _, x := range r.sim.Workers() {
			if all || x == w {
				x.SetFault(sim.Fault{Do: sim.Reset, At: sim.AtEvent, After: 3})
			}
		}
		for range 20 {
			r.do(t.Context(), "/v1/chat/completions", bodyFor(streamed, 8, ""))
		}
		r.settled()
		if all {
			r.charged()
		} else {
			r.charged(w)
		}
	}
}

// A route that passes through counts for itself.
func TestPassingRoutesCountForThemselves(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{breaker: firstFault, health: rarely, sim: sim.Options{Regular: 2, Worker: sim.WorkerOptions{Backend: sim.VLLM, Pooling: true}}})
	w := r.sim.Regular(0)
	w.SetFault(sim.Fault{Path: "/v1/embeddings", Status: 500})
	failed := 0
	for range 10 {
		if a := r.do(t.Context(), "/v1/embeddings", `{"model":"sim-model","input":"x"}`); a.status != 200 {
			failed++
		}
	}
	if failed != 1 {
		t.Errorf("%d of 10 failed, want the first that came to it", failed)
	}
	r.charged()
	for range 4 {
		if a := r.chat(""); a.status != 200 {
			t.Errorf("chat: %d %s", a.status, a.body)
		}
	}
	r.settled()
	if n := asked(w); n == 0 {
		t.Error("the worker gets no chat any more")
	}
}
