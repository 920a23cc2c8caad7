package dispatch

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// A client that asked for several samples leaves: all their legs end.
func TestLeavingManySamples(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		timing sim.Timing
		stream bool
	}{
		{"prefill computes", sim.Timing{PrefillTime: forever}, false},
		{"prefill computes, streamed", sim.Timing{PrefillTime: forever}, true},
		{"decode is silent", sim.Timing{FirstToken: forever}, false},
		{"mid-stream", sim.Timing{DecodeStep: 5 * time.Millisecond}, true},
		{"silent after the first event", sim.Timing{DecodeStep: forever}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, pd(rigOptions{retries: 3, breaker: firstFault, limits: oneSlot(), sim: sim.Options{Worker: sim.WorkerOptions{Timing: tc.timing}}}))
			var leave func()
			if tc.stream && tc.timing.PrefillTime == 0 {
				s := r.open("/v1/chat/completions", bodyFor("", 1_000_000, `,"n":4`+streamed))
				for range 3 {
					s.event()
				}
				leave = s.leave
				r.wait(r.sim.Decode(0), "all have arrived", func(s sim.Stats) bool { return s.Requests == 4 })
			} else {
				_, leave = r.begin("/v1/chat/completions", bodyFor("", 1_000_000, `,"n":4`+map[bool]string{true: streamed}[tc.stream]))
				for _, w := range r.sim.Workers() {
					r.wait(w, "all have arrived", func(s sim.Stats) bool { return s.Requests == 4 })
				}
				if tc.timing.FirstToken > 0 {
					r.wait(r.sim.Decode(0), "all decode", func(s sim.Stats) bool { return s.Decoding == 4 })
				}
			}
			left := time.Now()
			leave()
			r.settled()
			r.soon("all was given back", left)
			r.aborted(r.sim.Decode(0), 4)
			r.charged()
			if rec := r.waitRecord(0); rec.Reason != reasonClientGone || rec.Attempts != 1 {
				t.Errorf("recorded %+v", rec)
			}
		})
	}
}

// One request whose samples all fail is one fault of the engine's, not as many
// as it has samples: it must not close the service by itself.
func TestSamplesAreChargedOnce(t *testing.T) {
	t.Parallel()
	for on := range 2 {
		for _, fault := range []sim.Fault{{Status: 500}, {Do: sim.Reset, At: sim.AtBody}} {
			r := newRig(t, pd(rigOptions{breaker: config.CircuitBreaker{FailureThreshold: 2, TimeoutDuration: time.Hour}}))
			w := r.sim.Workers()[on]
			// All of them are at the engine before the first fails.
			fault.Delay = 100 * time.Millisecond
			if fault.Do != "" {
				fault.At, fault.EarlyHeaders = sim.AtHeaders, true
			}
			w.SetFault(fault)
			if a := r.chat(`,"n":16`); a.status < 500 {
				t.Errorf("got %d %s", a.status, a.body)
			}
			r.settled()
			r.charged()
			if a := r.chat(""); a.status < 500 {
				t.Errorf("got %d %s", a.status, a.body)
			}
			r.settled()
			r.charged(w)
		}
	}
}

// A retry of many samples is a fresh attempt for each of them.
func TestSamplesAreRetriedTogether(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, extra string) {
		r := newRig(t, pd(rigOptions{retries: 2, breaker: noBreaker, limits: oneSlot(),
			sim: sim.Options{Prefill: 2, Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: 100 * time.Millisecond}}}}))
		r.sim.Prefill(0).SetFault(sim.Fault{Status: 503, Skip: 1, Count: 1})
		r.sim.Prefill(1).SetFault(sim.Fault{Status: 503, Skip: 1, Count: 1})
		a := r.chat(`,"n":3` + extra)
		if a.status != 200 || a.err != nil || strings.Count(a.body, `"finish_reason":"length"`) != 3 {
			t.Errorf("got %d %v %s", a.status, a.err, a.body)
		}
		r.settled()
		ids := map[string]bool{}
		for _, q := range r.over(r.sim.Decode(0)) {
			ids[q.Header.Get("X-Request-Id")] = true
		}
		if n := len(r.sim.Decode(0).Requests()); len(ids) != n {
			t.Errorf("%d ids for %d requests", len(ids), n)
		}
	})
}

// Decode's report of a broken hand-off waits for prefill's verdict here too.
func TestSamplesTransferVerdict(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{breaker: firstFault, bounds: Options{VerdictWait: patience}}))
	r.sim.Decode(0).SetFault(sim.Fault{Status: 500, Body: transferBroke})
	r.sim.Prefill(0).SetFault(sim.Fault{Status: 422, Delay: 50 * time.Millisecond, Body: tooLong})
	start := time.Now()
	if a := r.chat(`,"n":3`); a.status != 422 || a.body != tooLong {
		t.Errorf("got %d %s", a.status, a.body)
	}
	r.soon("it was told", start)
	r.settled()
	r.charged()
}

// A stream of samples of which one breaks off is seen to be broken.
func TestOneSampleBreaksOff(t *testing.T) {
	t.Parallel()
	for _, f := range []sim.Fault{
		{Do: sim.Reset, At: sim.AtEvent, After: 3, Skip: 1, Count: 1},
		{Do: sim.Close, At: sim.AtInside, After: 3, Skip: 1, Count: 1},
		{Do: sim.End, At: sim.AtEvent, After: 3, Skip: 1, Count: 1},
		{Do: sim.End, At: sim.AtEnd, Skip: 1, Count: 1},
	} {
		r := newRig(t, pd(rigOptions{breaker: firstFault, retries: 2, sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: time.Millisecond}}}}))
		r.sim.Decode(0).SetFault(f)
		s := r.open("/v1/chat/completions", bodyFor("", 200, `,"n":3`+streamed))
		all, err := s.rest()
		if err == nil || strings.Contains(all, "[DONE]") || !strings.Contains(all, `data: {"error"`) || !strings.HasSuffix(all, "\n\n") {
			t.Errorf("%s: %v %q", f.Do, err, all[max(0, len(all)-300):])
		}
		r.settled()
		r.charged(r.sim.Decode(0))
	}
}

// The worker of many samples dies: they are started elsewhere together.
func TestSamplesOfADeadWorker(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{retries: 3, health: quickDeath, breaker: noBreaker,
		limits: admission.Limits{PrefillSlots: 1, QueueSize: 5, QueueTimeout: time.Minute},
		sim:    sim.Options{Prefill: 2, Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: forever}}}}))
	got, _ := r.begin("/v1/chat/completions", chatBody(`,"n":3`))
	r.wait(r.sim.Decode(0), "all are there", func(s sim.Stats) bool { return s.Inflight == 3 })
	victim := r.sim.Prefill(0)
	if victim.Stats().Inflight == 0 {
		victim = r.sim.Prefill(1)
	}
	for _, w := range r.sim.Workers() {
		w.SetTiming(sim.Timing{})
	}
	victim.Freeze()
	select {
	case a := <-got:
		if a.status != 200 || strings.Count(a.body, `"index":`) != 3 {
			t.Errorf("got %d %s", a.status, a.body)
		}
	case <-time.After(patience):
		t.Fatal("no answer")
	}
	victim.Thaw()
	r.settled()
}
