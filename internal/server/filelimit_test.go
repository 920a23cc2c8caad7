package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
	"github.com/sluice-router/sluice/internal/upstream"
)

// openIdle opens n connections to addr, with first on each, and reads the answers.
func openIdle(t *testing.T, addr, first string, n int) {
	t.Helper()
	for range n {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, first); err != nil {
			continue // closed for another one
		}
		if strings.HasPrefix(first, "GET ") && strings.HasSuffix(first, "\r\n\r\n") {
			_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		}
	}
}

// Connections without a whole request must not take the files that probes and running
// requests need, whether they sent nothing, a part of a head or of a body, hold the body
// back, were refused before they sent all of it, or had a request before.
func TestIdleClientConnectionsAreEvicted(t *testing.T) {
	const head = " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n"
	for name, first := range map[string]string{
		"silent": "", "half a head": "GET /livez HT", "idle": "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
		"half a body": "POST /v1/chat/completions" + head + "\r\n{", "half an admin's body": "POST /busy_threshold" + head + "\r\n{",
		"held back": "POST /v1/chat/completions" + head + "Expect: 100-continue\r\n\r\n", "refused": "POST /nowhere" + head + "\r\n{",
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, func(s *setup) {
				s.server.MaxFiles = 100
				s.sim.Worker.Timing = endless
			})
			running := r.dial()
			body := strings.Replace(chatStream, `"max_tokens":3`, `"max_tokens":100000`, 1)
			running.post("/v1/chat/completions", len(body), body)
			if resp, err := http.ReadResponse(running.r, nil); err != nil || resp.StatusCode != 200 {
				t.Fatalf("%v, %v", resp, err)
			}
			openIdle(t, r.srv.Addr().String(), first, 120)
			// One that comes while many evicted connections are still leaving may be told to
			// come again.
			r.waitFor("liveness", func() bool { return r.status("GET", "/livez", "") == 200 })
			r.waitFor("idle connections to end", func() bool { return r.srv.conns.Load() <= 100-spare(100)+1 })
			r.waitFor("a request beside idle connections", func() bool {
				// The client's kept connection may end as the request leaves: with this
				// header its transport sends it again.
				return r.status("POST", "/v1/chat/completions", `{"input":"x"}`, "Idempotency-Key", "x") != 503
			})
			r.waitFor("others to give way", func() bool { return r.srv.evicted.Load() >= 20 })
			if _, err := running.r.ReadByte(); err != nil {
				t.Errorf("the running request ended: %v", err)
			}
			_ = running.Close()
		})
	}
}

// A client whose body does not come on is told why its connection is closed.
func TestPartialBodyIsRefusedWhenItsConnectionIsEvicted(t *testing.T) {
	r := start(t, func(s *setup) { s.server.MaxFiles = 100 })
	c := r.dial()
	_, _ = io.WriteString(c, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{")
	r.waitFor("it to give way", func() bool {
		r.srv.main.CloseIdle(10)
		return strings.Contains(r.log.String(), "reason=too_many_connections")
	})
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	answer{resp.StatusCode, resp.Header, string(b)}.refused(t, 503, "too_many_connections")
	if !strings.Contains(string(b), "did not come on") || !resp.Close {
		t.Errorf("%s, close %t", b, resp.Close)
	}
	r.waitFor("its memory", func() bool { return r.srv.buffers.used.Load() == 0 })
}

// Connections that are kept warm to engines are files too, and are closed before any
// client's.
func TestIdleEngineConnectionsAreClosedFirst(t *testing.T) {
	r := start(t, func(s *setup) {
		s.server.MaxFiles = 100 // 68 are for clients and their requests
		s.sim.Worker.Timing = endless
	})
	body := strings.Replace(chatStream, `"max_tokens":3`, `"max_tokens":100000`, 1)
	engines, limit := r.srv.opts.Engines.Open, 100-reserve(100)
	engine := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer engine.Close()
	ep, err := upstream.NewEndpoint(upstream.Config{URL: engine.URL, Sockets: r.srv.opts.Engines})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	var answers []*upstream.Response
	for range 15 {
		a, err := ep.Do(t.Context(), &upstream.Request{Method: "GET", Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	for _, a := range answers {
		_, _ = io.Copy(io.Discard, a.Body)
		_ = a.Body.Close()
	}
	if n := engines(); n < 15 {
		t.Fatalf("%d connections to engines", n)
	}
	running := r.dial()
	running.post("/v1/chat/completions", len(body), body)
	if resp, err := http.ReadResponse(running.r, nil); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v, %v", resp, err)
	}
	// With those that are unused these are too many, without them they are not.
	openIdle(t, r.srv.Addr().String(), "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n", int(limit)-10)
	if n := r.srv.evicted.Load(); n > 0 {
		t.Errorf("%d clients were closed", n)
	}
	if used := r.srv.filesInUse(); used > limit {
		t.Errorf("%d files are in use", used)
	}
	if n := engines(); n > 10 {
		t.Errorf("%d connections to engines are left", n)
	}
	_ = running.Close()
}

// The port for metrics has a bound of its own and drops its own longest idle.
func TestIdleScrapersAreEvicted(t *testing.T) {
	r := start(t, func(s *setup) { s.server.MaxFiles = 100 })
	addr := r.srv.MetricsAddr().String()
	openIdle(t, addr, "", 20)
	openIdle(t, addr, "GET /metr", 20)
	openIdle(t, addr, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 20)
	if got := r.metric("sluice_client_connections"); got < 0 {
		t.Errorf("%v", got)
	}
	r.srv.scrapers.mu.Lock()
	defer r.srv.scrapers.mu.Unlock()
	if n := len(r.srv.scrapers.conns); n > maxScrapers(100) {
		t.Errorf("%d connections for metrics, at most %d", n, maxScrapers(100))
	}
}

// Samples are connections too: they are counted before they are opened. One that
// only waits has its client's alone.
func TestFilesAreCountedBeforeTheyAreOpened(t *testing.T) {
	r := start(t, func(s *setup) { s.server.MaxFiles = 100 })
	body := func(n int) string { return strings.Replace(chat, "{", fmt.Sprintf(`{"n":%d,`, n), 1) }
	if a := r.do("POST", "/v1/chat/completions", body(3)); a.status != 200 {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	r.do("POST", "/v1/chat/completions", body(60)).refused(t, 503, "too_many_connections")
	for _, w := range []*sim.Worker{r.sim.Prefill(0), r.sim.Decode(0)} {
		if s := w.Stats(); s.Requests > 3 {
			t.Errorf("%s saw %d requests", w.URL(), s.Requests)
		}
	}
	r.waitFor("the count", func() bool { return r.srv.legs.Load() == 0 })
	r.waitFor("the log", func() bool { return strings.Contains(r.log.String(), "requests are refused") })
}

func TestRequestsWithinFileLimit(t *testing.T) {
	if got := requestsWithin(256, 2); got != 74 {
		t.Errorf("256 files are good for %d requests", got)
	}
}

// A long head is memory that is counted until its request is over; unfinished ones
// too. Admin requests pass while the account is full.
func TestLongHeadsAreCounted(t *testing.T) {
	r := start(t, func(s *setup) {
		s.cfg.Server.MaxBufferedBytes = 1 << 20
		s.limits.PrefillSlots, s.limits.QueueSize, s.limits.QueueTimeout = 1, 100, time.Minute
		s.sim.Worker.Timing = endless
	})
	busy := r.dial()
	body := strings.Replace(chatStream, `"max_tokens":3`, `"max_tokens":100000`, 1)
	busy.post("/v1/chat/completions", len(body), body)
	if _, err := http.ReadResponse(busy.r, nil); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 50_000)
	var all []*raw
	for range 10 {
		c := r.dial()
		_, _ = io.WriteString(c, "GET /livez HTTP/1.1\r\nX-Long: "+long)
		all = append(all, c)
	}
	r.waitFor("the heads", func() bool { return r.srv.buffers.used.Load() >= 500_000 })
	for range 20 {
		c := r.dial()
		_, _ = io.WriteString(c, "GET /livez HTTP/1.1\r\nX-Long: "+long)
		all = append(all, c)
	}
	r.waitFor("a refusal", func() bool { return strings.Contains(r.log.String(), "reason=buffer_full") })
	if got := r.srv.buffers.used.Load(); got > 1<<20 {
		t.Errorf("%d bytes are held", got)
	}
	if a := r.do("POST", "/busy_threshold", `{}`); a.status != 200 {
		t.Errorf("an admin's request: %d %s", a.status, a.body)
	}
	for _, c := range append(all, busy) {
		_ = c.Close()
	}
	r.waitFor("the heads' memory", func() bool { return r.srv.buffers.used.Load() == 0 })
}
