package dispatch

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/sim"
)

// vllm makes the rig's workers play vLLM with the connector; its name is told to
// the fleet, so that no probe muddles the counts.
func vllm(c sim.Connector, o rigOptions) rigOptions {
	o = pd(o)
	o.sim.Worker.Backend, o.sim.Worker.Connector = sim.VLLM, c
	named := o.specs
	o.specs = func(w *sim.Worker, s *fleet.WorkerSpec) {
		s.Backend, s.KVConnector = "vllm", string(c)
		if named != nil {
			named(w, s)
		}
	}
	return o
}

const longPrompt = "the quick brown fox jumps over the lazy dog, again and again, until the prompt has more than one block of tokens in it, which takes a while"

func vllmBodies(extra string) map[string]string {
	return map[string]string{
		"/v1/chat/completions": `{"model":"sim-model","messages":[{"role":"user","content":"` + longPrompt + `"}],"max_tokens":6,"temperature":0` + extra + `}`,
		"/v1/completions":      `{"model":"sim-model","prompt":"` + longPrompt + `","max_tokens":6,"temperature":0` + extra + `}`,
	}
}

func answerText(t *testing.T, body string) string {
	t.Helper()
	var out strings.Builder
	add := func(doc string) {
		var a struct {
			Choices []struct {
				Text    string
				Message struct{ Content string }
				Delta   struct{ Content string }
			}
		}
		if err := json.Unmarshal([]byte(doc), &a); err != nil {
			t.Fatalf("%v in %s", err, doc)
		}
		for _, c := range a.Choices {
			out.WriteString(c.Text + c.Message.Content + c.Delta.Content)
		}
	}
	if !strings.HasPrefix(body, "data:") {
		add(body)
		return out.String()
	}
	for line := range strings.Lines(body) {
		if doc, ok := strings.CutPrefix(strings.TrimSpace(line), "data: "); ok && doc != "[DONE]" {
			add(doc)
		}
	}
	return out.String()
}

// What prefill hands over is what decode goes by: the text is the one that an
// engine gives that does both, and decode computes nothing of the prompt.
func TestVLLMHandsOver(t *testing.T) {
	whole := newRig(t, rigOptions{sim: sim.Options{Regular: 1, Worker: sim.WorkerOptions{Backend: sim.VLLM}},
		specs: func(_ *sim.Worker, s *fleet.WorkerSpec) { s.Backend = "vllm" }})
	r := newRig(t, vllm(sim.NIXL, rigOptions{limits: admission.Limits{PrefillSlots: 1, QueueSize: 10}}))
	n := 0
	for _, extra := range []string{"", `,"stream":true`, `,"stream":true,"stream_options":{"include_usage":true},"min_tokens":2`} {
		for path, body := range vllmBodies(extra) {
			want, got := whole.do(t.Context(), path, body), r.do(t.Context(), path, body)
			if want.status != 200 || got.status != 200 || got.err != nil || answerText(t, got.body) != answerText(t, want.body) || answerText(t, got.body) == "" {
				t.Errorf("%s %s: %d %q, a whole engine says %d %q", path, extra, got.status, got.body, want.status, want.body)
			}
			n++
		}
	}
	p, d := r.sim.Prefill(0).Stats(), r.sim.Decode(0).Stats()
	if p.Handed != n || d.Pulled != n || d.ExternalTokens == 0 || d.Alone != 0 {
		t.Errorf("%d requests: prefill %+v, decode %+v", n, p, d)
	}
	for _, req := range r.sim.Prefill(0).Requests() {
		if strings.Contains(string(req.Body), `"stream":true`) || !strings.Contains(string(req.Body), `"max_tokens":1`) {
			t.Errorf("prefill was sent %s", req.Body)
		}
	}
	r.idle()
	r.noViolations()
}

// Prefill hands the blocks of one sequence over, once. Decode computes several by
// itself, and prefill is not asked for nothing.
func TestVLLMSamplesSkipPrefill(t *testing.T) {
	r := newRig(t, vllm(sim.NIXL, rigOptions{}))
	a := r.do(t.Context(), "/v1/completions", `{"model":"sim-model","prompt":"`+longPrompt+`","n":3,"max_tokens":3}`)
	if a.status != 200 || strings.Count(a.body, `"index"`) != 3 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if s := r.sim.Prefill(0).Stats(); s.Requests != 0 {
		t.Errorf("prefill was sent %d requests", s.Requests)
	}
	if got := r.counted("sluice_kv_handoffs_total", "outcome", handOffSamples); got != 1 {
		t.Errorf("%v counted", got)
	}
	r.idle()
	r.noViolations()
}

// A prefill engine without a connector gives nothing: decode computes the prompt,
// which is counted, or the request is ended, by option.
func TestVLLMWithoutHandOff(t *testing.T) {
	for _, fail := range []bool{false, true} {
		o := vllm(sim.NoConnector, rigOptions{config: func(c *config.Config) {
			if fail {
				c.Fleet.KVHandOffMissing = "fail"
			}
		}})
		o.specs = func(_ *sim.Worker, s *fleet.WorkerSpec) { s.Backend, s.KVConnector = "vllm", engine.ConnectorNIXL }
		r := newRig(t, o)
		a := r.do(t.Context(), "/v1/completions", vllmBodies("")["/v1/completions"])
		want, outcome := 200, handOffRecompute
		if fail {
			want, outcome = 502, handOffMissing
		}
		if a.status != want || r.counted("sluice_kv_handoffs_total", "outcome", outcome) != 1 {
			t.Errorf("fail %t: %d %s", fail, a.status, a.body)
		}
		r.idle()
	}
}

// A prefill worker that is known to move nothing is not asked for nothing.
func TestVLLMWithoutConnectorSkipsPrefill(t *testing.T) {
	r := newRig(t, vllm(sim.NoConnector, rigOptions{}))
	if a := r.do(t.Context(), "/v1/completions", vllmBodies("")["/v1/completions"]); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if p := r.sim.Prefill(0).Stats(); p.Requests != 0 || r.counted("sluice_kv_handoffs_total", "outcome", handOffRecompute) != 1 {
		t.Errorf("prefill saw %d requests", p.Requests)
	}
	r.idle()
}

// What prefill handed over is not used once it may have been given up: the engine
// would answer with wrong text and status 200.
func TestVLLMStaleHandOffIsNotUsed(t *testing.T) {
	r := newRig(t, vllm(sim.NIXL, rigOptions{config: func(c *config.Config) { c.Fleet.KVHandOffMaxAge = time.Nanosecond }, retries: 1}))
	a := r.do(t.Context(), "/v1/completions", vllmBodies("")["/v1/completions"])
	if a.status != 502 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if p, d := r.sim.Prefill(0).Stats(), r.sim.Decode(0).Stats(); p.Requests != 2 || d.Requests != 0 {
		t.Errorf("prefill saw %d requests, want 2 attempts; decode %d", p.Requests, d.Requests)
	}
	r.idle()
}

// The slot is free when prefill has answered, though decode goes on.
func TestVLLMSlotEndsWithPrefill(t *testing.T) {
	r := newRig(t, vllm(sim.NIXL, rigOptions{
		limits: admission.Limits{PrefillSlots: 1, QueueSize: 10, QueueTimeout: time.Minute},
		sim:    sim.Options{Worker: sim.WorkerOptions{Timing: sim.Timing{DecodeStep: time.Hour}}},
	}))
	body := vllmBodies(`,"stream":true`)["/v1/completions"]
	var leaves []func()
	for range 3 {
		_, leave := r.begin("/v1/completions", body)
		leaves = append(leaves, leave)
	}
	r.until("all three decode", func() bool { return r.sim.Decode(0).Stats().Inflight == 3 })
	if s := r.sim.Prefill(0).Stats(); s.PeakInflight != 1 {
		t.Errorf("%d in prefill at a time", s.PeakInflight)
	}
	for _, leave := range leaves {
		leave()
	}
	r.idle()
	r.noViolations()
}

// A decode engine that is gone before it saw the request: the blocks are still
// there, and another one fetches them without another prefill.
func TestVLLMDecodeMoves(t *testing.T) {
	r := newRig(t, vllm(sim.NIXL, rigOptions{sim: sim.Options{Decode: 2}, retries: 2}))
	gone := r.sim.Decode(0)
	gone.Refuse()
	defer func() { _ = gone.Admit() }()
	r.completions(4)
	if p := r.sim.Prefill(0).Stats(); p.Handed != 4 {
		t.Errorf("%d prefills for 4 requests", p.Handed)
	}
	r.idle()
	r.noViolations()
}

func TestVLLMPrefillFailurePasses(t *testing.T) {
	r := newRig(t, vllm(sim.NIXL, rigOptions{}))
	r.sim.Prefill(0).SetFault(sim.Fault{Status: 422, Body: `{"error":{"message":"no","code":422}}`, Count: 1})
	a := r.do(t.Context(), "/v1/completions", vllmBodies(`,"stream":true`)["/v1/completions"])
	if a.status != 422 || a.code() != "422" {
		t.Errorf("%d %s", a.status, a.body)
	}
	if d := r.sim.Decode(0).Stats(); d.Requests != 0 {
		t.Errorf("decode was sent %d requests", d.Requests)
	}
	r.idle()
}

// bootstrapPort tells the router of the prefill workers' bootstrap ports.
func bootstrapPort(w *sim.Worker, s *fleet.WorkerSpec) {
	if w.Role() == sim.Prefill {
		s.BootstrapPort = config.BootstrapPort(w.BootstrapPort())
	}
}

// completions sends n requests, one after another, all of which must be answered.
func (r *rig) completions(n int) {
	r.t.Helper()
	for range n {
		if a := r.do(r.t.Context(), "/v1/completions", vllmBodies("")["/v1/completions"]); a.status != 200 {
			r.t.Errorf("%d %s", a.status, a.body)
		}
	}
}

func TestMooncakeMeetsByTransferID(t *testing.T) {
	r := newRig(t, vllm(sim.Mooncake, rigOptions{specs: bootstrapPort}))
	for path, body := range vllmBodies("") {
		if a := r.do(t.Context(), path, body); a.status != 200 || answerText(t, a.body) == "" {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if d := r.sim.Decode(0).Stats(); d.Pulled != 2 || d.Alone != 0 {
		t.Errorf("decode %+v", d)
	}
	r.idle()
	r.noViolations()
}

// Clients and gateways repeat request ids; a transfer id is good once.
func TestMooncakeTransferIDsAreNotTheClients(t *testing.T) {
	r := newRig(t, vllm(sim.Mooncake, rigOptions{specs: bootstrapPort}))
	r.id = "trace-1"
	r.completions(4)
	r.idle()
	r.noViolations()
	r.charged()
}

// MoRI-IO hands over as NIXL does, by a transfer id besides.
func TestMoRIIOHandsOver(t *testing.T) {
	r := newRig(t, vllm(sim.MoRIIO, rigOptions{}))
	r.id = "trace-1"
	r.completions(3)
	if d := r.sim.Decode(0).Stats(); d.Pulled != 3 || d.Alone != 0 {
		t.Errorf("decode %+v", d)
	}
	r.idle()
	r.noViolations()
}

// Prefill pushes the cache to a decode that meets it by the request's id. What
// decode must know of prefill comes from the probe.
func TestNIXLPushMeetsByRequestID(t *testing.T) {
	o := vllm(sim.NIXLPush, rigOptions{})
	o.specs = func(_ *sim.Worker, s *fleet.WorkerSpec) { s.Backend = "vllm" }
	r := newRig(t, o)
	r.id = "trace-1"
	for path, body := range vllmBodies("") {
		for range 2 {
			if a := r.do(t.Context(), path, body); a.status != 200 || answerText(t, a.body) == "" {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
	}
	if d := r.sim.Decode(0).Stats(); d.Pulled != 4 || d.Alone != 0 {
		t.Errorf("decode %+v", d)
	}
	r.idle()
	r.noViolations()
}

// These connectors move the cache by themselves: the prompt goes to prefill and
// then as it is to decode.
func TestConnectorsWithoutParams(t *testing.T) {
	for _, c := range []sim.Connector{sim.LMCache, sim.SharedStorage} {
		r := newRig(t, vllm(c, rigOptions{}))
		if a := r.do(t.Context(), "/v1/completions", vllmBodies("")["/v1/completions"]); a.status != 200 {
			t.Errorf("%s: %d %s", c, a.status, a.body)
		}
		if p, d := r.sim.Prefill(0).Stats(), r.sim.Decode(0).Stats(); p.Requests != 1 || d.ExternalTokens == 0 {
			t.Errorf("%s: prefill %+v, decode %+v", c, p, d)
		}
		r.idle()
		r.noViolations()
	}
}

// vLLM sends the head of a stream and its opening event before it knows whether
// the KV cache arrives. A hand-off that fails then is still told by a status, or
// tried again.
func TestVLLMTransferFailureBeforeContent(t *testing.T) {
	events := []string{
		"data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
		"data: {\"error\":{\"message\":\"Internal server error\",\"type\":\"InternalServerError\",\"code\":500}}\n\ndata: [DONE]\n\n",
	}
	body := vllmBodies(`,"stream":true`)["/v1/chat/completions"]
	r := newRig(t, vllm(sim.NIXL, rigOptions{retries: 2}))
	r.sim.Decode(0).SetFault(sim.Fault{Events: events, EventDelay: 20 * time.Millisecond, Count: 1})
	if a := r.do(t.Context(), "/v1/chat/completions", body); a.status != 200 || strings.Contains(a.body, "Internal server error") || answerText(t, a.body) == "" {
		t.Errorf("with a retry: %d %s", a.status, a.body)
	}
	r.idle()
	r = newRig(t, vllm(sim.NIXL, rigOptions{}))
	r.sim.Decode(0).SetFault(sim.Fault{Events: events, EventDelay: 20 * time.Millisecond, Count: 1})
	if a := r.do(t.Context(), "/v1/chat/completions", body); a.status != 500 || a.code() != "500" {
		t.Errorf("without: %d %s", a.status, a.body)
	}
	r.idle()
	r.charged()
}
