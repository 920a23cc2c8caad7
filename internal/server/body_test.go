package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/config/configtest"
	"github.com/sluice-router/sluice/internal/sim"
)

// ofSize is a chat request of exactly n bytes with an image inside.
func ofSize(n int) string {
	const head = `{"model":"sim-model","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,`
	const tail = `"}}]}]}`
	return head + strings.Repeat("A", n-len(head)-len(tail)) + tail
}

func TestBodiesUpToTheLimit(t *testing.T) {
	const limit = 12 << 20
	r := start(t, func(s *setup) {
		s.cfg.Server.MaxPayloadSize = limit
		s.sim.Worker.LogBodyBytes = -1
	})
	for _, n := range []int{1 << 20, 1<<20 + 1, 3 << 20, 10 << 20, limit - 1, limit} {
		if a := r.do("POST", "/v1/chat/completions", ofSize(n)); a.status != 200 {
			t.Errorf("%d bytes: status %d: %.200s", n, a.status, a.body)
		}
	}
	for _, n := range []int{limit + 1, 50 << 20} {
		id := fmt.Sprint("over-", n)
		a := r.do("POST", "/v1/chat/completions", ofSize(n), "X-Request-Id", id)
		e := a.refused(t, 413, "request_too_large")
		if !strings.Contains(e.Message, fmt.Sprint(limit)) || !strings.Contains(e.Message, "--max-payload-size") {
			t.Errorf("the limit is not named: %s", e.Message)
		}
		if l := r.line(id); !strings.Contains(l, "status=413 reason=request_too_large") {
			t.Errorf("access line %s", l)
		}
	}
	if got := r.metric(`sluice_requests_total{reason="request_too_large",route="chat_completions",status="413"}`); got != 2 {
		t.Errorf("%v refusals are counted, want 2", got)
	}
	if n := len(r.sim.Decode(0).Requests()); n != 6 {
		t.Errorf("decode saw %d requests, want 6", n)
	}
}

// An ordinary client sends all of its body before it reads: if the connection is
// closed meanwhile it sees a broken pipe and no reason.
func TestTooLargeIsReadByAClientThatSendsAllFirst(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Server.MaxPayloadSize = 2 << 20 })
	body := ofSize(3 << 20)
	for _, chunked := range []bool{false, true} {
		c := r.dial()
		if chunked {
			c.send("POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
			for part := range strings.SplitSeq(body, "AAAAAAAA") {
				if part += "AAAAAAAA"; len(part) > 0 {
					c.send(fmt.Sprintf("%x\r\n%s\r\n", len(part), part))
				}
			}
			c.send("0\r\n\r\n")
		} else {
			c.post("/generate", len(body), body)
		}
		a := c.read()
		a.refused(t, 413, "request_too_large")
		if a.header.Get("Connection") != "close" {
			t.Errorf("headers %v", a.header)
		}
		c.ended()
	}
}

// The answer must not wait for the body.
func TestTooLargeIsAnsweredBeforeTheBodyIsSent(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Server.MaxPayloadSize = 2 << 20 })
	c := r.dial()
	c.post("/generate", 3<<30, "{")
	c.read().refused(t, 413, "request_too_large")

	c = r.dial()
	c.send("POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
	chunk := fmt.Sprintf("%x\r\n%s\r\n", 1<<20, strings.Repeat("[", 1<<20))
	for range 3 {
		c.send(chunk)
	}
	c.read().refused(t, 413, "request_too_large")
}

func TestExpect100Continue(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Server.MaxPayloadSize = 3 << 20 })
	body := ofSize(2 << 20)
	c := r.dial()
	c.post("/v1/chat/completions", len(body), "", "Expect: 100-continue")
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil || resp.StatusCode != 100 {
		t.Fatalf("want 100 before the body, got %v, %v", resp, err)
	}
	c.send(body)
	if a := c.read(); a.status != 200 {
		t.Errorf("status %d: %s", a.status, a.body)
	}

	// What will be refused is refused without asking for the body.
	c = r.dial()
	c.post("/v1/chat/completions", 4<<20, "", "Expect: 100-continue")
	c.read().refused(t, 413, "request_too_large")
	c.ended()
	c = r.dial()
	c.post("/v1/nothing", 4<<20, "", "Expect: 100-continue")
	c.read().refused(t, 404, "route_not_found")
	c.ended()

	c = r.dial()
	c.post("/v1/chat/completions", len(body), "", "Expect: the-unexpected")
	if a := c.read(); a.status != 417 {
		t.Errorf("status %d, want 417", a.status)
	}
}

func TestAllBodiesTogetherAreBounded(t *testing.T) {
	r := start(t, func(s *setup) {
		s.cfg.Server.MaxBufferedBytes = 3 << 20
		s.sim.Worker.Timing.PrefillTime = time.Hour
	})
	first := r.dial()
	body := ofSize(1 << 20)
	first.post("/v1/chat/completions", len(body), body)
	if err := r.sim.Prefill(0).WaitInflight(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if got := r.metric("sluice_buffered_bytes"); got != 1<<20 {
		t.Errorf("%v bytes are held, want 1 MiB", got)
	}
	a := r.do("POST", "/v1/chat/completions", ofSize(3<<20))
	e := a.refused(t, 503, "buffer_full")
	if a.header.Get("Retry-After") != "1" || !strings.Contains(e.Message, "--max-buffered-bytes") {
		t.Errorf("Retry-After %q: %s", a.header.Get("Retry-After"), e.Message)
	}
	_ = first.Close() // the client leaves
	r.waitFor("the body's memory", func() bool { return r.metric("sluice_buffered_bytes") == 0 })
}

// A request that is translated is held twice.
func TestTranslatedBodiesAreCounted(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Server.MaxBufferedBytes = 3 << 20 })
	body := func(size int) string {
		return fmt.Sprintf(`{"model":"sim-model","max_output_tokens":3,"input":"%s"}`, strings.Repeat("x", size))
	}
	if a := r.do("POST", "/v1/responses", body(900<<10)); a.status != 200 {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	r.do("POST", "/v1/responses", body(1900<<10)).refused(t, 503, "buffer_full")
	r.waitFor("the bodies' memory", func() bool { return r.metric("sluice_buffered_bytes") == 0 })
}

// An announced length is only a promise: a thousand clients who promise 500 MiB
// must not cost 500 GiB.
func TestAnnouncedLengthAloneTakesNoMemory(t *testing.T) {
	r := start(t, nil)
	c := r.dial()
	c.post("/v1/chat/completions", 500<<20, `{"model":`)
	r.waitFor("the first buffer", func() bool { return r.srv.buffers.used.Load() > 0 })
	if got := r.srv.buffers.used.Load(); got != pageBytes {
		t.Errorf("%d bytes are held", got)
	}
}

func TestSlowBodyIsEnded(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Timeouts.ClientBody = 50 * time.Millisecond })
	c := r.dial()
	c.post("/v1/chat/completions", 100, `{"model":`)
	e := c.read().refused(t, 408, "request_timeout")
	if !strings.Contains(e.Message, "50ms") || !strings.Contains(e.Message, "--client-body-timeout-secs") {
		t.Errorf("message %s", e.Message)
	}
}

// One byte now and then resets every limit on silence.
func TestDrippingBodyIsEndedByTheWholeLimit(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Timeouts.Request = 200 * time.Millisecond })
	c := r.dial()
	c.post("/v1/chat/completions", 100000, "{")
	stop := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				_, _ = io.WriteString(c, " ") // the other end answers in between
			}
		}
	}()
	e := c.read().refused(t, 408, "request_timeout")
	if !strings.Contains(e.Message, "--request-timeout-secs") {
		t.Errorf("message %s", e.Message)
	}
	close(stop)
	<-ended
}

// The body's deadline must not stay behind: it would end the watch for a client
// that leaves, and with it the request.
func TestLongRequestOutlivesTheBodyDeadline(t *testing.T) {
	r := start(t, func(s *setup) {
		s.cfg.Timeouts.ClientBody = 30 * time.Millisecond
		s.sim.Worker.Timing.PrefillTime = 300 * time.Millisecond
	})
	if a := r.do("POST", "/v1/chat/completions", chat); a.status != 200 {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}

func TestBodyThatIsCutOffReachesNobody(t *testing.T) {
	r := start(t, nil)
	c := r.dial()
	c.post("/v1/chat/completions", len(chat), chat[:20], "X-Request-Id: cut")
	_ = c.CloseWrite() // half-closed: it could still read
	c.ended()
	if l := r.line("cut"); !strings.Contains(l, "status=499 reason=client_gone") {
		t.Errorf("access line %s", l)
	}
	c = r.dial()
	c.send("POST /generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	c.read().refused(t, 400, "invalid_request")
	if n := len(r.sim.Decode(0).Requests()); n != 0 {
		t.Errorf("decode saw %d requests", n)
	}
}

// A connection with an answered error serves the next request, if little was
// left to read.
func TestConnectionIsKeptAfterASmallRefusal(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Auth.APIKeys = []config.Secret{"k"} })
	c := r.dial()
	c.post("/v1/chat/completions", len(chat), chat)
	c.read().refused(t, 401, "invalid_api_key")
	c.post("/nope", len(chat), chat)
	c.read().refused(t, 404, "route_not_found")
	c.post("/v1/chat/completions", len(chat), chat, "Authorization: Bearer k")
	if a := c.read(); a.status != 200 {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}

func TestContentEncodingIsRefused(t *testing.T) {
	r := start(t, nil)
	r.do("POST", "/generate", "\x1f\x8b...", "Content-Encoding", "gzip").refused(t, 415, "unsupported_encoding")
	if got := r.status("POST", "/v1/chat/completions", chat, "Content-Encoding", "Identity"); got != 200 {
		t.Errorf("identity: status %d", got)
	}
}

// Whatever the content type says, the body has to be JSON; a missing or odd type
// is no reason to refuse one that is.
func TestContentTypeIsNotAskedFor(t *testing.T) {
	r := start(t, nil)
	for _, ct := range []string{"", "text/plain", "application/x-www-form-urlencoded", "nonsense"} {
		if got := r.status("POST", "/v1/chat/completions", chat, "Content-Type", ct); got != 200 {
			t.Errorf("%q: status %d", ct, got)
		}
	}
	for _, w := range r.sim.Workers() {
		for _, q := range w.Requests() {
			if got := q.Header.Get("Content-Type"); got != "application/json" {
				t.Errorf("an engine was told the type %q", got)
			}
		}
	}
}

// TestBadInput is the list of what arrives from broken and from hostile clients.
func TestBadInput(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Server.MaxPayloadSize = 8 << 20 })
	deep := strings.Repeat(`{"a":`, 10000) + "1" + strings.Repeat("}", 10000)
	msgs := `"messages":[{"role":"user","content":"hi"}]`
	for _, tc := range []struct {
		name, body, param string
	}{
		{"empty", " ", ""},
		{"not JSON", "hello", ""},
		{"an array", "[]", ""},
		{"truncated", `{"model":"sim-model","messages":[{"role"`, ""},
		{"something behind", chat + "x", ""},
		{"duplicate model", `{"model":"a",` + msgs + `,"model":"sim-model"}`, "model"},
		{"duplicate stream", `{"stream":true,` + msgs + `,"stream":false}`, "stream"},
		{"duplicate n", `{"n":1,` + msgs + `,"n":1}`, "n"},
		{"10,000 deep", `{` + msgs + `,"x":` + deep + "}", ""},
		{"6 MB of [", strings.Repeat("[", 6<<20), ""},
		{"6 MB of [ inside", `{` + msgs + `,"x":` + strings.Repeat("[", 6<<20), ""},
		{"n text", `{"n":"1",` + msgs + `}`, "n"},
		{"n fraction", `{"n":1.5,` + msgs + `}`, "n"},
		{"n zero", `{"n":0,` + msgs + `}`, "n"},
		{"stream text", `{"stream":"yes",` + msgs + `}`, "stream"},
		{"model number", `{"model":1,` + msgs + `}`, "model"},
		{"bootstrap_room", `{"bootstrap_room":5,` + msgs + `}`, "bootstrap_room"},
		{"bootstrap_host", `{"bootstrap_host":"evil",` + msgs + `}`, "bootstrap_host"},
		{"routed_dp_rank", `{"routed_dp_rank":0,` + msgs + `}`, "routed_dp_rank"},
		{"invalid UTF-8", "{\"model\":\"sim-model\xff\"," + msgs + "}", ""},
	} {
		for _, stream := range []bool{false, true} {
			body := tc.body
			if stream && strings.HasSuffix(body, "}") && !strings.Contains(body, "stream") {
				body = body[:len(body)-1] + `,"stream":true}`
			}
			e := r.do("POST", "/v1/chat/completions", body).refused(t, 400, "invalid_request")
			switch {
			case tc.param == "" && e.Param != nil, tc.param != "" && (e.Param == nil || *e.Param != tc.param):
				t.Errorf("%s: param %v, want %q: %s", tc.name, e.Param, tc.param, e.Message)
			case e.Type != "invalid_request_error" || len(e.Message) < 20:
				t.Errorf("%s: %+v", tc.name, e)
			}
		}
	}
	if n := len(r.sim.Prefill(0).Requests()); n != 0 {
		t.Errorf("prefill saw %d of them", n)
	}
	if got := r.metric(`sluice_requests_total{reason="invalid_request",route="chat_completions",status="400"}`); got != 40 {
		t.Errorf("%v bad requests are counted, want 40", got)
	}
}

// Several samples of one request: each has a hand-off of its own, and the client
// sees one answer.
func TestSeveralSamples(t *testing.T) {
	r := start(t, nil)
	for path, body := range map[string]string{
		"/v1/chat/completions": chat[:len(chat)-1] + `,"n":3}`,
		"/v1/completions":      `{"prompt":"hello","max_tokens":3,"n":3}`,
	} {
		for _, stream := range []bool{false, true} {
			if stream {
				body = body[:len(body)-1] + `,"stream":true}`
			}
			a := r.do("POST", path, body)
			if a.status != 200 || strings.Count(a.body, " t3") != 3 || stream != strings.HasSuffix(a.body, "data: [DONE]\n\n") {
				t.Errorf("%s: status %d: %s", path, a.status, a.body)
			}
		}
	}
	e := r.do("POST", "/generate", `{"text":"x","sampling_params":{"n":3}}`).refused(t, 400, "invalid_request")
	if e.Param == nil || *e.Param != "sampling_params.n" {
		t.Errorf("%+v", e)
	}
}

// What a client wrote is what the engine reads, to the byte, but for the fields
// by which the legs meet.
func TestBodyReachesTheEngineUnchanged(t *testing.T) {
	for _, mode := range []string{"aggregated", "pd"} {
		t.Run(mode, func(t *testing.T) {
			r := start(t, func(s *setup) {
				if mode == "aggregated" {
					s.sim.Regular = 1
				}
			})
			for _, rest := range []string{
				`"seed":9007199254740993,"max_tokens":1}`,
				`"tools":[{"type":"function","function":{"name":"f","parameters":{"maximum":9223372036854775807,"x":1e400}}}],"max_tokens":1}`,
				`"temperature":1.0,"top_p":0.10,"x":-0,"y":1e3,"z":1E+3,"metadata":{"user_id":"12345678901234567890"},"max_tokens":1}`,
				`"chat_template_kwargs":{"enable_thinking":false},"separate_reasoning":true,"made_up":{"deep":[1,{"er":null}]},"max_tokens":1}`,
				`"lone":"\ud800 and \udfff","escaped":"\u0041\/\"","space" : [ 1 , 2 ] , "max_tokens":1}`,
				`"ü":"ü💧","dup":1,"dup":2,"max_tokens":1}`,
			} {
				body := `{ "model" : "sim-model",` + "\n\t" + `"messages":[{"role":"user","content":"hé","made_up":1.50}],` + rest
				for _, w := range r.sim.Workers() {
					w.ResetLog()
				}
				if a := r.do("POST", "/v1/chat/completions", body); a.status != 200 {
					t.Fatalf("%s: status %d: %s", rest, a.status, a.body)
				}
				for _, w := range r.sim.Workers() {
					got := string(w.Requests()[0].Body)
					if mode == "pd" {
						got = withoutBootstrap(t, got, body)
					}
					if got != body {
						t.Errorf("%s read\n%s\nsent was\n%s", w.ID(), got, body)
					}
				}
			}
		})
	}
}

// withoutBootstrap takes out the one run of bytes by which got is longer than
// sent, and checks that it is what the legs meet by.
func withoutBootstrap(t *testing.T, got, sent string) string {
	t.Helper()
	n := len(got) - len(sent)
	if n <= 0 {
		t.Fatalf("nothing was added to %s", got)
	}
	for i := range len(sent) + 1 {
		if got[:i]+got[i+n:] != sent {
			continue
		}
		added := strings.Trim(got[i:i+n], ", ")
		var fields map[string]json.RawMessage
		if json.Unmarshal([]byte("{"+added+"}"), &fields) != nil {
			continue
		}
		if len(fields) != 3 || fields["bootstrap_host"] == nil || fields["bootstrap_port"] == nil || fields["bootstrap_room"] == nil {
			t.Errorf("added was %s", added)
		}
		return sent
	}
	return got
}

// In the other direction too.
func TestAnswersPassAsTheyAre(t *testing.T) {
	r := start(t, func(s *setup) { s.sim.Regular = 1 })
	const events = "data: {\"a\": 1e3, \"b\":9007199254740993}\n\n: comment\r\n\r\nid: 7\ndata: {\"x\":\"\\ud800\"}\n\ndata: [DONE]\n\n"
	r.sim.Regular(0).SetFault(sim.Fault{Events: []string{events}})
	if a := r.do("POST", "/v1/chat/completions", chatStream); a.body != events {
		t.Errorf("got  %q\nwant %q", a.body, events)
	}
	const body = `{ "a":1e3, "b":0.10, "c":9007199254740993,"choices":[]}`
	r.sim.Regular(0).SetFault(sim.Fault{Status: 200, Body: body})
	if a := r.do("POST", "/v1/chat/completions", chat); a.body != body {
		t.Errorf("got  %q\nwant %q", a.body, body)
	}
}

func BenchmarkInferRead(b *testing.B) {
	for _, n := range []int{1 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := &Server{cfg: configtest.New(func(c *config.Config) { c.Server.MaxPayloadSize, c.Timeouts.ClientBody = 1<<30, time.Minute }), buffers: buffers{limit: 1 << 30}}
			body := bytes.Repeat([]byte("x"), n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				q := &request{s: s, maxBody: 1 << 30, raw: nopWriter{}, r: &http.Request{ContentLength: int64(n), Body: io.NopCloser(bytes.NewReader(body))}}
				if q.readBody() != nil {
					b.Fatal("refused")
				}
				q.free()
			}
		})
	}
}

type nopWriter struct{}

func (nopWriter) Header() http.Header         { return nil }
func (nopWriter) Write(b []byte) (int, error) { return len(b), nil }
func (nopWriter) WriteHeader(int)             {}
