package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// vbody is a body of the API of path for one prompt.
func vbody(path, text, extra string) string {
	q, _ := json.Marshal(text)
	switch path {
	case "/v1/completions":
		return fmt.Sprintf(`{"model":"sim-model","temperature":0,"prompt":%s%s}`, q, extra)
	case "/v1/responses":
		return fmt.Sprintf(`{"model":"sim-model","temperature":0,"input":%s%s}`, q, strings.ReplaceAll(extra, "max_tokens", "max_output_tokens"))
	}
	return fmt.Sprintf(`{"model":"sim-model","temperature":0,"messages":[{"role":"user","content":%s}]%s}`, q, extra)
}

var vpaths = []string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}

// vpost is post with an X-Request-Id.
func vpost(ctx context.Context, c *http.Client, url, id, body string) reply {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	if id != "" {
		req.Header.Set("X-Request-Id", id)
	}
	return send(c, req)
}

// vtext is the text of an answer of any API, streamed or not.
func vtext(t *testing.T, path string, r reply) string {
	t.Helper()
	if r.err != nil || r.status != 200 {
		t.Fatalf("%s: %+v", path, r)
	}
	type parts struct {
		Text    string
		Content json.RawMessage
		Message struct{ Content string }
		Delta   json.RawMessage
	}
	var v struct {
		Choices []parts
		Content []parts
		Output  []struct{ Content []parts }
		Delta   json.RawMessage
	}
	if !strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream") {
		if err := json.Unmarshal([]byte(r.body), &v); err != nil {
			t.Fatalf("%s: %v in %s", path, err, r.body)
		}
		switch {
		case len(v.Choices) > 0:
			return v.Choices[0].Text + v.Choices[0].Message.Content
		case len(v.Content) > 0:
			return v.Content[0].Text
		case len(v.Output) > 0:
			return v.Output[0].Content[0].Text
		}
		t.Fatalf("%s: no text in %s", path, r.body)
	}
	out := ""
	for _, e := range sse(r.body) {
		v.Choices, v.Delta = nil, nil
		if e.data == "[DONE]" {
			continue
		}
		if err := json.Unmarshal([]byte(e.data), &v); err != nil {
			t.Fatalf("%s: %v in event %q", path, err, e.data)
		}
		delta := v.Delta
		if len(v.Choices) > 0 {
			out += v.Choices[0].Text
			delta = v.Choices[0].Delta
		}
		var d struct{ Content, Text string }
		var s string
		switch {
		case len(delta) == 0:
		case json.Unmarshal(delta, &s) == nil:
			out += s
		case json.Unmarshal(delta, &d) == nil:
			out += d.Content + d.Text
		}
	}
	return out
}

type sseEvent struct{ name, data string }

func sse(body string) []sseEvent {
	var out []sseEvent
	for _, e := range strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		var x sseEvent
		for _, l := range strings.Split(e, "\n") {
			if v, ok := strings.CutPrefix(l, "event: "); ok {
				x.name = v
			}
			if v, ok := strings.CutPrefix(l, "data: "); ok {
				x.data = v
			}
		}
		out = append(out, x)
	}
	return out
}

func startVLLM(t *testing.T, o Options) *Fleet {
	t.Helper()
	o.Worker.Backend = VLLM
	return start(t, o)
}

func TestVLLMInformationRoutes(t *testing.T) {
	f := startVLLM(t, Options{Regular: 1, Worker: WorkerOptions{KVTokens: 1600, PageSize: 16, ContextLength: 1024, Adapters: []string{"lora-a"}, APIKey: "k"}})
	c, ctx := client(t), testContext(t)
	w := f.Regular(0)
	do := func(method, path string) reply {
		req, _ := http.NewRequestWithContext(ctx, method, w.URL()+path, nil)
		req.Header.Set("Authorization", "Bearer k")
		resp, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return reply{resp.StatusCode, resp.Header, string(b), nil}
	}
	for _, x := range []struct {
		method, path string
		status       int
		body         string
	}{
		{"GET", "/health", 200, ""},
		{"HEAD", "/health", 405, ""},
		{"GET", "/version", 200, `{"version":"0.32.0"}`},
		{"GET", "/ping", 200, ""},
		{"GET", "/load", 200, `{"server_load":0}`},
		{"GET", "/server_info", 404, `{"detail":"Not Found"}`},
		{"GET", "/get_server_info", 404, `{"detail":"Not Found"}`},
		{"GET", "/v1/models/sim-model", 404, `{"detail":"Not Found"}`},
		{"POST", "/v1/embeddings", 404, `{"detail":"Not Found"}`},
		{"POST", "/nowhere", 404, `{"detail":"Not Found"}`},
		{"GET", "/v1/chat/completions", 405, `{"detail":"Method Not Allowed"}`},
		{"GET", "/v1/responses/x", 404, `{"error":{"message":"Response with id 'x' not found.","type":"invalid_request_error","param":"response_id","code":404}}`},
		{"GET", "/tokenize", 405, `{"detail":"Method Not Allowed"}`},
		{"POST", "/v1/models", 405, `{"detail":"Method Not Allowed"}`},
	} {
		if r := do(x.method, x.path); r.status != x.status || r.body != x.body {
			t.Errorf("%s %s: %d %q, want %d %q", x.method, x.path, r.status, r.body, x.status, x.body)
		}
	}
	if r := get(ctx, c, w.URL()+"/v1/models"); r.status != 401 {
		t.Errorf("without a key: %+v", r)
	}
	if r := get(ctx, c, w.URL()+"/version"); r.status != 200 {
		t.Errorf("the key guards /v1 only: %+v", r)
	}
	var models struct {
		Data []struct {
			ID      string
			OwnedBy string `json:"owned_by"`
			Parent  string
			Len     int `json:"max_model_len"`
		}
	}
	if r := do("GET", "/v1/models"); json.Unmarshal([]byte(r.body), &models) != nil || len(models.Data) != 2 ||
		models.Data[0].OwnedBy != "vllm" || models.Data[0].Len != 1024 || models.Data[1].Parent != "sim-model" {
		t.Errorf("models %+v", models)
	}
	m := get(ctx, c, w.URL()+"/metrics").body
	for _, want := range []string{
		`vllm:num_requests_running{engine="0",model_name="sim-model"} 0`,
		`vllm:num_requests_waiting_by_reason{engine="0",model_name="sim-model",reason="deferred"} 0`,
		`vllm:kv_cache_usage_perc{engine="0",model_name="sim-model"} 0`,
		`block_size="16",`, `kv_cache_size_tokens="1600",num_gpu_blocks="100",`,
		`vllm:prompt_tokens_by_source_total{engine="0",model_name="sim-model",source="external_kv_transfer"} 0`,
	} {
		if !strings.Contains(m, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
}

// What is refused, and with which errors.
func TestVLLMErrorsAreTheEngines(t *testing.T) {
	f := startVLLM(t, Options{Regular: 1, Worker: WorkerOptions{ContextLength: 100, Adapters: []string{"lora-a"}}})
	c, ctx := client(t), testContext(t)
	long := strings.Repeat("abcd", 200)
	for _, x := range []struct {
		name, path, body string
		status           int
		kind, param      string
	}{
		{"bad JSON", chatPath, `{"model":"sim-model",`, 400, "Bad Request", "body."},
		{"no object", chatPath, `[1]`, 400, "Bad Request", "body"},
		{"missing messages", chatPath, `{"model":"sim-model"}`, 400, "Bad Request", "body.messages"},
		{"wrong type", chatPath, `{"messages":7}`, 400, "BadRequestError", ""},
		{"message of a wrong type", chatPath, `{"messages":[7]}`, 400, "Bad Request", "body.messages"},
		{"no messages", chatPath, `{"messages":[]}`, 400, "BadRequestError", ""},
		{"no tools", chatPath, vbody(chatPath, "x", `,"tools":[]`), 400, "BadRequestError", "tools"},
		{"model of a wrong type", chatPath, vbody(chatPath, "x", `,"model":7`), 400, "Bad Request", "body.model"},
		{"unknown model", chatPath, vbody(chatPath, "x", `,"model":"no/such"`), 404, "NotFoundError", "model"},
		{"max_tokens 0", chatPath, vbody(chatPath, "x", `,"max_tokens":0`), 400, "BadRequestError", "max_tokens"},
		{"max_tokens -1", chatPath, vbody(chatPath, "x", `,"max_tokens":-1`), 400, "BadRequestError", "max_tokens"},
		{"max_tokens too large", chatPath, vbody(chatPath, "x", `,"max_tokens":101`), 400, "BadRequestError", "max_tokens"},
		{"prompt too long", chatPath, vbody(chatPath, long, `,"stream":true`), 400, "BadRequestError", "input_tokens"},
		{"n at temperature 0", chatPath, vbody(chatPath, "x", `,"n":2`), 400, "BadRequestError", ""},
		{"stream options without stream", chatPath, vbody(chatPath, "x", `,"stream_options":{"include_usage":true}`), 400, "BadRequestError", "stream_options"},
		{"stream options without stream", "/v1/completions", vbody("/v1/completions", "x", `,"stream":false,"stream_options":{"include_usage":false}`), 400, "BadRequestError", "stream_options"},
		{"min over max", chatPath, vbody(chatPath, "x", `,"max_tokens":1,"min_tokens":5`), 400, "BadRequestError", ""},
		{"params no object", chatPath, vbody(chatPath, "x", `,"kv_transfer_params":[]`), 400, "Bad Request", "body.kv_transfer_params"},
		{"no prompt", "/v1/completions", `{"model":"sim-model"}`, 400, "BadRequestError", "prompt"},
		{"empty prompt", "/v1/completions", vbody("/v1/completions", "", ""), 400, "BadRequestError", "prompt"},
		{"prompt of a wrong type", "/v1/completions", `{"prompt":7}`, 400, "Bad Request", "body.prompt"},
		{"max_output_tokens 0", "/v1/responses", vbody("/v1/responses", "x", `,"max_tokens":0`), 400, "BadRequestError", "max_tokens"},
		{"max_output_tokens too large", "/v1/responses", vbody("/v1/responses", "x", `,"max_tokens":900`), 400, "BadRequestError", "max_output_tokens"},
		{"max_tokens 0 of messages", "/v1/messages", vbody("/v1/messages", "x", `,"max_tokens":0`), 400, "Bad Request", "body.max_tokens"},
		{"no input", "/v1/responses", `{"model":"sim-model"}`, 400, "Bad Request", "body.input"},
		{"no max_tokens", "/v1/messages", vbody("/v1/messages", "x", ""), 400, "Bad Request", "body.max_tokens"},
	} {
		r := post(ctx, c, f.Regular(0).URL()+x.path, x.body)
		var e struct {
			Error struct {
				Message, Type, Param string
				Code                 int
			}
		}
		if err := json.Unmarshal([]byte(r.body), &e); err != nil || r.header.Get("Content-Type") != "application/json" {
			t.Errorf("%s: %+v", x.name, r)
			continue
		}
		if r.status != x.status || e.Error.Code != x.status || e.Error.Type != x.kind || !strings.HasPrefix(e.Error.Param, x.param) || e.Error.Message == "" {
			t.Errorf("%s: %d %s", x.name, r.status, r.body)
		}
	}
	for _, body := range []string{
		`{"messages":[{"role":"user","content":"x"}]}`, // no model
		vbody(chatPath, "x", `,"whatever":{"a":[1]}`),
		vbody(chatPath, "x", `,"stream_options":null`),
		vbody(chatPath, "x", `,"stream_options":{}`),
		vbody(chatPath, "x", `,"max_tokens":100`), // more than the context has room for: cut
		vbody(chatPath, "x", `,"model":""`),
		vbody(chatPath, "x", `,"model":"lora-a"`),
		vbody(chatPath, "x", `,"n":2,"temperature":0.5`),
		vbody(chatPath, "x", `,"max_tokens":500,"max_completion_tokens":2`), // the latter wins
	} {
		if r := post(ctx, c, f.Regular(0).URL()+chatPath, body); r.status != 200 {
			t.Errorf("%s: %+v", body, r)
		}
	}
	req, _ := http.NewRequestWithContext(ctx, "POST", f.Regular(0).URL()+chatPath, strings.NewReader(vbody(chatPath, "x", "")))
	req.Header.Set("Content-Type", "text/plain")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 400 || !bytes.Contains(b, []byte("Unsupported Media Type")) {
		t.Errorf("another content type: %d %s", resp.StatusCode, b)
	}
	r := post(ctx, c, f.Regular(0).URL()+"/v1/messages", vbody("/v1/messages", "x", `,"max_tokens":2,"model":"none"`))
	if r.status != 404 || !strings.HasPrefix(r.body, `{"type":"error","error":{"type":`) {
		t.Errorf("unknown model of the messages API: %+v", r)
	}
}

// The four APIs answer the same text, streamed and not, each in its own framing.
func TestVLLMAPIsAnswerTheSameText(t *testing.T) {
	f := startVLLM(t, Options{Regular: 1})
	c, ctx := client(t), testContext(t)
	url := f.Regular(0).URL()
	want := ""
	for _, path := range vpaths {
		plain := vpost(ctx, c, url+path, "abc", vbody(path, "hello there", `,"max_tokens":5`))
		stream := vpost(ctx, c, url+path, "abc", vbody(path, "hello there", `,"max_tokens":5,"stream":true`))
		text := vtext(t, path, plain)
		if got := vtext(t, path, stream); got != text || text == "" {
			t.Errorf("%s: streamed %q, whole %q", path, got, text)
		}
		if path != "/v1/completions" { // which has no chat template
			if want == "" {
				want = text
			}
			if text != want {
				t.Errorf("%s: %q, chat says %q", path, text, want)
			}
		}
		if stream.header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
			t.Errorf("%s: content type %q", path, stream.header.Get("Content-Type"))
		}
		id := map[string]string{"/v1/completions": `cmpl-abc"`, "/v1/responses": "resp_"}[path] // which follows no header
		if id == "" {
			id = `chatcmpl-abc"`
		}
		for _, r := range []reply{plain, stream} {
			if !strings.Contains(r.body, `"id":"`+id) || path == "/v1/responses" && strings.Contains(r.body, "abc") {
				t.Errorf("%s: no id %s in %s", path, id, r.body)
			}
		}
		var names []string
		e := sse(stream.body)
		for _, x := range e {
			names = append(names, x.name)
		}
		last := e[len(e)-1]
		switch path {
		case "/v1/responses":
			wantNames := []string{"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"}
			for range 5 {
				wantNames = append(wantNames, "response.output_text.delta")
			}
			wantNames = append(wantNames, "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed")
			if !slices.Equal(names, wantNames) || !strings.Contains(last.data, `"status":"incomplete"`) {
				t.Errorf("responses events %v, last %s", names, last.data)
			}
		case "/v1/messages":
			wantNames := []string{"message_start", "content_block_start"}
			for range 5 {
				wantNames = append(wantNames, "content_block_delta")
			}
			wantNames = append(wantNames, "content_block_stop", "message_delta", "message_stop")
			if !slices.Equal(names, wantNames) || !strings.Contains(stream.body, `"stop_reason":"max_tokens"`) {
				t.Errorf("messages events %v", names)
			}
		default:
			if last.data != "[DONE]" || !strings.Contains(e[len(e)-2].data, `"finish_reason":"length"`) {
				t.Errorf("%s events %v", path, e)
			}
		}
		for _, x := range e {
			if x.data != "[DONE]" && !json.Valid([]byte(x.data)) {
				t.Errorf("%s: no JSON in event %q", path, x.data)
			}
		}
	}
	r := post(ctx, c, url+chatPath, vbody(chatPath, "x", `,"max_tokens":2,"stream":true,"stream_options":{"include_usage":true}`))
	e := sse(r.body)
	if len(e) != 5 || !strings.Contains(e[0].data, `"delta":{"role":"assistant","content":""}`) || !strings.Contains(e[3].data, `"choices":[],"usage":{`) {
		t.Errorf("chat events %v", e)
	}
	// Without max_tokens chat ends by itself, completions end after 16 tokens.
	f.Regular(0).SetTiming(Timing{OutputTokens: 20})
	for path, tokens := range map[string]string{chatPath: `"completion_tokens":20`, "/v1/completions": `"completion_tokens":16`} {
		if r := post(ctx, c, url+path, vbody(path, "x", "")); !strings.Contains(r.body, tokens) {
			t.Errorf("%s: %s", path, r.body)
		}
	}
}

func TestVLLMTokenizeAndDetokenizeAgree(t *testing.T) {
	f := startVLLM(t, Options{Regular: 1})
	c, ctx := client(t), testContext(t)
	url := f.Regular(0).URL()
	var tok struct {
		Count  int
		Tokens []int64
	}
	const text = "grüße, a text of some length"
	if err := json.Unmarshal([]byte(post(ctx, c, url+"/tokenize", vbody("/v1/completions", text, "")).body), &tok); err != nil || tok.Count != len(tok.Tokens) {
		t.Fatalf("%+v %v", tok, err)
	}
	ids, _ := json.Marshal(tok.Tokens)
	if r := post(ctx, c, url+"/detokenize", fmt.Sprintf(`{"tokens":%s}`, ids)); r.body != `{"prompt":"`+text+`"}` {
		t.Errorf("back came %+v", r)
	}
	a := post(ctx, c, url+"/v1/completions", fmt.Sprintf(`{"prompt":%s,"max_tokens":4}`, ids))
	b := post(ctx, c, url+"/v1/completions", vbody("/v1/completions", text, `,"max_tokens":4`))
	if x, y := vtext(t, "ids", a), vtext(t, "text", b); x != y {
		t.Errorf("ids give %q, the text %q", x, y)
	}
	if !strings.Contains(b.body, fmt.Sprintf(`"prompt_tokens":%d,`, tok.Count)) {
		t.Errorf("usage %s, want %d", b.body, tok.Count)
	}
	r := post(ctx, c, url+"/v1/messages/count_tokens", vbody("/v1/messages", "hi", `,"system":"be brief"`))
	m := post(ctx, c, url+"/v1/messages", vbody("/v1/messages", "hi", `,"system":"be brief","max_tokens":1`))
	n, _, ok := strings.Cut(strings.TrimPrefix(r.body, "{"), ",")
	if !ok || !strings.Contains(m.body, n+",") {
		t.Errorf("counted %s, used %s", r.body, m.body)
	}
}

// A client that closes its sending half after the request counts as disconnected: it
// gets no answer, and the engine aborts its request.
func TestVLLMHalfClosedClientIsDisconnected(t *testing.T) {
	f := startVLLM(t, Options{Regular: 1, Worker: WorkerOptions{Timing: Timing{PrefillTime: time.Hour}}})
	ctx := testContext(t)
	w := f.Regular(0)
	c, err := net.Dial("tcp", w.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	body := vbody(chatPath, "x", "")
	fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(body), body)
	if err := w.Wait(ctx, func(s Stats) bool { return s.Prefilling == 1 }); err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).CloseWrite()
	if got, err := io.ReadAll(c); err != nil || len(got) > 0 {
		t.Errorf("got %q, %v", got, err)
	}
	if err := w.WaitIdle(ctx); err != nil {
		t.Fatal(err)
	}
	if r := w.Requests()[0]; r.Outcome != ClientGone || w.Stats().KVTokens != 0 {
		t.Errorf("%+v, %+v", r, w.Stats())
	}
}

// After SIGTERM the port refuses, and a stream stays open without further events.
func TestVLLMTerminateLeavesStreamsOpen(t *testing.T) {
	f := startVLLM(t, Options{Regular: 1, Worker: WorkerOptions{Timing: Timing{DecodeStep: time.Millisecond}}})
	c, ctx := client(t), testContext(t)
	w := f.Regular(0)
	gone, leave := context.WithCancel(ctx)
	req, _ := http.NewRequestWithContext(gone, "POST", w.URL()+chatPath, strings.NewReader(vbody(chatPath, "x", `,"stream":true,"max_tokens":1000000`)))
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := resp.Body.Read(make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	w.Terminate()
	if r := get(ctx, client(t), w.URL()+"/health"); r.err == nil {
		t.Errorf("the port answers %+v", r)
	}
	if s := w.Stats(); s.Inflight != 1 {
		t.Errorf("stats %+v", s)
	}
	read := make(chan error, 1)
	go func() { _, err := io.Copy(io.Discard, resp.Body); read <- err }()
	select {
	case err := <-read:
		t.Fatalf("the stream ended: %v", err)
	case <-time.After(50 * time.Millisecond): // it never would
	}
	leave()
	<-read
	if err := w.WaitIdle(ctx); err != nil {
		t.Fatal(err)
	}
	if err := w.Restart(); err != nil {
		t.Fatal(err)
	}
	if r := post(ctx, c, w.URL()+chatPath, vbody(chatPath, "x", `,"max_tokens":2`)); r.status != 200 {
		t.Errorf("after the restart: %+v", r)
	}
}

func TestVLLMRequestsHaveFaults(t *testing.T) {
	f := startVLLM(t, Options{Regular: 1})
	c, ctx := client(t), testContext(t)
	url := f.Regular(0).URL() + chatPath
	if r := post(ctx, c, url, vbody(chatPath, "x", `,"sim":"status=503,retry_after=3"`)); r.status != 503 || r.header.Get("Retry-After") != "3" ||
		!strings.Contains(r.body, `"code":503}}`) {
		t.Errorf("status: %+v", r)
	}
	if r := post(ctx, c, url, vbody(chatPath, "x", `,"stream":true,"sim":"reset=event,after=2"`)); r.err == nil {
		t.Errorf("reset: %+v", r)
	}
	if r := post(ctx, c, url, vbody(chatPath, "x", `,"stream":true,"sim":"end=event,after=2"`)); r.err != nil || strings.Contains(r.body, "[DONE]") {
		t.Errorf("end: %+v", r)
	}
	if r := post(ctx, c, url, vbody(chatPath, "x", `,"sim":{"token":["a","b"]}`)); vtext(t, url, r) != "ab" {
		t.Errorf("tokens: %+v", r)
	}
}

func TestPoolingRoutesOfBothEngines(t *testing.T) {
	for _, b := range []Backend{SGLang, VLLM} {
		f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: b, Pooling: true, Tokenizer: true}})
		c, ctx := client(t), testContext(t)
		score, classify := `{"text_1":"q","text_2":["a","b"]}`, "/classify"
		if b == SGLang {
			score, classify = `{"query":"q","items":["a","b"]}`, "/v1/classify"
		}
		for _, x := range []struct{ path, body, want string }{
			{"/v1/embeddings", `{"model":"sim-model","input":["a","b"]}`, `{"index":1,"object":"embedding","embedding":[`},
			{"/v1/rerank", `{"query":"q","documents":["a","b","c"],"top_n":2}`, `"score":`},
			{"/v1/score", score, `score`},
			{classify, `{"input":"a"}`, `"probs":[`},
			{"/tokenize", `{"prompt":"abc"}`, `"count":2`},
		} {
			r := post(ctx, c, f.Regular(0).URL()+x.path, x.body)
			if r.status != 200 || !json.Valid([]byte(r.body)) || !strings.Contains(strings.ReplaceAll(r.body, "relevance_", ""), x.want) {
				t.Errorf("%s %s: %+v", b, x.path, r)
			}
		}
		got := f.Regular(0).Requests()
		if len(got) != 5 || string(got[0].Body) != `{"model":"sim-model","input":["a","b"]}` {
			t.Errorf("%s: log %+v", b, got)
		}
		if r := post(ctx, c, f.Regular(0).URL()+"/v1/embeddings", `{"model":"other","input":"a"}`); r.status != 404 || !strings.Contains(r.body, "does not exist") {
			t.Errorf("%s: unknown model %+v", b, r)
		}
	}
}

// These routes of SGLang have no field for bootstrap rooms.
func TestSGLangPairsRefuseResponsesAndMessages(t *testing.T) {
	f := start(t, Options{Prefill: 1, Regular: 1, Worker: WorkerOptions{Responses: true}})
	c, ctx := client(t), testContext(t)
	for _, path := range []string{"/v1/responses", "/v1/messages"} {
		for _, extra := range []string{`,"max_tokens":2`, `,"max_tokens":2,"stream":true`} {
			if got := vtext(t, path, post(ctx, c, f.Regular(0).URL()+path, vbody(path, "x", extra))); got != " t1 t2" {
				t.Errorf("%s%s: %q", path, extra, got)
			}
		}
		r := post(ctx, c, f.Prefill(0).URL()+path, vbody(path, "x", `,"max_tokens":2,"bootstrap_host":"127.0.0.1","bootstrap_room":7`))
		if r.status != 400 || !strings.Contains(r.body, "without bootstrap room id") {
			t.Errorf("%s: %+v", path, r)
		}
	}
	wantViolations(t, f, RoomMissing, RoomMissing)
}
