package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestInvalidOptionsAreRefused(t *testing.T) {
	for _, o := range []WorkerOptions{
		{Backend: "llama"},
		{Connector: NIXL},
		{Backend: VLLM, Connector: "carrier-pigeon"},
		{Backend: VLLM, KVRole: "kv_thief"},
		{KVTokens: 10, PageSize: 64},
	} {
		if f, err := Start(Options{Regular: 1, Worker: o}); err == nil {
			f.Close()
			t.Errorf("started with %+v", o)
		}
	}
	f := startVLLM(t, Options{Prefill: 1, Regular: 1})
	if o := f.Prefill(0).Options(); o.Connector != NIXL || o.PageSize != 16 || o.MaxRunning != 256 || o.Lease != 30*time.Second || f.Prefill(0).BootstrapPort() != 0 {
		t.Errorf("defaults %+v", o)
	}
	if o := f.Regular(0).Options(); o.Connector != NoConnector {
		t.Errorf("defaults %+v", o)
	}
}

// process_start_time_seconds is that of the process: a worker that was restarted tells
// another one.
func TestVLLMTellsWhenItsProcessStarted(t *testing.T) {
	f := startVLLM(t, Options{Regular: 1})
	c, ctx := client(t), testContext(t)
	w := f.Regular(0)
	started := func() (at float64) {
		for line := range strings.Lines(get(ctx, c, w.URL()+"/metrics").body) {
			if value, ok := strings.CutPrefix(line, "process_start_time_seconds "); ok {
				if _, err := fmt.Sscan(value, &at); err != nil {
					t.Errorf("%q: %v", line, err)
				}
			}
		}
		return at
	}
	before := float64(time.Now().UnixNano()) / 1e9
	first := started()
	if first == 0 || first > before || first < before-600 {
		t.Errorf("started at %f, it is %f", first, before)
	}
	if again := started(); again != first {
		t.Errorf("started at %f, then at %f, without a restart", first, again)
	}
	if err := w.Restart(); err != nil {
		t.Fatal(err)
	}
	if again := started(); again <= first {
		t.Errorf("restarted at %f, started at %f before", again, first)
	}
}

// Requests beyond max_num_seqs wait, and the metrics show them.
func TestVLLMReportsRunningAndWaiting(t *testing.T) {
	f := startVLLM(t, Options{Regular: 1, Worker: WorkerOptions{MaxRunning: 16, KVTokens: 16 * 400, DevMode: true, Timing: Timing{DecodeStep: time.Hour}}})
	c, ctx := client(t), testContext(t)
	w := f.Regular(0)
	gone, leave := context.WithCancel(ctx)
	done := make(chan struct{}, 24)
	for range 24 {
		go func() {
			post(gone, c, w.URL()+chatPath, vbody(chatPath, "x", `,"max_tokens":100`))
			done <- struct{}{}
		}()
	}
	if err := w.Wait(ctx, func(s Stats) bool { return s.Decoding == 16 && s.Queued == 8 }); err != nil {
		t.Fatal(err)
	}
	m := get(ctx, c, w.URL()+"/metrics").body
	for _, want := range []string{
		`vllm:num_requests_running{engine="0",model_name="sim-model"} 16`, `vllm:num_requests_waiting{engine="0",model_name="sim-model"} 8`,
		`model_name="sim-model",reason="capacity"} 8`, `vllm:kv_cache_usage_perc{engine="0",model_name="sim-model"} 0.28`,
	} {
		if !strings.Contains(m, want) {
			t.Errorf("metrics lack %s:\n%s", want, m)
		}
	}
	if r := w.Ranks()[0]; r.Running != 16 || r.Waiting != 8 || r.KVTokens != 16*112 {
		t.Errorf("%+v", r)
	}
	var info struct {
		Config struct {
			Scheduler struct {
				Seqs   int `json:"max_num_seqs"`
				Tokens int `json:"max_num_batched_tokens"`
			} `json:"scheduler_config"`
		} `json:"vllm_config"`
	}
	if err := json.Unmarshal([]byte(get(ctx, c, w.URL()+"/server_info").body), &info); err != nil || info.Config.Scheduler.Seqs != 16 || info.Config.Scheduler.Tokens != 8192 {
		t.Errorf("server_info %+v, %v", info, err)
	}
	leave()
	for range 24 {
		<-done
	}
	idle(ctx, t, f)
}

// An adapter does not use the model's KV.
func TestAdapterDoesNotUseTheModelsKV(t *testing.T) {
	f, p, d := pair(t, NIXL, WorkerOptions{Adapters: []string{"lora-a"}})
	c, ctx := client(t), testContext(t)
	with := func(body string) string { return strings.Replace(body, `"sim-model"`, `"lora-a"`, 1) }
	base := expectedText(ctx, t, c, f.Regular(0), chatPath, "a prompt")
	adapted := vtext(t, chatPath, post(ctx, c, f.Regular(0).URL()+chatPath, with(vbody(chatPath, "a prompt", `,"max_tokens":6`))))
	if base == adapted {
		t.Error("the adapter says what the model says")
	}
	params := prefillLeg(ctx, t, c, p, chatPath, "", "a prompt", leave)
	if got := vtext(t, chatPath, post(ctx, c, d.URL()+chatPath, with(decodeBody(chatPath, "a prompt", params)))); got == adapted {
		t.Error("the model's KV did for the adapter")
	}
	wantViolations(t, f, KVForeign)
}

// With kv_load_failure_policy "recompute" a decode computes a prompt whose KV is lost.
func TestRecomputeWhenTheKVIsLost(t *testing.T) {
	f, p, d := pair(t, NIXL, WorkerOptions{Recompute: true, TransferTimeout: time.Millisecond})
	c, ctx := client(t), testContext(t)
	params := prefillLeg(ctx, t, c, p, chatPath, "", "a prompt", leave)
	p.Kill()
	got := vtext(t, chatPath, post(ctx, c, d.URL()+chatPath, decodeBody(chatPath, "a prompt", params)))
	if want := expectedText(ctx, t, c, f.Regular(0), chatPath, "a prompt"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if s := d.Stats(); s.TransferFailed != 1 || s.Alone != 1 || s.ExternalTokens != 0 || s.PromptTokens == 0 {
		t.Errorf("%+v", s)
	}
	wantViolations(t, f)
}

// A prefill that dies while decode waits for it fails the decode.
func TestPrefillThatDiesFailsTheWaitingDecode(t *testing.T) {
	f, p, d := pair(t, Mooncake, WorkerOptions{PeerLossAfter: time.Millisecond})
	c, ctx := client(t), testContext(t)
	p.SetTiming(Timing{PrefillTime: time.Hour})
	var engines map[string]struct {
		ID string `json:"engine_id"`
	}
	boot := fmt.Sprintf("http://127.0.0.1:%d", p.BootstrapPort())
	if err := json.Unmarshal([]byte(get(ctx, c, boot+"/query").body), &engines); err != nil {
		t.Fatal(err)
	}
	ch := make(chan reply, 2)
	go func() {
		ch <- post(ctx, c, p.URL()+chatPath, vbody(chatPath, "x", `,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"transfer_id":"t"}`))
	}()
	if err := p.Wait(ctx, func(s Stats) bool { return s.Prefilling == 1 }); err != nil {
		t.Fatal(err)
	}
	go func() {
		ch <- post(ctx, c, d.URL()+chatPath, decodeBody(chatPath, "x", fmt.Sprintf(
			`{"do_remote_prefill":true,"remote_bootstrap_addr":%q,"remote_engine_id":%q,"transfer_id":"t"}`, boot, engines["0"].ID)))
	}()
	if err := d.Wait(ctx, func(s Stats) bool { return s.Receiving == 1 }); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	a, b := <-ch, <-ch
	if a.err == nil && b.err == nil || a.status != 500 && b.status != 500 {
		t.Errorf("%+v, %+v", a, b)
	}
	wantViolations(t, f)
	idle(ctx, t, f)
}

func TestAdminShowsVLLM(t *testing.T) {
	f := startVLLM(t, Options{Prefill: 1, AdminAddr: "127.0.0.1:0"})
	c, ctx := client(t), testContext(t)
	r := get(ctx, c, f.AdminURL()+"/sim/workers/prefill-0")
	for _, want := range []string{`"backend":"vllm"`, `"connector":"nixl"`, `"ranks":[{`, `"kv_capacity":16777216`} {
		if !strings.Contains(r.body, want) {
			t.Errorf("no %s in %s", want, r.body)
		}
	}
	if r := post(ctx, c, f.AdminURL()+"/sim/workers/prefill-0/terminate", ""); r.status != 200 {
		t.Errorf("%+v", r)
	}
	if r := get(ctx, client(t), f.Prefill(0).URL()+"/health"); r.err == nil {
		t.Errorf("the port answers %+v", r)
	}
}

// No body may make the simulator panic or crash.
func FuzzVLLMBody(f *testing.F) {
	for _, path := range vpaths {
		f.Add(path, vbody(path, "text", `,"max_tokens":2`))
	}
	f.Add(chatPath, vbody(chatPath, "x", `,"n":3,"temperature":0.1,"stream_options":{"include_usage":true},"stream":true`))
	f.Add(chatPath, vbody(chatPath, "x", `,"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[1,-2],7,"x"],"remote_port":99999999999}`))
	f.Add(chatPath, `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"},7]},{"role":7}],"tools":[{}]}`)
	f.Add("/v1/completions", `{"prompt":[[1,2],"a"],"max_tokens":9223372036854775807}`)
	f.Add("/v1/completions", `{"prompt":[1,2.5,-7]}`)
	f.Add("/v1/responses", `{"input":[{"type":"function_call","x":1},{"role":"user","content":"y"}],"instructions":[{"text":"z"}]}`)
	f.Add("/v1/messages", `{"model":"sim-model","max_tokens":-5,"system":[{"type":"text","text":"s"}],"messages":[]}`)
	w := &Worker{opt: WorkerOptions{Backend: VLLM, Connector: LMCache, ContextLength: 1000}.withDefaults(Regular)}
	h := http.Header{"Content-Type": {"application/json"}}
	f.Fuzz(func(t *testing.T, path, body string) {
		r, err := w.parseVLLM(vllmRuns[path], []byte(body), h)
		if err != nil {
			if e := asWire(err); e.status != 400 && e.status != 404 {
				t.Errorf("status %d", e.status)
			}
			return
		}
		if r.n < 1 || len(r.contents) == 0 || r.maxTokens < -1 {
			t.Errorf("read %+v", r)
		}
		for _, p := range r.contents {
			if p.tokens >= 1000 || len(p.blocks) != p.tokens/16 {
				t.Errorf("prompt %+v", p)
			}
		}
	})
}

// Tokens are turned back into the text that they were made of.
func FuzzTokens(f *testing.F) {
	f.Add("")
	f.Add("grüße 世界")
	f.Add("\x00\x01\xff")
	f.Fuzz(func(t *testing.T, text string) {
		var back []byte
		n := 0
		tokenize([]byte(text), func(id int64) {
			back = appendPiece(back, id)
			if n++; id < 0 || id > math.MaxInt32 {
				t.Errorf("%q has a token of %d", text, id)
			}
		})
		ascii := !strings.ContainsFunc(text, func(r rune) bool { return r >= 0x80 })
		if string(back) != text || ascii && n != 1+(len(text)+3)/4 || n > 1+(len(text)+2)/3 {
			t.Errorf("%q came back as %q in %d tokens", text, back, n)
		}
	})
}

// The tokens of a text do not depend on where it is cut.
func TestTokensOfATextThatGrows(t *testing.T) {
	text := []byte("plain ASCII, grüße, 世界, and \x00\xff bytes that are no text; then plain again")
	var want []int64
	tokenize(text, func(id int64) { want = append(want, id) })
	for cut := range text {
		got := []int64{bos}
		add := func(id int64) { got = append(got, id) }
		n := pieces(text[:cut], add)
		rest := append(bytes.Clone(text[n:cut]), text[cut:]...)
		flush(rest[pieces(rest, add):], add)
		if !slices.Equal(got, want) {
			t.Errorf("cut at %d: %v, want %v", cut, got, want)
		}
	}
	for _, piece := range []string{"abcd", "\x00\x01\x7f~"} {
		var id int64
		if pieces([]byte(piece), func(x int64) { id = x }); id != token([]byte(piece)) {
			t.Errorf("%q is %d, want %d", piece, id, token([]byte(piece)))
		}
	}
}

func BenchmarkTokenize(b *testing.B) {
	text := bytes.Repeat([]byte("some words of a prompt. "), 128<<10/24)
	b.SetBytes(int64(len(text)))
	h := hasher{size: 16}
	for b.Loop() {
		h.prompt = prompt{blocks: h.blocks[:0]}
		tokenize(text, h.add)
	}
}
