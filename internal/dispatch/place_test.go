package dispatch

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/classify"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// A pin names a worker by its index, URL or id, and binds the prefill leg only,
// unless decode is named too.
func TestPins(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{sim: sim.Options{Prefill: 3, Decode: 3}}))
	p, d := r.sim.Prefill(2), r.sim.Decode(1)
	names := func(w *sim.Worker, index string) []string {
		return []string{index, w.URL(), w.URL() + "/", r.worker(w).ID()}
	}
	want := 0
	for _, name := range names(p, "2") {
		for range 3 {
			if a := r.chat("", HeaderTargetWorker, name); a.status != 200 {
				t.Errorf("pin %q: %d %s", name, a.status, a.body)
			}
			want++
		}
	}
	if n := asked(p); n != want {
		t.Errorf("the pinned prefill worker had %d of %d requests", n, want)
	}
	for i := range 3 {
		if asked(r.sim.Decode(i)) == 0 {
			t.Errorf("%s had nothing: the pin bound decode as well", r.sim.Decode(i).ID())
		}
	}
	before := asked(d)
	for _, name := range names(d, "1") {
		if a := r.chat("", HeaderTargetDecode, name, HeaderTargetWorker, "0"); a.status != 200 {
			t.Errorf("pin %q: %d %s", name, a.status, a.body)
		}
	}
	if n := asked(d) - before; n != 4 {
		t.Errorf("the pinned decode worker had %d of 4 requests", n)
	}
	for _, w := range r.sim.Workers() {
		for _, q := range w.Requests() {
			if q.Header.Get(HeaderTargetWorker) != "" || q.Header.Get(HeaderTargetDecode) != "" {
				t.Errorf("%s was sent the pin", w.ID())
			}
		}
	}
	r.settled()
}

// A pin that can never be met is refused at once.
func TestImpossiblePins(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{dpAware: true, sim: sim.Options{Prefill: 2, Decode: 1, Worker: sim.WorkerOptions{DPSize: 2}}}))
	decode := r.sim.Decode(0)
	for _, pin := range []string{"2", "-1", "99999999999999999999", "nobody", "http://127.0.0.1:1", decode.URL(), r.worker(decode).ID(),
		r.sim.Prefill(0).URL() + "@7", strings.Repeat("x", 5000), "a b\tc"} {
		a := r.chat("", HeaderTargetWorker, pin)
		if a.status != 400 || a.code() != "invalid_target" {
			t.Errorf("pin %.60q: %d %s", pin, a.status, a.body)
		}
		if len(a.body) > 4<<10 {
			t.Errorf("the answer to a long pin has %d bytes", len(a.body))
		}
	}
	if a := r.chat("", HeaderTargetDecode, "1"); a.status != 400 || a.code() != "invalid_target" {
		t.Errorf("decode 1: %d %s", a.status, a.body)
	}
	if n := asked(r.sim.Workers()...); n != 0 {
		t.Errorf("%d requests reached the engines", n)
	}
	for rank := range 2 {
		if a := r.chat("", HeaderTargetWorker, r.sim.Prefill(1).URL()+"@"+itoa(rank)); a.status != 200 {
			t.Errorf("rank %d: %d %s", rank, a.status, a.body)
		}
		if q := r.sim.Prefill(1).Requests()[rank]; q.Rank != rank {
			t.Errorf("rank %d was asked, want %d", q.Rank, rank)
		}
	}
	r.settled()
}

// Which models there are decides 404, 400 and 503 apart.
func TestUnknownModels(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{}))
	for model, want := range map[string]int{
		`"sim-model"`: 200, `null`: 200, `"nope"`: 404, `"a/b/c"`: 404, `"模型"`: 404, `"with space"`: 404,
		`"` + strings.Repeat("x", 10<<10) + `"`: 404, `""`: 400, `7`: 400, `["sim-model"]`: 400,
	} {
		for _, extra := range []string{"", streamed} {
			a := r.do(t.Context(), "/v1/chat/completions", `{"model":`+model+`,"messages":[],"max_tokens":1`+extra+`}`)
			if a.status != want || want == 404 && a.code() != "model_not_found" || len(a.body) > 8<<10 {
				t.Errorf("%.40s: %d %.300s, want %d", model, a.status, a.body, want)
			}
		}
	}
	if a := r.do(t.Context(), "/v1/chat/completions", `{"messages":[],"max_tokens":1}`); a.status != 200 {
		t.Errorf("without a model: %d %s", a.status, a.body)
	}
	r.settled()
}

func TestTwoModels(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 2, Each: func(_ sim.Role, i int, o *sim.WorkerOptions) {
		o.Model = []string{"org/first", "second"}[i]
	}}})
	a := r.do(t.Context(), "/v1/chat/completions", `{"messages":[],"max_tokens":1}`)
	if a.status != 400 || a.code() != "invalid_request" || !strings.Contains(a.body, "2 models") {
		t.Errorf("without a model: %d %s", a.status, a.body)
	}
	for i, model := range []string{"org/first", "second"} {
		if a := r.do(t.Context(), "/v1/chat/completions", `{"model":"`+model+`","messages":[],"max_tokens":1}`); a.status != 200 {
			t.Errorf("%s: %d %s", model, a.status, a.body)
		}
		if n := asked(r.sim.Regular(i)); n != 1 {
			t.Errorf("%s went elsewhere", model)
		}
		if rec := r.waitRecord(i + 1); rec.Model != model {
			t.Errorf("recorded as %q", rec.Model)
		}
	}
	a = r.do(t.Context(), "/v1/chat/completions", `{"model":"second","messages":[]}`, HeaderTargetWorker, r.sim.Regular(0).URL())
	if a.status != 400 || a.code() != "invalid_target" {
		t.Errorf("pinned to another model's worker: %d %s", a.status, a.body)
	}
	r.settled()
}

// A known model whose workers cannot be used now is no unknown one.
func TestUnavailableIsNotUnknown(t *testing.T) {
	t.Parallel()
	t.Run("the last of them keeps its place", func(t *testing.T) {
		r := newRig(t, rigOptions{breaker: firstFault, sim: sim.Options{Regular: 2}})
		first, last := r.sim.Regular(0), r.sim.Regular(1)
		first.SetFault(sim.Fault{Status: 500})
		for range 4 { // the other serves meanwhile
			r.chat("")
		}
		r.charged(first)
		last.SetFault(sim.Fault{Status: 500})
		r.chat("")
		r.charged(first, last)
		if a := r.chat(""); a.status != 500 {
			t.Errorf("got %d %s", a.status, a.body)
		}
	})
	t.Run("unhealthy", func(t *testing.T) {
		r := newRig(t, rigOptions{health: quickDeath, sim: sim.Options{Regular: 1}})
		r.sim.Regular(0).Kill()
		r.until("it is seen to be gone", func() bool { return !r.of(r.sim.Regular(0)).Candidate })
		if a := r.chat(""); a.status != 503 || a.code() != "no_available_workers" || a.header.Get("Retry-After") == "" {
			t.Errorf("got %d %s", a.status, a.body)
		}
	})
	t.Run("only prefill is left", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{health: quickDeath}))
		r.sim.Decode(0).Kill()
		r.until("it is seen to be gone", func() bool { return !r.of(r.sim.Decode(0)).Candidate })
		if a := r.chat(""); a.status != 503 || a.code() != "no_available_workers" {
			t.Errorf("got %d %s", a.status, a.body)
		}
		if n := asked(r.sim.Prefill(0)); n != 0 {
			t.Errorf("prefill was asked %d times", n)
		}
	})
	t.Run("nobody was ever seen", func(t *testing.T) {
		r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}, health: rarely})
		r.fleet.Remove(r.sim.Regular(0).URL())
		for _, model := range []string{`"sim-model"`, `null`} {
			if a := r.do(t.Context(), "/v1/chat/completions", `{"model":`+model+`,"messages":[]}`); a.status != 503 || a.code() != "no_available_workers" {
				t.Errorf("%s: got %d %s", model, a.status, a.body)
			}
		}
	})
}

// The client's own patience bounds its wait.
func TestClientsOwnPatience(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{limits: oneSlot(), sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: forever}}}}))
	_, leave := r.begin("/v1/chat/completions", chatBody(""))
	r.working(r.sim.Prefill(0), 1)
	start := time.Now()
	a := r.chat("", classify.HeaderMaxQueue, "50")
	if a.status != 429 || a.code() != "queue_deadline_exceeded" || a.header.Get("Retry-After") == "" || time.Since(start) < 50*time.Millisecond {
		t.Errorf("after %s: %d %s", time.Since(start), a.status, a.body)
	}
	r.soon("it was told", start)
	for _, bad := range []string{"-1", "soon", "1.5", "99999999999"} {
		if a := r.chat("", classify.HeaderMaxQueue, bad); a.status != 400 || a.code() != "invalid_request" {
			t.Errorf("%q: %d %s", bad, a.status, a.body)
		}
	}
	leave()
	r.settled()
}

// The whole request has a limit, wherever it stands; the engine is not to blame.
func TestRequestTimeoutNamesItself(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		timing sim.Timing
		slots  int
	}{
		{"prefill computes", sim.Timing{PrefillTime: forever}, 0},
		{"decode is silent", sim.Timing{FirstToken: forever}, 0},
		{"it waits for a slot", sim.Timing{PrefillTime: forever}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := pd(rigOptions{breaker: firstFault, retries: 3, config: func(c *config.Config) { c.Timeouts.Request = 300 * time.Millisecond }, sim: sim.Options{Worker: sim.WorkerOptions{Timing: tc.timing}}})
			if tc.slots > 0 {
				o.limits = admission.Limits{PrefillSlots: tc.slots, QueueSize: 10, QueueTimeout: time.Minute}
			}
			r := newRig(t, o)
			if tc.slots > 0 {
				first, _ := r.begin("/v1/chat/completions", chatBody(""))
				r.working(r.sim.Prefill(0), 1)
				defer func() { <-first }()
			}
			a := r.chat("")
			if a.status != 504 || a.code() != "upstream_timeout" || !strings.Contains(a.body, "--request-timeout-secs") || !strings.Contains(a.body, "300ms") {
				t.Errorf("got %d %s", a.status, a.body)
			}
			r.settled()
			r.charged()
		})
	}
	t.Run("a stream is broken off", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{breaker: firstFault, config: func(c *config.Config) { c.Timeouts.Request = 300 * time.Millisecond }, sim: sim.Options{Worker: sim.WorkerOptions{Timing: slowDecode}}}))
		s := r.open("/v1/chat/completions", bodyFor("", 1_000_000, streamed))
		all, err := s.rest()
		if err == nil || !strings.Contains(all, "--request-timeout-secs") || strings.Contains(all, "[DONE]") {
			t.Errorf("%v %q", err, all[max(0, len(all)-300):])
		}
		r.settled()
		r.charged()
	})
}
