package dispatch

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// asked is how many generation requests the workers have had in all.
func asked(workers ...*sim.Worker) (n int) {
	for _, w := range workers {
		n += w.Stats().Requests
	}
	return n
}

var noBreaker = config.CircuitBreaker{Disabled: true}

// What a fresh attempt can help with is tried again elsewhere, before the client
// has a byte.
func TestRetriesOnAnotherWorker(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		fault sim.Fault
	}{
		{"reset before the body", sim.Fault{Do: sim.Reset, At: sim.AtRequest}},
		{"reset", sim.Fault{Do: sim.Reset, At: sim.AtBody}},
		{"closed", sim.Fault{Do: sim.Close, At: sim.AtBody}},
		{"headers, then reset", sim.Fault{Do: sim.Reset, At: sim.AtHeaders, EarlyHeaders: true}},
		{"500", sim.Fault{Status: 500}},
		{"502", sim.Fault{Status: 502}},
		{"503", sim.Fault{Status: 503}},
		{"504", sim.Fault{Status: 504}},
		{"garbage", sim.Fault{Kind: sim.Garbage}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			both(t, func(t *testing.T, extra string) {
				for _, bad := range []sim.Role{sim.Prefill, sim.Decode} {
					r := newRig(t, pd(rigOptions{retries: 3, health: rarely, breaker: noBreaker, sim: sim.Options{Prefill: 2, Decode: 2}}))
					sick := r.sim.Worker(string(bad) + "-0")
					sick.SetFault(tc.fault)
					for range 4 {
						if a := r.chat(extra); a.status != 200 || a.err != nil {
							t.Errorf("%s is bad: got %d %s %v", bad, a.status, a.body, a.err)
						}
					}
					if n := asked(sick); n == 0 || n > 4 {
						t.Errorf("%s was asked %d times", sick.ID(), n)
					}
					r.settled()
				}
			})
		})
	}
}

// An engine was started with another model since it was last asked. Its 404 is not the
// client's fault, whose model others serve: nobody is told of it, and nobody is charged.
// A 404 of another kind, and one that all give, pass.
func TestEngineWithAnotherModelIsPassedBy(t *testing.T) {
	t.Parallel()
	const model = `{"error":{"message":"The model does not exist.","type":"NotFoundError","param":"model","code":404}}`
	for _, body := range []string{model, `{"error":{"code":"model_not_found"}}`, `{"object":"error","type":"NotFoundError","param":"model"}`} {
		for _, bad := range []sim.Role{sim.Prefill, sim.Decode} {
			r := newRig(t, pd(rigOptions{retries: 3, health: rarely, breaker: firstFault, sim: sim.Options{Prefill: 2, Decode: 2}}))
			r.sim.Worker(string(bad) + "-0").SetFault(sim.Fault{Status: 404, Body: body})
			for _, extra := range []string{"", streamed, "", streamed} {
				if a := r.chat(extra); a.status != 200 || a.err != nil {
					t.Errorf("%s has another model: got %d %s %v", bad, a.status, a.body, a.err)
				}
			}
			for _, i := range r.fleet.Infos() {
				if i.Breaker != "closed" {
					t.Errorf("%s is charged", i.URL)
				}
			}
			r.settled()
		}
	}
	r := newRig(t, rigOptions{retries: 3, health: rarely, sim: sim.Options{Regular: 2}})
	for _, w := range r.sim.Workers() {
		w.SetFault(sim.Fault{Status: 404, Body: model})
	}
	if a := r.chat(""); a.status != 404 || a.body != model || asked(r.sim.Workers()...) > 3 {
		t.Errorf("nobody has the model: got %d %s after %d attempts", a.status, a.body, asked(r.sim.Workers()...))
	}
	before := asked(r.sim.Workers()...)
	for _, w := range r.sim.Workers() {
		w.ClearFaults()
		w.SetFault(sim.Fault{Status: 404, Body: `{"error":{"message":"Response not found","param":"response_id"}}`})
	}
	if a := r.chat(""); a.status != 404 || asked(r.sim.Workers()...) != before+1 {
		t.Errorf("another 404: got %d %s after %d attempts", a.status, a.body, asked(r.sim.Workers()...)-before)
	}
	r.settled()
}

// A worker that refuses connections costs a request nothing but a moment.
func TestRetriesOnRefusal(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{retries: 3, health: rarely, breaker: noBreaker, sim: sim.Options{Prefill: 2, Decode: 2}}))
	r.sim.Prefill(0).Kill()
	r.sim.Decode(1).Kill()
	for range 6 {
		if a := r.chat(""); a.status != 200 {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	r.idle() // a leg whose peer was killed names an engine that is gone
}

// A client's own fault is the same everywhere, and a worker that is busy says
// so to the client: both pass at the first attempt, as they are.
func TestClientFaultsPassAtOnce(t *testing.T) {
	t.Parallel()
	for _, status := range []int{400, 401, 404, 408, 413, 422, 429, 501} {
		t.Run(itoa(status), func(t *testing.T) {
			t.Parallel()
			for _, on := range []int{0, 1} {
				r := newRig(t, pd(rigOptions{retries: 5, breaker: firstFault}))
				body := `{"object":"error","message":"no","code":` + itoa(status) + `,"x":0.10}`
				w := r.sim.Workers()[on]
				w.SetFault(sim.Fault{Status: status, Body: body, ContentType: "application/problem+json", Header: http.Header{"Retry-After": {"13"}}})
				a := r.chat("")
				if a.status != status || a.body != body || a.header.Get("Retry-After") != "13" || a.header.Get("Content-Type") != "application/problem+json" {
					t.Errorf("%s: got %d %s %v", w.ID(), a.status, a.body, a.header)
				}
				if n := asked(w); n != 1 {
					t.Errorf("%s was asked %d times", w.ID(), n)
				}
				r.settled()
				r.charged()
			}
		})
	}
}

// A 500 is tried once more, on another worker: a request that fails everywhere
// must not be carried to everyone.
func TestOneRetryAfter500(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{retries: 5, breaker: noBreaker, sim: sim.Options{Regular: 4}})
	for _, w := range r.sim.Workers() {
		w.SetFault(sim.Fault{Status: 500, Body: `{"message":"it does not like this one"}`})
	}
	if a := r.chat(""); a.status != 500 || !strings.Contains(a.body, "does not like") {
		t.Errorf("got %d %s", a.status, a.body)
	}
	r.settled()
	if n := asked(r.sim.Workers()...); n != 2 {
		t.Errorf("%d attempts, want 2", n)
	}
	for _, w := range r.sim.Workers() {
		if asked(w) > 1 {
			t.Errorf("%s was asked twice", w.ID())
		}
	}
	if rec := r.waitRecord(0); rec.Attempts != 2 || rec.Reason != reasonEngineStatus {
		t.Errorf("recorded %+v", rec)
	}
}

// A request was replayed as it was after an engine may have had it: rooms were
// there twice and the first pair was left alone.
func TestEachAttemptIsItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{retries: 3, breaker: noBreaker}))
	p, d := r.sim.Prefill(0), r.sim.Decode(0)
	p.SetFault(sim.Fault{Do: sim.Reset, At: sim.AtBody, Count: 3})
	if a := r.chat(""); a.status != 200 {
		t.Errorf("got %d %s", a.status, a.body)
	}
	r.settled()
	seen := map[int64]bool{}
	ids := map[string]bool{}
	prefills := r.over(p)
	if len(prefills) != 4 {
		t.Fatalf("prefill was asked %d times, want 4", len(prefills))
	}
	first := prefills[0].Header.Get("X-Request-Id")
	for k, q := range prefills {
		var body struct {
			Room int64 `json:"bootstrap_room"`
		}
		if err := json.Unmarshal(q.Body, &body); err != nil || body.Room < 1<<20 || seen[body.Room] {
			t.Errorf("attempt %d has room %d (%v), not a fresh one", k, body.Room, err)
		}
		seen[body.Room] = true
		id := q.Header.Get("X-Request-Id")
		want := first
		if k > 0 {
			want = "r" + itoa(k) + "-" + first
		}
		if id != want || ids[id] {
			t.Errorf("attempt %d has the id %q, want %q", k, id, want)
		}
		ids[id] = true
	}
	for _, q := range r.over(d) {
		if q.Status != 200 && q.Outcome != sim.ClientGone {
			t.Errorf("decode's leg of a failed pair went on: %q %d", q.Outcome, q.Status)
		}
	}
	if rec := r.waitRecord(0); rec.Attempts != 4 {
		t.Errorf("recorded %d attempts", rec.Attempts)
	}
	if n := r.counted("sluice_retries_total"); n != 3 {
		t.Errorf("%v retries counted", n)
	}
}

// A retry in the middle of a stream played it from the start again.
func TestNoRetryAfterTheFirstByte(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{retries: 5, breaker: noBreaker, sim: sim.Options{Regular: 2}})
	for _, w := range r.sim.Workers() {
		w.SetFault(sim.Fault{Do: sim.Close, At: sim.AtEvent, After: 6})
	}
	s := r.open("/v1/chat/completions", bodyFor("", 50, streamed))
	all, err := s.rest()
	if err == nil || strings.Count(all, `"role":"assistant"`) != 1 || strings.Count(all, ` t3"`) != 1 {
		t.Errorf("%v %q", err, all)
	}
	r.settled()
	if n := asked(r.sim.Workers()...); n != 1 {
		t.Errorf("%d attempts", n)
	}
}

// The configured number of tries and the pause between them were read by nobody.
func TestAttemptsAndPauses(t *testing.T) {
	t.Parallel()
	for _, max := range []int{0, 1, 4} {
		r := newRig(t, rigOptions{retries: max, breaker: noBreaker, sim: sim.Options{Regular: 3}, config: func(c *config.Config) {
			c.Retry.InitialBackoff, c.Retry.MaxBackoff = 40*time.Millisecond, 80*time.Millisecond
		}})
		var times []time.Time
		for _, w := range r.sim.Workers() {
			w.SetFault(sim.Fault{Status: 503, Body: "busy", Header: http.Header{"Retry-After": {"3"}}})
		}
		if a := r.chat(""); a.status != 503 || a.body != "busy" || a.header.Get("Retry-After") != "3" {
			t.Errorf("got %d %s", a.status, a.body)
		}
		r.settled()
		for _, w := range r.sim.Workers() {
			for _, q := range w.Requests() {
				times = append(times, q.Arrived)
			}
		}
		if len(times) != max+1 {
			t.Errorf("%d attempts, want %d", len(times), max+1)
		}
		var first, last time.Time
		for _, at := range times {
			if first.IsZero() || at.Before(first) {
				first = at
			}
			if at.After(last) {
				last = at
			}
		}
		// 40, 60, then 80 ms at most.
		if least := time.Duration(max) * 40 * time.Millisecond; last.Sub(first) < least {
			t.Errorf("%d retries within %s, want pauses of 40 ms at least", max, last.Sub(first))
		}
	}
}

func TestBackoffGrowsToItsBound(t *testing.T) {
	t.Parallel()
	o := &config.Retry{InitialBackoff: 50 * time.Millisecond, MaxBackoff: time.Second, BackoffMultiplier: 2, JitterFactor: 0.2}
	for n, want := range map[int]time.Duration{1: 50 * time.Millisecond, 2: 100 * time.Millisecond, 5: 800 * time.Millisecond, 6: time.Second, 1000: time.Second} {
		for range 50 {
			if d := backoff(o, n); d < want*79/100 || d > want*121/100 {
				t.Errorf("pause %d is %s, want %s ± 20 %%", n, d, want)
			}
		}
	}
}

// The failed rank is avoided in its role only.
func TestFailedRankIsAvoidedInItsRoleOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{retries: 3, breaker: noBreaker, sim: sim.Options{Prefill: 2, Decode: 1}}))
	for i := range 2 {
		r.sim.Prefill(i).SetFault(sim.Fault{Status: 503, Count: 1})
	}
	if a := r.chat(""); a.status != 200 {
		t.Errorf("got %d %s", a.status, a.body)
	}
	// Both failed once, so each of the two was asked before one was asked again.
	if a, b := asked(r.sim.Prefill(0)), asked(r.sim.Prefill(1)); a+b != 3 || a == 0 || b == 0 {
		t.Errorf("the prefill workers were asked %d and %d times", a, b)
	}
	r.settled()
}

// Retries stop when the whole fleet has had its share of them; the client then
// gets what the engine said.
func TestRetryBudget(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{retries: 5, breaker: noBreaker, sim: sim.Options{Regular: 2}})
	for _, w := range r.sim.Workers() {
		w.SetFault(sim.Fault{Status: 503, Body: "busy"})
	}
	r.d.budget.mu.Lock()
	r.d.budget.tokens = 1.9
	r.d.budget.mu.Unlock()
	for range 6 {
		if a := r.chat(""); a.status != 503 || a.body != "busy" {
			t.Errorf("got %d %s", a.status, a.body)
		}
	}
	r.settled()
	// 1.9 and a fifth a request: 3 retries at most.
	if n := asked(r.sim.Workers()...); n < 8 || n > 9 {
		t.Errorf("%d attempts for 6 requests, want 6 and the budget's 2 or 3", n)
	}
}

// A retry that finds no room waits; where it may not, the client gets the
// engine's own failure and not a word about queues it was never in.
func TestRetryThatMayNotWait(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{retries: 3, breaker: noBreaker, limits: admission.Limits{PrefillSlots: 1},
		sim: sim.Options{Prefill: 2, Decode: 1, Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: forever}}}}))
	p0, p1 := r.sim.Prefill(0), r.sim.Prefill(1)
	_, leave := r.begin("/v1/chat/completions", chatBody(""), HeaderTargetWorker, p0.URL())
	r.working(p0, 1)
	p1.SetFault(sim.Fault{Status: 503, Body: "out of order", Delay: 50 * time.Millisecond, Count: 1})
	second, _ := r.begin("/v1/chat/completions", chatBody(""))
	r.working(p1, 1)
	// While its first attempt fails, another request takes the place.
	r.until("the first attempt is over", func() bool { return p1.Stats().Ended == 1 || len(second) == 1 })
	select {
	case a := <-second:
		if a.status != 503 || a.body != "out of order" {
			t.Errorf("got %d %s", a.status, a.body)
		}
	case <-time.After(patience):
		t.Error("no answer")
	}
	leave()
	r.settled()
}
