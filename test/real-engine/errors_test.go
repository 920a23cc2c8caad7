//go:build realengine

package main

import (
	"net/http"
	"testing"
)

// What an engine refuses reaches the client as the engine said it; what no worker
// serves is refused by sluice, in the shape of the API.
func TestWholeErrors(t *testing.T) { refusals(t, startWhole(t)) }

// With the pair the refusal is prefill's, and decode is not asked.
func TestPairErrors(t *testing.T) {
	needPair(t)
	refusals(t, startPair(t))
}

func refusals(t *testing.T, r *router) {
	for _, c := range []struct {
		name   string
		q      request
		status int
		typ    string
	}{
		{"chat/unknown model", request{route: chat, extra: map[string]any{"model": "other"}}, http.StatusNotFound, ""},
		{"messages/unknown model", request{route: messages, extra: map[string]any{"model": "other"}}, http.StatusNotFound, ""},
		{"chat/max_tokens 0", request{route: chat, extra: map[string]any{"max_tokens": 0}}, http.StatusBadRequest, "BadRequestError"},
		{"chat/max_tokens too large", request{route: chat, tokens: 4 * MaxModelLen}, http.StatusBadRequest, "BadRequestError"},
		{"completions/prompt too long", request{route: completions, prompt: prompt(2 * MaxModelLen), stream: true}, http.StatusBadRequest, "BadRequestError"},
		{"chat/no messages", request{route: chat, extra: map[string]any{"messages": nil}}, http.StatusBadRequest, ""},
		{"chat/temperature is a word", request{route: chat, extra: map[string]any{"temperature": "hot"}}, http.StatusBadRequest, ""},
		{"chat/kv_transfer_params", request{route: chat, extra: map[string]any{"kv_transfer_params": map[string]any{"do_remote_prefill": true}}}, http.StatusBadRequest, ""},
		{"chat/n=2 and greedy", request{route: chat, extra: map[string]any{"n": 2}}, http.StatusBadRequest, "BadRequestError"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.q.prompt == "" {
				c.q.prompt = prompt(40)
			}
			if c.q.tokens == 0 {
				c.q.tokens = 8
			}
			a := c.q.ask(t, r.url)
			if a.status != c.status || at(a.json, "error", "message") == "" {
				t.Fatalf("want %d with a message, got %s", c.status, a)
			}
			// Anthropic's clients look for the type outside as well.
			if c.q.route == messages && at(a.json, "type") != "error" {
				t.Errorf("it is not in the shape of the Messages API: %s", a)
			}
			if typ := at(a.json, "error", "type"); c.typ != "" && typ != c.typ {
				t.Errorf("the error's type is %q, the engine says %q", typ, c.typ)
			}
			report.say(t, "%d %s", a.status, clip(a.body))
		})
	}
}
