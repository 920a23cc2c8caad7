package dispatch

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/policy"
	"github.com/sluice-router/sluice/internal/sim"
)

// aware gives a rig an index and the policy that goes by it.
func aware(o rigOptions) rigOptions {
	o.index, o.policy = kv.New(kv.Options{}), policy.CacheAware
	o.sim.Worker.CacheReport = true
	return o
}

// held is how many blocks of a prompt the ranks of a role are believed to hold, by worker.
func (r *rig) held(role admission.Role, route openai.Route, body string) map[string]int {
	r.t.Helper()
	p, err := openai.Peek(route, []byte(body), openai.PeekOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	defer p.Release()
	k := r.d.caches.hashPrompt(p, "sim-model", "", 1000, countedPrompt{})
	if k == nil {
		return nil
	}
	defer k.release()
	held := map[string]int{}
	for _, h := range r.d.caches.index.Match(k.sent.keys(), kv.Group(role), nil, nil) {
		held[h.Rank.Data().(*fleet.Rank).Worker().URL()] = h.Blocks
	}
	return held
}

// only is the one worker in held and its blocks.
func only(t *testing.T, held map[string]int) (url string, blocks int) {
	t.Helper()
	if len(held) != 1 {
		t.Fatalf("held by %v, want one worker", held)
	}
	for u, n := range held {
		url, blocks = u, n
	}
	return url, blocks
}

const longAnswer = "The answer is long enough to fill blocks of its own, so that the next turn can be told from this one. "

func turns(said ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"model":"sim-model","max_tokens":4,"messages":[{"role":"user","content":%q}`, words)
	for _, s := range said {
		fmt.Fprintf(&b, `,{"role":"assistant","content":%q},{"role":"user","content":"go on"}`, s)
	}
	return b.String() + `]}`
}

// TestTheNextTurnGoesWhereTheLastOneWas, because that rank holds its prompt and the answer.
func TestTheNextTurnGoesWhereTheLastOneWas(t *testing.T) {
	text := strings.Repeat(longAnswer, 20)
	quoted, _ := json.Marshal(text)
	event := func(delta string) string { return `data: {"choices":[{"index":0,"delta":` + delta + `}]}` + "\n\n" }
	for _, tc := range []struct{ name, extra, body, typ string }{
		{"whole", "", `{"choices":[{"index":0,"message":{"role":"assistant","content":` + string(quoted) + `},"finish_reason":"stop"}],"usage":{"prompt_tokens":500,"completion_tokens":300}}`, typeJSON},
		{"stream", `,"stream":true`, event(`{"role":"assistant","content":""}`) + strings.Repeat(event(`{"content":"`+longAnswer+`"}`), 20) + "data: [DONE]\n\n", typeEventStream},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, aware(rigOptions{sim: sim.Options{Regular: 4}}))
			for _, w := range r.sim.Workers() {
				w.SetFault(sim.Fault{Path: "/v1/chat/completions", Status: 200, Body: tc.body, ContentType: tc.typ})
			}
			first := turns()
			if a := r.do(t.Context(), "/v1/chat/completions", strings.TrimSuffix(first, "}")+tc.extra+"}"); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			r.waitRecord(0)
			_, prompt := only(t, r.held(admission.RoleRegular, openai.RouteChatCompletions, first))
			second := turns(text)
			holder, blocks := only(t, r.held(admission.RoleRegular, openai.RouteChatCompletions, second))
			if more := len(text)/kv.BlockBytes - 1; blocks < prompt+more {
				t.Errorf("of the second turn %d blocks are held, %d of them the first prompt's; want %d of the answer", blocks, prompt, more)
			}
			for _, w := range r.sim.Workers() {
				w.ClearFaults()
			}
			for i := range 3 {
				if a := r.do(t.Context(), "/v1/chat/completions", second); a.status != 200 {
					t.Fatalf("%d %s", a.status, a.body)
				}
				rec := r.waitRecord(i + 1)
				if rec.DecodeRank != holder || rec.Cache.Why != "holder" || rec.Cache.Best == 0 || rec.Cache.Chosen != rec.Cache.Best {
					t.Errorf("turn at %s, want %s: %+v", rec.DecodeRank, holder, rec.Cache)
				}
			}
			if n := r.counted("sluice_cache_choices_total", "role", "regular", "why", "holder"); n != 3 {
				t.Errorf("%v choices of a holder were counted", n)
			}
		})
	}
}

// TestWhatIsReportedIsRecorded shows the three numbers of one decision.
func TestWhatIsReportedIsRecorded(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts rigOptions
		role string
	}{
		{"aggregated", rigOptions{sim: sim.Options{Regular: 2}}, "regular"},
		{"legs together", pd(rigOptions{sim: sim.Options{Prefill: 2}}), "prefill"},
		{"legs in turn", vllm(sim.NIXL, rigOptions{sim: sim.Options{Prefill: 2}}), "prefill"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, aware(tc.opts))
			for range 2 {
				if a := r.do(t.Context(), "/v1/chat/completions", turns()); a.status != 200 {
					t.Fatalf("%d %s", a.status, a.body)
				}
				r.idle()
			}
			one, two := r.waitRecord(0).Cache, r.waitRecord(1).Cache
			if one.Why != "none" || one.Best != 0 || one.Reported > 0 {
				t.Errorf("the first: %+v", one)
			}
			if two.Why != "holder" || two.Best == 0 || two.Chosen != two.Best || two.Reported <= 0 {
				t.Errorf("the second: %+v", two)
			}
			if rec := r.waitRecord(1); rec.PromptTokens <= two.Reported || rec.OutputTokens != 4 {
				t.Errorf("%d tokens of the prompt, %d of the answer, %d reported as cached", rec.PromptTokens, rec.OutputTokens, two.Reported)
			}
			if n := r.counted("sluice_cache_tokens_total", "role", tc.role, "tokens", "reported"); n != float64(two.Reported+max(one.Reported, 0)) {
				t.Errorf("%v tokens were counted as reported", n)
			}
		})
	}
}

// TestRefusedLegsHoldNothing: what an engine did not accept it has not computed.
func TestRefusedLegsHoldNothing(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts rigOptions
		role admission.Role
	}{
		{"aggregated", rigOptions{sim: sim.Options{Regular: 1}}, admission.RoleRegular},
		{"legs together", pd(rigOptions{}), admission.RolePrefill},
		{"legs in turn", vllm(sim.NIXL, rigOptions{}), admission.RolePrefill},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, aware(tc.opts))
			for _, w := range r.sim.Workers() {
				if w.Role() != sim.Decode {
					w.SetFault(sim.Fault{Status: 500, Body: `{"error":{"message":"no","code":500}}`, Count: 1})
				}
			}
			if a := r.do(t.Context(), "/v1/chat/completions", turns()); a.status != 500 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			r.idle()
			if held := r.held(tc.role, openai.RouteChatCompletions, turns()); len(held) != 0 {
				t.Errorf("held after a refusal: %v", held)
			}
			if a := r.do(t.Context(), "/v1/chat/completions", turns()); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			r.idle()
			if held := r.held(tc.role, openai.RouteChatCompletions, turns()); len(held) != 1 {
				t.Errorf("held after an answer: %v", held)
			}
		})
	}
}

// TestPrefillHoldsThePromptThatDecodeRefused: it has computed it.
func TestPrefillHoldsThePromptThatDecodeRefused(t *testing.T) {
	for name, opts := range map[string]rigOptions{"legs together": pd(rigOptions{}), "legs in turn": vllm(sim.NIXL, rigOptions{})} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, aware(opts))
			d := r.sim.Decode(0)
			d.SetFault(sim.Fault{Status: 500, Body: `{"error":{"message":"no","code":500}}`, Count: 1})
			if r.d.some(func(e engine.Dialect) bool { return e.FansOut() }) { // the legs are sent at once
				p := r.sim.Prefill(0)
				p.SetFault(sim.Fault{Path: "/v1/chat/completions", Status: 200, ContentType: typeJSON, Body: `{"choices":[]}`})
				d.Freeze()
				go func() {
					r.until("prefill is over", func() bool { return r.counted("sluice_prefill_leg_seconds") == 1 })
					d.Thaw()
				}()
			}
			if a := r.do(t.Context(), "/v1/chat/completions", turns()); a.status != 500 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			r.idle()
			if held := r.held(admission.RolePrefill, openai.RouteChatCompletions, turns()); len(held) != 1 {
				t.Errorf("held: %v", held)
			}
		})
	}
}

// TestSiblingsFollowTheFirst: a prompt counts as held from when it is sent, so that others
// with its beginning do not wait for an answer to find it.
func TestSiblingsFollowTheFirst(t *testing.T) {
	r := newRig(t, aware(rigOptions{sim: sim.Options{Regular: 3}}))
	for _, w := range r.sim.Workers() {
		w.Freeze()
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan answer, 1)
	go func() { done <- r.do(ctx, "/v1/chat/completions", turns()) }()
	r.until("the prompt is believed to be held", func() bool {
		return len(r.held(admission.RoleRegular, openai.RouteChatCompletions, turns())) == 1
	})
	for _, w := range r.sim.Workers() {
		w.Thaw()
	}
	if a := <-done; a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestDecodeHoldsWhatItIsHandedOver only where a later request may run whole there; and a
// prefill rank never holds the answer.
func TestDecodeHoldsWhatItIsHandedOver(t *testing.T) {
	for _, bypass := range []bool{false, true} {
		r := newRig(t, aware(vllm(sim.NIXL, rigOptions{config: func(c *config.Config) {
			if bypass {
				c.ConditionalDisagg = config.ConditionalDisagg{Enabled: true, Policy: config.ConditionalISL, EffISL: 1, EffISLRatio: 0.5}
			}
		}})))
		text := strings.Repeat(longAnswer, 20)
		quoted, _ := json.Marshal(text)
		r.sim.Decode(0).SetFault(sim.Fault{Path: "/v1/chat/completions", Status: 200, ContentType: typeJSON,
			Body: `{"choices":[{"index":0,"message":{"role":"assistant","content":` + string(quoted) + `},"finish_reason":"stop"}]}`})
		if a := r.do(t.Context(), "/v1/chat/completions", turns()); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		r.idle()
		_, prefill := only(t, r.held(admission.RolePrefill, openai.RouteChatCompletions, turns(text)))
		if most := len(words)/kv.BlockBytes + 1; prefill > most {
			t.Errorf("the prefill rank holds %d blocks, more than the prompt's %d", prefill, most)
		}
		decode := r.held(admission.RoleDecode, openai.RouteChatCompletions, turns(text))
		if !bypass {
			if len(decode) != 0 {
				t.Errorf("decode: %v", decode)
			}
			continue
		}
		if _, n := only(t, decode); n < prefill+len(text)/kv.BlockBytes-1 {
			t.Errorf("decode holds %d blocks, prefill %d", n, prefill)
		}
	}
}

// TestLongPromptsBypassPrefillWhenDecodeHoldsThem: conditional disaggregation by the length
// that is left to be computed.
func TestLongPromptsBypassPrefillWhenDecodeHoldsThem(t *testing.T) {
	r := newRig(t, aware(vllm(sim.NIXL, rigOptions{sim: sim.Options{Decode: 3}, config: func(c *config.Config) {
		c.ConditionalDisagg = config.ConditionalDisagg{Enabled: true, Policy: config.ConditionalISL, EffISL: 100, EffISLRatio: 0.7}
	}})))
	other := strings.Replace(turns(), "some words", "other words", 1)
	k := r.d.caches.hashPrompt(mustPeek(t, other), "sim-model", "", 1000, countedPrompt{})
	defer k.release()
	for _, w := range r.fleet.List() { // what prefill has cached does not count
		if w.Role() == admission.RolePrefill {
			r.d.caches.index.Record(w.Ranks()[0].Approx(), k.sent.keys())
		}
	}
	for i, tc := range []struct {
		body   string
		bypass bool
	}{{turns(), false}, {turns("yes"), true}, {other, false}, {strings.Replace(turns("no"), "go on", "stop", 1), true}} {
		if a := r.do(t.Context(), "/v1/chat/completions", tc.body); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		rec := r.waitRecord(i)
		if bypassed := rec.PrefillRank == ""; bypassed != tc.bypass {
			t.Errorf("request %d: bypassed %t, %+v", i, bypassed, rec.Cache)
		}
		if tc.bypass && (rec.Cache.Why != "holder" || rec.DecodeRank != r.waitRecord(0).DecodeRank) {
			t.Errorf("request %d at %s: %+v", i, rec.DecodeRank, rec.Cache)
		}
		r.idle()
	}
}

// TestCachedTokensCountBeforeTheClass: what is left to be computed is known when the request
// comes to the gate, and no more is believed than the whole prompt.
func TestCachedTokensCountBeforeTheClass(t *testing.T) {
	r := newRig(t, aware(rigOptions{sim: sim.Options{Regular: 2}}))
	for range 2 {
		if a := r.do(t.Context(), "/v1/chat/completions", turns()); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	p, err := openai.Peek(openai.RouteChatCompletions, []byte(turns()), openai.PeekOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x := &request{d: &r.d.services, call: &Call{Route: openai.RouteChatCompletions, Peeked: p, Arrived: time.Now()}}
	x.refs.Store(1)
	x.bodyRefs.Store(1)
	defer x.unref()
	if f := place(x); f != nil {
		t.Fatal(f)
	}
	if k := x.ticket; k.CachedTokens < k.PromptTokens*8/10 || k.CachedTokens > k.PromptTokens || k.Matcher == nil {
		t.Errorf("%d of %d tokens cached", k.CachedTokens, k.PromptTokens)
	}
	h := x.ticket.Hints[admission.DecodeLeg]
	if h.PromptTokens != x.ticket.PromptTokens || h.Holders[0].Tokens != x.ticket.CachedTokens || h.Holders[1].Rank != nil {
		t.Errorf("%+v", h)
	}
}

// TestOnlyUsableRanksAreHinted: of the ranks that hold a prompt, those that the request may
// not use do not take the place of those that it may.
func TestOnlyUsableRanksAreHinted(t *testing.T) {
	r := newRig(t, aware(rigOptions{sim: sim.Options{Regular: 7}}))
	k := r.d.caches.hashPrompt(mustPeek(t, turns()), "sim-model", "", 1000, countedPrompt{})
	defer k.release()
	workers := r.fleet.List()
	for i, w := range workers {
		r.d.caches.index.Record(w.Ranks()[0].Approx(), k.sent.keys()[:len(k.sent.keys())-i])
	}
	last := workers[len(workers)-1]
	if a := r.chat("", HeaderTargetWorker, last.URL()); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a := r.do(t.Context(), "/v1/chat/completions", turns(), HeaderTargetWorker, last.URL()); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if rec := r.waitRecord(1); rec.DecodeRank != last.URL() || rec.Cache.Why != "holder" || rec.Cache.Best == 0 {
		t.Errorf("%s: %+v", rec.DecodeRank, rec.Cache)
	}
}

// TestRequestsThatBeginAlikeAreCounted, each once however often it is looked up, and apart from
// those that begin in another way.
func TestRequestsThatBeginAlikeAreCounted(t *testing.T) {
	r := newRig(t, aware(rigOptions{sim: sim.Options{Regular: 2}}))
	rank := r.fleet.List()[0].Ranks()[0]
	target := r.gate.Resolve(admission.TargetSpec{Model: "sim-model", Shape: admission.Aggregated})
	sharing := func(body string) int64 {
		k := r.d.caches.hashPrompt(mustPeek(t, body), "sim-model", "", 1000, countedPrompt{})
		defer k.release()
		r.d.caches.index.Record(rank.Approx(), k.sent.keys())
		var hints [2]admission.Hint
		for range 3 {
			k.hint(target, &hints)
		}
		return int64(hints[admission.DecodeLeg].Sharing)
	}
	other := strings.Replace(turns(), words[:8], "Else way", 1)
	for i := range int64(3) {
		if got := sharing(turns()); got != i {
			t.Errorf("%d others, want %d", got, i)
		}
	}
	if got := sharing(other); got != 0 {
		t.Errorf("%d others of another beginning", got)
	}
}

func mustPeek(t *testing.T, body string) *openai.Peeked {
	t.Helper()
	p, err := openai.Peek(openai.RouteChatCompletions, []byte(body), openai.PeekOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestAddHolder keeps the most, each rank once, in order.
func TestAddHolder(t *testing.T) {
	ranks := make([]*admission.Rank, 6)
	for i := range ranks {
		ranks[i] = new(admission.Rank)
	}
	f := func(want string, add ...int64) { // pairs of a rank and its tokens
		t.Helper()
		var list [admission.MaxHolders]admission.Holder
		for i := 0; i < len(add); i += 2 {
			addHolder(&list, admission.Holder{Rank: ranks[add[i]], Tokens: add[i+1]})
		}
		var got []string
		for _, h := range list {
			for i, r := range ranks {
				if h.Rank == r {
					got = append(got, fmt.Sprint(i, ":", h.Tokens))
				}
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%v: %s, want %s", add, s, want)
		}
	}
	f("0:5", 0, 5)
	f("1:9 0:5", 0, 5, 1, 9)
	f("0:7 1:6", 0, 5, 1, 6, 0, 7)
	f("1:6 0:5", 0, 5, 1, 6, 0, 3)
	f("3:9 2:8 1:7 0:6", 0, 6, 1, 7, 2, 8, 3, 9, 4, 5)
	f("4:10 3:9 2:8 1:7", 0, 6, 1, 7, 2, 8, 3, 9, 4, 10)
	f("0:10 3:9 2:8 1:7", 0, 6, 1, 7, 2, 8, 3, 9, 0, 10)
}

// TestASilentEngineThatToldBeforeHasNothingCached: SGLang leaves a count of zero out. An answer
// without any counts, as most streams are, says nothing.
func TestASilentEngineThatToldBeforeHasNothingCached(t *testing.T) {
	for name, opts := range map[string]rigOptions{
		"aggregated": {sim: sim.Options{Regular: 1}}, "legs together": pd(rigOptions{}), "legs in turn": vllm(sim.NIXL, rigOptions{}),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, aware(opts))
			usage := func(details string) string {
				return `,"usage":{"prompt_tokens":500,"completion_tokens":1,"prompt_tokens_details":` + details + `}`
			}
			workers := r.sim.Workers()
			answers := workers[len(workers)-1]
			for i, step := range []struct {
				usage    string
				reported int64
			}{{usage("null"), -1}, {usage(`{"cached_tokens":400}`), 400}, {"", -1}, {usage("null"), 0}} {
				for _, w := range workers {
					w.ClearFaults()
					w.SetFault(sim.Fault{Path: "/v1/chat/completions", Status: 200, ContentType: typeJSON,
						Body: `{"choices":[{"index":0,"message":{"role":"assistant","content":"x"}}],` +
							`"kv_transfer_params":{"do_remote_prefill":true,"remote_engine_id":"e","remote_block_ids":[1],"remote_host":"h","remote_port":1}` + step.usage + `}`})
				}
				prefills := r.counted("sluice_prefill_leg_seconds")
				answers.Freeze() // so that prefill is over before decode is
				done := make(chan answer, 1)
				go func() { done <- r.do(t.Context(), "/v1/chat/completions", turns()) }()
				if name == "legs together" {
					r.until("prefill is over", func() bool { return r.counted("sluice_prefill_leg_seconds") > prefills })
				}
				answers.Thaw()
				if a := <-done; a.status != 200 {
					t.Fatalf("%d %s", a.status, a.body)
				}
				if c := r.waitRecord(i).Cache; c.Reported != step.reported || i > 0 && c.Chosen == 0 {
					t.Errorf("request %d: %+v", i, c)
				}
			}
		})
	}
}

// TestWhatEnginesReportIsBounded: a count that no prompt has is none, and not more of a prompt
// is found than there is. Of several samples the engine's own sharing is not what the index
// was asked for.
func TestWhatEnginesReportIsBounded(t *testing.T) {
	r := newRig(t, aware(rigOptions{sim: sim.Options{Regular: 1}}))
	w := r.sim.Workers()[0]
	counted := func() float64 {
		m := &r.d.services.metrics.caches
		return testutil.ToFloat64(m.of(admission.RoleRegular).reported)
	}
	for i, step := range []struct {
		told, field string
		reported    int64
		counted     float64
	}{
		{"9223372036854775807", "", -1, 0},
		{"300", "", 300, 300},
		{"501", "", 500, 800},
		{"4611686018427387904", "", 0, 800},
		{"900", `"n":2,`, 500, 800},
	} {
		w.SetFault(sim.Fault{Path: "/v1/chat/completions", Status: 200, ContentType: typeJSON,
			Body: `{"choices":[{"index":0,"message":{"role":"assistant","content":"x"}}],"usage":{"prompt_tokens":500,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":` + step.told + `}}}`})
		body := strings.Replace(turns(), "{", "{"+step.field, 1)
		if a := r.do(t.Context(), "/v1/chat/completions", body); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		if c := r.waitRecord(i).Cache; c.Reported != step.reported || counted() != step.counted {
			t.Errorf("%s: %+v, counted %g", step.told, c, counted())
		}
		w.ClearFaults()
	}
}

// TestStreamsWithoutUsageReportNothing: that is no report of an empty cache, nor is an answer
// of prefill that has not come when decode's is over.
func TestStreamsWithoutUsageReportNothing(t *testing.T) {
	whole, pair := rigOptions{sim: sim.Options{Regular: 1}}, pd(rigOptions{})
	late := sim.Fault{On: sim.Prefill, FirstByte: time.Second}
	for _, tc := range []struct {
		what  string
		o     rigOptions
		body  string
		fault *sim.Fault
	}{
		{"whole", whole, `"stream":true,`, nil},
		{"pair", pair, `"stream":true,`, nil},
		{"pair, prefill is late", pair, "", &late},
		{"pair, samples", pair, `"n":2,"stream":true,`, nil},
	} {
		o := aware(tc.o)
		r := newRig(t, o)
		prompt := turns(strings.Repeat("Why is the sky blue? ", 100))
		for i, body := range []string{prompt, prompt, "{" + tc.body + prompt[1:]} {
			if i == 2 && tc.fault != nil {
				for _, w := range r.sim.Workers() {
					w.SetFault(*tc.fault)
				}
			}
			if a := r.do(t.Context(), "/v1/chat/completions", body); a.status != 200 {
				t.Fatalf("%s: %d %s", tc.what, a.status, a.body)
			}
		}
		if c := r.waitRecord(1).Cache; c.Reported < 400 {
			t.Errorf("%s, with usage: %+v", tc.what, c)
		}
		if c := r.waitRecord(2).Cache; c.Reported != -1 || c.Chosen < 400 {
			t.Errorf("%s, without: %+v", tc.what, c)
		}
	}
}

// TestTheEnginesCountOfAnAnswerIsLogged, and not that of a stream's events, some of which have
// no token.
func TestTheEnginesCountOfAnAnswerIsLogged(t *testing.T) {
	r := newRig(t, aware(pd(rigOptions{config: func(c *config.Config) { c.Admission.ReserveOutputTokens = config.ReserveAuto }})))
	body := strings.Replace(turns(), "{", `{"stream":true,"stream_options":{"include_usage":true},`, 1)
	if a := r.do(t.Context(), "/v1/chat/completions", body); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if rec := r.waitRecord(0); rec.OutputTokens != 4 || rec.Usage.CompletionTokens != 4 {
		t.Errorf("%d tokens, the engine reports %d", rec.OutputTokens, rec.Usage.CompletionTokens)
	}
}

// TestKeysAreLoggedWhateverThePolicyIs, and nothing is looked up for that.
func TestKeysAreLoggedWhateverThePolicyIs(t *testing.T) {
	for _, logs := range []bool{false, true} {
		r := newRig(t, rigOptions{sim: sim.Options{Regular: 2}, index: kv.New(kv.Options{}), config: func(c *config.Config) {
			c.Routing.Policy, c.Log.AccessPrefixHashes = config.PolicyRoundRobin, logs
		}})
		body := strings.Replace(turns(), words, words+words, 1)
		for range 2 {
			if a := r.do(t.Context(), "/v1/chat/completions", body); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
		one, two := r.waitRecord(0), r.waitRecord(1)
		if n := len(one.PromptKeys); logs != (n > 0) || shared(one.PromptKeys, two.PromptKeys) != n {
			t.Errorf("logged %t: %d and %d keys", logs, n, len(two.PromptKeys))
		}
		if two.Cache.Why != "" || two.DecodeRank == one.DecodeRank {
			t.Errorf("looked up: %+v", two)
		}
	}
}

// TestAWaitingRequestIsLookedUpAgain: what comes to be held while it waits counts.
func TestAWaitingRequestIsLookedUpAgain(t *testing.T) {
	r := newRig(t, aware(pd(rigOptions{limits: admission.Limits{PrefillSlots: 1, QueueSize: 10, QueueTimeout: patience}})))
	p := r.sim.Prefill(0)
	p.Freeze()
	done := make(chan answer, 2)
	go func() { done <- r.chat("") }()
	r.until("the slot is taken", func() bool {
		return slices.ContainsFunc(r.gate.Stats().Ranks, func(s admission.RankStats) bool { return s.PrefillSlots == 1 })
	})
	go func() { done <- r.do(t.Context(), "/v1/chat/completions", turns()) }()
	r.until("one waits", func() bool { return r.gate.Waiting() == 1 })
	k := r.d.caches.hashPrompt(mustPeek(t, turns()), "sim-model", "", 1000, countedPrompt{})
	defer k.release()
	found := r.d.caches.index.Stats().Found
	for _, w := range r.fleet.List() {
		r.d.caches.index.Record(w.Ranks()[0].Approx(), k.sent.keys())
	}
	r.until("it was looked up again", func() bool { return r.d.caches.index.Stats().Found > found })
	p.Thaw()
	for range 2 {
		if a := <-done; a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	// The first one, of which nothing is held, may end after it.
	if a, b := r.waitRecord(0).Cache, r.waitRecord(1).Cache; max(a.Best, b.Best) == 0 || a.Why != "holder" && b.Why != "holder" {
		t.Errorf("%+v, %+v", a, b)
	}
}

// TestARetryIsLookedUpAgain: what the first attempt found may have changed since.
func TestARetryIsLookedUpAgain(t *testing.T) {
	r := newRig(t, aware(rigOptions{sim: sim.Options{Regular: 2}}))
	x := &exchange{request: request{d: &r.d.services, call: &Call{Route: openai.RouteChatCompletions, Peeked: mustPeek(t, turns()), Arrived: time.Now()}}}
	x.refs.Store(1)
	defer x.unref()
	if f := place(&x.request); f != nil {
		t.Fatal(f)
	}
	holders := &x.ticket.Hints[admission.DecodeLeg].Holders
	if holders[0].Rank != nil {
		t.Fatalf("before: %+v", holders)
	}
	first, other := r.fleet.List()[0].Ranks()[0], r.fleet.List()[1].Ranks()[0]
	r.d.caches.index.Record(other.Approx(), x.keys.sent.keys())
	x.ticket.Decode = first.Admission()
	x.prepareRetry(&failure{leg: admission.DecodeLeg, rank: first})
	x.ticket.Decode = nil
	if holders[0].Rank != other.Admission() || holders[0].Tokens == 0 {
		t.Errorf("then: %+v", holders)
	}
}

// TestTokenIDsAreLookedUpByWhatEnginesTell: the engine's events name the blocks of a prompt of
// token ids, whoever sent it, and what was sent counts only where there are none.
func TestTokenIDsAreLookedUpByWhatEnginesTell(t *testing.T) {
	for _, events := range []bool{true, false} {
		o := aware(rigOptions{sim: sim.Options{Regular: 2}})
		o.sim.Worker.Backend = sim.VLLM
		if events {
			o.sim.Worker.KVEvents = &sim.KVEvents{}
		}
		o.specs = func(_ *sim.Worker, s *fleet.WorkerSpec) { s.Backend = "vllm" }
		r := newRig(t, o)
		body := `{"model":"sim-model","max_tokens":2,"prompt":[` + idList(400, ",") + `]}`
		if events {
			r.until("the streams are live", func() bool {
				return !slices.ContainsFunc(r.fleet.List(), func(w *fleet.Worker) bool { return w.Ranks()[0].Exact() == nil })
			})
			// Past the router.
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.sim.Workers()[1].URL()+"/v1/completions", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", typeJSON)
			resp, err := r.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			r.until("the engine has told of the blocks", func() bool {
				for _, w := range r.fleet.List() {
					if w.URL() == r.sim.Workers()[1].URL() && w.Ranks()[0].ExactScope().Block > 0 && r.d.caches.index.Stats().Held > 0 {
						return true
					}
				}
				return false
			})
			r.d.caches.mu.Lock()
			clear(r.d.caches.scopes)
			r.d.caches.mu.Unlock()
		}
		for range 2 {
			if a := r.do(t.Context(), "/v1/completions", body); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
		one, two := r.waitRecord(0), r.waitRecord(1)
		if events && (one.DecodeRank != r.sim.Workers()[1].URL() || one.Cache.Why != "holder") {
			t.Errorf("with events at %s: %+v", one.DecodeRank, one.Cache)
		}
		if !events && one.Cache.Why != "none" {
			t.Errorf("without: %+v", one.Cache)
		}
		if two.DecodeRank != one.DecodeRank || two.Cache.Why != "holder" || two.Cache.Best < 300 || two.Cache.Best > 400 {
			t.Errorf("events %t, the second: %+v", events, two.Cache)
		}
	}
}

// TestTokenIDsOfWhichAnEngineTellsAPart: the first blocks were stored before the router came,
// and are not told again. Then prompts are known as they were sent.
func TestTokenIDsOfWhichAnEngineTellsAPart(t *testing.T) {
	o := aware(rigOptions{sim: sim.Options{Regular: 2}})
	o.sim.Worker.Backend, o.sim.Worker.KVEvents = sim.VLLM, &sim.KVEvents{}
	o.specs = func(_ *sim.Worker, s *fleet.WorkerSpec) { s.Backend = "vllm" }
	r := newRig(t, o)
	r.until("the streams are live", func() bool {
		return !slices.ContainsFunc(r.fleet.List(), func(w *fleet.Worker) bool { return w.Ranks()[0].Exact() == nil })
	})
	for _, w := range r.sim.Workers() {
		if err := w.AddKVLie(sim.KVLie{Kind: "lost-parent"}); err != nil {
			t.Fatal(err)
		}
	}
	body := `{"model":"sim-model","max_tokens":2,"prompt":[` + idList(400, ",") + `]}`
	for i := range 3 {
		if a := r.do(t.Context(), "/v1/completions", body); a.status != 200 {
			t.Fatalf("%d %s", a.status, a.body)
		}
		first, rec := r.waitRecord(0), r.waitRecord(i)
		if i > 0 && (rec.DecodeRank != first.DecodeRank || rec.Cache.Why != "holder" || rec.Cache.Best < 300) {
			t.Errorf("at %s, first at %s: %+v", rec.DecodeRank, first.DecodeRank, rec.Cache)
		}
		r.until("the engine has told of blocks after unknown ones", func() bool {
			return slices.ContainsFunc(r.fleet.List(), func(w *fleet.Worker) bool { return w.URL() == first.DecodeRank && w.Ranks()[0].ExactMisses() })
		})
		r.d.caches.mu.Lock()
		clear(r.d.caches.scopes) // asked again at once
		r.d.caches.mu.Unlock()
	}
}

// TestTokenIDsAreFoundByAnyNameOfTheModel: an engine that serves a model by several names has
// one cache for all of them, and its events name none.
func TestTokenIDsAreFoundByAnyNameOfTheModel(t *testing.T) {
	o := aware(rigOptions{sim: sim.Options{Regular: 2}})
	o.sim.Worker.Backend, o.sim.Worker.KVEvents, o.sim.Worker.Names = sim.VLLM, &sim.KVEvents{}, []string{"second"}
	o.specs = func(_ *sim.Worker, s *fleet.WorkerSpec) { s.Backend = "vllm" }
	r := newRig(t, o)
	r.until("the streams are live", func() bool {
		return !slices.ContainsFunc(r.fleet.List(), func(w *fleet.Worker) bool { return w.Ranks()[0].Exact() == nil })
	})
	body := `{"model":"%s","max_tokens":2,"prompt":[` + idList(400, ",") + `]}`
	for i, model := range []string{"sim-model", "second", "sim-model"} {
		if a := r.do(t.Context(), "/v1/completions", fmt.Sprintf(body, model)); a.status != 200 {
			t.Fatalf("%s: %d %s", model, a.status, a.body)
		}
		rec := r.waitRecord(i)
		if i > 0 && (rec.DecodeRank != r.waitRecord(0).DecodeRank || rec.Cache.Why != "holder" || rec.Cache.Best < 300) {
			t.Errorf("%s at %s: %+v", model, rec.DecodeRank, rec.Cache)
		}
		r.until("the engine has told of the blocks", func() bool {
			return slices.ContainsFunc(r.fleet.List(), func(w *fleet.Worker) bool {
				e := w.Ranks()[0].Exact()
				return e != nil && e.Held() >= 20
			})
		})
		r.d.caches.mu.Lock()
		clear(r.d.caches.scopes)
		r.d.caches.mu.Unlock()
	}
}

// TestOfAListThePromptThatIsKnownCounts: the first one, and the others as not cached.
func TestOfAListThePromptThatIsKnownCounts(t *testing.T) {
	r := newRig(t, aware(rigOptions{sim: sim.Options{Regular: 1}}))
	one := fmt.Sprintf("%q", words)
	list := `{"model":"sim-model","max_tokens":2,"prompt":[` + one + `,` + one + `]}`
	if a := r.do(t.Context(), "/v1/completions", `{"model":"sim-model","max_tokens":2,"prompt":`+one+`}`); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if a := r.do(t.Context(), "/v1/completions", list); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	p, err := openai.Peek(openai.RouteCompletions, []byte(list), openai.PeekOptions{})
	if err != nil {
		t.Fatal(err)
	}
	x := &request{d: &r.d.services, call: &Call{Route: openai.RouteCompletions, Peeked: p, Arrived: time.Now()}}
	x.refs.Store(1)
	defer x.unref()
	if f := place(x); f != nil {
		t.Fatal(f)
	}
	h := x.ticket.Hints[admission.DecodeLeg]
	if h.PromptTokens != x.ticket.PromptTokens || h.Holders[0].Tokens < h.PromptTokens/3 || h.Holders[0].Tokens > h.PromptTokens/2 {
		t.Errorf("%+v of %d", h, x.ticket.PromptTokens)
	}
}
