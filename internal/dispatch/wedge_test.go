package dispatch

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// quickWedge finds a wedged scheduler within less than two seconds: the signs of one take
// more than one.
var quickWedge = config.Health{Interval: time.Second, Timeout: 2 * time.Second, Wedge: 100 * time.Millisecond}

// A request on an engine whose scheduler hung stayed there, with the slots it held, until
// its own time limit, though the engine's HTTP server was well. In a pair both legs are
// silent, whichever engine hangs: the failure must be that one's.
func TestWedgedSchedulerGivesItsRequestsBack(t *testing.T) {
	t.Parallel()
	for _, backend := range []sim.Backend{sim.SGLang, sim.VLLM} {
		for _, role := range []sim.Role{sim.Regular, sim.Prefill, sim.Decode} {
			t.Run(string(backend)+" "+string(role), func(t *testing.T) {
				t.Parallel()
				o := rigOptions{retries: 3, health: quickWedge,
					sim: sim.Options{Prefill: 2, Decode: 2, Worker: sim.WorkerOptions{Backend: backend, HealthDelay: 50 * time.Millisecond}}}
				if role == sim.Regular {
					o.sim.Prefill, o.sim.Decode, o.sim.Regular = 0, 0, 2
				} else {
					o = pd(o)
				}
				r := newRig(t, o)
				var victim *sim.Worker
				for _, w := range r.sim.Workers() {
					if w.Role() == role && victim == nil {
						victim = w
						w.Wedge()
					}
				}
				// Some stream, some do not; both begin at either of two workers.
				answers := []chan answer{}
				for i := range 8 {
					extra := ""
					if i%2 == 0 {
						extra = streamed
					}
					got, _ := r.begin("/v1/chat/completions", chatBody(extra))
					answers = append(answers, got)
				}
				moved := 0
				for i, got := range answers {
					select {
					case a := <-got:
						if a.status != 200 || a.err != nil || !strings.Contains(a.body, " t3") && backend == sim.SGLang {
							t.Errorf("got %d %s %v", a.status, a.body, a.err)
						}
					case <-time.After(patience):
						t.Fatal("no answer")
					}
					if rec := r.waitRecord(i); rec.Attempts == 2 {
						moved++
						if !strings.Contains(rec.Failed, victim.URL()+" "+reasonWorkerWedged) {
							t.Errorf("the failure is told to be %q", rec.Failed)
						}
					} else if rec.Attempts != 1 {
						t.Errorf("%d attempts", rec.Attempts)
					}
				}
				if moved == 0 {
					t.Error("no request came to the wedged worker")
				}
				for _, w := range r.fleet.Infos() {
					for _, rank := range w.Ranks {
						charged := rank.LastFailure != nil
						if is := w.URL == victim.URL(); is != charged || is != (rank.Wedged != nil) || rank.Breaker != "closed" {
							t.Errorf("%s: victim %v, charged %v, wedged %v, breaker %s", w.URL, is, charged, rank.Wedged, rank.Breaker)
						}
					}
				}
				victim.Unwedge()
				r.until("it is back", func() bool { return r.of(victim).Candidate })
				r.settled()
			})
		}
	}
}

// The same for what passes to a worker as it is.
func TestWedgedSchedulerGivesPassingRequestsBack(t *testing.T) {
	t.Parallel()
	for _, backend := range []sim.Backend{sim.SGLang, sim.VLLM} {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigOptions{retries: 3, health: quickWedge,
				sim: sim.Options{Regular: 2, Worker: sim.WorkerOptions{Backend: backend, Pooling: true, HealthDelay: 50 * time.Millisecond}}})
			r.sim.Regular(0).Wedge()
			moved := 0
			for i := range 4 {
				if got := r.do(t.Context(), "/v1/embeddings", `{"model":"sim-model","input":"x"}`); got.status != 200 {
					t.Errorf("got %d %s", got.status, got.body)
				}
				if rec := r.waitRecord(i); rec.Attempts == 2 {
					moved++
				}
			}
			if moved != 1 {
				t.Errorf("%d requests came to the wedged worker, want the first alone", moved)
			}
			r.sim.Regular(0).Unwedge()
			r.settled()
		})
	}
}

// A stream that has begun ends with an error when its engine's scheduler hangs.
func TestStreamOfAWedgedSchedulerEnds(t *testing.T) {
	t.Parallel()
	for _, backend := range []sim.Backend{sim.SGLang, sim.VLLM} {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigOptions{retries: 3, health: quickWedge,
				sim: sim.Options{Regular: 1, Worker: sim.WorkerOptions{Backend: backend, Timing: sim.Timing{DecodeStep: 50 * time.Millisecond}}}})
			s := r.open("/v1/chat/completions", bodyFor("", 1000, streamed))
			s.event()
			r.sim.Regular(0).Wedge()
			all, err := s.rest()
			if err == nil || strings.Contains(all, "[DONE]") || !strings.Contains(all, `data: {"error"`) {
				t.Errorf("%v %q", err, all)
			}
			r.sim.Regular(0).Unwedge()
			r.settled()
			if rec := r.waitRecord(0); rec.Attempts != 1 || rec.Reason != reasonWorkerWedged {
				t.Errorf("recorded %+v", rec)
			}
		})
	}
}

// Comments that an engine's server sends while its scheduler hangs are no progress.
func TestCommentsOfAWedgedSchedulerAreNoProgress(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{retries: 3, health: quickWedge, sim: sim.Options{Regular: 1}})
	w := r.sim.Regular(0)
	w.SetFault(sim.Fault{EarlyHeaders: true, KeepAlive: 10 * time.Millisecond})
	w.Wedge()
	got, _ := r.begin("/v1/chat/completions", chatBody(streamed))
	select {
	case a := <-got:
		if a.status == 200 && a.err == nil {
			t.Errorf("got %d %s", a.status, a.body)
		}
	case <-time.After(patience):
		t.Fatal("no answer")
	}
	if rec := r.waitRecord(0); rec.Reason != reasonWorkerWedged {
		t.Errorf("recorded %+v", rec)
	}
	w.Unwedge()
	r.settled()
}

// A prompt that takes its time, an answer that is not streamed, and a client that reads
// nothing are no hang: the engine's counters move, or it says that it has nothing to do.
func TestSilenceOfAWorkingEngineIsNoHang(t *testing.T) {
	t.Parallel()
	for _, backend := range []sim.Backend{sim.SGLang, sim.VLLM} {
		for _, c := range []struct {
			name   string
			worker sim.WorkerOptions
			extra  string
			tokens int
		}{
			{"a prompt in chunks", sim.WorkerOptions{ChunkedPrefillSize: 2, Timing: sim.Timing{PrefillTime: 3 * time.Second}}, streamed, 4},
			{"an answer that is not streamed", sim.WorkerOptions{Timing: sim.Timing{DecodeStep: 50 * time.Millisecond}}, "", 60},
		} {
			t.Run(string(backend)+": "+c.name, func(t *testing.T) {
				t.Parallel()
				c.worker.Backend = backend
				r := newRig(t, rigOptions{retries: 3, health: quickWedge, sim: sim.Options{Regular: 1, Worker: c.worker}})
				if got := r.do(t.Context(), "/v1/chat/completions", bodyFor("", c.tokens, c.extra)); got.status != 200 {
					t.Errorf("got %d %s", got.status, got.body)
				}
				if rec := r.waitRecord(0); rec.Attempts != 1 || rec.Failed != "" {
					t.Errorf("recorded %+v", rec)
				}
				r.settled()
			})
		}
	}
}
