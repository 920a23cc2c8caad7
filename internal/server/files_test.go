package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
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
		if strings.HasSuffix(first, "\r\n\r\n") {
			_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		}
	}
}

// Connections without a request must not take the files that probes and running
// requests need, whether they sent nothing, a part of a head, or a request before.
func TestIdleConnectionsGiveWay(t *testing.T) {
	for name, first := range map[string]string{
		"silent": "", "half a head": "GET /livez HT", "idle": "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
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
			if got := r.status("GET", "/livez", ""); got != 200 {
				t.Errorf("liveness %d", got)
			}
			r.waitFor("idle connections to end", func() bool { return r.srv.conns.Load() <= 100-spare(100)+1 })
			r.waitFor("a request beside idle connections", func() bool { return r.status("POST", "/v1/embeddings", `{"input":"x"}`) != 503 })
			if _, err := running.r.ReadByte(); err != nil {
				t.Errorf("the running request ended: %v", err)
			}
			_ = running.Close()
		})
	}
}

// The port for metrics has a bound of its own and drops its own longest idle.
func TestIdleScrapersGiveWay(t *testing.T) {
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

func TestGoodFor(t *testing.T) {
	if got := goodFor(256, 2); got != 74 {
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
