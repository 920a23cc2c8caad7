package dispatch

import (
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// TestCachedTokensArePrefills: of the prompt decode has all in its cache, or nothing,
// by its own count; the client is told the prefill's, and every other byte as it is.
func TestCachedTokensArePrefills(t *testing.T) {
	t.Parallel()
	chatUsage := func(n string) string {
		return `{"id":"x","choices":[{"index":0,"message":{"content":"\"cached_tokens\":10"},"delta":{"content":"\"cached_tokens\":10"},"text":"a","finish_reason":"stop"}],"usage":{"prompt_tokens":123,"completion_tokens":1,"total_tokens":124,"prompt_tokens_details":` + n + `}}`
	}
	generate := func(n string) string {
		return `{"text":"a","meta_info":{"id":"x","finish_reason":{"type":"stop"},"prompt_tokens":123,"completion_tokens":1,"cached_tokens":` + n + `}}`
	}
	for _, c := range []struct{ name, path, body, prefill, decode, want string }{
		{"chat", "/v1/chat/completions", chatBody(""), chatUsage(`{"cached_tokens": 7}`), chatUsage(`{"cached_tokens": 0}`), chatUsage(`{"cached_tokens": 7}`)},
		{"completions", "/v1/completions", bodyFor("/v1/completions", 5, ""), chatUsage(`{"cached_tokens":7}`), chatUsage(`{"cached_tokens":10}`), chatUsage(`{"cached_tokens":7}`)},
		{"generate", "/generate", bodyFor("/generate", 5, ""), generate("7"), generate("123"), generate("7")},
		{"far behind", "/generate", bodyFor("/generate", 5, ""), `{"output_ids":[` + strings.Repeat("1,", 10_000) + `1],` + generate("7")[1:], generate("123"), generate("7")},
		{"no details", "/v1/chat/completions", chatBody(""), chatUsage(`{"cached_tokens":7}`), chatUsage("null"), chatUsage("null")},
		{"none of prefill", "/v1/chat/completions", chatBody(""), chatUsage("null"), chatUsage(`{"cached_tokens":10}`), chatUsage(`{"cached_tokens":10}`)},
	} {
		for _, stream := range []bool{false, true} {
			for _, size := range []int{0, 1, 17} {
				if !stream && size == 1 {
					continue
				}
				r := newRig(t, pd(rigOptions{}))
				body := c.body
				form := func(s string) string { return s }
				typ := typeJSON
				if stream {
					body = strings.TrimSuffix(body, "}") + streamed + "}"
					form = func(s string) string { return oneEvent + "data: " + s + "\n\n" + doneEvent }
					typ = "text/event-stream"
				}
				p, d := r.sim.Prefill(0), r.sim.Decode(0)
				p.SetFault(sim.Fault{Path: c.path, Status: 200, Body: form(c.prefill), ContentType: typ})
				d.SetFault(sim.Fault{Path: c.path, Status: 200, Body: form(c.decode), ContentType: typ, WriteSize: size})
				d.Freeze()
				done := make(chan answer, 1)
				go func() { done <- r.do(t.Context(), c.path, body) }()
				r.until("prefill is over", func() bool { return r.counted("sluice_prefill_leg_seconds") == 1 })
				d.Thaw()
				if a := <-done; a.status != 200 || a.err != nil || a.body != form(c.want) {
					t.Errorf("%s, stream %t, in pieces of %d: %d %v\n%s\nwant\n%s", c.name, stream, size, a.status, a.err, a.body, form(c.want))
				}
				r.settled()
			}
		}
	}
}

// TestCachedTokensOfLegsInTurn is the same where decode follows prefill.
func TestCachedTokensOfLegsInTurn(t *testing.T) {
	t.Parallel()
	usage := func(n string) string {
		return `{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}],"usage":{"prompt_tokens":123,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":` + n + `}}}`
	}
	r := newRig(t, vllm(sim.NIXL, rigOptions{}))
	handsOver := strings.TrimSuffix(usage("7"), "}") + `,"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"e","remote_block_ids":[1],"remote_host":"h","remote_port":1}}`
	r.sim.Prefill(0).SetFault(sim.Fault{Path: "/v1/chat", Status: 200, Body: handsOver, ContentType: typeJSON})
	r.sim.Decode(0).SetFault(sim.Fault{Path: "/v1/chat", Status: 200, Body: usage("122"), ContentType: typeJSON})
	if a := r.chat(""); a.status != 200 || a.body != usage("7") {
		t.Errorf("%d %s, want %s", a.status, a.body, usage("7"))
	}
}

// TestCachedTokensOfABatch: each prompt of a list has its own count.
func TestCachedTokensOfABatch(t *testing.T) {
	t.Parallel()
	const body = `{"text":["a","b","c"],"sampling_params":{"max_new_tokens":5}`
	list := func(counts ...string) string {
		var all []string
		for _, n := range counts {
			all = append(all, `{"text":"`+strings.Repeat("x", 3000)+`","meta_info":{"id":"x","finish_reason":{"type":"stop"},"cached_tokens":`+n+`}}`)
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	events := func(counts ...string) string {
		var all string
		for i, n := range counts {
			all = `data: {"text":"a","meta_info":{"id":"x","cached_tokens":` + n + `},"index":` + itoa(i) + "}\n\n" + all // in any order
		}
		return all + doneEvent
	}
	for _, c := range []struct {
		name, extra, typ      string
		prefill, decode, want string
	}{
		{"whole", "}", typeJSON, list("1", "20", "300"), list("0", "0", "7"), list("1", "20", "300")},
		{"streamed", streamed + "}", typeEventStream, events("1", "20", "300"), events("0", "0", "7"), events("1", "20", "300")},
	} {
		for _, size := range []int{0, 13} {
			r := newRig(t, pd(rigOptions{}))
			p, d := r.sim.Prefill(0), r.sim.Decode(0)
			p.SetFault(sim.Fault{Path: "/generate", Status: 200, Body: c.prefill, ContentType: c.typ})
			d.SetFault(sim.Fault{Path: "/generate", Status: 200, Body: c.decode, ContentType: c.typ, WriteSize: size})
			d.Freeze()
			done := make(chan answer, 1)
			go func() { done <- r.do(t.Context(), "/generate", body+c.extra) }()
			r.until("prefill is over", func() bool { return r.counted("sluice_prefill_leg_seconds") == 1 })
			d.Thaw()
			if a := <-done; a.status != 200 || a.err != nil || a.body != c.want {
				t.Errorf("%s in pieces of %d: %d %v\n%s\nwant\n%s", c.name, size, a.status, a.err, a.body, c.want)
			}
			r.settled()
		}
	}
}

// TestCachedTokensOfMessages: the count has another name there, and the prompt's other
// tokens stand beside it, of which prefill keeps the most in its cache and decode, which has
// them handed over, none.
func TestCachedTokensOfMessages(t *testing.T) {
	t.Parallel()
	const body = `{"model":"sim-model","max_tokens":5,"messages":[{"role":"user","content":"x"}]`
	answer := func(input, created, cached string) string {
		return `{"type":"message","content":[{"type":"tool_use","input":{"input_tokens":9}}],"usage":{"input_tokens":` + input + `,"output_tokens":1,"cache_creation_input_tokens":` + created + `,"cache_read_input_tokens":` + cached + `}}`
	}
	stream := func(input, created, cached string) string {
		return "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":123,\"output_tokens\":0}}}\n\n" +
			"event: message_delta\ndata: " + answer(input, created, cached) + "\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	}
	for _, c := range []struct{ extra, typ, decode, want string }{
		{"}", typeJSON, answer("3", "0", "120"), answer("23", "0", "100")},
		{streamed + "}", typeEventStream, stream("3", "0", "120"), stream("23", "0", "100")},
	} {
		r := newRig(t, vllm(sim.NIXL, rigOptions{}))
		handsOver := strings.TrimSuffix(answer("7", "16", "100"), "}") + `,"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"e","remote_block_ids":[1],"remote_host":"h","remote_port":1}}`
		r.sim.Prefill(0).SetFault(sim.Fault{Path: "/v1/messages", Status: 200, Body: handsOver, ContentType: typeJSON})
		r.sim.Decode(0).SetFault(sim.Fault{Path: "/v1/messages", Status: 200, Body: c.decode, ContentType: c.typ, WriteSize: 11})
		if a := r.do(t.Context(), "/v1/messages", body+c.extra); a.status != 200 || a.err != nil || a.body != c.want {
			t.Errorf("%d %v\n%s\nwant\n%s", a.status, a.err, a.body, c.want)
		}
		if rec := r.waitRecord(0); rec.PromptTokens != 123 {
			t.Errorf("a prompt of %d tokens is recorded, want 123", rec.PromptTokens)
		}
	}
}
