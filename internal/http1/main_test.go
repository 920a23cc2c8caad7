package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come. It is no measure of
// speed.
const patience = 30 * time.Second

// rig is a server on a real socket.
type rig struct {
	t    testing.TB
	srv  *Server
	addr string
	// end ends the base context.
	end context.CancelFunc

	accepted, closed atomic.Int64

	mu      sync.Mutex
	reports []string // guarded by mu
	done    chan error
}

// start starts a server. Unless a test changes that, timeouts are ones that never
// come to pass.
func start(t testing.TB, handler http.HandlerFunc, change ...func(*Server)) *rig {
	t.Helper()
	r := &rig{t: t, done: make(chan error, 1)}
	base, end := context.WithCancel(context.Background())
	r.end = end
	r.srv = &Server{
		Handler: handler, Base: base,
		Refuse: func(w http.ResponseWriter, p *Problem) {
			w.WriteHeader(p.Status)
			_, _ = io.WriteString(w, p.Message) // who sends such things may be gone
		},
		HeaderTimeout: patience, IdleTimeout: patience, WriteTimeout: patience, MaxHeaderBytes: 64 << 10,
		Accepted: func(*net.TCPConn) { r.accepted.Add(1) },
		Closed:   func(*net.TCPConn) { r.closed.Add(1) },
		Report: func(what string, err any) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.reports = append(r.reports, fmt.Sprint(what, ": ", err))
		},
	}
	for _, c := range change {
		c(r.srv)
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	go func() { r.done <- r.srv.Serve(l) }()
	t.Cleanup(r.stop)
	return r
}

// stop shuts the server down; a handler that does not end by itself is cut.
func (r *rig) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = r.srv.Shutdown(ctx) // the counters below tell
	r.end()
	if err := <-r.done; err != http.ErrServerClosed {
		r.t.Errorf("Serve returned %v", err)
	}
	r.allClosed()
}

// allClosed waits until every accepted connection was told as closed: what was cut
// ends a little after the server does.
func (r *rig) allClosed() {
	r.t.Helper()
	var a, c int64
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if a, c = r.accepted.Load(), r.closed.Load(); a == c {
			return
		}
	}
	r.t.Errorf("%d connections were accepted and %d closed", a, c)
}

func (r *rig) reported() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reports
}

// waitFor waits until something is so.
func waitFor(t testing.TB, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
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

// answer is a whole answer.
type answer struct {
	*http.Response
	body string
}

// read reads an answer to a method, "" for GET, and must find it whole.
func (c *raw) read(method string) answer {
	c.t.Helper()
	a, err := c.tryRead(method)
	if err != nil {
		c.t.Fatalf("cannot read the answer: %v", err)
	}
	return a
}

// tryRead reads an answer as far as it goes.
func (c *raw) tryRead(method string) (answer, error) {
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		return answer{}, err
	}
	b, err := io.ReadAll(resp.Body)
	return answer{resp, string(b)}, err
}

// want reads an answer and checks it.
func (c *raw) want(status int, body string) answer {
	c.t.Helper()
	a := c.read("")
	if a.StatusCode != status || a.body != body {
		c.t.Errorf("status %d %.200q, want %d %.200q", a.StatusCode, a.body, status, body)
	}
	return a
}

// ended checks that the connection ends without another byte, and not by a
// timeout.
func (c *raw) ended() {
	c.t.Helper()
	b, err := io.ReadAll(c.r)
	var ne net.Error
	if len(b) > 0 || errors.As(err, &ne) && ne.Timeout() {
		c.t.Errorf("want the connection's end, got %q, %v", b, err)
	}
}

// get is a request without a body.
func get(path string) string { return "GET " + path + " HTTP/1.1\r\nHost: h\r\n\r\n" }

// post is a request with one.
func post(path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

// echo answers with what it was sent.
func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), 400)
		return
	}
	_, _ = w.Write(b) // a client that left is not told
}

// fedConn is a connection without a socket, whose client sent data in pieces of
// step bytes and then closed its side.
func fedConn(data []byte, step int) *conn {
	c := &conn{
		srv:  &Server{Base: context.Background(), HeaderTimeout: time.Hour, IdleTimeout: time.Hour, MaxHeaderBytes: 64 << 10},
		sock: &net.TCPConn{}, raw: fedRaw{}, remote: "client:1",
	}
	c.ctx = newConnContext(c.srv.Base)
	c.x.init(c)
	c.readFn = func(uintptr) bool {
		p := c.dst
		if p == nil {
			c.in.Room()
			p = c.in.B[c.in.W:]
		}
		c.readN, c.readErr = copy(p, data[:min(step, len(data))]), nil
		data = data[c.readN:]
		if c.readN == 0 {
			c.readErr = io.EOF
		}
		return true
	}
	return c
}

type fedRaw struct{}

func (fedRaw) Control(func(uintptr)) error       { return nil }
func (fedRaw) Read(f func(uintptr) bool) error   { f(0); return nil }
func (fedRaw) Write(func(fd uintptr) bool) error { return io.ErrClosedPipe }
