package sim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits that end at once unless there is a fault.
const patience = 20 * time.Second

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, o Options) *Fleet {
	t.Helper()
	f, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// client makes a client with connections of its own, closed at the end of the test.
func client(t *testing.T) *http.Client {
	tr := &http.Transport{MaxIdleConnsPerHost: 100}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

type reply struct {
	status int
	header http.Header
	body   string
	err    error // of the connection, body may be partial
}

func post(ctx context.Context, c *http.Client, url, body string) reply {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	return send(c, req)
}

// send sends a request and reads the whole answer.
func send(c *http.Client, req *http.Request) reply {
	resp, err := c.Do(req)
	if err != nil {
		return reply{err: err}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, string(b), err}
}

var lastRoom atomic.Int64

// room is a bootstrap room that was not used before.
func room() int64 { return 1<<40 + 1000*lastRoom.Add(1) }

// pd is a chat body for a pair. extra is more JSON members, with a leading
// comma.
func pd(p *Worker, room int64, extra string) string {
	return fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":3,`+
		`"bootstrap_host":"127.0.0.1","bootstrap_port":%d,"bootstrap_room":%d%s}`, p.BootstrapPort(), room, extra)
}

const chatPath = "/v1/chat/completions"

// both sends a body to prefill and decode at once.
func both(ctx context.Context, c *http.Client, p, d *Worker, path, body string) (prefill, decode reply) {
	ch := make(chan reply, 1)
	go func() { ch <- post(ctx, c, p.URL()+path, body) }()
	decode = post(ctx, c, d.URL()+path, body)
	return <-ch, decode
}

func content(t *testing.T, body string) string {
	t.Helper()
	var v struct {
		Choices []struct {
			Message struct{ Content string }
			Text    string
		}
	}
	if err := json.Unmarshal([]byte(body), &v); err != nil || len(v.Choices) == 0 {
		t.Fatalf("no choices in %q (%v)", body, err)
	}
	return v.Choices[0].Message.Content + v.Choices[0].Text
}

// events are the data payloads of an event stream.
func events(body string) []string {
	var out []string
	for _, e := range strings.Split(body, "\n\n") {
		if d, ok := strings.CutPrefix(e, "data: "); ok {
			out = append(out, d)
		}
	}
	return out
}

func wantViolations(t *testing.T, f *Fleet, kinds ...string) {
	t.Helper()
	var got []string
	for _, v := range f.Violations() {
		got = append(got, v.Kind)
	}
	if fmt.Sprint(got) != fmt.Sprint(kinds) {
		t.Errorf("violations %v, want %v", f.Violations(), kinds)
	}
}

func TestPairMeetsByRoom(t *testing.T) {
	f := start(t, Options{Prefill: 2, Decode: 2})
	c, ctx := client(t), testContext(t)
	for _, p := range []*Worker{f.Prefill(0), f.Prefill(1)} {
		for _, d := range []*Worker{f.Decode(0), f.Decode(1)} {
			a, b := both(ctx, c, p, d, chatPath, pd(p, room(), ""))
			if a.status != 200 || b.status != 200 {
				t.Fatalf("prefill %+v, decode %+v", a, b)
			}
			if got := content(t, a.body); got != " t1" {
				t.Errorf("prefill answered %q, want exactly one token", got)
			}
			if got := content(t, b.body); got != " t1 t2 t3" {
				t.Errorf("decode answered %q", got)
			}
		}
	}
	wantViolations(t, f)
	if n := f.OpenRooms(); n != 0 {
		t.Errorf("%d rooms left open", n)
	}
}

func TestPairStreams(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	a, b := both(ctx, c, p, d, chatPath, pd(p, room(), `,"stream":true,"stream_options":{"include_usage":true}`))
	// role, token, finish, usage, [DONE]
	if e := events(a.body); len(e) != 5 || e[4] != "[DONE]" || !strings.Contains(e[1], `" t1"`) {
		t.Errorf("prefill events %q", e)
	}
	e := events(b.body)
	if len(e) != 7 || e[6] != "[DONE]" || !strings.Contains(e[4], `"finish_reason":"length"`) || !strings.Contains(e[5], `"completion_tokens":3`) {
		t.Errorf("decode events %q", e)
	}
	for _, x := range e[:6] {
		if !json.Valid([]byte(x)) {
			t.Errorf("event %q is not JSON", x)
		}
	}
}

func TestPrefillWaitsForDecode(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	r := room()
	ch := make(chan reply, 1)
	go func() { ch <- post(ctx, c, p.URL()+chatPath, pd(p, r, "")) }()
	if err := p.Wait(ctx, func(s Stats) bool { return s.Bootstrap == 1 }); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-ch:
		t.Fatalf("prefill answered %+v before decode came", got)
	default:
	}
	if b := post(ctx, c, d.URL()+chatPath, pd(p, r, "")); b.status != 200 {
		t.Fatal(b)
	}
	if a := <-ch; a.status != 200 {
		t.Fatal(a)
	}
}

func TestMissingAndReusedRoomsAreRefused(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	for _, w := range []*Worker{p, d} {
		got := post(ctx, c, w.URL()+chatPath, `{"messages":[]}`)
		if got.status != 400 || !strings.Contains(got.body, "Disaggregated request received without bootstrap room id") ||
			!strings.HasPrefix(got.body, `{"object":"error","message":`) {
			t.Errorf("%s without room: %+v", w.ID(), got)
		}
	}
	wantViolations(t, f, RoomMissing, RoomMissing)
	f.ResetViolations()

	r := room()
	both(ctx, c, p, d, chatPath, pd(p, r, ""))
	if got := post(ctx, c, p.URL()+chatPath, pd(p, r, "")); got.status != 500 {
		t.Errorf("a room used again: %+v", got)
	}
	wantViolations(t, f, RoomReused)
}

func TestLegWithoutPeerTimesOut(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{BootstrapTimeout: 30 * time.Millisecond}})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	if got := post(ctx, c, p.URL()+chatPath, pd(p, room(), "")); got.status != 500 || !strings.Contains(got.body, "no peer within") {
		t.Errorf("a prefill nobody meets: %+v", got)
	}
	wantViolations(t, f, NoMeeting)
	f.ResetViolations()

	wrong := strings.Replace(pd(p, room(), ""), fmt.Sprint(p.BootstrapPort()), "1", 1)
	if got := post(ctx, c, d.URL()+chatPath, wrong); got.status != 500 {
		t.Errorf("a decode at the wrong port: %+v", got)
	}
	wantViolations(t, f, UnknownPrefill, NoMeeting)
}

func TestClientDisconnectAbortsBothLegs(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	p.SetTiming(Timing{PrefillTime: time.Hour})
	r := room()
	gone, leave := context.WithCancel(ctx)
	ch := make(chan reply, 2)
	go func() { ch <- post(ctx, c, p.URL()+chatPath, pd(p, r, "")) }()
	go func() { ch <- post(gone, c, d.URL()+chatPath, pd(p, r, "")) }()
	if err := p.Wait(ctx, func(s Stats) bool { return s.Prefilling == 1 }); err != nil {
		t.Fatal(err)
	}
	leave()
	// The prefill leg is told of it and fails.
	one, two := <-ch, <-ch
	if one.err == nil {
		one, two = two, one
	}
	if !errors.Is(one.err, context.Canceled) || two.status != 500 {
		t.Errorf("got %+v and %+v", one, two)
	}
	if err := d.WaitIdle(ctx); err != nil {
		t.Fatal(err)
	}
	if got := d.Requests()[0]; got.Outcome != ClientGone || got.Ended.IsZero() {
		t.Errorf("decode logged %+v", got)
	}
	if s := d.Stats(); s.KVTokens != 0 || s.Receiving != 0 {
		t.Errorf("decode still holds %+v", s)
	}
}

func TestKilledWorkerCanBeRestarted(t *testing.T) {
	f := start(t, Options{Prefill: 1, Decode: 1, Worker: WorkerOptions{PeerLossAfter: time.Millisecond}})
	c, ctx := client(t), testContext(t)
	p, d := f.Prefill(0), f.Decode(0)
	p.SetTiming(Timing{PrefillTime: time.Hour})
	r := room()
	ch := make(chan reply, 1)
	go func() { ch <- post(ctx, c, p.URL()+chatPath, pd(p, r, "")) }()
	dch := make(chan reply, 1)
	go func() { dch <- post(ctx, c, d.URL()+chatPath, pd(p, r, "")) }()
	if err := p.Wait(ctx, func(s Stats) bool { return s.Prefilling == 1 }); err != nil {
		t.Fatal(err)
	}
	url := p.URL()
	p.Kill()
	if got := <-ch; got.err == nil {
		t.Errorf("a killed worker answered %+v", got)
	}
	if got := <-dch; got.status != 500 || !strings.Contains(got.body, "peer is gone") {
		t.Errorf("decode of a killed prefill: %+v", got)
	}
	if got := post(ctx, c, url+chatPath, "{}"); got.err == nil {
		t.Errorf("a dead port answered %+v", got)
	}
	if err := p.Restart(); err != nil {
		t.Fatal(err)
	}
	if p.URL() != url {
		t.Errorf("restarted at %s, was %s", p.URL(), url)
	}
	p.SetTiming(Timing{})
	if a, b := both(ctx, c, p, d, chatPath, pd(p, room(), "")); a.status != 200 || b.status != 200 {
		t.Errorf("after the restart: %+v, %+v", a, b)
	}
	if got := p.Requests()[0].Outcome; got != Killed {
		t.Errorf("outcome %q, want killed", got)
	}
}

func TestRegularWorkerAnswersEveryAPI(t *testing.T) {
	f := start(t, Options{Regular: 1})
	c, ctx := client(t), testContext(t)
	w := f.Regular(0)
	for _, x := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_tokens":2,"n":2}`, `"index":1,"message":{"role":"assistant","content":" t1 t2"`},
		{"/v1/completions", `{"prompt":["a","b",  "c"],"max_tokens":1}`, `"index":2,"text":" t1"`},
		{"/v1/completions", `{"prompt":[[1,2],[3]],"max_tokens":1}`, `"index":1,"text":" t1"`},
		{"/generate", `{"text":"a","sampling_params":{"max_new_tokens":2},"return_logprob":true}`, `"output_token_logprobs":[[-0.5,1,null],[-0.5,2,null]],"output_token_logprobs_length":2`},
		{"/generate", `{"text":["a","b"],"sampling_params":{"max_new_tokens":1}}`, `},{"text":" t1"`},
		{"/generate", `{"text":"a","stream":true,"sampling_params":{"max_new_tokens":2}}`, `data: {"text":" t1 t2","output_ids":[1,2]`},
		{"/generate", `{"stream":true,"input_ids":[[1],[2]],"sampling_params":{"max_new_tokens":1}}`, `,"index":1}`},
	} {
		got := post(ctx, c, w.URL()+x.path, x.body)
		if got.status != 200 || !strings.Contains(got.body, x.want) {
			t.Errorf("%s %s: %d %s\nwant %s", x.path, x.body, got.status, got.body, x.want)
		}
	}
	if got := w.Requests(); len(got) != 7 || !bytes.Contains(got[1].Body, []byte(`"b",  "c"`)) || got[1].Outcome != Complete {
		t.Errorf("log: %+v", got)
	}
}

func newPipe() (io.Reader, io.Writer) { return io.Pipe() }

// The other APIs and rerank on a regular SGLang worker, embeddings in base64, and
// logprobs.
func TestRerankEmbeddingsAndLogprobs(t *testing.T) {
	for _, backend := range []Backend{SGLang, VLLM} {
		f := start(t, Options{Regular: 1, Worker: WorkerOptions{Backend: backend, Pooling: true}})
		c, ctx := client(t), testContext(t)
		url := f.Regular(0).URL()
		const chatBody = `{"model":"sim-model","messages":[{"role":"user","content":"x"}],"max_tokens":2`
		for _, x := range []struct {
			path, body string
			status     int
			want       string
		}{
			{"/v1/responses", `{"model":"sim-model","input":"x"}`, 200, `"object":"response"`},
			{"/v1/messages", chatBody + `}`, 200, `"type":"message"`},
			{"/v1/messages/count_tokens", chatBody + `}`, 200, `"input_tokens":`},
			{"/v1/rerank", `{"model":"sim-model","query":"a","documents":["b","c"]}`, 200, `"index":`},
			{"/v1/embeddings", `{"model":"sim-model","input":"x","encoding_format":"base64"}`, 200, `"embedding":"`},
			{"/v1/embeddings", `{"model":"sim-model","input":"x","encoding_format":"float"}`, 200, `"embedding":[0`},
			{"/v1/embeddings", `{"model":"sim-model","input":"x","encoding_format":"hex"}`, 400, `encoding_format`},
			{"/v1/chat/completions", chatBody + `,"logprobs":true,"top_logprobs":2}`, 200, `"top_logprobs":[{"token":`},
			{"/v1/chat/completions", chatBody + `,"logprobs":true}`, 200, `"logprobs":{"content":[{"token":`},
			{"/v1/chat/completions", chatBody + `,"logprobs":false}`, 200, `"logprobs":null`},
			{"/v1/chat/completions", chatBody + `,"logprobs":true,"top_logprobs":2,"stream":true}`, 200, `"token":"alt1","logprob":-1.5,"bytes":[97,108,116,49]}`},
			{"/v1/chat/completions", chatBody + `,"top_logprobs":2}`, 400, `logprobs`},
			{"/v1/chat/completions", chatBody + `,"logprobs":true,"top_logprobs":21}`, 400, `top_logprobs`},
			{"/v1/chat/completions", chatBody + `,"logprobs":3}`, 400, `logprobs`},
			{"/v1/completions", `{"model":"sim-model","prompt":"x","max_tokens":2,"logprobs":0}`, 200, `"token_logprobs":[-0.5,-0.5],"tokens":["`},
			{"/v1/completions", `{"model":"sim-model","prompt":"x","max_tokens":2,"logprobs":2,"stream":true}`, 200, `"alt1":-1.5}]}`},
			{"/v1/completions", `{"model":"sim-model","prompt":"x","max_tokens":2,"logprobs":-1}`, 400, `logprobs`},
		} {
			got := post(ctx, c, url+x.path, x.body)
			if got.status != x.status || !strings.Contains(got.body, x.want) {
				t.Errorf("%v %s %s: %d %s\nwant %d %s", backend, x.path, x.body, got.status, got.body, x.status, x.want)
			}
		}
		got := post(ctx, c, url+"/v1/completions", `{"model":"sim-model","prompt":"x","max_tokens":3,"logprobs":1,"stream":true}`)
		if backend == SGLang && !strings.Contains(got.body, `{"text_offset":[6],`) {
			t.Errorf("offsets do not go on from event to event: %s", got.body)
		}
	}
}
