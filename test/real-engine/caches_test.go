//go:build realengine

package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// startCaches starts a router in front of the two engines that run whole requests, and
// waits until it follows the events of both.
func startCaches(t testing.TB, args ...string) *router {
	t.Helper()
	r := startRouter(t, append([]string{"--worker-urls", one.URL(), two.URL()}, args...)...)
	r.waitExact()
	return r
}

// waitExact waits until the events of all workers that prefill are followed.
func (r *router) waitExact() {
	r.t.Helper()
	eventually(r.t, "the events of all workers are followed", func() string {
		for _, w := range r.workers() {
			if w.Type != "decode" && r.cache(w.URL).Feed != "exact" {
				return fmt.Sprintf("%s: %+v", w.URL, r.cache(w.URL))
			}
		}
		return ""
	})
}

// cache is what the router knows of the cache of a worker.
func (r *router) cache(url string) rankCache {
	r.t.Helper()
	for _, w := range r.workers() {
		if w.URL == url && len(w.Ranks) == 1 && w.Ranks[0].Cache != nil {
			return *w.Ranks[0].Cache
		}
	}
	return rankCache{}
}

// held is how many tokens of a prompt the router believes a worker to hold, and whether it
// has that from the engine's events. Zero: the worker is not named.
func (r *router) held(q request, url string) (tokens int, exact bool) {
	r.t.Helper()
	a := raw(r.t, http.MethodPost, r.url+"/kv/match?route="+q.route.name, q.body(), nil).wait()
	var m struct {
		Legs []struct {
			Ranks []struct {
				Worker string `json:"worker_id"`
				Tokens int    `json:"tokens"`
				Exact  bool   `json:"exact"`
			} `json:"ranks"`
		} `json:"legs"`
	}
	if err := json.Unmarshal([]byte(a.body), &m); err != nil || a.status != http.StatusOK || len(m.Legs) == 0 {
		r.t.Fatalf("/kv/match: %s", a)
	}
	for _, k := range m.Legs[0].Ranks { // the leg that prefills
		if k.Worker == r.id(url) {
			return k.Tokens, k.Exact
		}
	}
	return 0, false
}

func (r *router) id(url string) string {
	r.t.Helper()
	for _, w := range r.workers() {
		if w.URL == url {
			return w.ID
		}
	}
	r.t.Fatalf("there is no worker %s", url)
	return ""
}

// prefilledBy is the id of the worker that prefilled a request.
func prefilledBy(a answer) string {
	if id := a.header.Get("X-Sluice-Prefill-Worker"); id != "" {
		return id
	}
	return a.header.Get("X-Sluice-Decode-Worker")
}

// numbers are the three numbers of a decision, and why it was taken.
type numbers struct {
	Why      string `json:"cache_why"`
	Best     int    `json:"cache_best"`
	Chosen   int    `json:"cache_chosen"`
	Reported *int   `json:"cache_reported"`
	Prompt   int    `json:"prompt_tokens"`
}

// logged are the numbers in the access line of a request.
func (r *router) logged(a answer) (n numbers) {
	r.t.Helper()
	eventually(r.t, "the request is logged", func() string {
		for _, line := range r.log.lines() {
			if strings.Contains(line, `"id":"`+a.id+`"`) && json.Unmarshal([]byte(line), &n) == nil && n.Why != "" {
				return ""
			}
		}
		return "no line has " + a.id
	})
	if n.Reported == nil {
		r.t.Fatalf("request %s: the engine reports no cached tokens", a.id)
	}
	return n
}

// last is what an answer tells last: of a stream, the last event with a usage.
func (a answer) last() answer {
	for i := len(a.events) - 1; a.json == nil && i >= 0; i-- {
		e := a.events[i].json
		if r, ok := e["response"].(map[string]any); ok {
			e = r
		}
		if e["usage"] != nil {
			a.json = e
		}
	}
	return a
}

// cached is how many tokens of the prompt an answer says were cached.
func cached(a answer) int {
	a = a.last()
	for _, path := range [][]any{
		{"usage", "prompt_tokens_details", "cached_tokens"},
		{"usage", "input_tokens_details", "cached_tokens"},
		{"usage", "cache_read_input_tokens"},
	} {
		if n := number(a.json, path...); n >= 0 {
			return n
		}
	}
	return -1
}

// ids is a prompt of so many token ids that nobody has asked before.
func ids(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = 100 + rand.IntN(350)
	}
	return list
}

// ofIDs is a request for few tokens with a prompt of token ids.
func ofIDs(prompt []int) request {
	return request{route: completions, tokens: 4, extra: map[string]any{"prompt": prompt}}
}

// on pins a request to a worker.
func (q request) on(url string) request {
	q.header = map[string]string{"X-Smg-Target-Worker": url}
	return q
}

// good asks and wants an answer.
func (q request) good(t testing.TB, base string) answer {
	t.Helper()
	a := q.ask(t, base)
	if missing := a.whole(q.route); missing != "" {
		t.Fatal(missing)
	}
	return a
}

// conversation is a first turn, and the turn after it.
type conversation struct {
	name   string
	first  request
	second func(answer) request
	ids    bool
}

func conversations() []conversation {
	const more = "And what of the ferry?"
	about := func() string { return prompt(160) } // 800 bytes, about 400 tokens
	talk := func(r *route) conversation {
		first := request{route: r, prompt: about(), tokens: 12}
		return conversation{name: r.name, first: first, second: func(a answer) request {
			q := first
			q.extra = map[string]any{"messages": []any{message(first.prompt)[0],
				map[string]any{"role": "assistant", "content": a.text(r)}, message(more)[0]}}
			return q
		}}
	}
	text := request{route: completions, prompt: about(), tokens: 12}
	answered := request{route: responses, prompt: about(), tokens: 12}
	tokens := ofIDs(ids(13*BlockSize + 5))
	return []conversation{
		talk(chat), talk(messages),
		{name: "completions", first: text, second: func(a answer) request {
			q := text
			q.prompt += a.text(completions) + " " + more
			return q
		}},
		{name: "responses", first: answered, second: func(a answer) request {
			q := answered
			q.extra = map[string]any{"input": []any{message(answered.prompt)[0],
				map[string]any{"role": "assistant", "content": a.text(responses)}, message(more)[0]}}
			return q
		}},
		{name: "token ids", ids: true, first: tokens, second: func(answer) request {
			return ofIDs(append(slices.Clone(tokens.extra["prompt"].([]int)), ids(40)...))
		}},
	}
}

// secondTurns holds conversations of two turns: the second goes where the first went, the
// engine finds it in its cache, and the router's numbers are the engine's.
func secondTurns(t *testing.T, r *router) {
	counter := func(of string) string { return fmt.Sprintf(`sluice_cache_tokens_total{tokens=%q}`, of) }
	for _, c := range conversations() {
		t.Run(c.name, func(t *testing.T) {
			first := c.first.good(t, r.url)
			promptTokens, _ := c.first.route.usage(first)
			whole := promptTokens / BlockSize * BlockSize
			if n := r.logged(first); *n.Reported != 0 || n.Chosen != 0 || n.Prompt != promptTokens {
				t.Errorf("the first turn of %d tokens is logged as %+v", promptTokens, n)
			}
			q := c.second(first)
			holder := r.url
			for _, w := range r.workers() {
				if w.ID == prefilledBy(first) {
					holder = w.URL
				}
			}
			eventually(t, "the router knows who holds the first turn", func() string {
				// Of a text it knows blocks of bytes.
				if n, exact := r.held(q, holder); n < whole-4*BlockSize || exact != c.ids || c.ids && n < whole {
					return fmt.Sprintf("%d of %d tokens, exact %t", n, whole, exact)
				}
				return ""
			})
			before, engine := r.counters(), scrape(t, holder)
			second := q.good(t, r.url)
			n := r.logged(second)
			if prefilledBy(second) != prefilledBy(first) || n.Why != "holder" || n.Best != n.Chosen {
				t.Errorf("the second turn went to %s, the first to %s: %+v", prefilledBy(second), prefilledBy(first), n)
			}
			if got := cached(second); got < whole-BlockSize || got != *n.Reported {
				t.Errorf("of the %d tokens of the first turn the engine found %d, the router logs %d", promptTokens, got, *n.Reported)
			}
			off := n.Chosen - *n.Reported
			if c.ids && (off < -1 || off > 1) || off < -6*BlockSize || off > 6*BlockSize {
				t.Errorf("the router believed %d tokens to be cached, the engine found %d", n.Chosen, *n.Reported)
			}
			d := r.counters().since(before, counter("best"), counter("chosen"), counter("believed"), counter("reported"))
			if d[counter("best")] != float64(n.Best) || d[counter("chosen")] != float64(n.Chosen) ||
				d[counter("believed")] != float64(n.Chosen) || d[counter("reported")] != float64(*n.Reported) {
				t.Errorf("the metrics grew by %s, the log says %+v", d, n)
			}
			if hits := scrape(t, holder).since(engine, prefixHits); hits[prefixHits] != float64(*n.Reported) {
				t.Errorf("the engine itself counts %s", hits)
			}
			report.say(t, "%d tokens, %d of them cached; the router believed %d to be, of %d", n.Prompt, *n.Reported, n.Chosen, n.Best)
		})
	}
}

// Two engines that run whole requests: a conversation stays where it began, others are
// spread.
func TestWholeCaches(t *testing.T) {
	needPair(t)
	r := startCaches(t)
	secondTurns(t, r)
	began := map[string]int{}
	for range 8 {
		q := request{route: chat, prompt: prompt(20), tokens: 4}
		began[prefilledBy(q.good(t, r.url))]++
	}
	if len(began) != 2 || began[r.id(one.URL())] < 2 || began[r.id(two.URL())] < 2 {
		t.Errorf("8 conversations began like this: %v", began)
	}
	report.say(t, "8 other conversations: %v", began)
}

// A pair: the prefill engine's cache is known, and the client is told what it had.
func TestPairCaches(t *testing.T) {
	needPair(t)
	r := startPair(t)
	r.waitExact()
	secondTurns(t, r)
}
