package dispatch

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/sim"
)

// metaInfo is what a merge touches of a native answer.
type metaInfo struct {
	Text string `json:"text"`
	Meta struct {
		Input  [][3]any `json:"input_token_logprobs"`
		Output [][3]any `json:"output_token_logprobs"`
	} `json:"meta_info"`
}

// checkMerged checks that the prefill's entries (-1.0, ids counting up) come
// first and the decode's one (-2.0) last.
func checkMerged(t *testing.T, text string, outputs int) {
	t.Helper()
	var m metaInfo
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Errorf("%v in %q", err, text)
		return
	}
	in := m.Meta.Input
	if len(in) < 2 || in[len(in)-1][0] != -2.0 || len(m.Meta.Output) != outputs {
		t.Errorf("merged wrong: %s", text)
		return
	}
	for i, e := range in[:len(in)-1] {
		if e[0] != -1.0 || e[1] != float64(i) {
			t.Errorf("entry %d is %v", i, e)
		}
	}
}

// Answers by way of the router lacked logprob fields that the worker sends
// direct; a merge that depends on how the answer is cut into reads is none.
func TestLogprobsOfBothLegs(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 37} {
		t.Run(fmt.Sprintf("write=%d", size), func(t *testing.T) {
			r := newRig(t, pd(rigOptions{sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: 20 * time.Millisecond}}}}))
			for _, w := range r.sim.Workers() {
				w.SetFault(sim.Fault{WriteSize: size})
			}
			a := r.do(t.Context(), "/generate", `{"text":"hello world, hello","return_logprob":true,"sampling_params":{"max_new_tokens":3}}`)
			if a.status != 200 {
				t.Fatalf("got %d %s", a.status, a.body)
			}
			checkMerged(t, a.body, 3)

			a = r.do(t.Context(), "/generate", `{"input_ids":[[1,2,3],[4,5]],"return_logprob":true,"sampling_params":{"max_new_tokens":2}}`)
			var batch []json.RawMessage
			if err := json.Unmarshal([]byte(a.body), &batch); err != nil || len(batch) != 2 {
				t.Fatalf("%v %s", err, a.body)
			}
			for i, want := range []int{4, 3} {
				checkMerged(t, string(batch[i]), 2)
				var m metaInfo
				_ = json.Unmarshal(batch[i], &m)
				if len(m.Meta.Input) != want {
					t.Errorf("answer %d has %d input logprobs, want %d", i, len(m.Meta.Input), want)
				}
			}

			a = r.do(t.Context(), "/generate", `{"text":"hello world, hello","stream":true,"return_logprob":true,"sampling_params":{"max_new_tokens":3}}`)
			if a.status != 200 || a.err != nil || !strings.HasSuffix(a.body, doneEvent) {
				t.Fatalf("got %d %v %s", a.status, a.err, a.body)
			}
			events := strings.Split(strings.TrimSuffix(a.body, doneEvent), "\n\n")
			for i, e := range events[:len(events)-1] {
				checkMerged(t, strings.TrimPrefix(e, "data: "), i+1)
			}
			if len(events) != 4 {
				t.Errorf("%d events: %q", len(events)-1, events)
			}
			r.settled()
		})
	}
}

// A plain body needs no merge: without the flag the answer waits for nobody, and
// is the decode's own.
func TestNoMergeWithoutTheFlag(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{bounds: Options{PrefillGrace: 50 * time.Millisecond}}))
	r.sim.Prefill(0).SetFault(sim.Fault{Do: sim.Freeze, At: sim.AtHeaders})
	a := r.do(t.Context(), "/generate", bodyFor("/generate", 3, ""))
	if a.status != 200 || strings.Contains(a.body, "-1.0") {
		t.Errorf("got %d %s", a.status, a.body)
	}
	r.settled()
}

// The answer that waits for prefill hears of its failure and of decode's, and
// its client may leave.
func TestMergeEndsWithEitherLeg(t *testing.T) {
	t.Parallel()
	body := func(extra string) string {
		return bodyFor("/generate", 3, `,"return_logprob":true`+extra)
	}
	t.Run("prefill fails", func(t *testing.T) {
		both(t, func(t *testing.T, extra string) {
			r := newRig(t, pd(rigOptions{}))
			r.sim.Prefill(0).SetFault(sim.Fault{Status: 422, Delay: 100 * time.Millisecond, Body: tooLong})
			if a := r.do(t.Context(), "/generate", body(extra)); a.status != 422 || a.body != tooLong {
				t.Errorf("got %d %s", a.status, a.body)
			}
			r.settled()
		})
	})
	t.Run("prefill answers without logprobs that can be read", func(t *testing.T) {
		r := newRig(t, pd(rigOptions{breaker: firstFault}))
		r.sim.Prefill(0).SetFault(sim.Fault{Status: 200, Body: `nonsense`})
		start := time.Now()
		a := r.do(t.Context(), "/generate", body(streamed))
		if a.status != 502 || !strings.Contains(a.body, "prefill") {
			t.Errorf("got %d %s", a.status, a.body)
		}
		r.soon("it was told", start)
		r.settled()
	})
	t.Run("decode fails while prefill computes", func(t *testing.T) {
		both(t, func(t *testing.T, extra string) {
			r := newRig(t, pd(rigOptions{breaker: firstFault, sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: forever}}}}))
			r.sim.Decode(0).SetFault(sim.Fault{Do: sim.Reset, At: sim.AtHeaders, EarlyHeaders: true})
			start := time.Now()
			if a := r.do(t.Context(), "/generate", body(extra)); a.status != 502 || !strings.Contains(a.body, "decode") {
				t.Errorf("got %d %s", a.status, a.body)
			}
			r.soon("it was told", start)
			r.settled()
			r.charged(r.sim.Decode(0))
		})
	})
	t.Run("the client leaves", func(t *testing.T) {
		both(t, func(t *testing.T, extra string) {
			r := newRig(t, pd(rigOptions{breaker: firstFault, sim: sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{PrefillTime: forever}}}}))
			_, leave := r.begin("/generate", body(extra))
			r.working(r.sim.Prefill(0), 1)
			r.working(r.sim.Decode(0), 1)
			left := time.Now()
			leave()
			r.settled()
			r.soon("all ended", left)
			r.charged()
		})
	})
}

// Prefill refused requests because the room implies one data-parallel rank and
// the request was sent to another.
func TestRoomAndRankAgree(t *testing.T) {
	t.Parallel()
	for _, aware := range []bool{true, false} {
		t.Run(fmt.Sprintf("aware=%v", aware), func(t *testing.T) {
			r := newRig(t, pd(rigOptions{dpAware: aware, sim: sim.Options{Prefill: 1, Decode: 2, Each: func(role sim.Role, _ int, o *sim.WorkerOptions) {
				o.DPSize = 2
				if role == sim.Decode {
					o.DPSize = 3
				}
			}}}))
			bodies := []struct{ path, body string }{
				{"/v1/chat/completions", chatBody("")}, {"/v1/chat/completions", chatBody(streamed)},
				{"/v1/completions", `{"prompt":["a","b","c"],"max_tokens":2}`}, {"/generate", bodyFor("/generate", 2, "")},
			}
			var wg sync.WaitGroup
			for i := range 32 {
				wg.Go(func() {
					b := bodies[i%len(bodies)]
					if a := r.do(t.Context(), b.path, b.body); a.status != 200 || a.err != nil {
						t.Errorf("%s: %d %s %v", b.path, a.status, a.body, a.err)
					}
				})
			}
			wg.Wait()
			r.settled()
			type fields struct {
				Room    json.RawMessage `json:"bootstrap_room"`
				Routed  *int64          `json:"routed_dp_rank"`
				Prefill *int64          `json:"disagg_prefill_dp_rank"`
			}
			used := map[int64]int{}
			for _, w := range r.sim.Workers() {
				for _, q := range w.Requests() {
					var f fields
					if err := json.Unmarshal(q.Body, &f); err != nil {
						t.Fatal(err)
					}
					if !aware {
						if f.Routed != nil || f.Prefill != nil {
							t.Errorf("a rank is forced: %s", q.Body)
						}
						continue
					}
					if f.Routed == nil {
						t.Fatalf("no rank: %s", q.Body)
					}
					prefillRank := f.Routed
					if w.Role() == sim.Decode {
						prefillRank = f.Prefill
					} else {
						used[*f.Routed]++
						if f.Prefill != nil {
							t.Errorf("prefill is told of a prefill rank: %s", q.Body)
						}
					}
					if prefillRank == nil {
						t.Fatalf("decode is told of no prefill rank: %s", q.Body)
					}
					for _, room := range q.Rooms {
						if room%2 != *prefillRank {
							t.Errorf("room %d is not of rank %d", room, *prefillRank)
						}
					}
				}
			}
			if aware && (used[0] == 0 || used[1] == 0) {
				t.Errorf("ranks used: %v", used)
			}
		})
	}
}

// A worker may have fewer ranks than it had when the request was granted: another process
// was started at its address. The engine's 400 is not the client's then.
func TestRankThatIsGone(t *testing.T) {
	t.Parallel()
	for _, backend := range []sim.Backend{sim.SGLang, sim.VLLM} {
		t.Run(string(backend), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, pd(rigOptions{dpAware: true, retries: 6, sim: sim.Options{Worker: sim.WorkerOptions{DPSize: 2, Backend: backend}},
				specs: func(_ *sim.Worker, s *fleet.WorkerSpec) { s.DPSize = 4 }}))
			for range 24 {
				if a := r.chat(""); a.status != 200 {
					t.Fatalf("%d %s", a.status, a.body)
				}
			}
			refused := 0
			for _, w := range r.sim.Workers() {
				for _, q := range w.Requests() {
					if q.Status == 400 {
						refused++
					}
				}
			}
			if refused == 0 {
				t.Error("no request was granted the rank that is gone")
			}
			r.settled()
			for _, k := range r.gate.Stats().Ranks {
				if k.State.Breaker != admission.BreakerClosed {
					t.Errorf("%s is charged", k.ID)
				}
			}
		})
	}
}

// A rank named by a client that the worker does not have must not reach it
// (sgl-project/sglang#19762). Where workers are scheduled as a whole they place the
// request themselves.
func TestRanksFromClients(t *testing.T) {
	t.Parallel()
	whole := newRig(t, pd(rigOptions{sim: sim.Options{Worker: sim.WorkerOptions{DPSize: 2}}}))
	r := newRig(t, pd(rigOptions{dpAware: true, sim: sim.Options{Worker: sim.WorkerOptions{DPSize: 2}}}))
	for _, rank := range []string{"7", "2", "-1", "+1", "1.0", "abc", "99999999999999999999", "1" + strings.Repeat("0", 30)} {
		if a := whole.chat("", "X-Data-Parallel-Rank", rank); a.status != 200 {
			t.Errorf("header %s: %d %s", rank, a.status, a.body)
		}
		if a := r.chat("", "X-Data-Parallel-Rank", rank); a.status != 400 || a.code() != "invalid_target" {
			t.Errorf("header %s: %d %s", rank, a.status, a.body)
		}
	}
	for _, rank := range []string{"0", "1"} {
		for range 4 {
			a := r.chat("", "X-Data-Parallel-Rank", rank)
			if got := a.header.Get("X-Sluice-Prefill-Worker"); a.status != 200 || !strings.HasSuffix(got, "@"+rank) {
				t.Errorf("rank %s: %d at %q", rank, a.status, got)
			}
		}
	}
	p := r.sim.Workers()[0].URL()
	for _, c := range []struct {
		pin, rank string
		status    int
	}{{p, "1", 200}, {p + "@1", "1", 200}, {p + "@0", "1", 400}, {p, "2", 400}, {p + "@2", "", 400}} {
		h := []string{"X-Smg-Target-Worker", c.pin}
		if c.rank != "" {
			h = append(h, "X-Data-Parallel-Rank", c.rank)
		}
		if a := r.chat("", h...); a.status != c.status || a.status == 200 && !strings.HasSuffix(a.header.Get("X-Sluice-Prefill-Worker"), "@1") {
			t.Errorf("pin %s, rank %s: %d at %q", c.pin, c.rank, a.status, a.header.Get("X-Sluice-Prefill-Worker"))
		}
	}
	for _, rank := range []string{"7", "-1", `"abc"`, "99999999999999999999", "0"} {
		for _, field := range []string{"routed_dp_rank", "disagg_prefill_dp_rank"} {
			if a := r.chat(`,"` + field + `":` + rank); a.status != 400 {
				t.Errorf("%s %s: %d %s", field, rank, a.status, a.body)
			}
		}
	}
	r.settled()
}
