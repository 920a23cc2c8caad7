package e2e

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

const generateMethod = "/vllm.grpc.engine.VllmEngine/Generate"

// chatBy starts a chat of n tokens with engines by gRPC.
func (r *router) chatBy(client *http.Client, n int, fields string, headers ...string) *call {
	return send(client, http.MethodPost, r.url()+"/v1/chat/completions", apiBodies(n, fields)["/v1/chat/completions"], headers...)
}

// No request waits longer than its turn takes: prefill gets them in the order in which they
// came. One at a time, since of several at once any may be the first to reach the engine.
func TestGRPCQueueKeepsItsOrder(t *testing.T) {
	t.Parallel()
	const all = 24
	fleet := startSim(t, "--grpc", "--prefill", "1", "--decode", "1")
	r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "1", "--prefill-queue-size", "100", "--worker-wedge-secs", "600")
	fleet.do("prefill-0", "wedge", "")
	client := clients(t)
	var calls []*call
	place := map[string]int{}
	for i := range all {
		c := r.chatBy(client, 2, streamed)
		calls = append(calls, c)
		place[c.id] = i
		r.waitMetric(metricInflight, 1)
		r.waitMetric(metricQueued, float64(i))
	}
	fleet.do("prefill-0", "unwedge", "")
	for _, c := range calls {
		c.wait(t).good(t)
	}
	n := 0
	for _, q := range fleet.requests("prefill-0") {
		id, _, _ := strings.Cut(q.RequestID, "-")
		if i, ok := place[id]; ok {
			if n != i {
				t.Errorf("prefill's request %d is the one that came as number %d", n, i)
			}
			n++
		}
	}
	if s := fleet.stats("prefill-0"); n != all || s.PeakInflight > 1 {
		t.Errorf("%d requests, %d at once", n, s.PeakInflight)
	}
}

// A request that is refused by the gate, or for its model, is refused in the same words
// whether engines are reached by HTTP or by gRPC, and the same is counted.
func TestGRPCRefusesAsHTTPDoes(t *testing.T) {
	t.Parallel()
	// When to come again is estimated from the time that has passed.
	again := regexp.MustCompile(`try again in \d+ s|"retry_after_ms":\d+`)
	said := map[string]string{}
	for kind, args := range map[string][]string{"grpc": {"--grpc"}, "http": {"--backend", "vllm"}} {
		fleet := startSim(t, append(args, "--prefill", "1", "--decode", "1")...)
		r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "1", "--prefill-queue-size", "1", "--prefill-queue-timeout-secs", "1", "--worker-wedge-secs", "600")
		fleet.fault("prefill-0", "delay=1h")
		client := clients(t)
		first := r.chatBy(client, 2, "")
		r.waitMetric(metricInflight, 1)
		second := r.chatBy(client, 2, streamed)
		r.waitMetric(metricQueued, 1)
		third := r.chatBy(client, 2, "").wait(t)
		other := send(client, http.MethodPost, r.url()+"/v1/chat/completions", `{"model":"nobody","messages":[{"role":"user","content":"a"}]}`).wait(t)
		for _, a := range []*answer{second.wait(t), third, other} {
			line := r.accessLine(a.id)
			said[kind] += fmt.Sprintln(a.status, a.header.Get("X-Smg-Error-Code"), a.header.Get("Content-Type"), again.ReplaceAllString(strings.ReplaceAll(a.body, a.id, "ID"), "AGAIN"), line["reason"], line["error"])
		}
		said[kind] += fmt.Sprintln(r.metric(metricRejections+`{reason="queue_full"}`), r.metric(metricRejections+`{reason="queue_timeout"}`), r.metric(metricWaits))
		first.cancel()
		first.wait(t)
		fleet.heal("prefill-0")
		eventually(t, "all holds are given back", r.held)
	}
	if said["grpc"] != said["http"] || !strings.Contains(said["grpc"], "pd_prefill_queue_timeout") {
		t.Errorf("by gRPC:\n%s\nby HTTP:\n%s", said["grpc"], said["http"])
	}
}

// Whoever leaves an engine that runs whole requests, or the queue, leaves nothing behind.
func TestGRPCClientLeavesAWholeRequest(t *testing.T) {
	t.Parallel()
	r := startGRPC(t, "whole", "--policy", "round_robin")
	for name, c := range map[string]struct{ fault, fields string }{
		"before the answer": {"delay=1h,path=" + generateMethod, streamed},
		"not streamed":      {"delay=1h,path=" + generateMethod, ""},
		"in the stream":     {"event_delay=50ms,path=" + generateMethod, streamed},
	} {
		r.fleet.fault("all", c.fault)
		call := r.chatBy(clients(t), 200, c.fields)
		inflight := func() (n int) { return r.fleet.stats("regular-0").Inflight + r.fleet.stats("regular-1").Inflight }
		eventually(t, name+": the engine has it", func() string {
			if n := inflight(); n != 1 {
				return fmt.Sprint(n)
			}
			return ""
		})
		if name == "in the stream" {
			<-call.begun
		}
		call.cancel()
		within(t, leaveWithin, name+": the engine learns it", func() string {
			if n := inflight(); n != 0 {
				return fmt.Sprint(n)
			}
			return ""
		})
		call.wait(t)
		if line := r.accessLine(call.id); line["reason"] != "client_gone" {
			t.Errorf("%s: %v", name, line)
		}
		r.fleet.heal("all")
	}
	eventually(t, "all holds are given back", r.held)
	r.chatBy(clients(t), 3, "").wait(t).good(t)
}

// When an engine dies, its requests end at once and what their other legs hold is given back;
// the next ones go elsewhere. The engine that comes to its address has another id, by which
// KV cache is handed over and fetched at once.
func TestGRPCAnotherEngineAtTheAddress(t *testing.T) {
	t.Parallel()
	r := startGRPC(t, "pair", "--policy", "round_robin", "--disable-retries", "--cb-failure-threshold", "100", "--no-worker-wait-secs", "30")
	client := clients(t)
	for _, id := range []string{"decode-0", "prefill-0"} {
		fault := "event_delay=50ms,path=" + generateMethod
		if id == "prefill-0" {
			fault = "delay=1h,path=" + generateMethod
		}
		r.fleet.fault(id, fault)
		var calls []*call
		for range 4 {
			calls = append(calls, r.chatBy(client, 200, streamed))
		}
		r.fleet.waitStats(id, "has requests", func(s sim.Stats) bool { return s.Inflight > 0 })
		r.fleet.do(id, "kill", "")
		r.fleet.heal(id)
		failed := 0
		for _, c := range calls {
			if a := c.wait(t); !a.whole() {
				failed++
			}
		}
		if failed == 0 || failed == len(calls) {
			t.Errorf("%s died: %d of %d requests failed", id, failed, len(calls))
		}
		eventually(t, "all holds are given back", r.held)
		eventually(t, "the router knows that "+id+" is gone", func() string {
			if r.worker(id).Healthy {
				return "healthy"
			}
			return ""
		})
		for range 3 {
			r.chatBy(client, 3, streamed).wait(t).good(t)
		}
		r.fleet.do(id, "restart", "")
		r.waitReady()
		before := r.fleet.stats(id).Requests
		for range 6 {
			r.chatBy(client, 3, streamed).wait(t).good(t)
		}
		if n := r.fleet.stats(id).Requests - before; n < 1 {
			t.Errorf("%s got no request since it is back", id)
		}
		for _, w := range []string{"decode-0", "decode-1"} {
			if s := r.fleet.stats(w); s.Alone != 0 {
				t.Errorf("%s computed prompts that were prefilled: %+v", w, s)
			}
		}
	}
}

// What other routers' requests leave in the caches is known by the engines' events, and raises
// the hit rate of this one's; what an engine loses is forgotten.
func TestGRPCEventsRaiseTheHitRate(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--grpc", "--regular", "3")
	one, two := startRouter(t, fleet, "--worker-wedge-secs", "600"), startRouter(t, fleet, "--worker-wedge-secs", "600")
	one.waitFeeds("exact")
	two.waitFeeds("exact")
	prompt := func(word string) string {
		return fmt.Sprintf(`{"model":"sim-model","max_tokens":2,"prompt":%q}`, strings.Repeat(word+" ", 300))
	}
	ask := func(r *router, word string) *answer {
		a := send(probeClient, http.MethodPost, r.url()+"/v1/completions", prompt(word)).wait(t)
		a.good(t)
		return a
	}
	held := func(r *router, word string) string {
		for id, blocks := range r.holders("completions", prompt(word), true) {
			if blocks > 0 {
				return id
			}
		}
		return ""
	}
	words := []string{"apple", "bread", "crumb"}
	at := map[string]string{}
	for _, word := range words {
		ask(one, word)
		eventually(t, "the other router knows who holds "+word, func() string {
			if at[word] = held(two, word); at[word] == "" {
				return "nobody"
			}
			return ""
		})
	}
	for _, word := range words {
		before := fleet.stats(at[word]).Requests
		best, chosen, told := two.wantCache(ask(two, word), "holder")
		if best == 0 || chosen != best || told < best-32 || fleet.stats(at[word]).Requests != before+1 {
			t.Errorf("%s, held by %s: best %d, chosen %d, reported %d", word, at[word], best, chosen, told)
		}
	}
	lost := at["apple"]
	fleet.do(lost, "kill", "")
	fleet.do(lost, "restart", "")
	for _, r := range []*router{one, two} {
		eventually(t, "it is forgotten what "+lost+" held", func() string { return held(r, "apple") })
		r.waitReady()
		r.waitFeeds("exact") // nothing is told twice
	}
	ask(one, "apple")
	eventually(t, "the other router knows who holds it now", func() string {
		if held(two, "apple") == "" {
			return "nobody"
		}
		return ""
	})
}
