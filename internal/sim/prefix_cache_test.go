package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// chainOf is a prompt of blocks with these keys.
func chainOf(size int, keys ...uint64) *prompt {
	return &prompt{tokens: len(keys)*size + 1, blocks: keys}
}

// The cache must be an LRU of exactly its capacity, in which the last block of a chain
// counts as used before the first.
func TestPrefixCacheIsAnExactLRU(t *testing.T) {
	const capacity, size = 40, 4
	r := rand.New(rand.NewPCG(1, 2))
	c := newPrefixCache(capacity, size, nil)
	var model []uint64 // least recently used first
	use := func(keys []uint64) {
		for _, k := range slices.Backward(keys) {
			if i := slices.Index(model, k); i >= 0 {
				model = slices.Delete(model, i, i+1)
			}
			model = append(model, k)
		}
	}
	for range 3000 {
		chain := make([]uint64, 1+r.IntN(12))
		for i := range chain {
			chain[i] = uint64(i*1000 + min(i+1, 2)*r.IntN(4)) // chains share blocks, also behind differing ones
		}
		p := chainOf(size, chain...)
		if r.IntN(2) == 0 {
			n := 0
			for n < len(chain) && slices.Contains(model, chain[n]) {
				n++
			}
			use(chain[:n])
			if got := c.match(p, &cacheScope{}); got != n*size {
				t.Fatalf("matched %d tokens of %v, want %d", got, chain, n*size)
			}
		} else {
			c.store(p, &cacheScope{})
			use(chain)
			model = model[max(0, len(model)-capacity):]
		}
		got := []uint64{}
		for b := c.ends.next; b != &c.ends; b = b.next {
			got = append(got, b.key)
		}
		if !slices.Equal(got, model) || len(c.blocks) != len(model) {
			t.Fatalf("the cache holds %v, want %v", got, model)
		}
	}
	c.store(chainOf(size, slices.Repeat([]uint64{7}, 1)...), &cacheScope{})
	long := make([]uint64, 3*capacity)
	for i := range long {
		long[i] = uint64(1<<20 + i)
	}
	c.store(chainOf(size, long...), &cacheScope{})
	if got := c.match(chainOf(size, long...), &cacheScope{}); got != capacity*size || c.held() != capacity {
		t.Errorf("%d tokens of a prompt longer than the cache, which holds %d", got, c.held())
	}
}

// A prompt of whole blocks must have its last one computed: the engine needs the last
// token's output.
func TestLastTokenIsNeverCached(t *testing.T) {
	c := newPrefixCache(10, 4, nil)
	p := &prompt{tokens: 12, blocks: []uint64{1, 2, 3}}
	c.store(p, &cacheScope{})
	if n := c.match(p, &cacheScope{}); n != 8 {
		t.Errorf("%d of 12 tokens were cached, want 8", n)
	}
}

// Each API must tell how many tokens of a repeated prompt were cached, in its shape,
// and only what was not may be computed.
func TestRepeatedPromptIsCached(t *testing.T) {
	text := strings.Repeat("the same long beginning ", 20)
	quoted, _ := json.Marshal(text)
	ids := strings.TrimSuffix(strings.Repeat("17,18,19,", 40), ",")
	for _, tc := range []struct {
		name, path, body string
		backend          Backend
		first            int // what an answer says with no token cached
	}{
		{"vllm chat", chatPath, `{"messages":[{"role":"user","content":` + string(quoted) + `}],"max_tokens":2}`, VLLM, 0},
		{"vllm chat streamed", chatPath, `{"messages":[{"role":"user","content":` + string(quoted) + `}],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`, VLLM, 0},
		{"vllm completions", "/v1/completions", `{"prompt":` + string(quoted) + `,"max_tokens":2}`, VLLM, 0},
		{"vllm token ids", "/v1/completions", `{"prompt":[` + ids + `],"max_tokens":2}`, VLLM, 0},
		{"vllm responses", "/v1/responses", `{"input":` + string(quoted) + `,"max_output_tokens":2}`, VLLM, 0},
		{"vllm responses streamed", "/v1/responses", `{"input":` + string(quoted) + `,"max_output_tokens":2,"stream":true}`, VLLM, 0},
		{"vllm messages", "/v1/messages", `{"model":"sim-model","messages":[{"role":"user","content":` + string(quoted) + `}],"max_tokens":2}`, VLLM, 0},
		{"vllm messages streamed", "/v1/messages", `{"model":"sim-model","messages":[{"role":"user","content":` + string(quoted) + `}],"max_tokens":2,"stream":true}`, VLLM, 0},
		{"sglang chat", chatPath, `{"messages":[{"role":"user","content":` + string(quoted) + `}],"max_tokens":2}`, SGLang, -1},
		{"sglang chat streamed", chatPath, `{"messages":[{"role":"user","content":` + string(quoted) + `}],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`, SGLang, -1},
		{"sglang chat of token ids", chatPath, `{"messages":[],"input_ids":[` + ids + `],"max_tokens":2}`, SGLang, -1},
		{"sglang completions", "/v1/completions", `{"prompt":` + string(quoted) + `,"max_tokens":2}`, SGLang, -1},
		{"sglang messages", "/v1/messages", `{"model":"sim-model","messages":[{"role":"user","content":` + string(quoted) + `}],"max_tokens":2}`, SGLang, 0},
		{"generate", "/generate", `{"text":` + string(quoted) + `}`, SGLang, 0},
		{"generate streamed", "/generate", `{"text":` + string(quoted) + `,"stream":true}`, SGLang, 0},
		{"generate of token ids", "/generate", `{"input_ids":[` + ids + `]}`, SGLang, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: tc.backend, CacheReport: true, HealthDelay: -1}})
			w, c := f.Regular(0), client(t)
			prompt, cached := reported(t, post(testContext(t), c, w.URL()+tc.path, tc.body))
			if cached != tc.first {
				t.Errorf("the first answer has %d cached tokens, want %d", cached, tc.first)
			}
			if n := w.Stats().PromptTokens; n != int64(prompt) {
				t.Errorf("%d tokens were computed of %d", n, prompt)
			}
			again, cached := reported(t, post(testContext(t), c, w.URL()+tc.path, tc.body))
			if want := (prompt - 1) / 16 * 16; again != prompt || cached != want {
				t.Errorf("%d of %d tokens were cached, want %d", cached, again, want)
			}
			if n := w.Stats().PromptTokens; n != int64(prompt+prompt-cached) {
				t.Errorf("%d tokens were computed, want %d", n, 2*prompt-cached)
			}
			if n := w.Ranks()[0].CachedBlocks; n < prompt/16 || n != w.CachedBlocks(0) {
				t.Errorf("%d blocks are cached of %d tokens", n, prompt)
			}
			if r := w.Requests(); r[0].Cached != 0 || r[1].Cached != cached || w.Stats().CachedTokens != int64(cached) {
				t.Errorf("the log has %d and %d cached tokens, the counters %d", r[0].Cached, r[1].Cached, w.Stats().CachedTokens)
			}
		})
	}
}

// Without the option nothing but SGLang's own API tells of cached tokens.
func TestCachedTokensAreToldOnRequest(t *testing.T) {
	for _, b := range []Backend{SGLang, VLLM} {
		f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: b, HealthDelay: -1}})
		w, c := f.Regular(0), client(t)
		for range 2 {
			if _, cached := reported(t, post(testContext(t), c, w.URL()+"/v1/completions", `{"prompt":"`+strings.Repeat("word ", 50)+`","max_tokens":2}`)); cached != -1 {
				t.Errorf("%s tells of %d cached tokens", b, cached)
			}
		}
		if w.Stats().CachedTokens == 0 {
			t.Errorf("%s has cached nothing", b)
		}
	}
}

// The next turn of a conversation must find the turn before it, the answer included.
func TestNextTurnFindsTheAnswer(t *testing.T) {
	for _, b := range []Backend{SGLang, VLLM} {
		f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: b, CacheReport: true, HealthDelay: -1}})
		w, c := f.Regular(0), client(t)
		talk := `[{"role":"user","content":"short"}`
		answer := content(t, post(testContext(t), c, w.URL()+chatPath, `{"messages":`+talk+`],"max_tokens":200}`).body)
		talk += `,{"role":"assistant","content":"` + answer + `"},{"role":"user","content":"and then?"}`
		prompt, cached := reported(t, post(testContext(t), c, w.URL()+chatPath, `{"messages":`+talk+`],"max_tokens":2}`))
		if least := len(answer)/4 - 32; least < 100 || cached < least || cached >= prompt {
			t.Errorf("%s: %d of %d tokens were cached after an answer of %d bytes", b, cached, prompt, len(answer))
		}
	}
}

// Salts and adapters must not share blocks, and two prompts must share what they begin
// with, no more.
func TestScopesOfThePrefixCache(t *testing.T) {
	const head = `"prompt":"`
	long := strings.Repeat("a beginning of prompts, ", 16)
	for _, b := range []Backend{SGLang, VLLM} {
		f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: b, CacheReport: true, Adapters: []string{"lora"}, HealthDelay: -1}})
		w, c := f.Regular(0), client(t)
		for _, ask := range []struct {
			body   string
			cached bool
		}{
			{`{"model":"sim-model",` + head + long + `one"}`, false},
			{`{"model":"sim-model",` + head + long + `two"}`, true},
			{`{"model":"sim-model",` + head + "x" + long + `two"}`, false},
			{`{"model":"lora",` + head + long + `one"}`, false},
			{`{"model":"lora",` + head + long + `two"}`, true},
			{`{"model":"sim-model","cache_salt":"tenant-7",` + head + long + `one"}`, false},
			{`{"model":"sim-model","cache_salt":"tenant-8",` + head + long + `one"}`, false},
			{`{"model":"sim-model",` + head + long + `one","cache_salt":"tenant-7"}`, true},
		} {
			prompt, cached := reported(t, post(testContext(t), c, w.URL()+"/v1/completions", ask.body))
			if cached > 0 != ask.cached || cached >= prompt-1 || cached%16 > 0 && cached > 0 {
				t.Errorf("%s: %d of %d tokens were cached for %s", b, cached, prompt, ask.body)
			}
		}
	}
}

// A cache that is emptied, or whose engine was restarted, must have nothing.
func TestEmptiedPrefixCache(t *testing.T) {
	for _, b := range []Backend{SGLang, VLLM} {
		f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: b, CacheReport: true, DevMode: true, HealthDelay: -1}})
		w, c := f.Regular(0), client(t)
		ask := func() int {
			_, cached := reported(t, post(testContext(t), c, w.URL()+"/v1/completions", `{"prompt":"`+strings.Repeat("word ", 50)+`","max_tokens":2}`))
			return max(cached, 0)
		}
		route := map[Backend]string{SGLang: "/flush_cache", VLLM: "/reset_prefix_cache"}[b]
		for name, empty := range map[string]func(){
			route: func() {
				if r := post(testContext(t), c, w.URL()+route, ""); r.status != 200 {
					t.Fatal(r)
				}
			},
			"restart": func() {
				if err := w.Restart(); err != nil {
					t.Fatal(err)
				}
			},
		} {
			ask()
			if n := ask(); n == 0 {
				t.Errorf("%s: nothing is cached before %s", b, name)
			}
			if empty(); w.CachedBlocks(0) != 0 || ask() != 0 {
				t.Errorf("%s: something is cached after %s", b, name)
			}
		}
	}
}

// In a pair both engines must cache the prompt, and the decode engine what it
// produces: it finds it if it is given the next turn alone. Its answer tells the
// prefill's number of cached tokens, which comes with the KV.
func TestPairCachesThePrompt(t *testing.T) {
	long := strings.Repeat("a beginning of prompts, ", 16)
	t.Run("sglang", func(t *testing.T) {
		f := start(t, Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{CacheReport: true, HealthDelay: -1}})
		p, d, c := f.Prefill(0), f.Decode(0), client(t)
		for i, want := range []bool{false, true} {
			body := fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":3,"bootstrap_host":"127.0.0.1","bootstrap_port":%d,"bootstrap_room":%d}`,
				long, p.BootstrapPort(), room())
			rp, rd := both(testContext(t), c, p, d, chatPath, body)
			_, atPrefill := reported(t, rp)
			prompt, atDecode := reported(t, rd)
			if atPrefill != atDecode || atDecode > 0 != want || want && atDecode < prompt-17 {
				t.Errorf("request %d: prefill tells %d cached tokens, decode %d, of %d", i, atPrefill, atDecode, prompt)
			}
		}
		if p.CachedBlocks(0) == 0 || d.CachedBlocks(0) < p.CachedBlocks(0) {
			t.Errorf("prefill has %d blocks, decode %d", p.CachedBlocks(0), d.CachedBlocks(0))
		}
		wantViolations(t, f)
	})
	t.Run("vllm", func(t *testing.T) {
		f := start(t, Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{Backend: VLLM, CacheReport: true}})
		p, d, c := f.Prefill(0), f.Decode(0), client(t)
		for i, want := range []bool{false, true} {
			rp := post(testContext(t), c, p.URL()+chatPath, vbody(chatPath, long, `,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}`))
			prompt, cached := reported(t, rp)
			var v struct {
				Params json.RawMessage `json:"kv_transfer_params"`
			}
			if err := json.Unmarshal([]byte(rp.body), &v); err != nil || !strings.Contains(string(v.Params), fmt.Sprintf(`"remote_prefill_cached_tokens":%d`, cached)) {
				t.Errorf("request %d: the params %s do not tell of %d cached tokens (%v)", i, v.Params, cached, err)
			}
			rd := post(testContext(t), c, d.URL()+chatPath, vbody(chatPath, long, `,"max_tokens":100,"kv_transfer_params":`+string(v.Params)))
			if _, n := reported(t, rd); n != cached || cached > 0 != want {
				t.Errorf("request %d: prefill tells %d cached tokens, decode %d, of %d", i, cached, n, prompt)
			}
			if i == 0 {
				continue
			}
			next := fmt.Sprintf(`{"messages":[{"role":"user","content":%q},{"role":"assistant","content":%q},{"role":"user","content":"more"}],"max_tokens":2}`, long, content(t, rd.body))
			if n, cached := reported(t, post(testContext(t), c, d.URL()+chatPath, next)); cached < prompt+50 || cached >= n {
				t.Errorf("alone, decode had %d of %d tokens cached, after %d of the pair's prompt", cached, n, prompt)
			}
		}
		wantViolations(t, f)
	})
}

// What runs one after the other on a rank must find what ran before, although it
// arrived before that was computed.
func TestSiblingsShareTheirBeginning(t *testing.T) {
	for name, timing := range map[string]Timing{
		"one by one": {PrefillRate: 1e6},
		"batches":    {PrefillStep: 1, PrefillRate: 1e6},
	} {
		f := start(t, Options{Regular: 1, Worker: WorkerOptions{Timing: timing, ChunkedPrefillSize: 64, HealthDelay: -1}})
		w, c := f.Regular(0), client(t)
		w.Wedge()
		const n = 8
		done := make(chan reply, n)
		for range n {
			go func() {
				done <- post(testContext(t), c, w.URL()+"/generate", `{"text":"`+strings.Repeat("word ", 200)+`"}`)
			}()
		}
		if err := w.WaitInflight(testContext(t), n); err != nil {
			t.Fatal(err)
		}
		w.Unwedge()
		hits := 0
		for range n {
			if _, cached := reported(t, <-done); cached > 0 {
				hits++
			}
		}
		if hits != n-1 {
			t.Errorf("%s: %d of %d had cached tokens", name, hits, n)
		}
	}
}

// Metrics and loads must tell of the cache.
func TestMetricsTellOfTheCache(t *testing.T) {
	for b, want := range map[Backend][]string{
		VLLM: {`vllm:prefix_cache_queries_total{engine="0",model_name="sim-model"} 130`, `vllm:prefix_cache_hits_total{engine="0",model_name="sim-model"} 64`,
			`source="local_compute"} 66`, `source="local_cache_hit"} 64`, `vllm:prompt_tokens_total{engine="0",model_name="sim-model"} 130`, `enable_prefix_caching="True"`},
		SGLang: {`sglang:cached_tokens_total{engine_type="unified",model_name="sim-model"} 64`, `tp_rank="0"} 0.49`},
	} {
		f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: b, HealthDelay: -1}})
		w, c := f.Regular(0), client(t)
		for range 2 {
			reported(t, post(testContext(t), c, w.URL()+"/v1/completions", `{"prompt":[`+strings.Repeat("5,", 64)+`6],"max_tokens":2}`))
		}
		req, _ := http.NewRequest(http.MethodGet, w.URL()+"/metrics", nil)
		body := send(c, req).body
		for _, m := range want {
			if !strings.Contains(body, m) {
				t.Errorf("%s has no %s", b, m)
			}
		}
	}
}

// vLLM's answer to a prefill that left no number, as those before 0.32, must tell that
// all tokens came from elsewhere.
func TestDecodeWithoutThePrefillsNumber(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{Backend: VLLM, CacheReport: true}})
	p, d, c := f.Prefill(0), f.Decode(0), client(t)
	rp := post(testContext(t), c, p.URL()+chatPath, vbody(chatPath, "a prompt", `,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true}`))
	var v struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(rp.body), &v); err != nil {
		t.Fatal(err)
	}
	params := strings.Replace(string(v.Params), `,"remote_prefill_cached_tokens":0`, "", 1)
	prompt, cached := reported(t, post(testContext(t), c, d.URL()+chatPath, vbody(chatPath, "a prompt", `,"max_tokens":2,"kv_transfer_params":`+params)))
	if cached != prompt {
		t.Errorf("%d of %d tokens were cached", cached, prompt)
	}
}

// Blocks in use are those of a sequence that runs: when it ends they are the most
// recently used.
func TestBlocksAreFreedWhenTheSequenceEnds(t *testing.T) {
	f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: VLLM, CacheBlocks: 5, CacheReport: true}})
	w, c := f.Regular(0), client(t)
	release := make(chan struct{})
	long := make(chan reply, 1)
	w.SetTiming(Timing{DecodeStep: patience})
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		long <- post(ctx, c, w.URL()+"/v1/completions", strings.Replace(idsBody(100, 33, ""), `"max_tokens":1`, `"max_tokens":2`, 1))
		close(release)
	}()
	if err := w.Wait(testContext(t), func(s Stats) bool { return s.Decoding == 1 }); err != nil {
		t.Fatal(err)
	}
	complete(t, w, idsBody(200, 33, ""))
	cancel()
	<-release
	if err := w.WaitIdle(testContext(t)); err != nil {
		t.Fatal(err)
	}
	complete(t, w, idsBody(300, 33, "")) // evicts the last block of what was used before
	if _, cached := reported(t, post(testContext(t), c, w.URL()+"/v1/completions", idsBody(100, 33, ""))); cached != 32 {
		t.Errorf("%d tokens of the prompt that ended last were cached, want 32", cached)
	}
}

// A worker without the cache must compute everything.
func TestPrefixCacheCanBeOff(t *testing.T) {
	f := start(t, Options{Regular: 1, Worker: WorkerOptions{CacheBlocks: -1, HealthDelay: -1}})
	w, c := f.Regular(0), client(t)
	for range 2 {
		if _, cached := reported(t, post(testContext(t), c, w.URL()+"/generate", `{"text":"`+strings.Repeat("word ", 200)+`"}`)); cached != 0 {
			t.Errorf("%d tokens were cached", cached)
		}
	}
}

// Whatever the engine accepts, the prefix cache must take it: as many contents as there
// are prompts or none, and no more tokens in whole blocks than the prompt has.
func FuzzContents(f *testing.F) {
	for _, s := range []string{
		`{"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function"}]}`, `{"messages":[],"input_ids":[1,2,3]}`,
		`{"prompt":["a",[1,2]],"n":2}`, `{"text":["a","b"]}`, `{"input_ids":[[1],[2]]}`, `{"input_ids":[1.5]}`, `{"prompt":"\\ud800\u0001grüße"}`,
		`{"input_embeds":[[0.1]],"text":null}`, `{"prompt":""}`, `{"prompt":[],"text":"x"}`, `{"text":"a","text":[[1]]}`,
	} {
		f.Add([]byte(s))
	}
	fleet, err := Start(Options{Regular: 1, Worker: WorkerOptions{PageSize: 4, KVEvents: &KVEvents{}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(fleet.Close)
	w := fleet.Regular(0)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, a := range []api{chat, completions, generate} {
			r, err := parseRequest(a, body)
			if err != nil {
				continue
			}
			list := w.contents(r, body, &cacheScope{adapter: r.adapter, salt: r.salt})
			if len(list) > 0 && len(list) != len(r.prompts) {
				t.Errorf("%d contents of %d prompts", len(list), len(r.prompts))
			}
			for _, p := range list {
				if len(p.blocks) != p.tokens/4 || len(p.ids) != p.tokens {
					t.Errorf("%d tokens in %d blocks, %d ids", p.tokens, len(p.blocks), len(p.ids))
				}
			}
		}
	})
}
