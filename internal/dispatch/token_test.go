package dispatch

import (
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

const (
	roleEvent    = `data: {"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	createdEvent = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"output\":[]}}\n\n"
	startEvent   = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"content\":[],\"usage\":{\"input_tokens\":3,\"output_tokens\":0}}}\n\n"
	pingEvent    = "event: ping\ndata: {\"type\":\"ping\"}\n\n"
	errorTold    = `data: {"error":{"message":"no","code":500}}` + "\n\n"
)

// TestFirstTokenIsAToken: what opens a stream is none. It comes an EventDelay before
// the token, and the time to the token is at least that.
func TestFirstTokenIsAToken(t *testing.T) {
	t.Parallel()
	const delay = 40 * time.Millisecond
	for _, c := range []struct {
		name, path, body string
		events           []string
		opening          int
	}{
		{"chat", "/v1/chat/completions", chatBody(streamed), []string{roleEvent, roleEvent, oneEvent, doneEvent}, 2},
		{"completions", "/v1/completions", bodyFor("/v1/completions", 5, streamed),
			[]string{`data: {"choices":[{"text":""}]}` + "\n\n", `data: {"choices":[{"text":"a"}]}` + "\n\n", doneEvent}, 1},
		{"generate", "/generate", bodyFor("/generate", 5, streamed),
			[]string{`data: {"text":"","meta_info":{"completion_tokens":0}}` + "\n\n", `data: {"text":"a","meta_info":{"completion_tokens":1}}` + "\n\n", doneEvent}, 1},
		{"responses", "/v1/responses", `{"model":"sim-model","input":"hi","stream":true}`, []string{createdEvent, createdEvent,
			"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n",
			"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{}}\n\n"}, 2},
		{"messages", "/v1/messages", `{"model":"sim-model","max_tokens":9,"messages":[{"role":"user","content":"hi"}],"stream":true}`, []string{startEvent, pingEvent,
			"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n",
			"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}})
			r.sim.Regular(0).SetFault(sim.Fault{Events: c.events, EventDelay: delay})
			if a := r.do(t.Context(), c.path, c.body); a.status != 200 || a.err != nil {
				t.Fatal(a.status, a.err, a.body)
			}
			if rec := r.waitRecord(0); rec.TTFT < time.Duration(c.opening)*delay {
				t.Errorf("first token after %v; %d events of %v are before it", rec.TTFT, c.opening, delay)
			}
			r.settled()
		})
	}
}

// TestNoFirstTokenWithoutTokens: a stream that was opened and failed has no sample.
func TestNoFirstTokenWithoutTokens(t *testing.T) {
	t.Parallel()
	for _, pair := range []bool{false, true} {
		o := rigOptions{sim: sim.Options{Regular: 1}}
		if pair {
			o = pd(rigOptions{})
		}
		r := newRig(t, o)
		r.sim.Workers()[len(r.sim.Workers())-1].SetFault(sim.Fault{Events: []string{roleEvent, roleEvent, errorTold}})
		if a := r.chat(streamed); a.status != 200 {
			t.Fatal(a.status, a.body)
		}
		if rec := r.waitRecord(0); rec.TTFT != 0 || rec.TPOT != 0 {
			t.Errorf("pair %t: first token after %v, then one each %v, of a stream without any", pair, rec.TTFT, rec.TPOT)
		}
		r.idle()
		for _, name := range []string{"sluice_time_to_first_token_seconds", "sluice_model_time_to_first_token_seconds", "sluice_time_per_output_token_seconds"} {
			if n := r.counted(name); n != 0 {
				t.Errorf("pair %t: %v samples of %s", pair, n, name)
			}
		}
	}
}

// TestTimePerOutputToken: what comes behind the last token is not in it, and the
// engine's count divides it.
func TestTimePerOutputToken(t *testing.T) {
	t.Parallel()
	const delay = 30 * time.Millisecond
	r := newRig(t, pd(rigOptions{}))
	r.sim.Decode(0).SetFault(sim.Fault{Events: []string{roleEvent, oneEvent, oneEvent, oneEvent, usageLast, doneEvent}, EventDelay: delay})
	if a := r.chat(streamed); a.status != 200 {
		t.Fatal(a.status, a.body, a.err)
	}
	// Seven tokens by the engine's count, in three events two delays apart.
	if rec := r.waitRecord(0); rec.TPOT < 2*delay*9/10/6 {
		t.Errorf("%v each token, want %v or more", rec.TPOT, 2*delay/6)
	}
	r.idle()
	if n := r.counted("sluice_time_per_output_token_seconds", "model", "sim-model"); n != 1 {
		t.Errorf("%v samples, want 1", n)
	}
	r.sim.Decode(0).ClearFaults()
	if a := r.chat(""); a.status != 200 {
		t.Fatal(a.status)
	}
	r.idle()
	if n := r.counted("sluice_time_per_output_token_seconds"); n != 1 {
		t.Errorf("%v samples; an answer that does not stream has none", n)
	}
}
