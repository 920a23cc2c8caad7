//go:build realengine

package main

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// reset empties the prefix cache of an engine. Its event comes with the next batch. While a
// request has blocks, as prefill does until decode has fetched them, the engine refuses.
func (e *Engine) reset(t testing.TB) {
	t.Helper()
	eventually(t, "the cache is reset", func() string {
		a := raw(t, http.MethodPost, e.URL()+"/reset_prefix_cache", "", nil).wait()
		if done, _ := a.json["success"].(bool); a.status != http.StatusOK || !done {
			return a.String()
		}
		return ""
	})
}

// holds waits until the router believes a worker to hold a prompt of token ids whole, from
// its events.
func (r *router) holds(q request, url string, tokens int) {
	r.t.Helper()
	eventually(r.t, "the worker is believed to hold the prompt", func() string {
		if n, exact := r.held(q, url); n < tokens-1 || !exact {
			return fmt.Sprintf("%d of %d tokens, exact %t, %+v", n, tokens, exact, r.cache(url))
		}
		return ""
	})
}

// forgets waits until the router believes a worker to hold nothing of a prompt.
func (r *router) forgets(q request, url string) {
	r.t.Helper()
	eventually(r.t, "the worker is believed to hold nothing of the prompt", func() string {
		if n, exact := r.held(q, url); n > 0 {
			return fmt.Sprintf("%d tokens, exact %t, %+v", n, exact, r.cache(url))
		}
		return ""
	})
}

// creditsNothing asks for a prompt that no cache has: the request gets no credit, and the
// engine finds nothing.
func (r *router) creditsNothing(q request, url string) answer {
	r.t.Helper()
	a := q.on(url).good(r.t, r.url)
	n := r.logged(a)
	if n.Chosen != 0 || *n.Reported != 0 {
		r.t.Errorf("the prompt is not cached, the request is logged as %+v", n)
	}
	return a
}

// An engine whose cache was emptied on request is believed to hold what it had until its
// next batch of events, and nothing after it; so for prompts of text.
func TestCachesThatAreReset(t *testing.T) {
	needPair(t)
	for _, c := range []struct {
		name   string
		start  func(testing.TB) *router
		engine *Engine
	}{
		{"whole", func(t testing.TB) *router { return startCaches(t) }, two},
		{"pair", func(t testing.TB) *router { r := startPair(t); r.waitExact(); return r }, prefill},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := c.start(t)
			url := c.engine.URL()
			tokens := ofIDs(ids(6 * BlockSize))
			var texts []request
			for _, route := range routes {
				texts = append(texts, request{route: route, prompt: prompt(110), tokens: 4}, request{route: route, prompt: prompt(110), tokens: 4, stream: true})
			}
			for i := range texts {
				if q := &texts[i]; q.stream && (q.route == chat || q.route == completions) {
					q.extra = map[string]any{"stream_options": map[string]any{"include_usage": true}}
				}
				texts[i].on(url).good(t, r.url)
				if n, _ := r.held(texts[i], url); n == 0 {
					t.Errorf("%s: it is not believed to hold the text that it was sent", texts[i].route.name)
				}
			}
			tokens.on(url).good(t, r.url)
			r.holds(tokens, url, 6*BlockSize)
			clears := r.cache(url).Events.Clears
			c.engine.reset(t)
			ofIDs(ids(2*BlockSize)).good(t, url) // the batch
			r.forgets(tokens, url)
			for _, text := range texts {
				r.forgets(text, url)
			}
			r.creditsNothing(tokens, url)
			for _, text := range texts {
				// In a pair decode has it cached: the client is told what prefill had.
				a := r.creditsNothing(text, url)
				in, _ := text.route.usage(a.last())
				if n := r.logged(a); cached(a) != 0 || in != n.Prompt || in < 2*BlockSize {
					t.Errorf("%s, streamed %t: the client is told of %d tokens and %d that were cached, logged are %d and %d", text.route.name, text.stream, in, cached(a), n.Prompt, *n.Reported)
				}
			}
			if k := r.cache(url); k.Feed != "exact" || k.Events.Clears != clears+1 || k.Events.Gaps != 0 {
				t.Errorf("%+v", k)
			}
			report.say(t, "believed to hold nothing after the next batch of events")
		})
	}
}

// An engine that is killed is believed to hold nothing as soon as it is known to be dead, and
// when it is back. Its events are followed again.
func TestCachesOfAKilledEngine(t *testing.T) {
	needPair(t)
	r := startCaches(t, seesSoon...)
	url := two.URL()
	text, tokens := request{route: chat, prompt: prompt(160), tokens: 4}, ofIDs(ids(6*BlockSize))
	text.on(url).good(t, r.url)
	tokens.on(url).good(t, r.url)
	r.holds(tokens, url, 6*BlockSize)
	two.Kill()
	killed := time.Now()
	eventually(t, "it is no more said to be exact", func() string {
		if k := r.cache(url); k.Feed == "exact" {
			return fmt.Sprintf("%+v", k)
		}
		return ""
	})
	seen, feed := time.Since(killed), r.cache(url)
	r.forgets(tokens, url)
	r.forgets(text, url)
	gone := time.Since(killed)
	if n := r.logged(tokens.good(t, r.url)); n.Best != 0 {
		t.Errorf("some engine is believed to hold what the killed one had: %+v", n)
	}
	restart(t, &two)
	r.waitReady()
	r.waitExact()
	r.forgets(tokens, url)
	r.creditsNothing(text, url)
	r.creditsNothing(tokens, url)
	r.holds(tokens, url, 6*BlockSize)
	report.say(t, "%s after the kill it was %s, after %s believed to hold nothing; exact again once it was back", seen.Round(time.Millisecond), feed.Feed, gone.Round(time.Millisecond))
}

// behindProxies starts a router that follows the events of an engine through proxies: of a
// prefill engine in a pair, or of one that runs whole requests beside another one.
func behindProxies(t *testing.T, e *Engine) (r *router, live, replay *eventsProxy) {
	t.Helper()
	live, replay = startProxy(t, e.EventsPort()), startProxy(t, e.ReplayPort())
	kind := ""
	if e.Role == Prefill {
		kind = `"prefill","bootstrap_port":"none"`
		r = launchRouter(t, "--pd-disaggregation", "--decode", decode.URL())
	} else {
		kind = `"regular"`
		r = launchRouter(t, "--worker-urls", one.URL())
	}
	body := fmt.Sprintf(`{"url":%q,"worker_type":%s,"labels":{"kv_events_port":"%d","kv_events_replay_port":"%d"}}`, e.URL(), kind, live.port(), replay.port())
	if a := raw(t, http.MethodPost, r.url+"/workers", body, nil).wait(); a.status != http.StatusAccepted {
		t.Fatal(a)
	}
	eventually(t, "the worker is there", func() string {
		if n := len(r.workers()); n != 2 {
			return strconv.Itoa(n) + " workers"
		}
		return ""
	})
	r.waitReady()
	r.waitExact()
	return r, live, replay
}

// A batch that was lost is asked for again once the next one shows it, even if it told that
// the cache was emptied. If it cannot be had, the engine is believed to hold nothing but what
// came since. A stream that is cut is degraded until it is back.
func TestCachesWithLostEvents(t *testing.T) {
	needPair(t)
	t.Run("whole", func(t *testing.T) { lostEvents(t, two) })
	t.Run("pair", func(t *testing.T) { lostEvents(t, prefill) })
}

func lostEvents(t *testing.T, e *Engine) {
	r, live, replay := behindProxies(t, e)
	url := e.URL()
	few := func() request { return ofIDs(ids(3 * BlockSize)) }
	ask := func() request { // through the router
		t.Helper()
		q := few()
		q.on(url).good(t, r.url)
		r.holds(q, url, 3*BlockSize)
		return q
	}
	drops := 0
	lose := func() (lost request) { // the clear and a prompt, and then comes the next
		t.Helper()
		live.dropNext()
		e.reset(t)
		lost = few()
		lost.good(t, url)
		drops++
		live.waitDropped(drops)
		next := few()
		next.good(t, url)
		r.holds(next, url, 3*BlockSize)
		return lost
	}
	// Soon after a replay that took long there is no other, as that at the start does on a
	// busy machine: what was lost is given up then.
	tooSoon := func(before rankCache) bool {
		now := r.cache(url).Events
		if now.Unfilled == before.Events.Unfilled || !strings.Contains(now.LastError, "not long ago") {
			return false
		}
		time.Sleep(time.Second) // many faults in a row would be held against the stream
		return true
	}

	for end := time.Now().Add(patience); ; {
		before, start := ask(), r.cache(url)
		lost := lose()
		if tooSoon(start) && time.Now().Before(end) {
			r.forgets(before, url)
			r.forgets(lost, url)
			continue
		}
		r.holds(lost, url, 3*BlockSize)
		r.forgets(before, url)
		if now := r.cache(url).Events; now.Gaps != start.Events.Gaps+1 || now.Replays != start.Events.Replays+1 || now.Unfilled != start.Events.Unfilled {
			t.Errorf("%+v, before %+v", now, start.Events)
		}
		r.creditsNothing(before, url)
		break
	}
	report.say(t, "with a replay: the lost prompt is known, what was cleared is not believed")

	before, start := ask(), r.cache(url)
	replay.refuse(true)
	lost := lose()
	r.forgets(lost, url)
	r.forgets(before, url)
	if k := r.cache(url); k.Events.Unfilled != start.Events.Unfilled+1 || k.Feed != "exact" {
		t.Errorf("%+v", k)
	}
	r.creditsNothing(before, url)
	report.say(t, "without: nothing is believed but what came since")

	for end := time.Now().Add(patience); ; {
		before, start := ask(), r.cache(url)
		live.refuse(true)
		eventually(t, "it is degraded", func() string {
			if k := r.cache(url); k.Feed != "degraded" || k.Degraded == nil || k.Degraded.Why == "" {
				return fmt.Sprintf("%+v", k)
			}
			return ""
		})
		degraded := r.cache(url)
		if c := r.counters(); c[`sluice_kv_ranks{feed="degraded"}`] != 1 {
			t.Errorf("%v ranks are degraded by the metric", c[`sluice_kv_ranks{feed="degraded"}`])
		}
		if a := few().on(url).good(t, r.url); r.logged(a).Chosen != 0 {
			t.Errorf("a new prompt: %+v", r.logged(a))
		}
		missed := few()
		missed.good(t, url)
		replay.refuse(false)
		live.refuse(false)
		r.waitExact()
		if tooSoon(start) && time.Now().Before(end) {
			continue
		}
		r.holds(missed, url, 3*BlockSize)
		r.holds(before, url, 3*BlockSize)
		report.say(t, "cut: degraded (%s); back, with what was missed", degraded.Degraded.Why)
		break
	}
}

// What the router takes an engine's cache to be is what the engine says, and what the engine
// evicts is not believed to be there.
func TestCacheThatIsFull(t *testing.T) {
	needPair(t)
	r := startCaches(t)
	for _, e := range []*Engine{one, two} {
		config := scrape(t, e.URL())
		for label, v := range map[string]int{"num_gpu_blocks": e.Blocks(), "block_size": BlockSize, "kv_cache_size_tokens": e.Blocks() * BlockSize} {
			if config[fmt.Sprintf(`vllm:cache_config_info{%s="%d"}`, label, v)] != 1 {
				t.Errorf("%s does not tell that its %s is %d", e.Role, label, v)
			}
		}
		// Of its blocks it may tell for a moment while it makes room for others: hence some more.
		if k := r.cache(e.URL()); k.MaxExact < e.Blocks() || k.MaxExact > 2*e.Blocks() {
			t.Errorf("%s has %d blocks, the router's bound is %d", e.Role, e.Blocks(), k.MaxExact)
		}
		for _, w := range r.workers() {
			if w.URL == e.URL() && (w.Ranks[0].Blocks != e.Blocks() || w.Ranks[0].BlockSize != BlockSize) {
				t.Errorf("%s has %d blocks of %d, the router takes it to have %d of %d", e.Role, e.Blocks(), BlockSize, w.Ranks[0].Blocks, w.Ranks[0].BlockSize)
			}
		}
	}
	url := two.URL()
	const long = 28 // blocks of FewBlocks
	first := ofIDs(ids(long * BlockSize))
	first.on(url).good(t, r.url)
	r.holds(first, url, long*BlockSize)
	for range 2 {
		q := ofIDs(ids(long * BlockSize))
		q.on(url).good(t, r.url)
		r.holds(q, url, long*BlockSize)
	}
	left, _ := r.held(first, url)
	k := r.cache(url)
	if left >= long*BlockSize || k.Exact > FewBlocks {
		t.Errorf("after %d blocks more it is believed to hold %d tokens of the first prompt, and %+v", 2*long, left, k)
	}
	n := r.logged(first.on(url).good(t, r.url))
	if off := n.Chosen - *n.Reported; off < -1 || off > 1 {
		t.Errorf("%+v", n)
	}
	report.say(t, "of %d tokens %d are left after %d blocks more, the router believed %d", long*BlockSize, *n.Reported, 2*long, n.Chosen)
}
