package http1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// withoutLinux has a server do without what only Linux has.
func withoutLinux(s *Server) { s.plain = true }

// eachWay runs a test as on Linux and as elsewhere.
func eachWay(t *testing.T, f func(t *testing.T, way func(*Server))) {
	t.Parallel()
	t.Run("watched", func(t *testing.T) { t.Parallel(); f(t, func(*Server) {}) })
	t.Run("peeked", func(t *testing.T) { t.Parallel(); f(t, withoutLinux) })
}

// A client that leaves is noticed in each of the ways there are, whatever lies
// before the end of its connection.
func TestClientDisconnectIsNoticed(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(*Server)) {
		causes := make(chan error, 1)
		r := start(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/wait" {
				return
			}
			if b, err := io.ReadAll(r.Body); err != nil || string(b) != strings.Repeat("x", int(max(r.ContentLength, 0))) && r.ContentLength >= 0 {
				t.Errorf("%q %v", b, err)
			}
			_ = http.NewResponseController(w).Flush() // the client may be gone
			<-r.Context().Done()
			causes <- context.Cause(r.Context())
		}, way)
		chunked := "POST /wait HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"
		for _, req := range []string{get("/wait"), post("/wait", "xxxx"), post("/wait", strings.Repeat("x", 100000)), chunked} {
			for _, behind := range []string{"", "\r\n", get("/"), strings.Repeat(get("/"), 200)} {
				for _, how := range []string{"close", "half-close", "reset"} {
					c := r.dial()
					c.send(req + behind)
					if resp, err := http.ReadResponse(c.r, nil); err != nil || resp.StatusCode != 200 {
						t.Fatal(resp, err)
					}
					switch how {
					case "half-close":
						_ = c.CloseWrite() // what the handler sees tells
					case "reset":
						_ = c.SetLinger(0)
						fallthrough
					default:
						_ = c.Close()
					}
					if err := receive(t, "the end of the context", causes); err != ErrClientGone {
						t.Errorf("%s: %v", how, err)
					}
				}
			}
		}
	})
}

// Nothing that is read ahead is lost, and nobody is taken for gone who is there.
func TestRequestsBehindALongOneAreServed(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(*Server)) {
		begun, goOn := make(chan struct{}), make(chan struct{})
		r := start(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				begun <- struct{}{}
				<-goOn
			}
			if err := r.Context().Err(); err != nil {
				t.Error(err)
			}
			echo(w, r)
		}, way)
		c := r.dial()
		for round := range 3 {
			c.send(post("/wait", "first"))
			receive(t, "the handler", begun)
			const n = 20
			sent := make(chan error, 1)
			go func() {
				var err error
				for i := range n {
					if err == nil {
						_, err = io.WriteString(c, post("/", numbered(i*1000+round)))
					}
				}
				sent <- err
			}()
			goOn <- struct{}{}
			c.want(200, "first")
			for i := range n {
				c.want(200, numbered(i*1000+round))
			}
			if err := receive(t, "the writer", sent); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestManyClientsDisconnectAtOnce(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(*Server)) {
		const n = 300
		begun, gone := make(chan struct{}, n), make(chan error, n)
		r := start(t, func(_ http.ResponseWriter, r *http.Request) {
			begun <- struct{}{}
			<-r.Context().Done()
			gone <- context.Cause(r.Context())
		}, way)
		var conns []*raw
		for range n {
			c := r.dial()
			c.send(get("/"))
			conns = append(conns, c)
		}
		for range n {
			receive(t, "a handler", begun)
		}
		for _, c := range conns {
			_ = c.Close()
		}
		for range n {
			if err := receive(t, "a client's end", gone); err != ErrClientGone {
				t.Error(err)
			}
		}
	})
}

// Ends of connections that are over must not be taken for ends of those that have
// their file's number now.
func TestEventsOfOldConnectionsDoNotEndNewOnes(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(*Server)) {
		r := start(t, func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/stay" {
				if err := r.Context().Err(); err != nil {
					t.Error(context.Cause(r.Context()))
				}
			}
		}, way)
		for i := range 300 {
			old := r.dial()
			old.send(get("/"))
			if i%2 == 0 {
				old.want(200, "")
			}
			if i%3 == 0 {
				_ = old.SetLinger(0)
			}
			_ = old.Close()
			c := r.dial()
			c.send(get("/stay"))
			c.want(200, "")
			_ = c.Close()
		}
	})
}

func TestConnectionsResetByTheClient(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(*Server)) {
		r := start(t, echo, way)
		for i := range 200 {
			c := r.dial()
			if i%2 == 0 {
				c.send(get("/"))
			}
			_ = c.SetLinger(0)
			_ = c.Close()
		}
		c := r.dial()
		c.send(post("/", "x"))
		c.want(200, "x")
		if told := r.reported(); len(told) > 0 {
			t.Error(told)
		}
	})
}

func TestDrain(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(*Server)) {
		begun, goOn := make(chan struct{}), make(chan struct{})
		r := start(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/wait") {
				if r.URL.Path == "/wait/flushed" {
					_ = http.NewResponseController(w).Flush() // the client reads it
				}
				begun <- struct{}{}
				<-goOn
			}
			echo(w, r)
		}, way)
		idle, fresh, busy, flushed := r.dial(), r.dial(), r.dial(), r.dial()
		idle.send(get("/"))
		idle.want(200, "")
		busy.send(post("/wait", "x"))
		receive(t, "the handler", begun)
		flushed.send(post("/wait/flushed", "x"))
		receive(t, "the handler", begun)
		waitFor(t, "an idle connection", func() bool { return r.inState(stateIdle) == 1 && r.inState(stateNew) == 1 })

		r.srv.Drain()
		idle.ended()
		for _, c := range []*raw{fresh, r.dial()} {
			c.send(post("/", "x"))
			if a := c.want(200, "x"); !a.Close {
				t.Error("a new connection stays")
			}
			c.ended()
		}
		goOn <- struct{}{}
		goOn <- struct{}{}
		if a := busy.want(200, "x"); !a.Close {
			t.Error("the answer does not say that the connection ends")
		}
		busy.ended()
		flushed.want(200, "x") // its head was out before
		flushed.ended()
	})
}

func (r *rig) inState(state int32) int {
	n := 0
	for _, c := range r.srv.all() {
		if c.state.Load() == state {
			n++
		}
	}
	return n
}

func TestShutdownWaitsForAnswers(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(*Server)) {
		begun, goOn := make(chan struct{}), make(chan struct{})
		r := start(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/wait" {
				close(begun)
				<-goOn
			}
			echo(w, r)
		}, way)
		fresh, idle, busy := r.dial(), r.dial(), r.dial()
		idle.send(get("/"))
		idle.want(200, "")
		busy.send(post("/wait", "x"))
		receive(t, "the handler", begun)
		waitFor(t, "the others", func() bool { return r.inState(stateIdle) == 1 && r.inState(stateNew) == 1 })
		over := make(chan error, 2)
		for range 2 { // twice is no more than once
			go func() { over <- r.srv.Shutdown(context.Background()) }()
		}
		fresh.ended()
		idle.ended()
		waitFor(t, "the port to be closed", func() bool {
			c, err := net.Dial("tcp", r.addr)
			if err == nil {
				_ = c.Close() // accepted by the kernel alone
			}
			return err != nil
		})
		select {
		case err := <-over:
			t.Fatalf("Shutdown did not wait: %v", err)
		default:
		}
		close(goOn)
		if a := busy.want(200, "x"); !a.Close {
			t.Error("the answer does not say that the connection ends")
		}
		for range 2 {
			if err := receive(t, "Shutdown", over); err != nil {
				t.Error(err)
			}
		}
	})
}

// What hangs is cut, and no answer looks whole by that.
func TestShutdownCutsHangingConnections(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(*Server)) {
		causes := make(chan error, 2)
		r := start(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "half") // the client counts
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			causes <- context.Cause(r.Context())
		}, way)
		var conns []*raw
		var answers []*http.Response
		for _, version := range []string{"1.0", "1.1"} {
			c := r.dial()
			c.send("GET / HTTP/" + version + "\r\nHost: h\r\n\r\n")
			resp, err := http.ReadResponse(c.r, nil)
			if err != nil {
				t.Fatal(err)
			}
			conns, answers = append(conns, c), append(answers, resp)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := r.srv.Shutdown(ctx); err != context.Canceled {
			t.Error(err)
		}
		for i := range conns {
			if err := receive(t, "the handler", causes); err != errConnClosed {
				t.Error(err)
			}
			if b, err := io.ReadAll(answers[i].Body); err == nil {
				t.Errorf("%q looks whole", b)
			}
		}
	})
}

func TestShutdownBeforeServe(t *testing.T) {
	t.Parallel()
	s := &Server{}
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(l); err != http.ErrServerClosed {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is open: %v", err)
	}
}

func TestServeReturnsWhenTheListenerFails(t *testing.T) {
	t.Parallel()
	s := &Server{}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := s.Serve(l); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	_ = s.Shutdown(context.Background()) // nothing was served
	for err, broken := range map[error]bool{
		syscall.EMFILE: false, syscall.ENFILE: false, syscall.ENOBUFS: false, syscall.ENOMEM: false, syscall.ECONNABORTED: false,
		syscall.EPROTO: false, syscall.EPERM: false, syscall.ENETDOWN: false, syscall.EHOSTUNREACH: false,
		syscall.EBADF: true, syscall.EINVAL: true, net.ErrClosed: true,
	} {
		if ListenerBroken(&net.OpError{Op: "accept", Err: err}) != broken {
			t.Error(err)
		}
	}
}

// clients has n of them connect and send requests until they are refused.
func (r *rig) clients(t *testing.T, n int, body string, whole bool) (first <-chan struct{}, wait func()) {
	answered := make(chan struct{})
	var once sync.Once
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for {
				sock, err := net.Dial("tcp", r.addr)
				if err != nil {
					return
				}
				_ = sock.SetDeadline(time.Now().Add(patience))
				c := &raw{sock.(*net.TCPConn), t, bufio.NewReader(sock)}
				for n := range 5 {
					if _, err := io.WriteString(c, post("/", body)); err != nil || i == 0 && n == 3 {
						break // one of them leaves
					}
					if _, err := c.r.Peek(1); err != nil {
						break // no answer at all
					}
					if a, err := c.tryRead(""); whole && (err != nil || a.body != body) {
						t.Errorf("half an answer: %v", err)
					}
					once.Do(func() { close(answered) })
				}
				_ = c.Close()
			}
		})
	}
	return answered, wg.Wait
}

// However the end of a server falls in with connections that begin, requests and
// clients that leave: an answer is whole or there is none, and nothing is left.
func TestShutdownRacesWithRequests(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(*Server)) {
		for round := range 10 {
			r := start(t, echo, way)
			first, wait := r.clients(t, 8, numbered(1000*round), true)
			receive(t, "the first answer", first)
			if round%2 == 0 {
				r.srv.Drain()
			}
			if err := r.srv.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
			r.allClosed()
			wait()
		}
	})
}

func TestCutsRaceWithRequests(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(*Server)) {
		for range 10 {
			r := start(t, echo, way)
			first, wait := r.clients(t, 8, "x", false)
			receive(t, "the first answer", first)
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = r.srv.Shutdown(ctx) // it may have had to cut or not
			r.allClosed()
			wait()
		}
	})
}

// Events may be on their way when the watcher stops.
func TestClientsDisconnectDuringShutdown(t *testing.T) {
	eachWay(t, func(t *testing.T, way func(*Server)) {
		for range 5 {
			const n = 50
			begun := make(chan struct{}, n)
			r := start(t, func(_ http.ResponseWriter, r *http.Request) {
				begun <- struct{}{}
				<-r.Context().Done()
			}, way)
			var conns []*raw
			for range n {
				c := r.dial()
				c.send(get("/"))
				conns = append(conns, c)
			}
			for range n {
				receive(t, "a handler", begun)
			}
			go func() {
				for i, c := range conns {
					_ = c.SetLinger(i%2 - 1)
					_ = c.Close()
				}
			}()
			if err := r.srv.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestConnContext(t *testing.T) {
	t.Parallel()
	base, end := context.WithCancelCause(context.Background())
	c := newConnContext(base)
	calls := make(chan int, 100)
	var stops []func() bool
	for i := range 10 {
		stops = append(stops, c.AfterFunc(func() { calls <- i }))
	}
	for i := 0; i < 10; i += 2 {
		if !stops[i]() || stops[i]() {
			t.Error("stop tells something else")
		}
	}
	c.AfterFunc(func() { calls <- 10 }) // takes a slot that is free
	context.AfterFunc(c, func() { calls <- 11 })
	derived, cancel := context.WithCancel(c)
	defer cancel()
	why := errors.New("why")
	end(why)
	seen := map[int]bool{}
	for range 7 {
		seen[receive(t, "a call", calls)] = true
	}
	for _, i := range []int{1, 3, 5, 7, 9, 10, 11} {
		if !seen[i] {
			t.Errorf("%d was not called", i)
		}
	}
	if context.Cause(c) != why || context.Cause(derived) != why || c.Err() != context.Canceled {
		t.Error(context.Cause(c), c.Err())
	}
	if stops[1]() {
		t.Error("stopped after the call")
	}
	if stop := c.AfterFunc(func() { calls <- 12 }); receive(t, "a late call", calls) != 12 || stop() {
		t.Error("a late call can be stopped")
	}

	over := newConnContext(context.Background())
	over.AfterFunc(func() { t.Error("called though nobody is to hear of it") })
	over.close()
	if context.Cause(over) != errConnClosed {
		t.Error(context.Cause(over))
	}
}

// A line or a request behind one that ends its connection made the kernel send a
// reset at the close, and what of the answer was not at the client by then was lost:
// most of a large one, and the words in which one broke off.
func TestBytesBehindTheLastRequestDoNotCutItsAnswer(t *testing.T) {
	t.Parallel()
	large := numbered(100 << 10)
	for name, last := range map[string]struct {
		request string
		before  func(r *rig)
		broken  bool
	}{
		"close":  {request: "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"},
		"1.0":    {request: "GET / HTTP/1.0\r\n\r\n"},
		"body":   {request: "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc"},
		"drain":  {request: get("/"), before: func(r *rig) { r.srv.Drain() }},
		"broken": {request: get("/"), broken: true},
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, way func(*Server)) {
				begun, goOn := make(chan struct{}), make(chan struct{})
				r := start(t, func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					close(begun)
					<-goOn
					if last.broken {
						_, _ = io.WriteString(w, large)
						w.(http.Flusher).Flush()
						panic(http.ErrAbortHandler)
					}
					w.Header()["Content-Length"] = []string{strconv.Itoa(len(large))}
					_, _ = io.WriteString(w, large)
				}, way, func(s *Server) {
					accepted := s.Accepted
					s.Accepted = func(c *net.TCPConn) {
						_ = c.SetWriteBuffer(2 * len(large)) // the client will not read at first
						accepted(c)
					}
				})
				c := r.dial()
				_ = c.SetReadBuffer(16 << 10)
				c.send(last.request)
				receive(t, "the request", begun)
				c.send("\r\n")
				if last.before != nil {
					last.before(r)
				}
				close(goOn)
				waitFor(t, "the close", func() bool { return r.closed.Load() == 1 })
				_ = c.SetReadBuffer(len(large)) // for speed only
				a, err := c.tryRead("")
				if a.body != large || (err != nil) != last.broken {
					t.Errorf("%d bytes of %d: %v", len(a.body), len(large), err)
				}
				if last.broken && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("it ends by %v", err)
				}
			})
		})
	}
}
