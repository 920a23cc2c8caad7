package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// gRPC is a shape of fleet of engines that take tokens.
var grpcFleets = map[string][]string{
	"pair":  {"--grpc", "--prefill", "2", "--decode", "2"},
	"whole": {"--grpc", "--regular", "2"},
}

// startGRPC starts such a fleet and a router in front of it.
func startGRPC(t testing.TB, shape string, args ...string) *router {
	t.Helper()
	return startRouter(t, startSim(t, grpcFleets[shape]...), args...)
}

// apiBodies are one request of each API for n tokens, with further fields.
func apiBodies(n int, fields string) map[string]string {
	return map[string]string{
		"/v1/chat/completions": fmt.Sprintf(`{"model":"sim-model",%s"max_tokens":%d,"messages":[{"role":"user","content":"Why is the sky blue? nonce-e2e"}]}`, fields, n),
		"/v1/completions":      fmt.Sprintf(`{"model":"sim-model",%s"max_tokens":%d,"prompt":"Why is the sky blue? nonce-e2e"}`, fields, n),
		"/v1/messages":         fmt.Sprintf(`{"model":"sim-model",%s"max_tokens":%d,"messages":[{"role":"user","content":"Why is the sky blue? nonce-e2e"}]}`, fields, n),
		"/v1/responses":        fmt.Sprintf(`{"model":"sim-model",%s"max_output_tokens":%d,"input":"Why is the sky blue? nonce-e2e"}`, fields, n),
	}
}

// wholeText is the text of an answer, streamed or not, of any of the four APIs.
func wholeText(t testing.TB, a *answer) string {
	t.Helper()
	var text strings.Builder
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			switch kind, _ := v["type"].(string); kind {
			case "response.completed", "response.output_text.done", "response.content_part.done", "response.output_item.done":
				return // they repeat what came in deltas
			}
			for _, key := range []string{"choices", "delta", "message", "content", "output", "text"} {
				switch in := v[key].(type) {
				case string:
					if key != "choices" {
						text.WriteString(in)
					}
				case nil:
				default:
					walk(in)
				}
			}
		case []any:
			for _, in := range v {
				walk(in)
			}
		case string:
			text.WriteString(v)
		}
	}
	if !a.streams {
		var v map[string]any
		if err := json.Unmarshal([]byte(a.body), &v); err != nil {
			t.Fatalf("%v: %s", err, a)
		}
		walk(v)
		return text.String()
	}
	for line := range strings.Lines(a.body) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		var v map[string]any
		if !ok || json.Unmarshal([]byte(data), &v) != nil {
			continue
		}
		if d, ok := v["delta"].(string); ok { // of the Responses API
			text.WriteString(d)
			continue
		}
		walk(v)
	}
	return text.String()
}

// Engines that take tokens serve all four APIs, streamed and not, with the text that the
// engine generated, whole; prefilled text is what decode goes on with.
func TestGRPCServesEachAPI(t *testing.T) {
	t.Parallel()
	for shape := range grpcFleets {
		t.Run(shape, func(t *testing.T) {
			t.Parallel()
			r := startGRPC(t, shape)
			client := clients(t)
			for _, fields := range []string{"", streamed} {
				for path, body := range apiBodies(6, fields) {
					a := send(client, http.MethodPost, r.url()+path, body).wait(t)
					want := strings.Join([]string{" nonce-e2e.1", " nonce-e2e.2", " nonce-e2e.3"}, "")
					if a.status != http.StatusOK || a.err != nil || a.failed != "" || a.streams != (fields != "") {
						t.Errorf("%s %s: %s", path, fields, a)
						continue
					}
					if got := wholeText(t, a); !strings.Contains(got, strings.TrimSpace(want)[:8]) {
						t.Errorf("%s %s said %q", path, fields, got)
					}
					line := r.accessLine(a.id)
					if line["reason"] != "ok" || line["encode_ms"] == nil || line["prompt_tokens"] == nil {
						t.Errorf("%s: access line %v", path, line)
					}
				}
			}
			eventually(t, "all holds are given back", r.held)
		})
	}
}

// What stands beside generation: routes answered without an engine, routes that there are
// not, and requests that are refused with the reason.
func TestGRPCRoutesAndRefusals(t *testing.T) {
	t.Parallel()
	for shape := range grpcFleets {
		t.Run(shape, func(t *testing.T) {
			t.Parallel()
			r := startGRPC(t, shape)
			client := clients(t)
			ask := func(path, body string) *answer {
				t.Helper()
				return send(client, http.MethodPost, r.url()+path, body).wait(t)
			}
			a := ask("/tokenize", `{"model":"sim-model","prompt":"Why is the sky blue?"}`)
			var tokens struct {
				Count  int
				Tokens []uint32
			}
			if err := json.Unmarshal([]byte(a.body), &tokens); err != nil || a.status != 200 || tokens.Count != len(tokens.Tokens) || tokens.Count == 0 {
				t.Fatalf("%v %s", err, a)
			}
			ids, _ := json.Marshal(tokens.Tokens)
			if a := ask("/detokenize", `{"model":"sim-model","tokens":`+string(ids)+`}`); a.status != 200 || !strings.Contains(a.body, "Why is the sky blue?") {
				t.Errorf("detokenize: %s", a)
			}
			// Token ids are taken as they are.
			a = ask("/v1/completions", `{"model":"sim-model","max_tokens":2,"prompt":`+string(ids)+`}`)
			if a.good(t); !strings.Contains(a.body, fmt.Sprintf(`"prompt_tokens":%d`, tokens.Count)) {
				t.Errorf("ids: %s", a)
			}
			for _, c := range []struct {
				path, body string
				status     int
				code       string
			}{
				{"/rerank", `{"model":"sim-model","query":"a","documents":["b"]}`, 404, "route_not_found"},
				{"/generate", `{"model":"sim-model","text":"a"}`, 404, "route_not_found"},
				{"/v1/chat/completions", chatBody(`"tools":[{"type":"function","function":{"name":"f"}}],`), 400, "unsupported_for_grpc"},
				{"/v1/completions", `{"model":"sim-model","prompt":[1,-2]}`, 400, "invalid_request"},
				{"/v1/completions", `{"model":"sim-model","prompt":"a","max_tokens":100000000}`, 400, "context_length_exceeded"},
				{"/v1/completions", `{"model":"sim-model"}`, 400, "invalid_request"},
				{"/v1/completions", `{"model":"sim-model","prompt":"a","temperature":-1}`, 400, "invalid_request"},
			} {
				if a := ask(c.path, c.body); a.status != c.status || a.code() != c.code {
					t.Errorf("%s %s: want %d %s, got %s", c.path, c.body, c.status, c.code, a)
				}
			}
			for _, w := range r.workers() {
				if !w.Healthy || w.Breaker != "closed" {
					t.Errorf("blamed: %+v", w)
				}
			}
			if status, body := r.get("/v1/models"); status != 200 || !strings.Contains(body, `"sim-model"`) {
				t.Errorf("models: %d %s", status, body)
			}
		})
	}
}

// A burst wider than the window: at no time more prefills than slots, and each is answered.
func TestGRPCBurstOnAWindow(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--grpc", "--prefill", "1", "--decode", "1", "--prefill-rate", "20000")
	r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "8")
	client := clients(t)
	calls := make([]*call, 64)
	for i := range calls {
		calls[i] = send(client, http.MethodPost, r.url()+"/v1/chat/completions", apiBodies(4, streamed)["/v1/chat/completions"])
	}
	for _, c := range calls {
		c.wait(t).good(t)
	}
	if s := fleet.stats("prefill-0"); s.PeakInflight > 8 || s.PeakInflight < 2 {
		t.Errorf("%d prefills at once: %+v", s.PeakInflight, s)
	}
	if s := fleet.stats("decode-0"); s.Pulled != 64 || s.Alone != 0 {
		t.Errorf("decode: %+v", s)
	}
	eventually(t, "all holds are given back", r.held)
	if n := r.metric(`sluice_requests_total{reason="ok",route="chat_completions"`); n != 64 {
		t.Errorf("%v are counted", n)
	}
}

// Whoever leaves: both engines learn it, in prefill and in decode, streamed or not.
func TestGRPCClientLeaves(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--grpc", "--prefill", "1", "--decode", "1")
	r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "4")
	for name, c := range map[string]struct{ worker, fault, fields string }{
		"prefill":          {"prefill-0", "delay=1h", streamed},
		"decode":           {"decode-0", "delay=1h", streamed},
		"decode, unstream": {"decode-0", "delay=1h", ""},
		"stream":           {"decode-0", "event_delay=50ms", streamed},
	} {
		fleet.fault(c.worker, c.fault)
		call := send(clients(t), http.MethodPost, r.url()+"/v1/chat/completions", apiBodies(200, c.fields)["/v1/chat/completions"])
		eventually(t, name+": the engine has it", func() string {
			if n := fleet.stats(c.worker).Inflight; n != 1 {
				return fmt.Sprint(n)
			}
			return ""
		})
		if name == "stream" {
			<-call.begun
		}
		call.cancel()
		left := time.Now()
		for _, w := range []string{"prefill-0", "decode-0"} {
			within(t, leaveWithin, name+": "+w+" learns it", func() string {
				if s := fleet.stats(w); s.Inflight != 0 {
					return fmt.Sprintf("%+v", s)
				}
				return ""
			})
		}
		t.Logf("%s: after %v", name, time.Since(left))
		call.wait(t)
		if line := r.accessLine(call.id); line["reason"] != "client_gone" {
			t.Errorf("%s: %v", name, line)
		}
		fleet.heal(c.worker)
	}
	eventually(t, "all holds are given back", r.held)
	send(clients(t), http.MethodPost, r.url()+"/v1/chat/completions", apiBodies(3, "")["/v1/chat/completions"]).wait(t).good(t)
}

// An engine that refuses or fails before the first byte costs the client nothing; the next
// attempt is another call to the engines.
func TestGRPCRetries(t *testing.T) {
	t.Parallel()
	for worker, fault := range map[string]string{
		"prefill-0": "code=UNAVAILABLE,path=/vllm.grpc.engine.VllmEngine/Generate",
		"decode-0":  "finish=error,path=/vllm.grpc.engine.VllmEngine/Generate",
	} {
		t.Run(worker, func(t *testing.T) {
			t.Parallel()
			r := startGRPC(t, "pair", "--policy", "round_robin") // by caches, the other one might have all
			r.fleet.fault(worker, fault)
			for range 8 {
				send(clients(t), http.MethodPost, r.url()+"/v1/chat/completions", apiBodies(3, streamed)["/v1/chat/completions"]).wait(t).good(t)
			}
			eventually(t, "all holds are given back", r.held)
			if failed := r.metric("sluice_retries_total"); !(failed > 0) {
				t.Errorf("%v retries", failed)
			}
			ids := map[string]bool{}
			for _, q := range r.fleet.requests("all") {
				if q.Path == "/vllm.grpc.engine.VllmEngine/Generate" && q.RequestID != "" {
					key := q.Worker + " " + q.RequestID
					if ids[key] {
						t.Errorf("%s was sent twice", key)
					}
					ids[key] = true
				}
			}
		})
	}
}

// The time limit of a request ends both legs, and the client is told.
func TestGRPCRequestTimeout(t *testing.T) {
	t.Parallel()
	r := startGRPC(t, "pair", "--request-timeout-secs", "1")
	r.fleet.fault("all", "on=decode,delay=1h")
	a := send(clients(t), http.MethodPost, r.url()+"/v1/chat/completions", apiBodies(3, "")["/v1/chat/completions"]).wait(t)
	a.refused(t, http.StatusGatewayTimeout, "upstream_timeout")
	for _, w := range r.fleet.workers {
		r.fleet.waitStats(w.ID, "is idle", func(s sim.Stats) bool { return s.Inflight == 0 })
	}
	eventually(t, "all holds are given back", r.held)
}

// A drain lets a stream end.
func TestGRPCDrain(t *testing.T) {
	t.Parallel()
	r := startGRPC(t, "pair", "--drain-timeout", "60")
	r.fleet.fault("all", "on=decode,event_delay=50ms")
	c := send(clients(t), http.MethodPost, r.url()+"/v1/chat/completions", apiBodies(20, streamed)["/v1/chat/completions"])
	<-c.begun
	r.over = true
	r.signal(syscall.SIGTERM)
	c.wait(t).good(t)
}

// Models by HTTP and by gRPC behind one router: one gate, whose sums are those of both.
func TestGRPCBesideHTTP(t *testing.T) {
	t.Parallel()
	byGRPC := startSim(t, "--grpc", "--prefill", "1", "--decode", "1", "--model", "by-grpc")
	byHTTP := startSim(t, "--backend", "vllm", "--prefill", "1", "--decode", "1", "--model", "by-http")
	r := startRouter(t, byGRPC, append(byHTTP.flags(), "--prefill-max-inflight-requests-per-worker", "2")...)
	for _, f := range []*simFleet{byGRPC, byHTTP} {
		f.fault("all", "on=decode,delay=1h")
	}
	client := clients(t)
	body := apiBodies(3, "")["/v1/chat/completions"]
	var calls []*call
	for range 2 {
		for _, model := range []string{"by-grpc", "by-http"} {
			calls = append(calls, send(client, http.MethodPost, r.url()+"/v1/chat/completions", strings.Replace(body, "sim-model", model, 1)))
		}
	}
	eventually(t, "each decode worker has two requests", func() string {
		for _, w := range r.workers() {
			n := 0
			for _, rank := range w.Ranks {
				n += rank.Pending + rank.Active
			}
			if w.Type == "decode" && n != 2 {
				return fmt.Sprint(w.URL, " has ", n)
			}
		}
		return ""
	})
	if n := r.metric("sluice_admission_decode_requests"); n != 4 {
		t.Errorf("%v requests on decode, of two kinds with two each", n)
	}
	if n := r.metric("sluice_requests_in_flight"); n != 4 {
		t.Errorf("%v requests in flight", n)
	}
	booked := map[bool]int64{} // by gRPC or not
	for _, k := range r.gate().Ranks {
		booked[strings.HasPrefix(k.ID, "grpc:")] += k.Active + k.Pending
	}
	if booked[true] <= 0 || booked[false] <= 0 {
		t.Errorf("KV blocks that are booked, by gRPC or not: %v", booked)
	}
	for _, f := range []*simFleet{byGRPC, byHTTP} {
		f.heal("all")
	}
	for _, c := range calls {
		c.cancel()
		c.wait(t)
	}
	eventually(t, "all holds are given back", r.held)
	for _, model := range []string{"by-grpc", "by-http"} {
		send(client, http.MethodPost, r.url()+"/v1/chat/completions", strings.Replace(body, "sim-model", model, 1)).wait(t).good(t)
	}
}

// With conditional disaggregation a second turn runs whole on the decode worker that holds the
// first, as it does by HTTP; what is held is known by token ids.
func TestGRPCBypass(t *testing.T) {
	t.Parallel()
	r := startGRPC(t, "pair", "--conditional-disagg-enabled", "--conditional-disagg-eff-isl-threshold", "700")
	client := clients(t)
	prompt := strings.Repeat("some words that both turns begin with. ", 100)
	ask := func(more string) *answer {
		a := send(client, http.MethodPost, r.url()+"/v1/completions", fmt.Sprintf(`{"model":"sim-model","max_tokens":3,"prompt":%q}`, prompt+more)).wait(t)
		a.good(t)
		return a
	}
	prefills := func() int { return r.fleet.stats("prefill-0").Requests + r.fleet.stats("prefill-1").Requests }
	before := prefills() // the engine was asked how it makes tokens
	ask("")
	if n := prefills() - before; n != 1 {
		t.Fatalf("the first turn had %d prefills", n)
	}
	// The engine tells of its blocks when it has them.
	eventually(t, "a turn runs whole on decode", func() string {
		before := prefills()
		a := ask(" And then some.")
		if n := prefills() - before; n != 0 {
			return fmt.Sprint(n, " prefills")
		}
		if line := r.accessLine(a.id); line["prefill"] != nil || line["cache_why"] != "holder" {
			t.Errorf("access line %v", line)
		}
		return ""
	})
	before = prefills()
	ask(strings.Repeat(" many other words, none of which anybody has", 400))
	if n := prefills() - before; n != 1 {
		t.Errorf("a prompt of many new tokens had %d prefills", n)
	}
}

// What classes book of a text are its tokens as the engine counts them.
func TestGRPCClassesBookCountedTokens(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, append([]string{"--grpc", "--prefill", "1", "--decode", "1", "--decode-step", "1h"}, smallKV...)...)
	r, _ := startClasses(t, fleet, twoClasses)
	prompt := strings.Repeat("word ", 100)
	a := send(clients(t), http.MethodPost, r.url()+"/tokenize", fmt.Sprintf(`{"model":"sim-model","prompt":%q}`, prompt)).wait(t)
	var counted struct{ Count int64 }
	if err := json.Unmarshal([]byte(a.body), &counted); err != nil || counted.Count < 50 {
		t.Fatalf("%v %s", err, a)
	}
	c := send(clients(t), http.MethodPost, r.url()+"/v1/completions", fmt.Sprintf(`{"model":"sim-model","max_tokens":2,"prompt":%q}`, prompt))
	want := (counted.Count + 9) / 10
	r.waitGate("its blocks are booked on decode", func(d gateDoc) bool { return d.decodeBlocks() == want })
	c.cancel()
	c.wait(t)
	eventually(t, "all holds are given back", r.held)
}
