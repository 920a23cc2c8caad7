package sim

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestInformationRoutesAndLog(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{
		DPSize: 2, KVTokens: 5000, MaxRunning: 7, Adapters: []string{"lora-a"}, HealthDelay: time.Millisecond}})
	c, ctx := client(t), testContext(t)
	p := f.Prefill(0)
	read := func(url string, into any) {
		t.Helper()
		r := get(ctx, c, url)
		if r.status != 200 {
			t.Fatalf("%s: %+v", url, r)
		}
		if err := json.Unmarshal([]byte(r.body), into); err != nil {
			t.Fatalf("%s: %v in %s", url, err, r.body)
		}
	}
	var info struct {
		Mode      string `json:"disaggregation_mode"`
		Port      int    `json:"disaggregation_bootstrap_port"`
		DP        int    `json:"dp_size"`
		Running   int    `json:"max_running_requests"`
		Chunk     int    `json:"chunked_prefill_size"`
		Scheduler struct {
			Tokens int `json:"max_total_num_tokens"`
		} `json:"scheduler_info"`
		States []any `json:"internal_states"`
	}
	read(p.URL()+"/server_info", &info)
	if info.Mode != "prefill" || info.Port != p.BootstrapPort() || info.DP != 2 || info.Running != 7 || info.Chunk != 8192 ||
		info.Scheduler.Tokens != 5000 || len(info.States) != 2 {
		t.Errorf("server_info %+v", info)
	}
	var loads struct {
		Loads []map[string]any `json:"loads"`
	}
	read(f.Decode(0).URL()+"/v1/loads?include=core,disagg", &loads)
	if len(loads.Loads) != 2 || loads.Loads[1]["dp_rank"] != 1.0 || loads.Loads[0]["disaggregation"] == nil || loads.Loads[0]["queues"] != nil {
		t.Errorf("loads %+v", loads)
	}
	for _, k := range []string{"timestamp", "num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens", "num_used_tokens",
		"num_total_tokens", "num_active_tokens", "max_total_num_tokens", "max_running_requests", "token_usage", "gen_throughput",
		"cache_hit_rate", "utilization", "total_prefill_uncached_tokens", "total_prefill_busy_us", "decode_moments"} {
		if _, ok := loads.Loads[0][k]; !ok {
			t.Errorf("loads lack %s", k)
		}
	}
	var models struct {
		Data []struct{ ID, Parent string }
	}
	read(p.URL()+"/v1/models", &models)
	if len(models.Data) != 2 || models.Data[1].Parent != "sim-model" {
		t.Errorf("models %+v", models)
	}
	var layout map[string]any
	read("http://"+net.JoinHostPort("127.0.0.1", itoa(p.BootstrapPort()))+"/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1", &layout)
	if layout["dp_size"] != 2.0 || layout["follow_bootstrap_room"] != true {
		t.Errorf("layout %v", layout)
	}
	if r := get(ctx, c, p.URL()+"/health"); r.status != 200 {
		t.Errorf("health %+v", r)
	}
	if r := get(ctx, c, p.URL()+"/metrics"); !strings.Contains(r.body, `sglang:num_running_reqs{engine_type="prefill",model_name="sim-model"`) {
		t.Errorf("metrics %s", r.body)
	}
	if r := get(ctx, c, p.URL()+"/nowhere"); r.status != 404 || r.body != `{"detail":"Not Found"}` {
		t.Errorf("unknown route %+v", r)
	}
	if n := len(p.Requests()); n != 0 {
		t.Errorf("%d probes in the request log", n)
	}
	if n := len(p.Probes()); n != 5 {
		t.Errorf("%d probes logged, want 5", n)
	}
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// The /health of a prefill worker that computes long prompts fails, as its scheduler
// shows no progress.
func TestHealthFailsWhilePromptsAreComputed(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{
		HealthDelay: 5 * time.Millisecond, HealthTimeout: 20 * time.Millisecond, Timing: Timing{PrefillTime: time.Hour}}})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	gone, leave := context.WithCancel(ctx)
	ch := make(chan reply, 1)
	go func() { a, _ := both(gone, c, p, d, chatPath, pd(p, room(), "")); ch <- a }()
	if err := p.Wait(ctx, func(s Stats) bool { return s.Prefilling == 1 }); err != nil {
		t.Fatal(err)
	}
	if r := get(ctx, c, p.URL()+"/health"); r.status != 503 {
		t.Errorf("saturated: %+v", r)
	}
	if r := get(ctx, c, p.URL()+"/model_info"); r.status != 200 {
		t.Errorf("model_info needs no scheduler: %+v", r)
	}
	leave()
	<-ch
	if err := p.WaitIdle(ctx); err != nil {
		t.Fatal(err)
	}
	if r := get(ctx, c, p.URL()+"/health_generate"); r.status != 200 {
		t.Errorf("idle again: %+v", r)
	}
}

func TestKeyBasePathAndDisabledRoutes(t *testing.T) {
	f := start(t, Options{Regular: 1, Worker: WorkerOptions{APIKey: "k", BasePath: "/engine", Disable: []string{"/v1/loads"}, HealthDelay: -1}})
	c, ctx, w := client(t), testContext(t), f.Regular(0)
	if !strings.HasSuffix(w.URL(), "/engine") {
		t.Errorf("URL %s", w.URL())
	}
	if r := post(ctx, c, w.URL()+chatPath, plain); r.status != 401 {
		t.Errorf("without key: %+v", r)
	}
	req, _ := http.NewRequestWithContext(ctx, "POST", w.URL()+chatPath, strings.NewReader(plain))
	req.Header.Set("Authorization", "Bearer k")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("with key: %d", resp.StatusCode)
	}
	if r := get(ctx, c, w.URL()+"/health"); r.status != 200 {
		t.Errorf("health needs no key: %+v", r)
	}
	for _, url := range []string{w.URL() + "/v1/loads", strings.TrimSuffix(w.URL(), "/engine") + "/health"} {
		if r := get(ctx, c, url); r.status != 404 {
			t.Errorf("%s: %+v", url, r)
		}
	}
}

func TestWorkersServeTLSAndIPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("no IPv6 here")
	} else {
		l.Close()
	}
	conf, pool, err := SelfSigned("::1", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	f := start(t, Options{Prefill: 1, Decode: 1, Host: "::1", Worker: WorkerOptions{TLS: conf, HTTP2: true}})
	ctx := testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	for _, h2 := range []bool{false, true} {
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: h2}
		t.Cleanup(tr.CloseIdleConnections)
		c := &http.Client{Transport: tr}
		body := strings.Replace(pd(p, room(), ""), "127.0.0.1", "[0:0::1]", 1)
		a, b := both(ctx, c, p, d, chatPath, body)
		if a.status != 200 || b.status != 200 {
			t.Errorf("%+v, %+v", a, b)
		}
	}
	if got := d.Requests(); got[0].Proto != "HTTP/1.1" || got[1].Proto != "HTTP/2.0" {
		t.Errorf("protocols %s, %s", got[0].Proto, got[1].Proto)
	}
	wantViolations(t, f)
}

func TestBadBodiesAreRefused(t *testing.T) {
	f := start(t, Options{Regular: 1})
	c, ctx, w := client(t), testContext(t), f.Regular(0)
	for _, body := range []string{"", "x", "[]", `{"messages":[`, `{"messages":1}`, `{"messages":[],"n":0}`, `{"messages":[],"n":1.5}`,
		`{"messages":[],"stream":"yes"}`, `{"messages":[],"model":3}`, `{"messages":[],"max_tokens":-1}`, `{}`, `{"messages":[]} x`,
		`{"messages":[],"bootstrap_room":1e3}`, `{"messages":[],"bootstrap_room":-1}`, `{"messages":[],"bootstrap_port":70000}`,
		"{\"messages\":\"\xff\"}", strings.Repeat("[", 1<<20), `{"messages":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + "}"} {
		if r := post(ctx, c, w.URL()+chatPath, body); r.status != 400 || !json.Valid([]byte(r.body)) || !strings.HasPrefix(r.body, `{"object":"error"`) {
			t.Errorf("%.40q: %d %.200s", body, r.status, r.body)
		}
	}
	for _, body := range []string{`{"messages":[],"n":2,"n":1}`, `{"messages":["\ud800"],"max_tokens":null,"n":null}`} {
		if r := post(ctx, c, w.URL()+chatPath, body); r.status != 200 {
			t.Errorf("%s: %+v", body, r)
		}
	}
	if r := post(ctx, c, w.URL()+"/generate", `{}`); r.status != 400 || !strings.HasPrefix(r.body, `{"error":{"message":`) {
		t.Errorf("generate: %+v", r)
	}
}

func TestGracefulStopLetsRequestsFinish(t *testing.T) {
	f := start(t, Options{Regular: 1})
	c, ctx, w := client(t), testContext(t), f.Regular(0)
	w.SetTiming(Timing{DecodeStep: 20 * time.Millisecond})
	ch := make(chan reply, 1)
	go func() { ch <- post(ctx, c, w.URL()+chatPath, stream) }()
	if err := w.Wait(ctx, func(s Stats) bool { return s.Decoding == 1 }); err != nil {
		t.Fatal(err)
	}
	if err := w.Stop(ctx); err != nil {
		t.Error(err)
	}
	if r := <-ch; r.err != nil || !strings.HasSuffix(r.body, "[DONE]\n\n") {
		t.Errorf("stream over a stop: %+v", r)
	}
	if w.Running() {
		t.Error("still running")
	}
}

// Refuse closes the port and leaves open connections open.
func TestRefuseKeepsOpenConnections(t *testing.T) {
	f := start(t, Options{Regular: 1})
	c, ctx, w := client(t), testContext(t), f.Regular(0)
	if r := get(ctx, c, w.URL()+"/model_info"); r.status != 200 {
		t.Fatal(r)
	}
	w.Refuse()
	if r := get(ctx, c, w.URL()+"/model_info"); r.status != 200 {
		t.Errorf("an open connection: %+v", r)
	}
	if r := get(ctx, client(t), w.URL()+"/model_info"); r.err == nil {
		t.Errorf("a new connection: %+v", r)
	}
	if err := w.Admit(); err != nil {
		t.Fatal(err)
	}
	if r := get(ctx, client(t), w.URL()+"/model_info"); r.status != 200 {
		t.Errorf("opened again: %+v", r)
	}
}

func TestKillEndsAStopThatWaits(t *testing.T) {
	f := start(t, Options{Regular: 1, Worker: WorkerOptions{Timing: Timing{DecodeStep: time.Hour}}})
	c, ctx, w := client(t), testContext(t), f.Regular(0)
	ch := make(chan reply, 1)
	go func() { ch <- post(ctx, c, w.URL()+chatPath, stream) }()
	if err := w.Wait(ctx, func(s Stats) bool { return s.Decoding == 1 }); err != nil {
		t.Fatal(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- w.Stop(context.Background()) }()
	for w.cancelStop.Load() == nil { // Kill must come while Stop waits
		runtime.Gosched()
	}
	w.Kill()
	if err := <-stopped; err == nil {
		t.Error("the stop ended well")
	}
	<-ch
}

func TestAdminAndCommand(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	c := client(t)
	r, w := newPipe()
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, CommandOptions{JSON: true, Options: Options{Prefill: 1, Decode: 1, AdminAddr: "127.0.0.1:0"}}, w)
	}()
	var lines []map[string]any
	d := json.NewDecoder(r)
	for range 3 {
		var l map[string]any
		if err := d.Decode(&l); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
	if lines[0]["id"] != "prefill-0" || lines[0]["bootstrap_port"] == nil || lines[2]["ready"] != true {
		t.Errorf("lines %v", lines)
	}
	admin, url := lines[2]["admin_url"].(string), lines[0]["url"].(string)
	do := func(path, body string, want int) string {
		t.Helper()
		got := post(ctx, c, admin+path, body)
		if got.status != want {
			t.Errorf("POST %s: %+v", path, got)
		}
		return got.body
	}
	do("/sim/workers/prefill-0/fault", "status=503,count=1", 200)
	if got := post(ctx, c, url+chatPath, plain); got.status != 503 {
		t.Errorf("fault by admin: %+v", got)
	}
	do("/sim/workers/prefill-0/fault", "nonsense", 400)
	do("/sim/workers/nobody/kill", "", 404)
	do("/sim/workers/all/timing", `{"prefill_time":"3s"}`, 200)
	do("/sim/workers/prefill-0/kill", "", 200)
	if got := get(ctx, c, url+"/model_info"); got.err == nil {
		t.Errorf("killed by admin: %+v", got)
	}
	do("/sim/workers/prefill-0/restart", "", 200)
	if got := get(ctx, c, url+"/model_info"); got.status != 200 {
		t.Errorf("restarted by admin: %+v", got)
	}
	if got := get(ctx, c, admin+"/sim/workers/prefill-0/requests?bodies"); !strings.Contains(got.body, `"fault":"status=503,count=1"`) || !strings.Contains(got.body, `"body":"`) {
		t.Errorf("requests: %+v", got)
	}
	if got := get(ctx, c, admin+"/sim/violations"); got.status != 200 {
		t.Errorf("violations: %+v", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := Run(ctx, CommandOptions{}, &bytes.Buffer{}); err == nil {
		t.Error("a fleet of nobody was started")
	}
}

// BenchmarkPair is one request over a pair through net/http's client: the cost
// of a load test's backend and of its client, both legs.
func BenchmarkPair(b *testing.B) {
	f, err := Start(Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{LogRequests: -1}})
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	tr := &http.Transport{MaxIdleConnsPerHost: 100}
	defer tr.CloseIdleConnections()
	c := &http.Client{Transport: tr}
	p, d := f.Prefill(0), f.Decode(0)
	b.ReportAllocs()
	for b.Loop() {
		if x, y := both(context.Background(), c, p, d, chatPath, pd(p, room(), `,"stream":true`)); x.status != 200 || y.status != 200 {
			b.Fatal(x, y)
		}
	}
}

func BenchmarkParseRequest(b *testing.B) {
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("lorem ipsum ", 1<<16) + `"}],"stream":true,"bootstrap_room":7}`)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseRequest(chat, body); err != nil {
			b.Fatal(err)
		}
	}
}
