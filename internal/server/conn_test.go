package server

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// leaving is a request that is being served for as long as the client is there.
func (r *rig) leaving(body string) *raw {
	r.t.Helper()
	c := r.dial()
	c.post("/v1/chat/completions", len(body), body, "X-Request-Id: leaver")
	for _, w := range r.sim.Workers() {
		if err := w.WaitInflight(r.t.Context(), 1); err != nil {
			r.t.Fatal(err)
		}
	}
	return c
}

func (r *rig) wasLeft() {
	r.t.Helper()
	for _, w := range r.sim.Workers() {
		if err := w.WaitIdle(r.t.Context()); err != nil {
			r.t.Fatal(err)
		}
	}
	if l := r.line("leaver"); !strings.Contains(l, "reason=client_gone") {
		r.t.Errorf("access line %s", l)
	}
	for _, i := range r.fleet.Infos() {
		if i.Load != 0 {
			r.t.Errorf("%s still has the load %d", i.URL, i.Load)
		}
	}
}

// A client leaves while nothing is sent to it, in each of the ways there are,
// also with bytes behind its request that lie before the end.
func TestClientDisconnectIsNoticed(t *testing.T) {
	next := "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
	for _, behind := range []string{"", "\n", "\r\n", next, strings.Repeat(next, 100)} {
		for _, how := range []string{"close", "half-close", "reset"} {
			t.Run(fmt.Sprintf("%s after %d bytes", how, len(behind)), func(t *testing.T) {
				r := start(t, func(s *setup) { s.sim.Worker.Timing.PrefillTime = time.Hour })
				c := r.leaving(chat)
				if behind != "" {
					c.send(behind)
				}
				switch how {
				case "close":
					_ = c.Close()
				case "half-close":
					_ = c.CloseWrite()
				case "reset":
					_ = c.SetLinger(0)
					_ = c.Close()
				}
				r.wasLeft()
				if how == "half-close" {
					c.ended() // no made-up empty answer
				}
			})
		}
	}
}

// What lies behind a request is what is served next, in order and whole.
func TestPipelinedRequestsBehindALongOneAreServed(t *testing.T) {
	r := start(t, func(s *setup) { s.sim.Worker.Timing.PrefillTime = 2 * time.Second })
	c := r.leaving(chat)
	// Only once it computes is its time settled.
	if err := r.sim.Prefill(0).Wait(t.Context(), func(s sim.Stats) bool { return s.Prefilling == 1 }); err != nil {
		t.Fatal(err)
	}
	r.sim.Prefill(0).SetTiming(sim.Timing{})
	const n = 20
	var all bytes.Buffer
	for i := range n {
		body := fmt.Sprintf(`{"messages":[],"max_tokens":1,"made_up":"%s"}`, strings.Repeat("x", 100*i))
		fmt.Fprintf(&all, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: p%d\r\nContent-Length: %d\r\n\r\n%s", i, len(body), body)
	}
	c.send(all.String())
	if a := c.read(); a.status != 200 || a.header.Get("X-Request-Id") != "leaver" {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	for i := range n {
		if a := c.read(); a.status != 200 || a.header.Get("X-Request-Id") != fmt.Sprint("p", i) {
			t.Fatalf("request %d: status %d, %v: %s", i, a.status, a.header, a.body)
		}
	}
}

// What does not fit the socket either must neither be lost nor held in memory.
func TestManyPipelinedBytesAreServed(t *testing.T) {
	r := start(t, func(s *setup) { s.sim.Worker.Timing.PrefillTime = 300 * time.Millisecond })
	c := r.leaving(chat)
	body := ofSize(1 << 20)
	sent := make(chan error, 1)
	go func() {
		_, err := fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		sent <- err
	}()
	for range 2 {
		if a := c.read(); a.status != 200 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// A client that takes nothing must not hold its request, and its engines, for
// ever.
func TestClientThatReadsNothingIsDropped(t *testing.T) {
	r := start(t, func(s *setup) {
		s.cfg.Timeouts.ClientWrite = 200 * time.Millisecond
	})
	r.sim.Decode(0).SetTiming(sim.Timing{OutputTokens: 1 << 20})
	r.sim.Decode(0).SetFault(sim.Fault{TokenSize: 64 << 10})
	c := r.dial()
	_ = c.SetReadBuffer(4 << 10)
	body := strings.Replace(chatStream, `"max_tokens":3`, `"max_tokens":100000`, 1)
	c.post("/v1/chat/completions", len(body), body, "X-Request-Id: leaver")
	if err := r.sim.Decode(0).WaitInflight(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	r.wasLeft()
}

func TestIdleConnectionAndSlowHeadAreClosed(t *testing.T) {
	r := start(t, func(s *setup) {
		s.cfg.Timeouts.ClientHeader, s.cfg.Timeouts.ClientIdle = 100*time.Millisecond, 100*time.Millisecond
	})
	c := r.dial()
	c.send("POST /v1/chat/comple")
	if b, err := io.ReadAll(c.r); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 408") {
		t.Errorf("%q, %v", b, err)
	}
	c = r.dial()
	c.post("/v1/chat/completions", len(chat), chat)
	if a := c.read(); a.status != 200 {
		t.Errorf("status %d", a.status)
	}
	c.ended()
}

// A client that speaks TLS to the port hears at once, and so does the operator, what
// is wrong: it would wait for an answer before it sends more.
func TestTLSToThePlainPort(t *testing.T) {
	r := start(t, nil)
	c := r.dial()
	c.send("\x16\x03\x01\x00\xf1\x01\x00\x00\xed\x03\x03")
	a := c.read()
	if e := a.refused(t, 400, "malformed_request"); !strings.Contains(e.Message, "speaks plain HTTP, not TLS") {
		t.Errorf("%s", a.body)
	}
	if l := r.line(a.header.Get("X-Request-Id")); !strings.Contains(l, "speaks plain HTTP, not TLS") {
		t.Errorf("access line %s", l)
	}
	c.ended()
}

// Near the limit on open files requests are refused in words; probes and metrics
// are answered, and afterwards all is as before.
func TestRequestsAreRefusedNearTheFileLimit(t *testing.T) {
	r := start(t, func(s *setup) {
		s.server.MaxFiles = 100 // 32 of them in reserve; a request and its two legs take three
		s.sim.Worker.Timing = endless
	})
	body := strings.Replace(chatStream, `"max_tokens":3`, `"max_tokens":100000`, 1)
	var served, refused []*raw
	for range 60 {
		c := r.dial()
		c.post("/v1/chat/completions", len(body), body)
		resp, err := http.ReadResponse(c.r, nil)
		if err != nil {
			t.Fatal(err)
		}
		switch resp.StatusCode {
		case 200:
			served = append(served, c)
		case 503:
			b, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			answer{resp.StatusCode, resp.Header, string(b)}.refused(t, 503, "too_many_connections")
			c.ended()
			refused = append(refused, c)
		default:
			t.Fatalf("status %d", resp.StatusCode)
		}
	}
	if len(served) < 10 || len(refused) < 10 {
		t.Errorf("%d served, %d refused", len(served), len(refused))
	}
	if got := r.status("GET", "/livez", ""); got != 200 {
		t.Errorf("liveness %d", got)
	}
	if got := r.metric("sluice_client_connections"); got < float64(len(served)) {
		t.Errorf("%v connections are counted", got)
	}
	for _, c := range served {
		_ = c.Close()
	}
	r.waitFor("recovery", func() bool { return r.status("POST", "/v1/chat/completions", chat) == 200 })
}

// The stack trace of an ordinary end, or an error text in the middle of a
// stream, was what a recovery middleware made of http.ErrAbortHandler.
func TestBrokenStreamEndsWithoutStrayBytes(t *testing.T) {
	r := start(t, func(s *setup) { s.sim.Regular = 1 })
	r.sim.Regular(0).SetFault(sim.Fault{Do: sim.Reset, At: sim.AtEvent, After: 3, Count: 1})
	c := r.dial()
	body := strings.Replace(chatStream, `"max_tokens":3`, `"max_tokens":100`, 1)
	c.post("/v1/chat/completions", len(body), body, "X-Request-Id: broken")
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v, %v", resp, err)
	}
	b, err := io.ReadAll(resp.Body)
	if err == nil {
		t.Error("the answer looks whole")
	}
	events := strings.Split(strings.TrimSuffix(string(b), "\n\n"), "\n\n")
	if len(events) != 4 || !strings.HasPrefix(events[3], `data: {"error":{`) || strings.Contains(string(b), "[DONE]") {
		t.Errorf("the client got %q", b)
	}
	if l := r.line("broken"); !strings.Contains(l, "status=200 reason=broken_off") {
		t.Errorf("access line %s", l)
	}
	if log := r.log.String(); strings.Contains(log, "panic ") || strings.Contains(log, "goroutine ") {
		t.Error("the log speaks of a panic")
	}
	if got := r.status("POST", "/v1/chat/completions", chat); got != 200 {
		t.Errorf("afterwards: status %d", got)
	}
}

func TestPanicIsA500AndALogLine(t *testing.T) {
	r := start(t, nil)
	r.srv.routes["/test/panic"] = &route{name: "test", access: map[string]access{"GET": open}, serve: func(q *request) { panic("secret of the code") }}
	r.srv.routes["/test/late"] = &route{name: "test", access: map[string]access{"GET": open}, serve: func(q *request) {
		q.out.WriteHeader(200)
		_, _ = q.out.Write([]byte("half of it"))
		panic("late")
	}}
	a := r.do("GET", "/test/panic", "", "X-Request-Id", "panic-1")
	a.refused(t, 500, "internal_error")
	if strings.Contains(a.body, "secret") {
		t.Errorf("the client was told %s", a.body)
	}
	if l := r.line("panic-1"); !strings.Contains(l, "status=500 reason=internal_error") {
		t.Errorf("access line %s", l)
	}
	if log := r.log.String(); !strings.Contains(log, "secret of the code") || !strings.Contains(log, "conn_test.go") {
		t.Error("the log has neither the panic nor its place")
	}
	c := r.dial()
	c.send("GET /test/late HTTP/1.1\r\nHost: x\r\nX-Request-Id: panic-2\r\n\r\n")
	b, _ := io.ReadAll(c.r) // cut off
	if strings.Contains(string(b), "internal_error") || strings.HasSuffix(string(b), "0\r\n\r\n") {
		t.Errorf("the client got %q", b)
	}
	r.line("panic-2")
}

// A stream's client learns why nobody could serve it, by status.
func TestStreamingRequestsAreRefusedByStatus(t *testing.T) {
	r := start(t, nil)
	const reason = `{"object":"error","message":"the prompt is too long","code":400}`
	for _, w := range r.sim.Workers() {
		w.SetFault(sim.Fault{Status: 400, Body: reason})
	}
	for _, body := range []string{chat, chatStream} {
		if a := r.do("POST", "/v1/chat/completions", body); a.status != 400 || a.body != reason || a.header.Get("X-Smg-Error-Code") != "" {
			t.Errorf("status %d, %v: %s", a.status, a.header, a.body)
		}
		a := r.do("POST", "/v1/chat/completions", strings.Replace(body, "sim-model", "m9", 1))
		a.refused(t, 404, "model_not_found")
	}
}

// What is no request is logged with what was answered.
func TestMalformedRequestsAreLogged(t *testing.T) {
	r := start(t, nil)
	c := r.dial()
	c.send("hello\r\n\r\n")
	a := c.read()
	a.refused(t, 400, "malformed_request")
	l := r.line(a.header.Get("X-Request-Id"))
	if want := fmt.Sprintf(" bytes_out=%d", len(a.body)); !strings.Contains(l+" ", want+" ") {
		t.Errorf("the access line is %q, want%s", l, want)
	}
}
