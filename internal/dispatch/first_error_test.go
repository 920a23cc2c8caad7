package dispatch

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// streamRoutes are the routes with streams of their own, a request of each, and the
// events before and with the first output of the engine.
var streamRoutes = []struct{ path, body, opening, output, end string }{
	{"/v1/chat/completions", chatBody(streamed), roleEvent, token, doneEvent},
	{"/v1/completions", `{"model":"sim-model","prompt":"x","stream":true}`, "", `data: {"choices":[{"index":0,"text":"a"}]}` + "\n\n", doneEvent},
	{"/generate", `{"text":"x","stream":true}`, "", `data: {"text":"a","meta_info":{}}` + "\n\n", doneEvent},
	{"/v1/messages", `{"model":"sim-model","max_tokens":5,"stream":true,"messages":[{"role":"user","content":"x"}]}`,
		"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n",
		"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"a\"}}\n\n",
		"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"},
	{"/v1/responses", `{"model":"sim-model","stream":true,"input":"x"}`,
		"event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"model\":\"m\",\"error\":null}}\n\n",
		"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n",
		"event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"error\":null}}\n\n"},
	{"/v1/audio/transcriptions", `{"model":"sim-model","stream":true}`, "", `data: {"type":"transcript.text.delta","delta":"a"}` + "\n\n", doneEvent},
}

// TestErrorEventBeforeTheAnswer: an error event before any output is what a status
// would have been: another attempt, or the client's own fault, and never a 200.
func TestErrorEventBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	for _, route := range streamRoutes {
		for _, c := range []struct {
			name, event string
			status      int // 200: another attempt serves it
		}{
			{"500", `data: {"error":{"message":"no luck","code":500}}`, 200},
			{"503 as text", `data: {"error":{"message":"no luck","code":"503"}}`, 200},
			{"no code", `data: {"error":{"message":"no luck"}}`, 200},
			{"named", "event: error\ndata: {\"message\":\"no luck\"}", 200},
			{"named, no JSON", "event: error\ndata: no luck", 200},
			{"400", `data: {"error":{"message":"no luck","type":"BadRequestError","code":400}}`, 400},
			{"flat 404", `data: {"object":"error","message":"no luck","code":404}`, 404},
			{"named 400", "event: error\ndata: {\"message\":\"no luck\",\"code\":400}", 400},
			{"of Messages", "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"invalid_request_error\",\"message\":\"no luck\"}}", 400},
			{"of Responses", "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"id\":\"r\",\"error\":{\"code\":\"server_error\",\"message\":\"no luck\"}}}", 200},
		} {
			for _, opening := range []string{"", route.opening} {
				if opening == "" && route.opening != "" && c.status == 200 {
					continue // with it is the harder case
				}
				t.Run(route.path+"/"+c.name, func(t *testing.T) {
					t.Parallel()
					var calls atomic.Int32
					served := route.opening + route.output + route.end
					r := newRig(t, rigOptions{retries: 2, breaker: noBreaker, sim: sim.Options{Regular: 2, Worker: answering(
						func(_ *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
							if calls.Add(1) == 1 {
								write(w, typeEventStream, opening, c.event+"\n\n", route.end)
							} else {
								write(w, typeEventStream, served)
							}
							return true
						})}})
					a := r.do(t.Context(), route.path, route.body)
					attempts := 1
					if c.status == 200 {
						attempts = 2
						if a.status != 200 || a.err != nil || a.body != served {
							t.Errorf("%d %v %s", a.status, a.err, a.body)
						}
					} else if a.status != c.status || a.err != nil || !strings.Contains(a.body, `"error"`) || !strings.Contains(a.body, "no luck") ||
						a.header.Get("Content-Type") != typeJSON {
						t.Errorf("%d %v %v %s", a.status, a.err, a.header, a.body)
					}
					if rec := r.waitRecord(0); rec.Attempts != attempts || rec.Status != c.status {
						t.Errorf("recorded %+v", rec)
					}
				})
			}
		}
	}
}

// TestErrorLineBeforeTheAnswer is the same for a stream of JSON lines.
func TestErrorLineBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		lines  []string
		status int
		whole  bool
	}{
		{[]string{`{"error":{"message":"no luck",`, `"code":400}}` + "\n"}, 400, true},
		{[]string{`{"error":"no luck"}`}, 502, true},
		{[]string{`{"choices":[{"finish_reason":"abort"}]}` + "\n"}, 503, true},
		{[]string{`{"a":1}` + "\n", `{"b":`, `2}` + "\n"}, 200, true},
		{[]string{`{"a":1}` + "\n", `{"error":{"message":"no luck"}}` + "\n"}, 200, false},
	} {
		r := newRig(t, rigOptions{breaker: noBreaker, sim: sim.Options{Regular: 1, Worker: answering(
			func(_ *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
				write(w, "application/x-ndjson", c.lines...)
				return true
			})}})
		a := r.chat(streamed)
		if c.whole && a.status != c.status || (a.err == nil) != c.whole || a.status == 200 && c.whole && a.body != strings.Join(c.lines, "") {
			t.Errorf("%q: %d %v %s", c.lines, a.status, a.err, a.body)
		}
	}
}

// TestBrokenResponsesEndWithTheirResponse: what SDKs take for the end of a stream of the
// Responses API is response.failed, with the response that the stream began with.
func TestBrokenResponsesEndWithTheirResponse(t *testing.T) {
	t.Parallel()
	route := streamRoutes[4]
	for name, last := range map[string]string{
		"cut": "", "without its end": "", "abort": `data: {"choices":[{"finish_reason":"abort"}]}` + "\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			heard := make(chan struct{})
			r := newRig(t, rigOptions{breaker: noBreaker, sim: sim.Options{Regular: 1, Worker: answering(
				func(_ *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
					write(w, typeEventStream, route.opening, route.output)
					<-heard
					if last == "" && name == "cut" {
						panic(http.ErrAbortHandler)
					}
					write(w, typeEventStream, last)
					return true
				})}})
			s := r.open(route.path, route.body)
			s.event()
			s.event()
			close(heard)
			end := s.event()
			_, data, _ := strings.Cut(end, "\ndata: ")
			var e struct {
				Type     string
				Sequence int `json:"sequence_number"`
				Response struct {
					ID, Model, Status string
					Error             struct{ Code, Message string }
					Output            []any
				}
			}
			if err := json.Unmarshal([]byte(data), &e); err != nil || !strings.HasPrefix(end, "event: response.failed\n") || e.Type != "response.failed" || e.Sequence != 2 ||
				e.Response.ID != "resp_1" || e.Response.Model != "m" || e.Response.Status != "failed" || e.Response.Error.Code != "server_error" || e.Response.Error.Message == "" || e.Response.Output == nil {
				t.Errorf("%v: %s", err, end)
			}
			if rest, err := s.rest(); err != nil || !strings.HasSuffix(rest, end) {
				t.Errorf("%v: %s", err, rest)
			}
		})
	}
}

// TestErrorEventInTheAnswer: behind an error event of the engine's own there is no end
// that looks good, whatever the engine sends.
func TestErrorEventInTheAnswer(t *testing.T) {
	t.Parallel()
	const last = "event: error\ndata: {\"error\":{\"message\":\"no luck\",\"code\":503}}\n\n"
	for _, route := range streamRoutes {
		for _, pair := range []bool{false, true} {
			if pair && route.path != "/v1/chat/completions" && route.path != "/generate" {
				continue
			}
			t.Run(fmt.Sprintf("%s/pair=%t", route.path, pair), func(t *testing.T) {
				t.Parallel()
				heard := make(chan struct{})
				o := rigOptions{breaker: noBreaker, sim: sim.Options{Regular: 1, Worker: answering(
					func(worker *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
						if worker.Role() == sim.Prefill {
							write(w, typeEventStream, route.opening, route.output, route.end)
							return true
						}
						write(w, typeEventStream, route.opening, route.output)
						<-heard
						write(w, typeEventStream, last+route.output+route.end)
						return true
					})}}
				if pair {
					o.sim.Regular = 0
					o = pd(o)
				}
				r := newRig(t, o)
				s := r.open(route.path, route.body)
				for want := strings.Count(route.opening+route.output, "\n\n"); want > 0; want-- {
					s.event()
				}
				close(heard)
				if all, err := s.rest(); err != nil || all != route.opening+route.output+last {
					t.Errorf("%v %s", err, all)
				}
				if rec := r.waitRecord(0); rec.Reason != reasonEngineError || rec.Status != 200 {
					t.Errorf("recorded %+v", rec)
				}
			})
		}
	}
}

// TestErrorEventBehindAComment: a keep-alive comment has begun the stream, and another
// attempt may follow all the same; without one the error is told in the stream.
func TestErrorEventBehindAComment(t *testing.T) {
	t.Parallel()
	for _, retries := range []int{0, 1} {
		var calls atomic.Int32
		heard := make(chan struct{})
		r := newRig(t, rigOptions{retries: retries, breaker: noBreaker, config: func(c *config.Config) { c.Server.SSEKeepalive = 5 * time.Millisecond },
			sim: sim.Options{Regular: 2, Worker: answering(func(_ *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
				if calls.Add(1) > 1 {
					write(w, typeEventStream, token, doneEvent)
					return true
				}
				<-heard
				write(w, typeEventStream, roleEvent, errorTold, doneEvent)
				return true
			})}})
		s := r.open("/v1/chat/completions", chatBody(streamed))
		if line, err := s.br.ReadString('\n'); err != nil || line != comment {
			t.Fatalf("%q %v", line, err)
		}
		close(heard)
		all, err := s.rest()
		all = strings.ReplaceAll(all, comment, "")
		if retries == 1 && (err != nil || all != token+doneEvent) || retries == 0 && (err == nil || all != errorTold) {
			t.Errorf("%d retries: %v %q", retries, err, all)
		}
	}
}

// TestPingsOfAnEngine: without keep-alive of the router's own an engine's ping is passed
// at once, with what opens the stream.
func TestPingsOfAnEngine(t *testing.T) {
	t.Parallel()
	route := streamRoutes[3]
	heard := make(chan struct{})
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 1, Worker: answering(func(_ *sim.Worker, w http.ResponseWriter, _ *http.Request) bool {
		write(w, typeEventStream, route.opening, ping)
		<-heard
		write(w, typeEventStream, route.output, route.end)
		return true
	})}})
	s := r.open(route.path, route.body)
	if got := s.event() + s.event(); got != route.opening+ping {
		t.Errorf("%q", got)
	}
	close(heard)
	if all, err := s.rest(); err != nil || all != route.opening+ping+route.output+route.end {
		t.Errorf("%v %q", err, all)
	}
}
