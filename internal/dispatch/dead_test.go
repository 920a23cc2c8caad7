package dispatch

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// quickDeath declares a frozen worker dead within half a second.
var quickDeath = config.Health{Interval: 60 * time.Millisecond, Timeout: 100 * time.Millisecond, FailureThreshold: 3}

// A request on a worker that had died waited for the whole request timeout, then
// again for each retry, though health checks had long declared it dead.
func TestDeadWorkerGivesItsRequestsBack(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		timing sim.Timing
		role   sim.Role
		die    func(w *sim.Worker)
	}{
		{"prefill freezes while it computes", sim.Timing{PrefillTime: forever}, sim.Prefill, (*sim.Worker).Freeze},
		{"prefill is killed while it computes", sim.Timing{PrefillTime: forever}, sim.Prefill, (*sim.Worker).Kill},
		{"decode freezes while prefill computes", sim.Timing{PrefillTime: forever}, sim.Decode, (*sim.Worker).Freeze},
		{"decode freezes before its first token", sim.Timing{FirstToken: forever}, sim.Decode, (*sim.Worker).Freeze},
		{"decode is killed before its first token", sim.Timing{FirstToken: forever}, sim.Decode, (*sim.Worker).Kill},
	} {
		t.Run(tc.name, func(t *testing.T) {
			both(t, func(t *testing.T, extra string) {
				r := newRig(t, pd(rigOptions{retries: 3, health: quickDeath, breaker: noBreaker,
					sim: sim.Options{Prefill: 2, Decode: 2, Worker: sim.WorkerOptions{Timing: tc.timing}}}))
				got, _ := r.begin("/v1/chat/completions", chatBody(extra))
				var p, d *sim.Worker
				r.until("both legs are there", func() bool {
					for _, w := range r.sim.Workers() {
						if s := w.Stats(); s.Inflight == 1 {
							if w.Role() == sim.Prefill {
								// Decode that has not come to it yet would look for
								// one that is dead, which is held against the router.
								if s.Prefilling == 1 {
									p = w
								}
							} else if tc.timing.FirstToken == 0 || s.Decoding == 1 {
								d = w
							}
						}
					}
					return d != nil && (p != nil || tc.timing.FirstToken > 0)
				})
				victim := d
				if tc.role == sim.Prefill {
					victim = p
				}
				for _, w := range r.sim.Workers() {
					w.SetTiming(sim.Timing{}) // what comes now takes no time
				}
				tc.die(victim)
				select {
				case a := <-got:
					if a.status != 200 || a.err != nil || !strings.Contains(a.body, " t3") {
						t.Errorf("got %d %s %v", a.status, a.body, a.err)
					}
				case <-time.After(patience):
					t.Fatal("no answer")
				}
				if rec := r.waitRecord(0); rec.Attempts != 2 {
					t.Errorf("%d attempts", rec.Attempts)
				}
				victim.Thaw()
				r.settled()
			})
		})
	}
}

// What waits for a worker that dies is served by another that comes, and told so
// when none is left.
func TestQueuedWhenTheWorkersDie(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{health: quickDeath, breaker: noBreaker, retries: 3,
		limits: admission.Limits{PrefillSlots: 1, QueueSize: 10, QueueTimeout: time.Minute},
		sim:    sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: forever}}}}))
	p := r.sim.Prefill(0)
	first, _ := r.begin("/v1/chat/completions", chatBody(""))
	r.working(p, 1)
	second, _ := r.begin("/v1/chat/completions", chatBody(""))
	r.until("the second waits", func() bool { return r.gate.Waiting() == 1 })
	p.SetTiming(sim.Timing{})
	p.Freeze()
	r.until("prefill is dead", func() bool { return !r.of(p).Candidate })
	p.Thaw()
	for i, c := range []chan answer{first, second} {
		select {
		case a := <-c:
			// Served after all, or told that nobody is there to serve it.
			if a.status != 200 && !(a.status >= 502 && a.code() != "") {
				t.Errorf("request %d: %d %s", i, a.status, a.body)
			}
		case <-time.After(patience):
			t.Fatalf("request %d has no answer", i)
		}
	}
	r.settled()
}

// A decode stream that has begun ends with its worker's death, and is seen to be
// broken: nobody can go on with it.
func TestStreamEndsWithItsWorkersDeath(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{retries: 3, health: quickDeath, breaker: noBreaker,
		sim: sim.Options{Prefill: 1, Decode: 2, Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: forever}}}}))
	s := r.open("/v1/chat/completions", bodyFor("", 100, streamed))
	s.event()
	var victim *sim.Worker
	for i := range 2 {
		if r.load(r.sim.Decode(i)) == 1 {
			victim = r.sim.Decode(i)
		}
	}
	victim.Freeze()
	all, err := s.rest()
	if err == nil || strings.Contains(all, "[DONE]") || !strings.Contains(all, `data: {"error"`) {
		t.Errorf("%v %q", err, all)
	}
	victim.Thaw()
	r.settled()
	if rec := r.waitRecord(0); rec.Attempts != 1 || rec.Reason != reasonWorkerDead {
		t.Errorf("recorded %+v", rec)
	}
}

// A worker that is only slow keeps its requests: its health route fails while it
// computes, its front answers.
func TestSlowWorkerKeepsItsRequests(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{retries: 3, health: config.Health{Interval: 20 * time.Millisecond, Timeout: time.Second, FailureThreshold: 2},
		breaker: noBreaker, sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: 600 * time.Millisecond}}}}))
	p := r.sim.Prefill(0)
	p.SetFault(sim.Fault{Path: "/health", Status: 503})
	got, _ := r.begin("/v1/chat/completions", chatBody(""))
	r.working(p, 1)
	seen := p.Stats().Probes
	if a := <-got; a.status != 200 {
		t.Errorf("got %d %s", a.status, a.body)
	}
	if n := p.Stats().Probes - seen; n < 6 {
		t.Errorf("only %d probes meanwhile", n)
	}
	if rec := r.waitRecord(0); rec.Attempts != 1 {
		t.Errorf("%d attempts", rec.Attempts)
	}
	r.settled()
}

// A connection that is refused or reset fails its own leg only.
func TestResetFailsItsOwnLegOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{breaker: noBreaker, sim: sim.Options{Regular: 1, Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: 2 * time.Millisecond}}}})
	w := r.sim.Regular(0)
	other := r.open("/v1/chat/completions", bodyFor("", 300, streamed))
	other.event()
	w.SetFault(sim.Fault{Do: sim.Reset, At: sim.AtBody})
	for range 5 {
		if a := r.chat(""); a.status != 502 {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	if all, err := other.rest(); err != nil || !strings.HasSuffix(all, doneEvent) {
		t.Errorf("the other stream ended with %v", err)
	}
	r.settled()
}
