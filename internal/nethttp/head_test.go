package nethttp

import (
	"cmp"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/http1"
	"github.com/sluice-router/sluice/internal/http1/http1test"
)

// The requests that package http1 is tested with have the same answers, but for those
// where net/http differs.
func TestHeads(t *testing.T) {
	t.Parallel()
	const maxLines = 256 // of package http1
	for _, c := range http1test.Heads(maxLines) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			s := start(t, echo).dial()
			s.send(c.Text())
			_ = s.CloseWrite() // the answer tells
			a := s.head()
			b, err := io.ReadAll(a.Body)
			if want := cmp.Or(c.Net, c.Status); a.StatusCode != want || err != nil {
				t.Errorf("status %d %s (%v), want %d", a.StatusCode, b, err, want)
			}
			if a.StatusCode != http.StatusOK && !a.Close {
				t.Error("the connection stays")
			}
			s.ended()
		})
	}
}

// What follows a malformed request, or one whose end may be somewhere else for others, is
// not looked at.
func TestNothingBehindAMalformedHeadIsServed(t *testing.T) {
	t.Parallel()
	var smuggled atomic.Int32
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/smuggled" {
			smuggled.Add(1)
		}
		echo(w, r)
	})
	for _, c := range http1test.Heads(256) {
		if cmp.Or(c.Net, c.Status) == http.StatusOK && !strings.Contains(c.Lines, "Transfer-Encoding") {
			continue
		}
		s := r.dial()
		s.send(c.Text() + get("/smuggled"))
		_, _ = io.Copy(io.Discard, s.r) // how it ends is seen elsewhere
	}
	if n := smuggled.Load(); n != 0 {
		t.Errorf("%d requests behind others were served", n)
	}
}

// A head that does not come to its end in time is 408; a connection that sends nothing is
// closed without an answer, and so is an idle one.
func TestSlowHeadIs408(t *testing.T) {
	t.Parallel()
	r := start(t, echo, func(s *http1.Server) { s.HeaderTimeout = 20 * time.Millisecond })
	slow, silent := r.dial(), r.dial()
	slow.send("GET / HTTP/1.1\r\nHost:")
	slow.want(http.StatusRequestTimeout, "the request's head did not come within 20ms")
	slow.ended()
	silent.ended()

	r = start(t, echo, func(s *http1.Server) { s.IdleTimeout = 20 * time.Millisecond })
	idle := r.dial()
	idle.send(get("/"))
	idle.want(http.StatusOK, "")
	idle.ended()
}

// Memory for long heads is counted until their requests are over, and a head for which
// there is none is 503. rig.stop checks that nothing stays reserved.
func TestLongHeadsAreCounted(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	r := start(t, func(http.ResponseWriter, *http.Request) { <-goOn })
	long := "GET / HTTP/1.1\r\nHost: h\r\nA: " + strings.Repeat("a", 40<<10) + "\r\n\r\n"
	c := r.dial()
	c.send(long)
	r.waitFor("the head to be counted", func() bool { return r.held.Load() >= 40<<10 })
	close(goOn)
	c.want(http.StatusOK, "")
	r.waitFor("the head to be over", func() bool { return r.held.Load() == 0 })
	c.send(get("/"))
	c.want(http.StatusOK, "")

	full := start(t, echo, func(s *http1.Server) { s.Reserve = func(int) bool { return false } })
	c = full.dial()
	c.send(get("/"))
	c.want(http.StatusOK, "") // it is short
	c.send(long)
	c.want(http.StatusServiceUnavailable, http1.NoMemoryForHead().Message)
	c.ended()
}
