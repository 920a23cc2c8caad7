package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

const headerRank = "X-Data-Parallel-Rank"

// dpFields are what a leg says of ranks.
type dpFields struct {
	routed, prefill *int64 // of the body
	header          string
}

func fieldsOf(t *testing.T, q *sim.Request) dpFields {
	t.Helper()
	var body struct {
		Routed  *int64 `json:"routed_dp_rank"`
		Prefill *int64 `json:"disagg_prefill_dp_rank"`
	}
	if err := json.Unmarshal(q.Body, &body); err != nil {
		t.Fatalf("a leg's body: %v", err)
	}
	return dpFields{body.Routed, body.Prefill, q.Header.Get(headerRank)}
}

func dpNumber(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

// rankOf is the number at the end of a rank's name.
func rankOf(name string) string {
	_, rank, _ := strings.Cut(name, "@")
	return rank
}

// most is the largest number of requests that were under way on one rank at once.
func most(list []sim.Request) map[int]int {
	type edge struct {
		at   int64
		rank int
		by   int
	}
	var edges []edge
	for _, q := range list {
		edges = append(edges, edge{q.Arrived.UnixNano(), q.Rank, 1}, edge{q.Ended.UnixNano(), q.Rank, -1})
	}
	slices.SortFunc(edges, func(a, b edge) int {
		if a.at != b.at {
			return int(min(max(a.at-b.at, -1), 1))
		}
		return a.by - b.by
	})
	now, top := map[int]int{}, map[int]int{}
	for _, e := range edges {
		now[e.rank] += e.by
		top[e.rank] = max(top[e.rank], now[e.rank])
	}
	return top
}

// askMany sends requests of several forms at once and returns their answers.
func (r *router) askMany(n int) []*answer {
	r.t.Helper()
	client := clients(r.t)
	out := make([]*answer, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			c := r.chat(client, brief)
			if i%3 == 1 {
				c = r.chat(client, streamed+brief)
			}
			out[i] = c.wait(r.t)
		})
	}
	all.Wait()
	return out
}

// Prefill and decode apart, with other numbers of ranks on each side: with --dp-aware the
// legs name the ranks that were booked, each in its engine's way, and each rank has its
// own slots; without it no rank is named at all. A room belongs to the rank that prefills
// (sgl-project/sglang#29725).
func TestDataParallelPairs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		backend         string
		prefill, decode int
		extra           []string
	}{
		{"sglang", 2, 4, nil}, {"sglang", 4, 2, nil}, {"sglang", 3, 1, nil}, {"sglang", 1, 2, nil},
		{"vllm", 2, 4, nil}, {"vllm", 4, 1, nil}, {"vllm", 2, 2, []string{"--connector", "mooncake"}},
		{"vllm", 3, 2, []string{"--connector", "nixl-push", "--dp-start-rank", "4"}},
	} {
		for _, aware := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s%v/%d+%d/aware=%v", c.backend, c.extra, c.prefill, c.decode, aware), func(t *testing.T) {
				t.Parallel()
				fleet := startSim(t, append([]string{"--backend", c.backend, "--prefill-time", "20ms",
					"--prefill-dp-size", fmt.Sprint(c.prefill), "--decode-dp-size", fmt.Sprint(c.decode)}, c.extra...)...)
				args := []string{"--prefill-max-inflight-requests-per-worker", "1", "--disable-retries"}
				if aware {
					args = append(args, "--dp-aware")
				}
				r := startRouter(t, fleet, args...)
				sizes := map[string]int{"prefill-0": 1, "decode-0": 1}
				if aware {
					sizes = map[string]int{"prefill-0": c.prefill, "decode-0": c.decode}
				}
				for id, n := range sizes {
					eventually(t, "the ranks of "+id, func() string {
						if w := r.worker(id); len(w.Ranks) != n {
							return fmt.Sprintf("%d ranks, want %d", len(w.Ranks), n)
						}
						return ""
					})
				}
				for _, a := range r.askMany(24) {
					a.good(t)
					legs := fleet.log("all", "?bodies")
					legs = slices.DeleteFunc(legs, func(q sim.Request) bool { return !strings.HasPrefix(q.Header.Get("X-Request-Id"), a.id) })
					if len(legs) != 2 {
						t.Fatalf("request %s has %d legs", a.id, len(legs))
					}
					for i := range legs {
						q := &legs[i]
						side, ranks := "Decode", c.decode
						if strings.HasPrefix(q.Worker, "prefill") {
							side, ranks = "Prefill", c.prefill
						}
						booked := rankOf(a.header.Get("X-Sluice-" + side + "-Worker"))
						if (booked != "") != (aware && ranks > 1) {
							t.Errorf("%s is told to run at rank %q of %d", side, booked, ranks)
						}
						got := fieldsOf(t, q)
						wantBody, wantHeader, wantPrefill := booked, "", ""
						if c.backend == "vllm" {
							wantBody, wantHeader = "", booked
							if side == "Prefill" && !aware && len(c.extra) > 0 && ranks > 1 {
								wantHeader = got.header // decode must be told which one it is
								if got.header == "" {
									t.Errorf("no rank is named, and decode cannot know which it will be")
								}
							}
						} else if side == "Decode" {
							wantPrefill = rankOf(a.header.Get("X-Sluice-Prefill-Worker"))
						}
						if dpNumber(got.routed) != wantBody || got.header != wantHeader || dpNumber(got.prefill) != wantPrefill {
							t.Errorf("%s: routed_dp_rank %q, header %q, disagg_prefill_dp_rank %q, want %q, %q, %q", side,
								dpNumber(got.routed), got.header, dpNumber(got.prefill), wantBody, wantHeader, wantPrefill)
						}
						if booked != "" && fmt.Sprint(q.Rank) != booked {
							t.Errorf("%s ran at rank %d, booked was %s", side, q.Rank, booked)
						}
						if c.backend == "sglang" && side == "Prefill" && int64(q.Rank) != q.Room()%int64(c.prefill) {
							t.Errorf("room %d at rank %d of %d", q.Room(), q.Rank, c.prefill)
						}
					}
				}
				if c.backend == "sglang" || len(c.extra) == 0 { // a push's prefill lasts until decode has come
					used := most(fleet.requests("prefill-0"))
					slots := 0
					for rank, n := range used {
						slots += n
						if aware && n > 1 {
							t.Errorf("%d prefills at once at rank %d, want 1", n, rank)
						}
					}
					if aware && len(used) != c.prefill {
						t.Errorf("prefill ranks used: %v, want all %d", used, c.prefill)
					}
				}
				fleet.misuse()
			})
		}
	}
}

// Workers that run whole requests: SGLang is told its rank by the body, vLLM by a header.
func TestDataParallelWhole(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"sglang", "vllm"} {
		for _, aware := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/aware=%v", backend, aware), func(t *testing.T) {
				t.Parallel()
				args := []string{"--backend", backend, "--regular", "2", "--dp-size", "2"}
				if backend == "vllm" {
					args = append(args, "--dp-start-rank", "2")
				}
				fleet := startSim(t, args...)
				args = nil
				ranks := 1
				if aware {
					args, ranks = []string{"--dp-aware"}, 2
				}
				r := startRouter(t, fleet, args...)
				eventually(t, "the ranks", func() string {
					for _, w := range r.workers() {
						if len(w.Ranks) != ranks {
							return fmt.Sprintf("%s has %d, want %d", w.URL, len(w.Ranks), ranks)
						}
					}
					return ""
				})
				if status, body := r.get("/workers"); backend == "vllm" && strings.Count(body, `"dp_start_rank":2`) != 2 {
					t.Errorf("the first rank's number is not told: %d %s", status, clip(body))
				}
				for _, a := range r.askMany(12) {
					a.good(t)
					booked := rankOf(a.header.Get("X-Sluice-Decode-Worker"))
					for _, q := range fleet.log("all", "?bodies") {
						if q.Header.Get("X-Request-Id") != a.id {
							continue
						}
						got := fieldsOf(t, &q)
						body, header := booked, ""
						if backend == "vllm" {
							body, header = "", booked
						}
						if dpNumber(got.routed) != body || got.header != header || booked != "" && fmt.Sprint(q.Rank) != booked {
							t.Errorf("routed_dp_rank %q, header %q at rank %d, booked was %q", dpNumber(got.routed), got.header, q.Rank, booked)
						}
					}
				}
				if !aware {
					return
				}
				// A rank that a client names: where there is such a one it runs there.
				for _, rank := range []string{"0", "1"} {
					a := r.ask(brief, headerRank, rank)
					a.good(t)
					if got := rankOf(a.header.Get("X-Sluice-Decode-Worker")); got != rank {
						t.Errorf("rank %q, asked was %s", got, rank)
					}
				}
				pin := fleet.worker("regular-1").URL
				a := r.ask(brief, headerRank, "1", "X-Smg-Target-Worker", pin)
				a.good(t)
				if legs := fleet.legs(a.id); len(legs) != 1 || legs[0].Worker != "regular-1" || legs[0].Rank != 1 {
					t.Errorf("pinned to rank 1 of regular-1, it ran at %+v", legs)
				}
			})
		}
	}
}

// A rank that no worker has is the client's fault, and said so before anything waits: all
// ranks are taken meanwhile (sgl-project/sglang#19762).
func TestDataParallelRankOfTheClient(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"sglang", "vllm"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			fleet := startSim(t, "--backend", backend, "--dp-size", "2")
			r := startRouter(t, fleet, "--dp-aware", "--prefill-max-inflight-requests-per-worker", "1", "--prefill-queue-size", "10")
			fleet.do("all", "reset", "") // of the question for the connector
			fleet.fault("prefill-0", "delay=2s")
			client := clients(t)
			var busy []*call
			for range 2 {
				busy = append(busy, r.chat(client, brief))
			}
			r.waitMetric(metricInflight, 2)
			for _, rank := range []string{"7", "2", "-1", "abc", "0x1", "1.5", "1" + strings.Repeat("0", 30)} {
				a := r.ask(brief, headerRank, rank)
				a.refused(t, http.StatusBadRequest, "invalid_target")
				for _, f := range []string{"routed_dp_rank", "data_parallel_rank", "disagg_prefill_dp_rank"} {
					value := rank
					if !json.Valid([]byte(rank)) {
						value = strconv.Quote(rank)
					}
					if a := r.ask(fmt.Sprintf(`"%s":%s,`, f, value) + brief); a.status != http.StatusBadRequest {
						t.Errorf("%s=%s: %s", f, value, a)
					}
				}
				r.ask(brief, "X-Smg-Target-Worker", fleet.worker("prefill-0").URL+"@"+rank).refused(t, http.StatusBadRequest, "invalid_target")
			}
			for _, c := range busy {
				c.wait(t).good(t)
			}
			if n := fleet.stats("prefill-0").Requests; n != 2 {
				t.Errorf("prefill got %d requests, want the 2 that were good", n)
			}
			fleet.misuse()
		})
	}
}

// The process at an address is replaced by one with another number of ranks: its ranks are
// replaced, no request fails, and none is left at a rank that is not there.
func TestDataParallelSizeChanges(t *testing.T) {
	t.Parallel()
	for _, sizes := range [][2]int{{4, 2}, {2, 4}, {4, 1}} {
		t.Run(fmt.Sprintf("%d to %d", sizes[0], sizes[1]), func(t *testing.T) {
			t.Parallel()
			changing := startSim(t, "--regular", "1", "--dp-size", fmt.Sprint(sizes[0]))
			other := startSim(t, "--regular", "1", "--dp-size", "2")
			url := changing.worker("regular-0").URL
			r := launchRouter(t, changing, nil, nil, "--dp-aware", "--worker-urls", url, "--worker-urls", other.worker("regular-0").URL)
			r.waitReady()
			stop := make(chan struct{})
			var load sync.WaitGroup
			for range 4 {
				load.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if a := r.ask(brief); !a.whole() {
							t.Errorf("during the change: %s", a)
							return
						}
					}
				})
			}
			eventually(t, "requests run", func() string { return moreThanZero(changing.stats("regular-0").Completed) })
			changing.signal(syscall.SIGKILL)
			changing.exit(patience)
			_, port, _ := strings.Cut(strings.TrimPrefix(url, "http://"), ":")
			again := startSim(t, "--regular", "1", "--dp-size", fmt.Sprint(sizes[1]), "--port", port)
			r.fleet = again
			eventually(t, "the ranks are those of the new process", func() string {
				if w := r.worker("regular-0"); len(w.Ranks) != sizes[1] || w.Status != "ready" {
					return fmt.Sprintf("%d ranks, %s", len(w.Ranks), w.Status)
				}
				return ""
			})
			eventually(t, "each rank is used", func() string {
				used := map[int]bool{}
				for _, q := range again.requests("regular-0") {
					used[q.Rank] = true
				}
				delete(used, -1)
				if len(used) != sizes[1] {
					return fmt.Sprint(used)
				}
				return ""
			})
			close(stop)
			load.Wait()
			// What is sent from now on is sent to ranks that are there.
			again.do("all", "reset", "")
			for range 8 {
				r.ask(brief).good(t)
			}
			for _, q := range again.requests("regular-0") {
				if q.Status != http.StatusOK {
					t.Errorf("a leg of rank %d: %d %s", q.Rank, q.Status, q.Error)
				}
			}
			eventually(t, "every hold is back", func() string {
				for _, w := range r.workers() {
					for _, k := range w.Ranks {
						if k.Load != 0 {
							return fmt.Sprintf("%s has a load of %d", k.ID, k.Load)
						}
					}
				}
				return ""
			})
		})
	}
}
