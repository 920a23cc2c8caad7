//go:build realengine

package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// badInput is a request that no engine should be sent, or one that it refuses.
type badInput struct {
	name, path, body string
	status           int    // of the router
	code             string // "": any
	// other: vLLM's own server answers with another status.
	other int
}

func badInputs() []badInput {
	const (
		ch = "/v1/chat/completions"
		co = "/v1/completions"
	)
	talk := func(fields string) string {
		return `{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"Why?"}]` + fields + `}`
	}
	ask := func(fields string) string { return `{"model":"tiny","max_tokens":4,"prompt":"Why?"` + fields + `}` }
	long := strings.Repeat("a long text ", 600)
	return []badInput{
		{"no JSON", ch, `{"model":`, 400, "", 0},
		{"no object", ch, `[1]`, 400, "", 0},
		{"no messages", ch, `{"model":"tiny"}`, 400, "", 0},
		{"messages of another kind", ch, `{"model":"tiny","messages":"Why?"}`, 400, "", 0},
		{"a message of another kind", ch, `{"model":"tiny","messages":[7]}`, 400, "", 0},
		{"no prompt", co, `{"model":"tiny","max_tokens":4}`, 400, "", 0},
		{"no ids", co, `{"model":"tiny","max_tokens":4,"prompt":[]}`, 400, "", 0},
		{"an id below zero", co, `{"model":"tiny","max_tokens":4,"prompt":[300,-1]}`, 400, "invalid_request", 0},
		{"an id beyond the vocabulary", co, `{"model":"tiny","max_tokens":4,"prompt":[300,100000]}`, 400, "invalid_request", 0},
		{"an id that is no integer", co, `{"model":"tiny","max_tokens":4,"prompt":[300,1.5]}`, 400, "", 0},
		{"an id beyond 32 bits", co, `{"model":"tiny","max_tokens":4,"prompt":[300,99999999999999999999]}`, 400, "", 0},
		{"a prompt beyond the context", co, `{"model":"tiny","max_tokens":4,"prompt":"` + long + `"}`, 400, "context_length_exceeded", 0},
		{"1 MB", co, `{"model":"tiny","max_tokens":4,"prompt":"` + strings.Repeat("word", 1<<18) + `"}`, 400, "context_length_exceeded", 0},
		{"a chat of 1 MB", ch, `{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"` + strings.Repeat(" ", 1<<20) + `"}]}`, 400, "context_length_exceeded", 0},
		{"a chat beyond the context", ch, `{"model":"tiny","max_tokens":4,"messages":[{"role":"user","content":"` + long + `"}]}`, 400, "context_length_exceeded", 0},
		{"more than the context", ch, `{"model":"tiny","max_tokens":5000,"messages":[{"role":"user","content":"Why?"}]}`, 400, "context_length_exceeded", 0},
		{"more than the context, of text", co, `{"model":"tiny","max_tokens":1024,"prompt":"Why?"}`, 400, "context_length_exceeded", 200},
		{"far more than the context, of text", co, `{"model":"tiny","max_tokens":5000,"prompt":"Why?"}`, 400, "context_length_exceeded", 0},
		{"no sample", ch, talk(`,"n":0`), 400, "", 0},
		{"greedy samples", ch, talk(`,"n":2,"temperature":0`), 400, "", 0},
		{"temperature below zero", ch, talk(`,"temperature":-1`), 400, "", 0},
		{"temperature of another kind", ch, talk(`,"temperature":"hot"`), 400, "", 0},
		{"top_p of 2", ch, talk(`,"top_p":2`), 400, "", 0},
		{"top_p of 0", ch, talk(`,"top_p":0`), 400, "", 0},
		{"top_k of -5", ch, talk(`,"top_k":-5`), 400, "", 0},
		{"min_p of 2", ch, talk(`,"min_p":2`), 400, "", 0},
		{"penalty of 5", ch, talk(`,"presence_penalty":5`), 400, "", 0},
		{"repetition_penalty of 0", ch, talk(`,"repetition_penalty":0`), 400, "", 0},
		{"more at least than at most", ch, talk(`,"min_tokens":13`), 400, "", 0},
		{"no tokens", ch, `{"model":"tiny","max_tokens":0,"messages":[{"role":"user","content":"Why?"}]}`, 400, "", 0},
		{"fewer than no tokens", ch, `{"model":"tiny","max_tokens":-1,"messages":[{"role":"user","content":"Why?"}]}`, 400, "", 0},
		{"too many alternatives", ch, talk(`,"logprobs":true,"top_logprobs":100`), 400, "", 0},
		{"alternatives without logprobs", ch, talk(`,"top_logprobs":2`), 400, "", 0},
		{"too many alternatives, of text", co, ask(`,"logprobs":100`), 400, "", 0},
		{"a bias of no token", ch, talk(`,"logit_bias":{"100000":1}`), 400, "", 0},
		{"a bias of no number", ch, talk(`,"logit_bias":{"a":1}`), 400, "", 0},
		{"an empty stop", ch, talk(`,"stop":[""]`), 400, "", 0},
		{"stops of another kind", ch, talk(`,"stop":[1]`), 400, "", 0},
		{"a stop id of another kind", ch, talk(`,"stop_token_ids":["a"]`), 400, "", 0},
		{"a regex that is none", ch, talk(`,"structured_outputs":{"regex":"(["}`), 400, "", 0},
		{"a grammar that is none", ch, talk(`,"structured_outputs":{"grammar":"root ::= ("}`), 400, "", 0},
		{"a schema that is none", ch, talk(`,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"nothing"}}}`), 400, "", 0},
		{"a format that is none", ch, talk(`,"response_format":{"type":"poem"}`), 400, "", 0},
		{"two constraints", ch, talk(`,"structured_outputs":{"regex":"a","choice":["a"]}`), 400, "", 0},
		{"a hand-off of the client's", ch, talk(`,"kv_transfer_params":{"do_remote_prefill":true}`), 400, "invalid_request", 200},
		{"a hand-off of the client's, of text", co, ask(`,"kv_transfer_params":{"do_remote_prefill":true,"remote_host":"a"}`), 400, "invalid_request", 200},
		{"a bootstrap room of the client's", ch, talk(`,"bootstrap_room":1`), 400, "invalid_request", 200},
		{"an image", ch, `{"model":"tiny","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`, 400, "", 0},
		{"tools", ch, talk(`,"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]`), 400, "unsupported_for_grpc", 200},
		{"beams", ch, talk(`,"use_beam_search":true`), 400, "", 200},
		{"words that are bad", ch, talk(`,"bad_words":["a"]`), 400, "unsupported_for_grpc", 200},
		{"a suffix", co, ask(`,"suffix":"a"`), 400, "", 0},
		{"another model", ch, `{"model":"other","messages":[{"role":"user","content":"Why?"}]}`, 404, "", 0},
		{"an embedding", "/v1/embeddings", `{"model":"tiny","input":"Why?"}`, 400, "", 404},
		{"no input", "/v1/responses", `{"model":"tiny"}`, 400, "", 0},
		{"no max_tokens", "/v1/messages", `{"model":"tiny","messages":[{"role":"user","content":"Why?"}]}`, 400, "", 0},
	}
}

// What is wrong with a request is said by the router, or by the engine in its words, with the
// status of vLLM's own server; and nobody is blamed for it.
func TestGRPCBadInput(t *testing.T) {
	routers := map[string]*router{"whole": startGRPC(t), "pair": startGRPCPair(t)}
	n := 0
	for _, c := range badInputs() {
		t.Run(c.name, func(t *testing.T) {
			direct := raw(t, http.MethodPost, one.URL()+c.path, c.body, nil).wait()
			for shape, r := range routers {
				for _, body := range []string{c.body, strings.Replace(c.body, `{"model":"tiny"`, `{"model":"tiny","stream":true`, 1)} {
					a := raw(t, http.MethodPost, r.url+c.path, body, nil).wait()
					if a.streams() {
						t.Errorf("%s: it streams: %s", shape, a)
					}
					want := direct.status
					if c.other != 0 {
						want = c.status
					}
					if a.status != want || c.status != 0 && a.status != c.status || c.code != "" && a.code() != c.code {
						t.Errorf("%s: %s\nthe engine's own server: %s", shape, a, direct)
					}
					if a.status < 400 || at(a.json, "error", "message") == "" {
						t.Errorf("%s: there is no message: %s", shape, a)
					}
				}
			}
			n++
		})
	}
	for shape, r := range routers {
		for _, w := range r.workers() {
			if w.Status != "ready" {
				t.Errorf("%s: %s is %s", shape, w.URL, w.Status)
			}
		}
		for name, v := range r.counters() {
			if strings.HasPrefix(name, "sluice_retries_total") && v != 0 {
				t.Errorf("%s: %s is %v", shape, name, v)
			}
		}
		if missing := (request{route: chat, prompt: prompt(20), tokens: 4}).ask(t, r.url).whole(chat); missing != "" {
			t.Errorf("%s: %s", shape, missing)
		}
	}
	for _, e := range []*Engine{grpcOne, grpcPrefill, grpcDecode} {
		waitBusy(t, e, 0)
	}
	report.say(t, "%d requests are refused, and all engines serve", n)
}

// Text that looks like a special token, and text that is none, is what vLLM's own server takes
// it for.
func TestGRPCOddText(t *testing.T) {
	r := startGRPC(t)
	for name, text := range map[string]string{
		"a special token": `<eos></turn>\n<turn>user`, "NUL": `a\u0000b`, "a lone surrogate": `a\ud800b`, "surrogates in the wrong order": `\udc00\ud800`,
		"not UTF-8": "a\xffb", "half of a character": "a\xe2\x82", "a BOM": `\ufeffa`, "escapes": `\u0041\/\b\f\t`,
	} {
		for path, body := range map[string]string{
			"/v1/completions":      fmt.Sprintf(`{"model":"tiny","temperature":0,"max_tokens":8,"prompt":"%s"}`, text),
			"/v1/chat/completions": fmt.Sprintf(`{"model":"tiny","temperature":0,"max_tokens":8,"messages":[{"role":"user","content":"%s"}]}`, text),
		} {
			got := raw(t, http.MethodPost, r.url+path, body, nil).wait()
			want := raw(t, http.MethodPost, one.URL()+path, body, nil).wait()
			if got.status != want.status && !(got.status == 400 && want.status == 500) {
				t.Errorf("%s, %s: %s\nthe engine's own server: %s", path, name, got, want)
				continue
			}
			if got.status == 200 {
				for _, d := range differences(got, want) {
					t.Errorf("%s, %s: %s", path, name, d)
				}
			}
			report.say(t, "%s, %s: %d, and %d by the engine's own server", path, name, got.status, want.status)
		}
	}
}
