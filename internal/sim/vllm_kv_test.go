package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// prefillLeg asks for a prefill that leaves its KV, with params as kv_transfer_params,
// and returns the kv_transfer_params of the answer, "null" or "" without any.
func prefillLeg(ctx context.Context, t *testing.T, c *http.Client, p *Worker, path, id, text, params string) string {
	t.Helper()
	r := vpost(ctx, c, p.URL()+path, id, vbody(path, text, `,"max_tokens":1,"kv_transfer_params":`+params))
	if r.err != nil || r.status != 200 {
		t.Fatalf("prefill: %+v", r)
	}
	var v struct {
		KV json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(r.body), &v); err != nil {
		t.Fatal(err)
	}
	return string(v.KV)
}

func decodeBody(path, text, params string) string {
	return vbody(path, text, `,"max_tokens":6,"kv_transfer_params":`+params)
}

const leave = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// expectedText is the model's text for a prompt whose KV was not moved.
func expectedText(ctx context.Context, t *testing.T, c *http.Client, w *Worker, path, text string) string {
	t.Helper()
	return vtext(t, path, post(ctx, c, w.URL()+path, vbody(path, text, `,"max_tokens":6`)))
}

func set(params, key, value string) string {
	return regexp.MustCompile(`"`+key+`":("[^"]*"|\[\[[0-9,]*\]\]|[^,}]*)`).ReplaceAllString(params, `"`+key+`":`+value)
}

func drop(params, key string) string {
	return regexp.MustCompile(`"`+key+`":("[^"]*"|\[\[[0-9,]*\]\]|[^,}]*),`).ReplaceAllString(params, "")
}

func pair(t *testing.T, connector Connector, o WorkerOptions) (f *Fleet, p, d *Worker) {
	o.Connector = connector
	f = startVLLM(t, Options{Prefill: 1, Decode: 1, Regular: 1, Worker: o, Each: func(r Role, _ int, o *WorkerOptions) {
		if r == Regular {
			o.Connector = NoConnector
		}
	}})
	return f, f.Prefill(0), f.Decode(0)
}

// idle checks that no worker holds anything.
func idle(ctx context.Context, t *testing.T, f *Fleet) {
	t.Helper()
	for _, w := range f.Workers() {
		if err := w.Wait(ctx, func(s Stats) bool { return s.Inflight == 0 && s.KVTokens == 0 }); err != nil {
			t.Error(err)
		}
	}
}

func TestNIXLPullMovesTheKV(t *testing.T) {
	f, p, d := pair(t, NIXL, WorkerOptions{})
	c, ctx := client(t), testContext(t)
	moved := 0
	for i, path := range vpaths {
		for _, stream := range []string{"", `,"stream":true`} {
			text := fmt.Sprintf("prompt %d %s of a length that fills blocks", i, stream)
			params := prefillLeg(ctx, t, c, p, path, "abc", text, leave)
			if !regexp.MustCompile(`^\{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":\[\[[0-9,]+\]\],"remote_engine_id":"[0-9a-f-]{36}",` +
				`"remote_request_id":"[a-z_-]+[^"]+-[0-9a-f]{8}","remote_host":"127\.0\.0\.1","remote_port":[0-9]+,"tp_size":1,"dcp_size":1,"pp_size":1,` +
				`"remote_num_tokens":[0-9]+,"remote_blocks_expiry_time":null,"transfer_mode":"pull","remote_prefill_cached_tokens":0\}$`).MatchString(params) {
				t.Fatalf("%s: params %s", path, params)
			}
			if s := p.Stats(); s.KVTokens == 0 || s.KVTokens%16 != 0 {
				t.Errorf("prefill holds %d tokens", s.KVTokens)
			}
			r := vpost(ctx, c, d.URL()+path, "abc", decodeBody(path, text, params+stream))
			if got, want := vtext(t, path, r), expectedText(ctx, t, c, f.Regular(0), path, text); got != want {
				t.Errorf("%s%s: %q, want %q", path, stream, got, want)
			}
			last := d.Requests()[len(d.Requests())-1]
			if last.External != last.Prompt {
				t.Errorf("%s: %d of %d tokens came over", path, last.External, last.Prompt)
			}
			moved += last.External
		}
	}
	wantViolations(t, f)
	s := d.Stats()
	if s.PromptTokens != 0 || s.ExternalTokens != int64(moved) || s.Pulled != 8 || s.Alone != 0 {
		t.Errorf("decode %+v", s)
	}
	if s := p.Stats(); s.Handed != 8 || s.Expired != 0 {
		t.Errorf("prefill %+v", s)
	}
	m := get(ctx, c, d.URL()+"/metrics").body
	for _, want := range []string{
		fmt.Sprintf(`vllm:external_prefix_cache_hits_total{engine="0",model_name="sim-model"} %d`, moved),
		fmt.Sprintf(`source="external_kv_transfer"} %d`, moved), `source="local_compute"} 0`,
		`vllm:nixl_bytes_transferred_count{engine="0",model_name="sim-model"} 8`,
	} {
		if !strings.Contains(m, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	idle(ctx, t, f)
}

// Every error of the router is answered as the engine does, and recorded as a
// violation.
func TestNIXLPullErrorsOfTheRouter(t *testing.T) {
	const path, text = chatPath, "the prompt whose KV is to be had"
	for _, x := range []struct {
		name   string
		change func(params, other string) string
		text   string
		status int    // 200: with a wrong text
		kind   string // of the violation
	}{
		{"another prompt's", func(_, other string) string { return other }, text, 200, KVForeign},
		{"other blocks", func(p, _ string) string { return set(p, "remote_block_ids", "[[77,78]]") }, text, 200, KVForeign},
		{"unknown request", func(p, _ string) string { return set(p, "remote_request_id", `"x"`) }, text, 200, KVForeign},
		{"shorter prompt", func(p, _ string) string { return p }, "the", 200, KVForeign},
		{"wrong engine", func(p, _ string) string { return set(p, "remote_engine_id", `"x"`) }, text, 500, KVUnknownEngine},
		{"dead port", func(p, _ string) string { return set(p, "remote_port", "1") }, text, 500, KVUnknownEngine},
	} {
		f, p, d := pair(t, NIXL, WorkerOptions{TransferTimeout: time.Millisecond})
		c, ctx := client(t), testContext(t)
		params := prefillLeg(ctx, t, c, p, path, "", text, leave)
		other := prefillLeg(ctx, t, c, p, path, "", "some other prompt, of about that length", leave)
		r := post(ctx, c, d.URL()+path, decodeBody(path, x.text, x.change(params, other)))
		if r.status != x.status {
			t.Errorf("%s: %+v", x.name, r)
		}
		if x.status == 200 && vtext(t, path, r) == expectedText(ctx, t, c, f.Regular(0), path, x.text) {
			t.Errorf("%s: the text is right", x.name)
		}
		if x.status == 500 && r.body != `{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}` {
			t.Errorf("%s: %s", x.name, r.body)
		}
		wantViolations(t, f, x.kind)
		if got := post(ctx, c, d.URL()+path, vbody(path, "alive?", `,"max_tokens":1`)); got.status != 200 {
			t.Errorf("%s: the worker is hurt: %+v", x.name, got)
		}
	}
}

// KV can be taken once.
func TestNIXLKVIsTakenOnce(t *testing.T) {
	f, p, d := pair(t, NIXL, WorkerOptions{})
	c, ctx := client(t), testContext(t)
	params := prefillLeg(ctx, t, c, p, chatPath, "", "a prompt", leave)
	for i, want := range []int{200, 500} {
		if r := post(ctx, c, d.URL()+chatPath, decodeBody(chatPath, "a prompt", params)); r.status != want {
			t.Errorf("time %d: %+v", i, r)
		}
	}
	wantViolations(t, f, KVTwice)
	idle(ctx, t, f)
}

// After the lease the answer is 200 with a wrong text.
func TestNIXLExpiredKVGivesAWrongText(t *testing.T) {
	f, p, d := pair(t, NIXL, WorkerOptions{Lease: 10 * time.Millisecond})
	c, ctx := client(t), testContext(t)
	params := prefillLeg(ctx, t, c, p, chatPath, "", "a prompt", leave)
	if err := p.Wait(ctx, func(s Stats) bool { return s.Expired == 1 && s.KVTokens == 0 }); err != nil {
		t.Fatal(err)
	}
	r := post(ctx, c, d.URL()+chatPath, decodeBody(chatPath, "a prompt", params))
	if vtext(t, chatPath, r) == expectedText(ctx, t, c, f.Regular(0), chatPath, "a prompt") {
		t.Error("the text is right")
	}
	wantViolations(t, f, KVExpired)
}

// A decode that waits at its worker keeps the KV from expiring.
func TestNIXLDecodeKeepsTheLease(t *testing.T) {
	f, p, d := pair(t, NIXL, WorkerOptions{Lease: 100 * time.Millisecond, KVTokens: 160, PageSize: 16})
	c, ctx := client(t), testContext(t)
	free, err := d.HoldKV(ctx, 0, 160)
	if err != nil {
		t.Fatal(err)
	}
	params := prefillLeg(ctx, t, c, p, chatPath, "", "a prompt", leave)
	ch := make(chan reply, 1)
	go func() { ch <- post(ctx, c, d.URL()+chatPath, decodeBody(chatPath, "a prompt", params)) }()
	if err := d.Wait(ctx, func(s Stats) bool { return s.Queued == 1 }); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // past the lease
	if s := p.Stats(); s.Expired != 0 {
		t.Skip("the machine was too slow for the decode to come within the lease")
	}
	free()
	if got, want := vtext(t, chatPath, <-ch), expectedText(ctx, t, c, f.Regular(0), chatPath, "a prompt"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	wantViolations(t, f)
	idle(ctx, t, f)
}

// Without a required field the decode hangs, and the engine crashes when the client
// disconnects.
func TestNIXLMissingFieldHangsThenCrashes(t *testing.T) {
	for _, field := range []string{"remote_host", "remote_port", "remote_request_id", "remote_engine_id"} {
		f, p, d := pair(t, NIXL, WorkerOptions{Lease: 50 * time.Millisecond})
		c, ctx := client(t), testContext(t)
		params := prefillLeg(ctx, t, c, p, chatPath, "", "a prompt", leave)
		gone, goes := context.WithCancel(ctx)
		ch := make(chan reply, 1)
		go func() { ch <- post(gone, c, d.URL()+chatPath, decodeBody(chatPath, "a prompt", drop(params, field))) }()
		if err := d.Wait(ctx, func(s Stats) bool { return s.Receiving == 1 }); err != nil {
			t.Fatal(err)
		}
		if m := get(ctx, c, d.URL()+"/metrics").body; !strings.Contains(m, `model_name="sim-model",reason="deferred"} 1`) {
			t.Errorf("metrics %s", m)
		}
		goes()
		<-ch
		wantViolations(t, f, KVIncomplete)
		for d.Running() {
			time.Sleep(time.Millisecond)
		}
		idle(ctx, t, f)
	}
}

// A decode prompt longer than the prefilled one, or params without block ids, make the
// engine crash, with all its requests.
func TestNIXLRequestsThatCrashTheEngine(t *testing.T) {
	for _, x := range []struct {
		kind   string
		text   string
		change func(string) string
	}{
		{KVTooLong, "a prompt that goes on", func(p string) string { return p }},
		{KVIncomplete, "a prompt", func(p string) string { return drop(p, "remote_block_ids") }},
		{KVIncomplete, "a prompt", func(p string) string { return set(p, "remote_block_ids", "[[]]") }},
	} {
		f, p, d := pair(t, NIXL, WorkerOptions{})
		c, ctx := client(t), testContext(t)
		d.SetTiming(Timing{PrefillTime: time.Hour})
		bystander := make(chan reply, 1)
		go func() { bystander <- post(ctx, c, d.URL()+chatPath, vbody(chatPath, "hello", "")) }()
		if err := d.Wait(ctx, func(s Stats) bool { return s.Prefilling == 1 }); err != nil {
			t.Fatal(err)
		}
		params := prefillLeg(ctx, t, c, p, chatPath, "", "a prompt", leave)
		r := post(ctx, c, d.URL()+chatPath, decodeBody(chatPath, x.text, x.change(params)))
		for _, r := range []reply{r, <-bystander} {
			if r.status != 500 || !strings.Contains(r.body, "EngineCore encountered an issue") {
				t.Errorf("%s: %+v", x.kind, r)
			}
		}
		wantViolations(t, f, x.kind)
		for d.Running() { // until it has crashed
			time.Sleep(time.Millisecond)
		}
		if r := get(ctx, client(t), d.URL()+"/health"); r.err == nil {
			t.Errorf("%s: the port answers %+v", x.kind, r)
		}
		d.SetTiming(Timing{})
		if err := d.Restart(); err != nil {
			t.Fatal(err)
		}
		if r := post(ctx, c, d.URL()+chatPath, vbody(chatPath, "hello", `,"max_tokens":1`)); r.status != 200 {
			t.Errorf("%s: after the restart %+v", x.kind, r)
		}
	}
}

// A restarted worker is another engine: the KV that it left before is lost, which is
// no violation.
func TestNIXLRestartedPrefillHasNoKV(t *testing.T) {
	f, p, d := pair(t, NIXL, WorkerOptions{TransferTimeout: time.Millisecond})
	c, ctx := client(t), testContext(t)
	before := prefillLeg(ctx, t, c, p, chatPath, "", "a prompt", leave)
	if err := p.Restart(); err != nil {
		t.Fatal(err)
	}
	if s := p.Stats(); s.KVTokens != 0 {
		t.Errorf("still holds %d", s.KVTokens)
	}
	for _, stream := range []string{"", `,"stream":true`} {
		r := post(ctx, c, d.URL()+chatPath, decodeBody(chatPath, "a prompt", before+stream))
		if stream == "" && r.status != 500 {
			t.Errorf("got %+v", r)
		}
		if e := sse(r.body); stream != "" && (r.status != 200 || len(e) != 3 || !strings.HasPrefix(e[1].data, `{"error":{`) || e[2].data != "[DONE]") {
			t.Errorf("streamed: %+v", r)
		}
	}
	if s := d.Stats(); s.TransferFailed != 2 {
		t.Errorf("%+v", s)
	}
	after := prefillLeg(ctx, t, c, p, chatPath, "", "a prompt", leave)
	if r := post(ctx, c, d.URL()+chatPath, decodeBody(chatPath, "a prompt", after)); r.status != 200 {
		t.Errorf("got %+v", r)
	}
	wantViolations(t, f)
}

// What a prefill answers to legs with the wrong fields.
func TestNIXLPrefillLegsWithWrongFields(t *testing.T) {
	f, p, d := pair(t, NIXL, WorkerOptions{})
	c, ctx := client(t), testContext(t)
	r := post(ctx, c, p.URL()+chatPath, vbody(chatPath, "x", `,"max_tokens":1,"stream":true,"kv_transfer_params":`+leave))
	if r.status != 200 || strings.Contains(r.body, "kv_transfer_params") {
		t.Errorf("streamed: %+v", r)
	}
	wantViolations(t, f, KVPrefill)
	r = post(ctx, c, p.URL()+chatPath, vbody(chatPath, "x", `,"max_completion_tokens":500,"max_tokens":1,"kv_transfer_params":`+leave))
	if !strings.Contains(r.body, `"completion_tokens":500`) {
		t.Errorf("max_completion_tokens must win: %+v", r)
	}
	wantViolations(t, f, KVPrefill, KVPrefill)
	f.ResetViolations()
	if got := prefillLeg(ctx, t, c, p, chatPath, "", "x", "null"); got != "null" {
		t.Errorf("unasked params %s", got)
	}
	if got := prefillLeg(ctx, t, c, f.Regular(0), chatPath, "", "x", leave); got != "null" {
		t.Errorf("no connector, and params %s", got)
	}
	if s := f.Regular(0).Stats(); s.Alone != 1 {
		t.Errorf("%+v", s)
	}
	// Of two prompts the answer names the blocks of the first only.
	two := `{"temperature":0,"max_tokens":1,"prompt":["the first of them","the other"],"kv_transfer_params":` + leave + `}`
	r = post(ctx, c, p.URL()+"/v1/completions", two)
	if n := strings.Count(r.body, "remote_block_ids"); n != 1 || !strings.Contains(r.body, "-0-") {
		t.Errorf("two prompts: %+v", r)
	}
	wantViolations(t, f, KVPrefill)
	f.ResetViolations()
	// Decode without params computes alone.
	if r := post(ctx, c, d.URL()+chatPath, vbody(chatPath, "alone", `,"max_tokens":1`)); r.status != 200 {
		t.Errorf("alone: %+v", r)
	}
	if s := d.Stats(); s.ExternalTokens != 0 || s.PromptTokens == 0 {
		t.Errorf("%+v", s)
	}
	wantViolations(t, f)
}

func TestConnectorsDoNotMix(t *testing.T) {
	f := startVLLM(t, Options{Prefill: 2, Decode: 3, Worker: WorkerOptions{TransferTimeout: time.Millisecond},
		Each: func(r Role, i int, o *WorkerOptions) {
			if r == Prefill {
				o.Connector = []Connector{NIXL, MoRIIO}[i]
			} else {
				o.Connector = []Connector{NIXL, MoRIIO, NoConnector}[i]
			}
		}})
	c, ctx := client(t), testContext(t)
	for i, want := range map[int]int{1: 500, 2: 200} {
		params := prefillLeg(ctx, t, c, f.Prefill(0), chatPath, "", "a prompt", leave)
		params = strings.TrimSuffix(params, "}") + `,"transfer_id":"tx-1"}`
		if r := post(ctx, c, f.Decode(i).URL()+chatPath, decodeBody(chatPath, "a prompt", params)); r.status != want {
			t.Errorf("decode %d: %+v", i, r)
		}
		wantViolations(t, f, KVConnector)
		f.ResetViolations()
	}
	// MoRI-IO needs its transfer id on both legs.
	if got := prefillLeg(ctx, t, c, f.Prefill(1), chatPath, "", "a prompt", leave); got != "null" {
		t.Errorf("without transfer id: %s", got)
	}
	params := prefillLeg(ctx, t, c, f.Prefill(1), chatPath, "", "a prompt", strings.TrimSuffix(leave, "}")+`,"transfer_id":"tx-2"}`)
	if !strings.Contains(params, `"transfer_id":"tx-2"`) || !strings.Contains(params, "remote_notify_port") {
		t.Errorf("params %s", params)
	}
	if r := post(ctx, c, f.Decode(1).URL()+chatPath, decodeBody(chatPath, "a prompt", params)); r.status != 200 || f.Decode(1).Stats().Pulled != 1 {
		t.Errorf("moriio: %+v", r)
	}
	wantViolations(t, f)
}

func TestNIXLPushMeetsByRequestID(t *testing.T) {
	f, p, d := pair(t, NIXLPush, WorkerOptions{Lease: 200 * time.Millisecond})
	c, ctx := client(t), testContext(t)
	// Any answer of the prefill tells its engine id and address.
	probe := prefillLeg(ctx, t, c, p, chatPath, "probe", "x", leave)
	if strings.Contains(probe, "remote_block_ids") || !strings.Contains(probe, `"transfer_mode":"push"`) || !strings.Contains(probe, `"pp_size":1`) {
		t.Fatalf("params %s", probe)
	}
	for i, first := range []*Worker{p, d} {
		id := "req-" + strconv.Itoa(i)
		text := "a prompt of " + id
		pbody := vbody(chatPath, text, `,"max_tokens":1,"kv_transfer_params":`+leave)
		dbody := decodeBody(chatPath, text, set(probe, "remote_request_id", `"`+id+`"`))
		ch := make(chan reply, 2)
		one := func(w *Worker, body string) { ch <- vpost(ctx, c, w.URL()+chatPath, id, body) }
		if first == d {
			go one(d, dbody)
			if err := d.Wait(ctx, func(s Stats) bool { return s.Receiving == 1 }); err != nil {
				t.Fatal(err)
			}
			one(p, pbody)
		} else {
			one(p, pbody)
			go one(d, dbody)
		}
		a, b := <-ch, <-ch
		if a.status != 200 || b.status != 200 {
			t.Fatalf("%+v, %+v", a, b)
		}
		want := expectedText(ctx, t, c, f.Regular(0), chatPath, text)
		if x, y := vtext(t, chatPath, a), vtext(t, chatPath, b); x != want && y != want {
			t.Errorf("%q and %q, want %q", x, y, want)
		}
	}
	if s := d.Stats(); s.Pulled != 2 || s.PromptTokens != 0 {
		t.Errorf("%+v", s)
	}
	wantViolations(t, f)
	// With another request id the legs do not meet.
	go vpost(ctx, c, p.URL()+chatPath, "one-id", vbody(chatPath, "text", `,"max_tokens":1,"kv_transfer_params":`+leave))
	if r := vpost(ctx, c, d.URL()+chatPath, "another", decodeBody(chatPath, "text", probe)); r.status != 500 {
		t.Errorf("%+v", r)
	}
	wantViolations(t, f, NoMeeting)
	idle(ctx, t, f)
}

func TestMooncakeMeetsByTransferID(t *testing.T) {
	f, p, d := pair(t, Mooncake, WorkerOptions{DPSize: 2, TransferTimeout: time.Millisecond, Lease: 10 * time.Second})
	c, ctx := client(t), testContext(t)
	boot := fmt.Sprintf("http://127.0.0.1:%d", p.BootstrapPort())
	query := func() map[string]struct {
		ID   string                       `json:"engine_id"`
		Addr map[string]map[string]string `json:"worker_addr"`
	} {
		var v map[string]struct {
			ID   string                       `json:"engine_id"`
			Addr map[string]map[string]string `json:"worker_addr"`
		}
		if err := json.Unmarshal([]byte(get(ctx, c, boot+"/query").body), &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	engines := query()
	if len(engines) != 2 || !strings.HasSuffix(engines["1"].ID, "_dp1") || !strings.HasPrefix(engines["0"].Addr["0"]["0"], "tcp://") {
		t.Fatalf("query: %+v", engines)
	}
	run := func(id, engine, ptransfer, dtransfer string) (reply, reply) {
		text := "the prompt of " + id
		ch := make(chan reply, 1)
		go func() {
			body := vbody(chatPath, text, `,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false`+ptransfer+`}`)
			req, _ := http.NewRequestWithContext(ctx, "POST", p.URL()+chatPath, strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("X-Data-Parallel-Rank", "1")
			resp, err := c.Do(req)
			if err != nil {
				ch <- reply{err: err}
				return
			}
			resp.Body.Close()
			ch <- reply{status: resp.StatusCode}
		}()
		b := post(ctx, c, d.URL()+chatPath, decodeBody(chatPath, text, fmt.Sprintf(`{"do_remote_decode":false,"do_remote_prefill":true,`+
			`"remote_bootstrap_addr":%q,"remote_engine_id":%q%s}`, boot, engine, dtransfer)))
		return <-ch, b
	}
	a, b := run("one", engines["1"].ID, `,"transfer_id":"xfer-1"`, `,"transfer_id":"xfer-1"`)
	if a.status != 200 || vtext(t, chatPath, b) != expectedText(ctx, t, c, f.Regular(0), chatPath, "the prompt of one") {
		t.Errorf("%+v, %+v", a, b)
	}
	if s := d.Stats(); s.Pulled != 1 || s.PromptTokens != 0 {
		t.Errorf("%+v", s)
	}
	// Without a transfer id both run, alone.
	if a, b := run("two", engines["1"].ID, "", ""); a.status != 200 || b.status != 200 || d.Stats().Alone != 1 || p.Stats().Alone != 1 {
		t.Errorf("%+v, %+v, %+v", a, b, d.Stats())
	}
	wantViolations(t, f)
	if _, b := run("three", "no-such-engine", `,"transfer_id":"xfer-3"`, `,"transfer_id":"xfer-3"`); b.status != 500 {
		t.Errorf("unknown engine: %+v", b)
	}
	wantViolations(t, f, KVUnknownEngine)
	f.ResetViolations()
	if err := p.Restart(); err != nil {
		t.Fatal(err)
	}
	if _, b := run("four", engines["1"].ID, `,"transfer_id":"xfer-4"`, `,"transfer_id":"xfer-4"`); b.status != 500 {
		t.Errorf("engine of before: %+v", b)
	}
	if now := query(); now["1"].ID == engines["1"].ID {
		t.Error("the engine id survived a restart")
	} else if _, b := run("five", now["1"].ID, `,"transfer_id":"xfer-5"`, `,"transfer_id":"xfer-5"`); b.status != 200 {
		t.Errorf("%+v", b)
	}
	wantViolations(t, f)
}

// With a shared store prefill and decode need no kv_transfer_params.
func TestSharedStoresNeedNoParams(t *testing.T) {
	for _, connector := range []Connector{LMCache, SharedStorage} {
		f, p, d := pair(t, connector, WorkerOptions{PageSize: 16})
		c, ctx := client(t), testContext(t)
		text := strings.Repeat("some text ", 40)
		if got := prefillLeg(ctx, t, c, p, chatPath, "", text, leave); got != "null" {
			t.Errorf("params %s", got)
		}
		r := post(ctx, c, d.URL()+chatPath, vbody(chatPath, text, `,"max_tokens":6`))
		if got, want := vtext(t, chatPath, r), expectedText(ctx, t, c, f.Regular(0), chatPath, text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		last := d.Requests()[0]
		if s := d.Stats(); last.External != (last.Prompt-1)/16*16 || int(s.PromptTokens) != last.Prompt-last.External {
			t.Errorf("%s: %+v", connector, s)
		}
		if r := post(ctx, c, d.URL()+chatPath, vbody(chatPath, "new", `,"max_tokens":6`)); r.status != 200 || d.Requests()[1].External != 0 {
			t.Errorf("%+v", r)
		}
		wantViolations(t, f)
	}
}

func TestKVRoleRestrictsTheConnector(t *testing.T) {
	f := startVLLM(t, Options{Prefill: 1, Decode: 1, Each: func(r Role, _ int, o *WorkerOptions) {
		o.KVRole = map[Role]string{Prefill: "kv_producer", Decode: "kv_consumer"}[r]
	}})
	c, ctx := client(t), testContext(t)
	params := prefillLeg(ctx, t, c, f.Prefill(0), chatPath, "", "x", leave)
	if got := prefillLeg(ctx, t, c, f.Decode(0), chatPath, "", "x", leave); got != "null" || f.Decode(0).Stats().Alone != 1 {
		t.Errorf("a consumer left KV: %s", got)
	}
	wantViolations(t, f)
	if r := post(ctx, c, f.Prefill(0).URL()+chatPath, decodeBody(chatPath, "x", params)); r.status != 200 || f.Prefill(0).Stats().Alone != 1 {
		t.Errorf("%+v", r)
	}
	wantViolations(t, f, KVRole)
}

// Many hand-offs, some of them never taken, leave nothing held.
func TestManyVLLMPairsLeaveNothingHeld(t *testing.T) {
	f, p, d := pair(t, NIXL, WorkerOptions{KVTokens: 320, PageSize: 16, MaxRunning: 4, Lease: 20 * time.Millisecond})
	c, ctx := client(t), testContext(t)
	const n = 60
	done := make(chan struct{}, n)
	for i := range n {
		go func() {
			defer func() { done <- struct{}{} }()
			text := fmt.Sprint("prompt ", i)
			r := post(ctx, c, p.URL()+chatPath, vbody(chatPath, text, `,"max_tokens":1,"kv_transfer_params":`+leave))
			var v struct {
				KV json.RawMessage `json:"kv_transfer_params"`
			}
			if err := json.Unmarshal([]byte(r.body), &v); err != nil || r.status != 200 || i%3 == 0 {
				return
			}
			gone, goes := context.WithCancel(ctx)
			defer goes()
			if i%3 == 1 {
				time.AfterFunc(time.Millisecond, goes)
			}
			post(gone, c, d.URL()+chatPath, decodeBody(chatPath, text, string(v.KV)))
		}()
	}
	for range n {
		<-done
	}
	idle(ctx, t, f)
	for _, w := range f.Workers() {
		for _, r := range w.Ranks() {
			if r.KVTokens != 0 || r.PeakKVTokens > 320 {
				t.Errorf("%s: %+v", w.ID(), r)
			}
		}
	}
	if n := f.kv.waiting(); n != 0 {
		t.Errorf("%d hand-offs left", n)
	}
	var kinds []string
	for _, v := range f.Violations() { // a slow machine lets leases run out
		if v.Kind != KVExpired && !slices.Contains(kinds, v.Kind) {
			kinds = append(kinds, v.Kind)
		}
	}
	if kinds != nil {
		t.Errorf("violations %v", kinds)
	}
}
