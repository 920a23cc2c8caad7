package http1

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/mono"
)

// crowded makes a server full beyond so many connections.
func crowded(limit int64) func(*Server) {
	return func(s *Server) {
		var conns atomic.Int64
		accepted, closed := s.Accepted, s.Closed
		s.Accepted = func(c *net.TCPConn) { conns.Add(1); accepted(c) }
		s.Closed = func(c *net.TCPConn) { conns.Add(-1); closed(c) }
		s.Full = func() bool { return conns.Load()-s.Leaving() > limit }
		s.Crowded = s.Full
	}
}

// of returns the server's side of a connection, once it is in a state.
func (r *rig) of(c *raw, states ...int32) (found *conn) {
	r.t.Helper()
	waitFor(r.t, "the connection's state", func() bool {
		for _, s := range r.srv.all() {
			if s.remote == c.LocalAddr().String() {
				for _, state := range states {
					if s.state.Load() == state {
						found = s
					}
				}
			}
		}
		return found != nil
	})
	return found
}

// open tells whether the server has not ended the connection.
func (c *raw) open() bool {
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	_, err := c.r.Peek(1)
	_ = c.SetReadDeadline(time.Now().Add(patience))
	return os.IsTimeout(err)
}

// large is more than the sockets of both sides take.
var large = make([]byte, 32<<20)

// kinds answers by path: /body reads the body, /early answers before it does, /hang has
// its request run until the client leaves, /large answers with more than sockets take.
func kinds(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/body":
		if _, err := io.ReadAll(r.Body); err == ErrEvicted {
			w.WriteHeader(503)
		}
	case "/early":
		w.WriteHeader(400)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(io.Discard, r.Body) // to its end or not
	case "/hang":
		w.(interface{ Running() }).Running()
		<-r.Context().Done()
	case "/large":
		_, _ = w.Write(large) // whether it takes it or not
	}
}

const (
	halfBody  = " HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n1"
	heldBack  = " HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n"
	continue_ = "HTTP/1.1 100 Continue\r\n\r\n"
)

// Connections that wait for their client are closed in the order of their last
// progress, whatever they wait for; those that have sent no head come first, and one
// whose request runs is not closed at all.
func TestOrderOfEviction(t *testing.T) {
	for _, plain := range []bool{false, true} {
		name := "raw"
		if plain {
			name = "plain"
		}
		t.Run(name, func(t *testing.T) {
			r := start(t, kinds, func(s *Server) { s.plain = plain })
			open := func(text string, state int32) *raw {
				c := r.dial()
				c.send(text)
				r.of(c, state)
				return c
			}
			running := open(get("/hang"), stateActive)
			idle := open(get("/"), stateIdle)
			idle.want(200, "")
			body := open("POST /body"+halfBody, stateWaits)
			early := open("POST /early"+halfBody, stateWaits)
			expect := open("POST /body"+heldBack, stateWaits)
			stalled := open(get("/large"), stateStalled)
			second := open(get("/"), stateIdle)
			second.want(200, "")
			second.send("GET / HT") // half a head
			r.of(second, stateHead)
			silent := open("", stateNew)
			half := open("GET / HT", stateHead)
			// Progress of the body puts it behind all others.
			side := r.of(body, stateWaits)
			before := side.since.Load()
			body.send("2")
			waitFor(t, "the byte", func() bool { return side.since.Load() != before && side.state.Load() == stateWaits })

			// Newcomers are spared at first, and later they are the first to go.
			if n := r.srv.CloseIdle(1); n != 1 {
				t.Fatalf("%d closed", n)
			}
			idle.ended()
			r.srv.silentUntil.Store(int64(mono.Now().Add(time.Hour)))
			order := []struct {
				what   string
				c      *raw
				status int
			}{
				{"silent", silent, 503}, {"half a head", half, 503},
				{"early", early, 400}, {"expect", expect, 503}, {"stalled", stalled, 0},
				{"second head", second, 0}, {"body", body, 503},
			}
			for i, o := range order {
				if n := r.srv.CloseIdle(1); n != 1 {
					t.Fatalf("%s: %d closed", o.what, n)
				}
				if o.c == expect {
					line := make([]byte, len(continue_))
					if _, err := io.ReadFull(o.c.r, line); err != nil || string(line) != continue_ {
						t.Fatalf("%q, %v", line, err)
					}
				}
				if o.c == stalled {
					_, _ = io.Copy(io.Discard, o.c.r) // it is cut off, in one way or another
				} else {
					if o.status != 0 {
						if a, err := http.ReadResponse(o.c.r, nil); err != nil || a.StatusCode != o.status {
							t.Fatalf("%s: %v, %v", o.what, a, err)
						}
					}
					_, _ = io.Copy(io.Discard, o.c.r)
				}
				for _, later := range order[i+1:] {
					if later.c != stalled && later.c != early && later.c != expect && !later.c.open() {
						t.Fatalf("%s was closed before its turn, at %s", later.what, o.what)
					}
				}
			}
			if n := r.srv.CloseIdle(1); n != 0 || !running.open() {
				t.Errorf("a running request was ended (%d)", n)
			}
			waitFor(t, "the closed ones to end", func() bool { return r.srv.Leaving() == 0 && len(r.srv.all()) == 1 })
		})
	}
}

// A full table of whatever waits for its client lets the next connection in, and the
// one after that; running requests go on.
func TestFullServerEvictsConnections(t *testing.T) {
	for name, text := range map[string]string{
		"silent": "", "half a head": "GET / HT", "idle": get("/"),
		"body": "POST /body" + halfBody, "early": "POST /early" + halfBody, "expect": "POST /body" + heldBack,
		"large": get("/large"), "many": strings.Repeat(get("/"), 5000),
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, kinds, crowded(10))
			running := r.dial()
			running.send(get("/hang"))
			r.of(running, stateActive)
			for range 30 {
				c := r.dial()
				_, _ = io.WriteString(c, text) // it may be closed already
			}
			waitFor(t, "all to wait", func() bool {
				active := 0
				for _, c := range r.srv.all() {
					if c.state.Load() == stateActive {
						active++
					}
				}
				return active <= 1 // the running one
			})
			for range 30 {
				c := r.dial()
				c.send(get("/"))
				c.want(200, "")
			}
			if !running.open() {
				t.Error("the running request was ended")
			}
			waitFor(t, "the table to be as it may", func() bool { return len(r.srv.all()) <= 10 })
			_ = running.Close()
		})
	}
}

// Bytes that have come are a request on its way: a connection that was not yet read
// from is not closed for another.
func TestUnreadBytesAreProgress(t *testing.T) {
	r := start(t, kinds)
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accept := func(text string) *conn {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		if _, err := io.WriteString(client, text); err != nil {
			t.Fatal(err)
		}
		sock, err := l.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sock.Close() })
		c, err := newConn(r.srv, sock)
		if err != nil {
			t.Fatal(err)
		}
		if c.raw == nil {
			t.Skip("only Linux tells")
		}
		if text != "" {
			waitFor(t, "the bytes", c.unreadBytes)
		}
		return c
	}
	w := &waiting{}
	busy, silent := accept(get("/")), accept("")
	w.add(busy)
	w.add(silent)
	if c, _ := w.victim(minAges{}, nil); c != silent {
		t.Error("the silent one was not found")
	}
	if c, soon := w.victim(minAges{}, nil); c != nil || !soon {
		t.Errorf("%v, %t", c, soon)
	}
}

// Where all connections have a running request the next one is told so.
func TestFullOfRunningRequests(t *testing.T) {
	r := start(t, kinds, crowded(5))
	var running []*raw
	for range 5 {
		c := r.dial()
		c.send(get("/hang"))
		r.of(c, stateActive)
		running = append(running, c)
	}
	c := r.dial()
	c.send(get("/"))
	c.want(503, TooManyConnections().Message)
	for _, c := range running {
		if !c.open() {
			t.Error("a running request was ended")
		}
		_ = c.Close()
	}
}

// While newcomers send their requests, others wait for room in the kernel and no
// newcomer is closed: it is a burst of clients, not a flood of silence.
func TestBurstOfClientsIsNotTakenForAFlood(t *testing.T) {
	gate := make(chan struct{})
	r := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.(interface{ Running() }).Running()
		<-gate
	}, crowded(20))
	var slow []*raw
	for range 20 {
		slow = append(slow, r.dial())
	}
	waitFor(t, "them", func() bool { return r.accepted.Load() == 20 })
	// The next ones have to wait; meanwhile the first send their heads one after another.
	late := r.dial()
	late.send(get("/"))
	for _, c := range slow {
		c.send(get("/"))
		r.of(c, stateActive)
	}
	close(gate)
	for _, c := range slow {
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v, %v", resp, err)
		}
	}
}
