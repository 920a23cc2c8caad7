package server

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/dispatch"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/policy"
	"github.com/sluice-router/sluice/internal/sim"
)

var longText = strings.Repeat("words of a prompt that fill some blocks, ", 50)

func chatOf(text string) string {
	return `{"model":"sim-model","messages":[{"role":"user","content":"` + text + `"}],"max_tokens":3}`
}

// match asks /kv/match.
func (r *rig) match(query, body string, headers ...string) dispatch.CacheMatch {
	r.t.Helper()
	a := r.do("POST", "/kv/match"+query, body, headers...)
	var m dispatch.CacheMatch
	if err := json.Unmarshal([]byte(a.body), &m); err != nil || a.status != 200 {
		r.t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	if strings.Contains(a.body, "words") {
		r.t.Errorf("the answer has some of the prompt: %s", a.body)
	}
	return m
}

// TestMatchTellsWhoHoldsAPrompt follows one prompt: before it was sent, after, and of two
// workers when one is pinned.
func TestMatchTellsWhoHoldsAPrompt(t *testing.T) {
	for name, workers := range map[string]sim.Options{"aggregated": {Regular: 2}, "apart": {Prefill: 2, Decode: 1}} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(s *setup) { s.sim, s.policy, s.index = workers, policy.CacheAware, kv.New(kv.Options{}) })
			m := r.match("", chatOf(longText))
			if !m.LookedUp || m.PromptTokens < 300 || m.Keys != len(longText)/256 || m.BlockSize != 256 || len(m.Legs) == 0 || len(m.Legs[0].Ranks) != 0 {
				t.Fatalf("before: %+v", m)
			}
			if a := r.do("POST", "/v1/chat/completions", chatOf(longText)); a.status != 200 {
				t.Fatal(a.body)
			}
			m = r.match("?route=chat", chatOf(longText+" and more"))
			ranks := m.Legs[0].Ranks
			if len(ranks) != 1 || ranks[0].Blocks != len(longText)/256 || ranks[0].Tokens <= 0 || ranks[0].Tokens > m.PromptTokens || ranks[0].Exact || !ranks[0].Eligible {
				t.Fatalf("after: %+v", m)
			}
			if role := m.Legs[0].Role; role != map[string]string{"aggregated": "regular", "apart": "prefill"}[name] {
				t.Errorf("role %s", role)
			}
			for _, w := range r.fleet.List() {
				if w.Role().String() == m.Legs[0].Role && w.URL() != ranks[0].ID {
					pinned := r.match("?route=/v1/chat/completions", chatOf(longText), "X-SMG-Target-Worker", w.URL())
					if got := pinned.Legs[0].Ranks; len(got) != 1 || got[0].Eligible {
						t.Errorf("pinned to the other worker: %+v", got)
					}
				}
			}
			if other := r.match("?route=completions", `{"model":"sim-model","prompt":"`+longText+`"}`); len(other.Legs[0].Ranks) != 0 {
				t.Errorf("another API: %+v", other)
			}
		})
	}
}

// TestMatchWithoutAPolicyThatAsks says so.
func TestMatchWithoutAPolicyThatAsks(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Regular, s.index = 1, kv.New(kv.Options{})
		s.cfg.Routing.Policy = config.PolicyRoundRobin
	})
	if m := r.match("", chatOf(longText)); m.LookedUp || len(m.Legs) != 0 || m.PromptTokens == 0 {
		t.Errorf("%+v", m)
	}
}

// TestMatchRefuses bodies and requests that would be refused elsewhere.
func TestMatchRefuses(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Regular, s.index = 1, kv.New(kv.Options{})
		s.cfg.Server.MaxPayloadSize = 4096
		s.cfg.Auth.AdminAPIKey = "admin"
	})
	key := []string{"Authorization", "Bearer admin"}
	r.do("POST", "/kv/match", chatOf("x")).refused(t, 401, "invalid_api_key")
	r.do("POST", "/kv/match", `{"messages":`, key...).refused(t, 400, "invalid_request")
	r.do("POST", "/kv/match?route=embeddings", chatOf("x"), key...).refused(t, 400, "invalid_request")
	r.do("POST", "/kv/match?api=completions", chatOf("x"), key...).refused(t, 400, "invalid_request")
	// The body of another API is no prompt that nobody holds.
	for _, of := range [...]string{"", "?route=generate"} {
		r.do("POST", "/kv/match"+of, `{"model":"sim-model","prompt":"x"}`, key...).refused(t, 400, "invalid_request")
	}
	r.do("POST", "/kv/match", chatOf(strings.Repeat("x", 5000)), key...).refused(t, 413, "request_too_large")
	r.do("POST", "/kv/match", strings.Replace(chatOf("x"), "sim-model", "other", 1), key...).refused(t, 404, "model_not_found")
	r.do("POST", "/kv/match", chatOf("x"), append(key, "X-SMG-Target-Worker", "nobody")...).refused(t, 400, "invalid_target")
	if a := r.do("GET", "/kv/match", "", key...); a.status != 405 {
		t.Errorf("GET: %d", a.status)
	}
}
