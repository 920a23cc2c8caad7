package e2e

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// What an engine by gRPC can do wrong never looks like a good answer: a whole one is refused
// with an error, a stream ends without a finish reason, and what was streamed is the
// beginning of the right text. Nothing stays held, and the next request is served.
func TestGRPCEngineFaults(t *testing.T) {
	t.Parallel()
	const tokens = 12
	right := sim.NonceAnswer("nonce-e2e", tokens)
	r := startRouter(t, startSim(t, "--grpc"), "--disable-retries", "--disable-circuit-breaker")
	for _, x := range []struct {
		worker, fault string
		status        int  // of a whole answer
		late          bool // a stream has begun when it happens
	}{
		{"decode-0", "code=UNAVAILABLE", 503, false},
		{"prefill-0", "code=UNAVAILABLE", 503, false},
		{"decode-0", "code=INTERNAL", 500, false},
		{"decode-0", "code=CANCELLED", 502, false},
		{"prefill-0", "code=INVALID_ARGUMENT,body=words of the engine", 400, false},
		{"decode-0", "code=RESOURCE_EXHAUSTED", 429, false},
		{"decode-0", "kind=complete-twice", 502, true},
		{"prefill-0", "kind=complete-twice", 502, false},
		{"decode-0", "kind=chunk-after-complete", 502, true},
		{"decode-0", "kind=no-complete", 502, true},
		{"prefill-0", "kind=no-complete", 502, false},
		{"decode-0", "kind=bad-index", 502, false},
		{"decode-0", "kind=bad-ids", 502, false},
		{"decode-0", "kind=garbage", 502, false},
		{"prefill-0", "kind=garbage", 502, false},
		{"decode-0", "finish=error", 500, false},
		{"prefill-0", "finish=error", 500, false},
		{"decode-0", "finish=abort", 500, true},
		{"prefill-0", "finish=abort", 500, false},
		{"decode-0", "end=body", 502, false},
		{"decode-0", "end=event,after=3", 502, true},
		{"decode-0", "reset=event,after=3,event_delay=50ms", 502, true},
		{"prefill-0", "reset=body", 502, false},
		{"prefill-0", "kind=bad-ids", 502, false},
		{"prefill-0", `{"kv_params":"[]"}`, 502, false},
		{"prefill-0", `{"kv_params":"[null]"}`, 502, false},
		{"prefill-0", `{"kv_params":"1"}`, 502, false},
		{"prefill-0", `{"kv_params":"{}"}`, 502, false},
		{"prefill-0", `{"kv_params":"{\"do_remote_prefill\":true,\"remote_engine_id\":\"e\"}"}`, 502, false},
		{"prefill-0", `{"kv_params":"{\"remote_host\":1,\"remote_port\":\"x\",\"remote_engine_id\":2,\"remote_block_ids\":3,\"do_remote_prefill\":true}"}`, 502, false},
	} {
		r.fleet.fault(x.worker, x.fault)
		for _, fields := range []string{"", streamed} {
			a := send(clients(t), http.MethodPost, r.url()+"/v1/chat/completions", apiBodies(tokens, fields)["/v1/chat/completions"]).wait(t)
			switch {
			case fields == "" || !x.late:
				if a.status != x.status || a.err != nil {
					t.Errorf("%s %s%s: %s, want status %d", x.worker, x.fault, fields, a, x.status)
				}
			case a.status != http.StatusOK || a.whole():
				t.Errorf("%s %s%s: %s, want a stream that breaks off", x.worker, x.fault, fields, a)
			default:
				text, finishes := streamedText(a.body)
				if finishes > 1 || !strings.HasPrefix(right, text) {
					t.Errorf("%s %s: streamed %q with %d finish reasons, want the beginning of %q", x.worker, x.fault, text, finishes, right)
				}
			}
		}
		r.fleet.heal(x.worker)
		eventually(t, "all holds are given back after "+x.fault, r.held)
		for _, w := range r.fleet.workers {
			r.fleet.waitStats(w.ID, "is idle", func(s sim.Stats) bool { return s.Inflight == 0 })
		}
		if a := send(clients(t), http.MethodPost, r.url()+"/v1/chat/completions", apiBodies(tokens, streamed)["/v1/chat/completions"]).wait(t); !a.whole() {
			t.Errorf("after %s: %s", x.fault, a)
		} else if text, finishes := streamedText(a.body); text != right || finishes != 1 {
			t.Errorf("after %s: %q with %d finish reasons, want %q", x.fault, text, finishes, right)
		}
	}
}

// streamedText is the text of a stream of the chat API and the number of its finish reasons.
func streamedText(body string) (text string, finishes int) {
	for line := range strings.Lines(body) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		var v struct {
			Choices []struct {
				Delta  struct{ Content string }
				Finish *string `json:"finish_reason"`
			}
		}
		if !ok || json.Unmarshal([]byte(data), &v) != nil {
			continue
		}
		for _, c := range v.Choices {
			text += c.Delta.Content
			if c.Finish != nil {
				finishes++
			}
		}
	}
	return text, finishes
}

// A status is the engine's own word. What it ended itself, by a deadline or otherwise, and what
// it refuses is not done again; that it cannot be reached or has no room, and what may be the
// other engine's fault, is tried again within bounds.
func TestGRPCStatusesThatAreTriedAgain(t *testing.T) {
	t.Parallel()
	r := startRouter(t, startSim(t, "--grpc", "--prefill", "0", "--decode", "0", "--regular", "2"), "--disable-circuit-breaker",
		"--retry-initial-backoff-ms", "1", "--retry-max-backoff-ms", "2")
	for code, want := range map[string]struct{ status, least, most int }{
		"RESOURCE_EXHAUSTED": {429, 1, 1}, "INVALID_ARGUMENT": {400, 1, 1}, "UNAUTHENTICATED": {401, 1, 1},
		"PERMISSION_DENIED": {403, 1, 1}, "FAILED_PRECONDITION": {400, 1, 1}, "OUT_OF_RANGE": {400, 1, 1},
		"ABORTED": {409, 1, 1}, "UNIMPLEMENTED": {501, 1, 1},
		"DEADLINE_EXCEEDED": {504, 1, 1}, "CANCELLED": {502, 1, 1},
		"UNAVAILABLE": {503, 2, 8}, "INTERNAL": {500, 2, 2},
	} {
		requests := func() (n int) {
			for _, w := range r.fleet.workers {
				n += r.fleet.stats(w.ID).Requests
			}
			return n
		}
		r.fleet.fault("all", "code="+code)
		before := requests()
		a := send(clients(t), http.MethodPost, r.url()+"/v1/chat/completions", apiBodies(3, "")["/v1/chat/completions"]).wait(t)
		if n := requests() - before; a.status != want.status || n < want.least || n > want.most {
			t.Errorf("%s: the engines saw %d requests, want %d to %d: %s, want status %d", code, n, want.least, want.most, a, want.status)
		}
		r.fleet.heal("all")
	}
}
