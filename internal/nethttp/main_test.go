package nethttp

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-router/sluice/internal/http1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come. It is no measure of speed.
const patience = 30 * time.Second

const maxHead = 64 << 10

// rig is a server on a real socket.
type rig struct {
	t    testing.TB
	srv  *Server
	addr string
	// end ends the base context.
	end              context.CancelFunc
	accepted, closed atomic.Int64
	held             atomic.Int64 // bytes that were reserved for heads
	done             chan error
}

// start starts a server. Unless a test changes that, timeouts are ones that are never
// reached.
func start(t testing.TB, handler http.HandlerFunc, change ...func(*http1.Server)) *rig {
	t.Helper()
	r := &rig{t: t, done: make(chan error, 1)}
	base, end := context.WithCancel(context.Background())
	r.end = end
	settings := &http1.Server{
		Handler: handler, Base: base,
		Refuse: func(w http.ResponseWriter, p *http1.Problem) {
			w.WriteHeader(p.Status)
			_, _ = io.WriteString(w, p.Message) // who sends such things may be gone
		},
		HeaderTimeout: patience, IdleTimeout: patience, WriteTimeout: patience, MaxHeaderBytes: maxHead,
		Accepted: func(*net.TCPConn) { r.accepted.Add(1) },
		Closed:   func(*net.TCPConn) { r.closed.Add(1) },
		Reserve:  func(n int) bool { r.held.Add(int64(n)); return true },
		Release:  func(n int) { r.held.Add(-int64(n)) },
		Report:   func(what string, err any) { t.Errorf("%s: %v", what, err) },
	}
	for _, c := range change {
		c(settings)
	}
	r.srv = New(settings)
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	go func() { r.done <- r.srv.Serve(l) }()
	t.Cleanup(r.stop)
	return r
}

// stop shuts the server down; a handler that does not end by itself is cut. Then no
// connection is left, nor memory of a head.
func (r *rig) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = r.srv.Shutdown(ctx) // the counters below tell
	r.end()
	if err := <-r.done; err != http.ErrServerClosed {
		r.t.Errorf("Serve returned %v", err)
	}
	r.waitFor("the end of all connections", func() bool { return r.accepted.Load() == r.closed.Load() })
	if n := r.held.Load(); n != 0 {
		r.t.Errorf("%d bytes of heads are still reserved", n)
	}
}

// waitFor waits until something is so.
func (r *rig) waitFor(what string, so func() bool) {
	r.t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// receive takes from a channel what must come.
func receive[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("waited in vain for %s", what)
	}
	return v
}

// raw is a connection on which a test says exactly what it wants.
type raw struct {
	*net.TCPConn
	t testing.TB
	r *bufio.Reader
}

func (r *rig) dial() *raw {
	r.t.Helper()
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() }) // it may be closed already
	_ = c.SetDeadline(time.Now().Add(patience))
	return &raw{c.(*net.TCPConn), r.t, bufio.NewReader(c)}
}

func (c *raw) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// head reads an answer up to its body.
func (c *raw) head() *http.Response {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatalf("cannot read the answer: %v", err)
	}
	return resp
}

// want reads an answer, which must be whole, and checks it.
func (c *raw) want(status int, body string) *http.Response {
	c.t.Helper()
	resp := c.head()
	b, err := io.ReadAll(resp.Body)
	if resp.StatusCode != status || string(b) != body || err != nil {
		c.t.Errorf("status %d %.200q (%v), want %d %.200q", resp.StatusCode, b, err, status, body)
	}
	return resp
}

// ended checks that the connection ends without another byte, and not by a timeout.
func (c *raw) ended() {
	c.t.Helper()
	b, err := io.ReadAll(c.r)
	var ne net.Error
	if len(b) > 0 || errors.As(err, &ne) && ne.Timeout() {
		c.t.Errorf("want the connection's end, got %q, %v", b, err)
	}
}

// get is a request without a body, post is one with a body.
func get(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n" }

func post(path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

const chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"

// echo answers with what it was sent.
func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	_, _ = w.Write(b) // a client that left is not told
}
