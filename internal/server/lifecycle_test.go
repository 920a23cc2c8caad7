package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// stream is a running answer of events.
type stream struct {
	*raw
	body io.Reader
}

// openStream starts an answer and reads up to its first event.
func (r *rig) openStream(tokens int) *stream {
	r.t.Helper()
	c := r.dial()
	body := strings.Replace(chatStream, `"max_tokens":3`, fmt.Sprintf(`"max_tokens":%d`, tokens), 1)
	c.post("/v1/chat/completions", len(body), body)
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil || resp.StatusCode != 200 {
		r.t.Fatalf("%v, %v", resp, err)
	}
	br := bufio.NewReader(resp.Body)
	if _, err := br.ReadString('\n'); err != nil {
		r.t.Fatal(err)
	}
	return &stream{c, br}
}

func (r *rig) draining() {
	r.t.Helper()
	r.waitFor("the drain", func() bool { return r.srv.phase.Load() == phaseDraining })
}

// A rolling update must not cut what runs, nor take what it cannot serve.
func TestStreamsFinishDuringTheDrain(t *testing.T) {
	r := start(t, func(s *setup) { s.sim.Worker.Timing.DecodeStep = 20 * time.Millisecond })
	var streams []*stream
	for range 20 {
		streams = append(streams, r.openStream(20))
	}
	kept := r.dial() // a connection without a request
	kept.send("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
	kept.read()
	r.stop()
	r.draining()
	kept.ended()
	a := r.do("GET", "/readyz", "")
	if a.status != 503 || !strings.Contains(a.body, `"reason":"draining"`) {
		t.Errorf("readiness %d: %s", a.status, a.body)
	}
	if got := r.status("GET", "/livez", ""); got != 200 {
		t.Errorf("liveness %d", got)
	}
	c := r.dial()
	c.post("/v1/chat/completions", len(chat), chat)
	refusal := c.read()
	refusal.refused(t, 503, "draining")
	if refusal.header.Get("Retry-After") != "1" || refusal.header.Get("Connection") != "close" {
		t.Errorf("headers %v", refusal.header)
	}
	for i, s := range streams {
		b, err := io.ReadAll(s.body)
		if err != nil || !strings.HasSuffix(string(b), "data: [DONE]\n\n") {
			t.Errorf("stream %d: %v: …%.80s", i, err, b[max(0, len(b)-80):])
		}
	}
	r.waitDone()
	r.waitFor("the log to say that the drain was whole", func() bool { return strings.Contains(r.log.String(), "msg=stopped whole=true") })
	if _, err := net.Dial("tcp", r.srv.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
}

func TestRequestsAreTakenDuringThePreDrainWait(t *testing.T) {
	r := start(t, func(s *setup) { s.cfg.Server.PreDrainWait = 500 * time.Millisecond })
	r.stop()
	r.waitFor("not ready", func() bool { return r.srv.phase.Load() >= phaseNotReady })
	// On a very slow machine the wait may be over by now; then there is nothing
	// to see.
	ready, served := r.status("GET", "/readyz", ""), r.status("POST", "/v1/chat/completions", chat)
	if r.srv.phase.Load() == phaseNotReady && (ready != 503 || served != 200) {
		t.Errorf("readiness %d, request %d", ready, served)
	}
}

// At the end of the drain waiters are refused in words and streams get an error
// event: a client must be able to tell this from an answer.
func TestDrainTimeoutEndsRequestsWithAnError(t *testing.T) {
	r := start(t, func(s *setup) {
		s.limits.PrefillSlots = 1
		s.cfg.Server.DrainTimeout = 300 * time.Millisecond
		s.sim.Worker.Timing = endless
	})
	s := r.openStream(1 << 20)
	if err := r.sim.Prefill(0).WaitIdle(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.sim.Prefill(0).SetTiming(sim.Timing{PrefillTime: time.Hour})
	prefilling, waiting := r.dial(), r.dial()
	prefilling.post("/v1/chat/completions", len(chat), chat)
	if err := r.sim.Prefill(0).WaitInflight(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	waiting.post("/v1/chat/completions", len(chat), chat)
	r.waitFor("the waiter", func() bool { return r.gate.Waiting() == 1 })
	slow := r.dial() // its body never comes
	slow.post("/v1/chat/completions", 1000, "{")
	r.waitFor("all four", func() bool { return r.srv.active.Load() == 4 })

	r.stop()
	waiting.read().refused(t, 503, "draining")
	prefilling.read().refused(t, 503, "draining")
	b, err := io.ReadAll(s.body)
	if err == nil || !strings.Contains(string(b), `data: {"error":{`) || !strings.Contains(string(b), `"code":"draining"`) || strings.Contains(string(b), "[DONE]") {
		t.Errorf("%v: …%s", err, b[max(0, len(b)-300):])
	}
	r.waitDone()
	slow.read().refused(t, 503, "draining")
	slow.ended()
	for _, w := range r.sim.Workers() {
		if err := w.WaitIdle(t.Context()); err != nil {
			t.Error(err)
		}
	}
	r.waitFor("the log to say that requests were ended", func() bool { return strings.Contains(r.log.String(), "msg=stopped whole=false") })
}

// Waiters are served during the drain: the order to stop is not a refusal.
func TestWaitersAreServedDuringTheDrain(t *testing.T) {
	r := start(t, func(s *setup) {
		s.limits.PrefillSlots = 1
		s.sim.Worker.Timing.PrefillTime = 100 * time.Millisecond
	})
	var conns []*raw
	for range 3 {
		c := r.dial()
		c.post("/v1/chat/completions", len(chat), chat)
		conns = append(conns, c)
	}
	r.waitFor("two waiters", func() bool { return r.gate.Waiting() == 2 })
	r.stop()
	for i, c := range conns {
		if a := c.read(); a.status != 200 {
			t.Errorf("request %d: status %d: %s", i, a.status, a.body)
		}
	}
}

// TestWaitersThatCannotStartInTheDrainAreRefusedAtOnce keeps away waiters that hear only at
// the end of the drain that there never was time for them.
func TestWaitersThatCannotStartInTheDrainAreRefusedAtOnce(t *testing.T) {
	r := start(t, func(s *setup) { s.limits.PrefillSlots = 1 })
	r.sim.Prefill(0).SetTiming(sim.Timing{PrefillTime: time.Hour})
	var conns []*raw
	for i := range 42 { // the first runs; one a second is the most that can be thought to follow
		c := r.dial()
		c.post("/v1/chat/completions", len(chat), chat)
		conns = append(conns, c)
		r.waitFor("its turn", func() bool { return r.gate.Waiting() == i && r.srv.active.Load() == int64(i+1) })
	}
	r.stop()
	a := conns[41].read()
	a.refused(t, 503, "draining")
	if a.header.Get("Retry-After") != "1" {
		t.Errorf("headers %v", a.header)
	}
	if r.gate.Waiting() == 0 || r.srv.active.Load() == 0 {
		t.Error("told only when all were ended")
	}
	for _, c := range conns {
		_ = c.Close() // the drain need not wait for what takes an hour
	}
}

// An aborted router is to its clients like one that was killed: connections break off, and
// nobody is told a status.
func TestAbortCutsConnectionsWithoutAnAnswer(t *testing.T) {
	r := start(t, func(s *setup) {
		s.sim.Worker.Timing.PrefillTime = patience
		s.cfg.Server.DrainTimeout = 0
	})
	c := r.dial()
	c.post("/v1/chat/completions", len(chat), chat)
	r.waitFor("the prefill", func() bool { return r.sim.Prefill(0).Stats().Inflight == 1 })
	r.srv.Abort()
	if b, err := io.ReadAll(c.r); len(b) > 0 {
		t.Errorf("the client was sent %q, %v", b, err)
	}
	r.stop()
	<-r.done
	r.waitFor("the engine to be told", func() bool { return r.sim.Prefill(0).Stats().Inflight == 0 })
}

func TestPortInUseErrorNamesTheAddress(t *testing.T) {
	r := start(t, nil)
	taken := r.srv.Addr().(*net.TCPAddr)
	cfg := *r.srv.cfg
	cfg.Server.Port = taken.Port
	// A second server needs a registry of its own only to be made.
	err := (&Server{cfg: &cfg}).Listen(t.Context())
	if err == nil || !strings.Contains(err.Error(), "cannot listen on "+taken.String()+" for clients") || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("error %v", err)
	}
	taken = r.srv.MetricsAddr().(*net.TCPAddr)
	cfg.Server.Port, cfg.Server.PrometheusPort = 0, taken.Port
	if err = (&Server{cfg: &cfg}).Listen(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot listen on "+taken.String()+" for metrics") || !strings.Contains(err.Error(), "--prometheus-port") {
		t.Errorf("error %v", err)
	}
}

// The next process must have the port at once, whatever connections the last one
// left behind.
func TestPortIsFreeForTheNextProcessAtOnce(t *testing.T) {
	r := start(t, nil)
	for range 5 {
		c := r.dial()
		c.send("GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") // the server closes first: TIME_WAIT is here
		c.read()
		c.ended()
	}
	addr := r.srv.Addr().String()
	r.stop()
	r.waitDone()
	l, err := listen(context.Background(), "the next process", addr, "--port")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

// 0.0.0.0 is what it says: no address of IPv6.
func TestIPv4AddressIsIPv4Alone(t *testing.T) {
	for host, six := range map[string]bool{"0.0.0.0": false, "::": true} {
		l, err := listen(t.Context(), "clients", net.JoinHostPort(host, "0"), "--port")
		if err != nil {
			t.Skipf("cannot listen on %s: %v", host, err)
		}
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", net.JoinHostPort("::1", port))
		if err == nil {
			_ = c.Close()
		}
		if (err == nil) != six {
			t.Errorf("%s: dialling ::1: %v", host, err)
		}
		_ = l.Close()
	}
}

func TestIPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("this machine has no IPv6")
	} else {
		_ = l.Close()
	}
	r := start(t, func(s *setup) { s.cfg.Server.Host = "::1" })
	if got := r.status("POST", "/v1/chat/completions", chat); got != 200 {
		t.Errorf("status %d", got)
	}
	// ::1 is this machine too.
	r.do("DELETE", "/workers/none", "").refused(t, 404, "worker_not_found")
}
