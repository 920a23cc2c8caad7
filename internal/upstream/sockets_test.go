package upstream

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// use sends one request over a new connection each for n at a time, so that so many are
// kept warm.
func use(t *testing.T, e *Endpoint, n int) {
	t.Helper()
	var open []*Response
	for range n {
		r, err := e.Do(context.Background(), &Request{Method: "GET", Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, r)
	}
	for _, r := range open {
		body(t, r)
	}
}

func socketsOf(t *testing.T, s *Sockets, want int64) {
	t.Helper()
	for end := time.Now().Add(patience); s.Open() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections are counted, want %d", s.Open(), want)
		}
	}
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

// The connection that has been unused for longest is closed first, of whatever endpoint;
// one in use is not.
func TestLongestUnusedConnectionIsClosedFirst(t *testing.T) {
	sockets := new(Sockets)
	cfg := Config{Sockets: sockets, IdleTimeout: MaxIdleTimeout}
	first, second := server(t, ok), server(t, ok)
	a, b := endpoint(t, cfg, first.URL), endpoint(t, cfg, second.URL)
	busy, err := a.Do(context.Background(), &Request{Method: "GET", Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	use(t, a, 1)
	use(t, b, 2)
	use(t, a, 2) // the first one of these is the one from before
	socketsOf(t, sockets, 5)
	idle := func(wantA, wantB int64) {
		t.Helper()
		if x, y := a.Stats().Idle, b.Stats().Idle; x != wantA || y != wantB {
			t.Fatalf("%d and %d are kept warm, want %d and %d", x, y, wantA, wantB)
		}
	}
	for _, step := range []struct{ a, b int64 }{{2, 1}, {2, 0}, {1, 0}, {0, 0}} {
		if n := sockets.CloseIdle(1); n != 1 {
			t.Fatalf("%d closed", n)
		}
		idle(step.a, step.b)
	}
	if n := sockets.CloseIdle(1); n != 0 {
		t.Errorf("%d closed where none is idle", n)
	}
	if got := body(t, busy); got != "ok" {
		t.Errorf("the answer under way was %q", got)
	}
	socketsOf(t, sockets, 1)
	use(t, b, 1)
	if n := sockets.CloseIdle(10); n != 2 {
		t.Errorf("%d closed, want both that came back", n)
	}
	socketsOf(t, sockets, 0)
}

// However a connection ends it counts no more, and a dial counts before it is made.
func TestConnectionsAreCountedOut(t *testing.T) {
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/cut":
			panic(http.ErrAbortHandler)
		case "/hang":
			<-r.Context().Done()
		}
	})
	secure := tlsServer(t, &tls.Config{}, ok)
	for name, cfg := range map[string]Config{"own": {}, "nethttp": {NetHTTP: true}} {
		t.Run(name, func(t *testing.T) {
			sockets := new(Sockets)
			dials := 0
			sockets.BeforeDial(func() {
				dials++
				if sockets.Open() == 0 {
					t.Error("a dial that does not count")
				}
			})
			cfg.Sockets = sockets
			e := endpoint(t, cfg, s.URL)
			do := func(e *Endpoint, path string, limit time.Duration) {
				r, err := e.Do(context.Background(), &Request{Method: "GET", Path: path, Limits: Limits{Total: limit}})
				if err == nil {
					_, _ = io.Copy(io.Discard, r.Body) // as far as it goes
					_ = r.Body.Close()
				}
			}
			do(e, "/", 0)
			do(e, "/cut", 0)
			do(e, "/hang", 20*time.Millisecond)
			do(endpoint(t, cfg, secure.URL), "/", 0) // its certificate is not trusted
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			_ = l.Close()
			do(endpoint(t, cfg, "http://"+l.Addr().String()), "/", 0) // nobody listens
			e.Close()
			socketsOf(t, sockets, 0)
			if dials < 4 {
				t.Errorf("%d dials", dials)
			}
			sockets.mu.Lock()
			defer sockets.mu.Unlock()
			if n := sockets.pools.Len(); n > 0 {
				t.Errorf("%d pools of closed endpoints are kept", n)
			}
		})
	}
}

// Where files run short, idle connections of net/http's client are closed too, and
// those that carry a request are not.
func TestIdleConnectionsOfNetHTTPAreClosed(t *testing.T) {
	s := server(t, func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		if r.URL.Path == "/hang" {
			<-r.Context().Done()
		}
	})
	sockets := new(Sockets)
	e := endpoint(t, Config{NetHTTP: true, Sockets: sockets}, s.URL)
	get := func(path string) *Response {
		r, err := e.Do(context.Background(), &Request{Method: "GET", Path: path})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	busy := get("/hang")
	defer busy.Body.Close()
	_ = body(t, get("/"))
	socketsOf(t, sockets, 2)
	for end := time.Now().Add(patience); sockets.CloseIdle(5) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no idle connection is closed")
		}
	}
	socketsOf(t, sockets, 1)
}
