//go:build realengine

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// What sluice answers in front of an engine by gRPC is what the same model answers behind
// vLLM's own HTTP server.
func TestGRPCWholeText(t *testing.T) { sameTexts(t, startGRPC(t)) }

// Greedy text through prefill and decode is that of an engine which computed it all.
func TestGRPCPairText(t *testing.T) {
	r := startGRPCPair(t)
	sameTexts(t, r)
	if c := r.counters()[`sluice_kv_handoffs_total{outcome="transferred"}`]; c == 0 {
		t.Logf("hand-offs: %v", c)
	}
}

func sameTexts(t *testing.T, r *router) {
	for _, route := range routes {
		for _, v := range variants(route) {
			t.Run(route.name+"/"+v.name, func(t *testing.T) {
				q := v.request
				q.prompt = prompt(60)
				sameText(t, q, r.url)
			})
		}
	}
}

// What the comparison rests on: with the cache of another prompt of the same length the
// router answers 200, with another text.
func TestGRPCWrongCacheShows(t *testing.T) {
	p := startGRPCProxy(t, grpcPrefill)
	r := startRouter(t, "--pd-disaggregation", "--prefill", p.url, "none", "--decode", grpcDecode.URL())
	const pairs = 5
	right, wrong := 0, 0
	for range pairs {
		// Three whole blocks each.
		mine, other := ofIDs(plainIDs(3*BlockSize)), ofIDs(plainIDs(3*BlockSize))
		mine.tokens, other.tokens = 24, 24
		answer := func(q request, base string) string {
			t.Helper()
			a := q.ask(t, base)
			if missing := a.whole(completions); missing != "" {
				t.Fatal(missing)
			}
			return a.text(completions)
		}
		var blocks any
		p.handsOver(func(params string) string {
			blocks = paramsOf(t, params)["remote_block_ids"]
			return params
		})
		if got, want := answer(mine, r.url), answer(mine, one.URL()); got == want {
			right++
		} else {
			t.Logf("%q is not %q, of %v", got, want, mine.extra["prompt"])
		}
		p.handsOver(func(params string) string {
			fields := paramsOf(t, params)
			fields["remote_block_ids"] = blocks
			return written(t, fields)
		})
		if answer(other, r.url) != answer(other, one.URL()) {
			wrong++
		}
	}
	if right != pairs || wrong != pairs {
		t.Errorf("of %d texts with the right cache %d are the engine's own, of %d with a wrong one %d are not", pairs, right, pairs, wrong)
	}
	report.say(t, "with the right cache %d of %d texts are the engine's own, with another prompt's %d of %d are not", right, pairs, wrong, pairs)
}

// plainIDs is a prompt of tokens that are plain text. vLLM's HTTP server repeats the end of a
// prompt that ends within a character, up to all of it, in front of its answer.
func plainIDs(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = 280 + rand.IntN(170)
	}
	return list
}

func paramsOf(t testing.TB, params string) (fields map[string]any) {
	if err := json.Unmarshal([]byte(params), &fields); err != nil {
		t.Errorf("prefill hands over %q: %v", params, err)
	}
	return fields
}

func written(t testing.TB, fields map[string]any) string {
	b, err := json.Marshal(fields)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// An engine that cannot be asked for the cache answers OK with nothing in it. For the client
// that is a failure, and for the next request nothing.
func TestGRPCWrongEngineID(t *testing.T) {
	p := startGRPCProxy(t, grpcPrefill)
	r := startRouter(t, "--pd-disaggregation", "--prefill", p.url, "none", "--decode", grpcDecode.URL())
	for _, stream := range []bool{false, true} {
		p.handsOver(func(params string) string {
			fields := paramsOf(t, params)
			fields["remote_engine_id"] = "00000000-0000-4000-8000-000000000000"
			return written(t, fields)
		})
		q := request{route: chat, prompt: prompt(60), tokens: 16, stream: stream}
		if a := q.ask(t, r.url); a.status < 500 || a.code() == "" {
			t.Errorf("streamed: %v: %s", stream, a)
		} else {
			report.say(t, "streamed %v: %d %s after %s", stream, a.status, a.code(), a.took.Round(1e6))
		}
		p.changes(nil)
		eventually(t, "the pair serves again", func() string { return q.ask(t, r.url).whole(chat) })
		sameText(t, q, r.url)
	}
	waitBusy(t, grpcPrefill, 0)
	waitBusy(t, grpcDecode, 0)
}

// Params that would hang or kill a decode engine are not sent to one.
func TestGRPCHandOffWithout(t *testing.T) {
	p := startGRPCProxy(t, grpcPrefill)
	r := startRouter(t, "--pd-disaggregation", "--prefill", p.url, "none", "--decode", grpcDecode.URL())
	q := request{route: chat, prompt: prompt(60), tokens: 16}
	for name, params := range map[string]string{"no host": `{"do_remote_prefill":true,"remote_engine_id":"a","remote_block_ids":[[1]],"remote_port":1}`,
		"no object": `[]`, "no JSON": `{`} {
		p.handsOver(func(string) string { return params })
		if a := q.ask(t, r.url); a.status != 502 || a.code() != "upstream_failed" {
			t.Errorf("%s: %s", name, a)
		}
	}
	// An answer that repeats itself is none.
	p.changes(func(m *vllmpb.GenerateResponse) {
		if c := m.GetComplete(); c != nil {
			c.FinishReason = "abort"
		}
	})
	if a := q.ask(t, r.url); a.status < 500 {
		t.Errorf("aborted: %s", a)
	}
	p.changes(nil)
	eventually(t, "the pair serves again", func() string { return q.ask(t, r.url).whole(chat) })
	if !grpcDecode.Running() {
		t.Error("decode is dead")
	}
	sameText(t, q, r.url)
}

// Tokens of texts and of conversations are those of vLLM's own renderer.
func TestGRPCTokens(t *testing.T) {
	r := startGRPC(t)
	texts := tokenTexts()
	for _, text := range texts {
		sameTokens(t, r, map[string]any{"prompt": text}, "/v1/completions/render")
	}
	talks := templateTalks(t)
	refused := 0
	for _, talk := range talks {
		if !sameTokens(t, r, talk, "/v1/chat/completions/render") {
			refused++
		}
	}
	if len(texts) < 200 || len(talks)-refused < 14 {
		t.Errorf("%d texts, %d conversations, %d of them refused", len(texts), len(talks), refused)
	}
	report.say(t, "%d texts and %d conversations have the tokens of vLLM's renderer, which refuses %d", len(texts), len(talks)-refused, refused)
}

// sameTokens compares the tokens of a request, and tells whether the renderer takes it.
func sameTokens(t *testing.T, r *router, fields map[string]any, path string) bool {
	t.Helper()
	fields["model"] = Model
	body := written(t, fields)
	got := raw(t, "POST", r.url+"/tokenize", body, nil).wait()
	want := raw(t, "POST", renderer.URL()+path, body, nil).wait()
	if want.status != 200 {
		if got.status == 200 {
			t.Errorf("%s: the renderer says %s, the router %s", clip(body), want, got)
		}
		return false
	}
	ids := want.json
	if ids == nil { // one for each prompt
		var list []map[string]any
		if err := json.Unmarshal([]byte(want.body), &list); err != nil || len(list) != 1 {
			t.Fatalf("the renderer: %s", want)
		}
		ids = list[0]
	}
	if a, b := fmt.Sprint(got.json["tokens"]), fmt.Sprint(ids["token_ids"]); got.status != 200 || a != b {
		t.Errorf("%s:\n%s\n%s\nnot the renderer's", clip(body), a, b)
	}
	return true
}

// tokenTexts are texts of which tokenizers have made others.
func tokenTexts() (texts []string) {
	parts := []string{"Why is the sky blue?", "I'm you're WE'VE it’s o'clock", "naïve café Zürich ǅ ßſK", "съешь же ещё этих", "نص حكيم له سر", "我能吞下玻璃而不伤身体", "いろはにほへと ｶﾀｶﾅ", "키스의 고유조건은",
		"เป็นมนุษย์สุดประเสริฐ", "👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 1️⃣", "def f(x: int) -> str:\n\treturn f\"{x!r:>10}\"\n", "{\"a\": [1, 2.5e-10, null]}", "1234567 3.14159 ٠١٢ १२३ ½ ②", "e\u0301 \u212b q\u0307\u0323 ﬁ",
		"<bos>", "<turn>user\nhello</turn>", "<eos><pad>", "</turn", "a\x00b\x7f", "\u00a0\u2003\u3000\u200b\ufeff", "\U0010ffff \ue000 \ufffd"}
	texts = append(texts, parts...)
	for i, p := range parts {
		for _, s := range []string{" ", "  ", "\n", " \n ", "\r\n", "\t", "'s", "."} {
			texts = append(texts, s+p+s+parts[(i+7)%len(parts)]+s)
		}
	}
	for _, s := range []string{"a", " ", "\n", "1", "=", "中", "😀", "the ", "\u0301", "🏽", "' ", "A"} {
		for _, n := range []int{2, 17, 200} {
			texts = append(texts, strings.Repeat(s, n))
		}
	}
	return texts
}

// templateTalks are those that templates of models are tried with, and some about media.
func templateTalks(t *testing.T) (talks []map[string]any) {
	t.Helper()
	for _, file := range []string{"conversations.json", "conversations-more.json"} {
		b, err := os.ReadFile("../../internal/chattemplate/testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		var list []map[string]any
		if err := json.Unmarshal(b, &list); err != nil {
			t.Fatal(err)
		}
		for _, talk := range list {
			fields := map[string]any{}
			for _, name := range []string{"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"} {
				if v, ok := talk[name]; ok {
					fields[name] = v
				}
			}
			talks = append(talks, fields)
		}
	}
	return talks
}
