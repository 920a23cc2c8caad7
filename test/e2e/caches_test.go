package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// talk is a conversation: each turn's prompt is all that was said before and a question.
type talk struct {
	id       int
	stream   bool
	messages []string // JSON
	said     int      // bytes of the messages
}

func newTalk(id int) *talk { return &talk{id: id, stream: id%2 == 1} }

// pieceOf is n bytes of text that begins in no two talks and turns alike.
func pieceOf(id, turn, n int) string {
	return strings.Repeat(fmt.Sprintf("talk %d turn %d. ", id, turn), n/14+1)[:n]
}

func (c *talk) say(role, text string) {
	q, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	c.messages = append(c.messages, fmt.Sprintf(`{"role":%q,"content":%s}`, role, q))
	c.said += len(text)
}

// answerTokens is the length of each answer: some blocks of text.
const answerTokens = 300

// body is the request for the next answer.
func (c *talk) body(extra string) string {
	if c.stream {
		extra += `"stream":true,"stream_options":{"include_usage":true},`
	}
	return fmt.Sprintf(`{"model":"sim-model","max_tokens":%d,%s"messages":[%s]}`, answerTokens, extra, strings.Join(c.messages, ","))
}

// turn asks the next question and takes the answer into the conversation.
func (c *talk) turn(t testing.TB, client *http.Client, r *router, headers ...string) *answer {
	t.Helper()
	if len(c.messages) == 0 {
		c.say("system", pieceOf(c.id, 0, 1500))
	}
	c.say("user", pieceOf(c.id, len(c.messages), 600))
	a := send(client, "POST", r.url()+"/v1/chat/completions", c.body(""), headers...).wait(t)
	a.good(t)
	text, readable := a.text()
	if !readable || text == "" {
		t.Fatalf("no text in %s", a)
	}
	c.say("assistant", text)
	return a
}

// cacheMatch is what POST /kv/match answers.
type cacheMatch struct {
	LookedUp  bool  `json:"looked_up"`
	Tokens    int64 `json:"prompt_tokens"`
	BlockSize int   `json:"block_size"`
	Legs      []struct {
		Role  string `json:"role"`
		Ranks []struct {
			ID       string `json:"id"`
			Tokens   int64  `json:"tokens"`
			Blocks   int    `json:"blocks"`
			Exact    bool   `json:"exact"`
			Eligible bool   `json:"eligible"`
		} `json:"ranks"`
	} `json:"legs"`
}

func (r *router) match(route, body string) (m cacheMatch) {
	r.t.Helper()
	status, answer := r.change("POST", "/kv/match?route="+route, body)
	if err := json.Unmarshal([]byte(answer), &m); status != http.StatusOK || err != nil {
		r.t.Fatalf("POST /kv/match: %d %s (%v)", status, clip(answer), err)
	}
	return m
}

// holders are the simulated workers that are believed to hold the beginning of a prompt for
// the leg that computes it, with the blocks of each; exact: as engines tell.
func (r *router) holders(route, body string, exact bool) map[string]int {
	r.t.Helper()
	m := r.match(route, body)
	out := map[string]int{}
	if !m.LookedUp || len(m.Legs) == 0 {
		r.t.Fatalf("POST /kv/match: nothing was looked up: %+v", m)
	}
	for _, k := range m.Legs[0].Ranks {
		if k.Eligible && k.Exact == exact {
			out[r.fleet.named(k.ID)] = k.Blocks
		}
	}
	return out
}

// named is the id of the simulated worker at a URL.
func (f *simFleet) named(url string) string {
	for _, w := range f.workers {
		if w.URL == url {
			return w.ID
		}
	}
	return ""
}

// computing is the leg of a client's request that computed its prompt.
func (f *simFleet) computing(id string) (leg sim.Request) {
	f.t.Helper()
	// Decode may have answered before prefill, whose log tells what was cached at its end.
	eventually(f.t, "the leg that computes the prompt of "+id+" ends", func() string {
		legs := slices.DeleteFunc(f.legs(id), func(q sim.Request) bool { return strings.HasPrefix(q.Worker, "decode") })
		if len(legs) != 1 {
			f.t.Fatalf("request %s has %d legs that compute its prompt", id, len(legs))
		}
		if leg = legs[0]; leg.Ended.IsZero() {
			return "it runs at " + leg.Worker
		}
		return ""
	})
	return leg
}

// wantCache checks the access line of a request. What it does not tell is -1.
func (r *router) wantCache(a *answer, why string) (best, chosen, reported int) {
	r.t.Helper()
	line := r.accessLine(a.id)
	number := func(name string) int {
		if v, ok := line[name].(float64); ok {
			return int(v)
		}
		return -1
	}
	best, chosen, reported = number("cache_best"), number("cache_chosen"), number("cache_reported")
	if line["cache_why"] != why {
		r.t.Errorf("request %s: cache_why is %v, want %s; best %d, chosen %d, reported %d", a.id, line["cache_why"], why, best, chosen, reported)
	}
	return best, chosen, reported
}

// hitRate is the part of the prompts that were found in the caches, as the engines count.
func (f *simFleet) hitRate() float64 {
	f.t.Helper()
	cached, all := 0, 0
	for _, q := range f.requests("all") {
		if !strings.HasPrefix(q.Worker, "decode") {
			cached, all = cached+q.Cached, all+q.Prompt
		}
	}
	return float64(cached) / float64(max(all, 1))
}

// Conversations come back to the worker that has computed them, without a key of the client's
// and without events of the engines, whole answers and streams. What each answer reports, the
// access lines, the metrics and POST /kv/match tell the same.
func TestConversationsComeBackToTheirHolder(t *testing.T) {
	t.Parallel()
	const talks, turns = 5, 3 // so that the turns of a talk meet three of four workers in turn
	for _, c := range []struct {
		name, role string
		fleet      []string
	}{
		{"sglang/whole", "regular", []string{"--regular", "4"}},
		{"sglang/pairs", "prefill", []string{"--prefill", "4", "--decode", "2"}},
		{"vllm/whole", "regular", []string{"--backend", "vllm", "--regular", "4"}},
		{"vllm/pairs", "prefill", []string{"--backend", "vllm", "--prefill", "4", "--decode", "2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fleet := startSim(t, append(c.fleet, "--cache-report")...)
			client := clients(t)
			round := startRouter(t, fleet, "--policy", "round_robin")
			fleet.do("all", "reset", "")
			list := make([]*talk, talks)
			run := func(r *router, first int, each func(k *talk, turn int, a *answer)) {
				for i := range list {
					list[i] = newTalk(first + i)
				}
				for turn := range turns {
					for _, k := range list {
						each(k, turn, k.turn(t, client, r))
					}
				}
			}
			run(round, 100, func(*talk, int, *answer) {})
			without := fleet.hitRate()
			if status, body := round.change("POST", "/kv/match", list[0].body("")); status != http.StatusOK || !strings.Contains(body, `"looked_up":false`) {
				t.Errorf("POST /kv/match with round_robin: %d %s", status, body)
			}

			r := startRouter(t, fleet)
			fleet.do("all", "reset", "")
			at := map[int]sim.Request{} // the leg before, by talk
			used := map[string]bool{}
			reported := 0
			run(r, 200, func(k *talk, turn int, a *answer) {
				leg := fleet.computing(a.id)
				used[leg.Worker] = true
				before := at[k.id]
				at[k.id] = leg
				if turn == 0 {
					r.wantCache(a, "none")
					return
				}
				best, chosen, told := r.wantCache(a, "holder")
				if told == -1 && c.name == "sglang/pairs" {
					told = leg.Cached // decode was over before prefill's answer had come
				} else {
					reported += told
				}
				if leg.Worker != before.Worker || leg.Cached < before.Prompt-32 {
					t.Errorf("turn %d of talk %d: %d of %d tokens cached at %s, before %d at %s", turn, k.id, leg.Cached, leg.Prompt, leg.Worker, before.Prompt, before.Worker)
				}
				if best != chosen || told != leg.Cached || chosen == 0 || chosen > leg.Prompt*11/10 {
					t.Errorf("turn %d of talk %d: best %d, chosen %d, reported %d, the engine has %d", turn, k.id, best, chosen, told, leg.Cached)
				}
			})
			with := fleet.hitRate()
			if with < 0.4 || without > 0.05 {
				t.Errorf("hit rate %.2f, with round_robin %.2f", with, without)
			}
			if len(used) != 4 {
				t.Errorf("used were only %v", used)
			}
			labels := fmt.Sprintf(`{role=%q,`, c.role)
			if got := r.metric("sluice_cache_tokens_total" + labels + `tokens="reported"}`); got != float64(reported) {
				t.Errorf("%v tokens reported by metrics, %d by answers", got, reported)
			}
			if got := r.metric("sluice_cache_choices_total" + labels + `why="holder"}`); got != talks*(turns-1) {
				t.Errorf("%v choices of a holder, want %d", got, talks*(turns-1))
			}
			// What the next turn would find: the last answer too, unless the prompt's cache is
			// on another worker than the answer's.
			for _, k := range list {
				answered := k.said
				k.say("user", "And then?")
				blocks := r.holders("chat", k.body(""), false)[at[k.id].Worker]
				if whole := blocks >= answered/256; whole != (c.role == "regular") {
					t.Errorf("talk %d: %d blocks are believed of %d bytes", k.id, blocks, answered)
				}
			}
		})
	}
}

// What one tenant's prompts left in the caches is no credit for another's: neither in what the
// router believes nor at the engine.
func TestTenantsShareNoCredit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		fleet  []string
		tokens bool // prompts are token ids, and engines tell of their caches
		scopes []string
	}{
		{"sglang", []string{"--adapter", "lora"}, false, []string{"", `"cache_salt":"a",`, `"cache_salt":"b",`, `"extra_key":"c",`, "lora"}},
		{"vllm", []string{"--backend", "vllm", "--adapter", "lora"}, false, []string{"", `"cache_salt":"a",`, `"cache_salt":"b",`, "lora"}},
		{"vllm/events", []string{"--backend", "vllm", "--adapter", "lora", "--kv-events"}, true, []string{"", `"cache_salt":"a",`, `"cache_salt":"b",`, "lora"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fleet := startSim(t, append(c.fleet, "--regular", "2", "--cache-report")...)
			r := startRouter(t, fleet)
			if c.tokens {
				r.waitFeeds("exact")
			}
			k := newTalk(0)
			k.say("user", pieceOf(1, 1, 3000))
			route, path := "chat", "/v1/chat/completions"
			if c.tokens {
				route, path = "completions", "/v1/completions"
			}
			for _, scope := range c.scopes {
				body := k.body("")
				if c.tokens {
					body = tokensFrom(1000, 600)
				}
				if scope == "lora" {
					body = strings.Replace(body, `"sim-model"`, `"lora"`, 1)
				} else {
					body = "{" + scope + body[1:]
				}
				for i, why := range []string{"none", "holder"} {
					if i == 1 && c.tokens {
						eventually(t, "the engine has told of the blocks", func() string {
							if h := r.holders(route, body, true); len(h) != 1 {
								return fmt.Sprint(h)
							}
							return ""
						})
					}
					a := send(probeClient, "POST", r.url()+path, body).wait(t)
					a.good(t)
					best, _, told := r.wantCache(a, why)
					if (best > 0) != (i > 0) || (told > 0) != (i > 0) {
						t.Errorf("%q, request %d: believed %d, reported %d", scope, i, best, told)
					}
				}
			}
		})
	}
}

// tokensFrom is a completion of n token ids that begin with first: those of no other first.
func tokensFrom(first, n int) string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprint(first + i)
	}
	return fmt.Sprintf(`{"model":"sim-model","max_tokens":2,"prompt":[%s]}`, strings.Join(ids, ","))
}

// cacheFeed is what GET /workers tells of a rank's KV cache.
type cacheFeed struct {
	Feed     string `json:"feed"`
	NoEvents string `json:"no_events"`
	Degraded *struct {
		Why string `json:"why"`
	} `json:"degraded"`
	Events struct {
		Gaps        int `json:"gaps"`
		Unfilled    int `json:"unfilled_gaps"`
		Replays     int `json:"replays"`
		Restarts    int `json:"restarts"`
		Clears      int `json:"clears"`
		Batches     int `json:"batches"`
		BadMessages int `json:"bad_messages"`
		Connects    int `json:"connects"`
	} `json:"events"`
}

// waitFeeds waits until all workers' caches are known in one way.
func (r *router) waitFeeds(feed string) {
	r.t.Helper()
	eventually(r.t, "what is known of all caches is "+feed, func() string {
		for _, w := range r.workers() {
			for _, k := range w.Ranks {
				if k.Cache.Feed != feed {
					return fmt.Sprintf("%s: %+v", k.ID, k.Cache)
				}
			}
		}
		return ""
	})
}
