package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/wire"
)

// A client that leaves before the answer began must end the engine's work, in both
// shapes of answer. A router that noticed only while writing let a plain request
// generate to its end.
func TestEngineSeesTheClientDisconnectBeforeHeaders(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		arrived, gone := make(chan struct{}), make(chan struct{})
		s := script(t, func(n int, p *peer) {
			p.request()
			close(arrived)
			p.gone()
			close(gone)
		})
		e := endpoint(t, cfg, s.url)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { <-arrived; cancel() }()
		if _, err := e.Do(ctx, post("{}")); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		select {
		case <-gone:
		case <-time.After(patience):
			t.Fatal("the engine's connection is still open")
		}
		if n := s.accepted(); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

// The same in mid-stream, also when the engine has filled all socket buffers with
// big events: a proxy that only stopped reading left the engine blocked in a write.
func TestEngineSeesTheClientDisconnectMidStream(t *testing.T) {
	for _, size := range []int{16, 64 << 10} {
		transports(t, func(t *testing.T, cfg Config) {
			gone := make(chan error, 1)
			s := script(t, func(n int, p *peer) {
				p.request()
				p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
				event := fmt.Sprintf("%x\r\n%s\r\n", size, strings.Repeat("x", size))
				var err error
				for err == nil {
					if err = p.say(event); size == 16 {
						p.gone()
						break
					}
				}
				gone <- err
			})
			e := endpoint(t, cfg, s.url)
			ctx, cancel := context.WithCancelCause(context.Background())
			resp, err := e.Do(ctx, post("{}"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := resp.Body.Next(); err != nil {
				t.Fatal(err)
			}
			why := errors.New("client left")
			cancel(why)
			for err == nil {
				_, err = resp.Body.Next()
			}
			if !errors.Is(err, why) || !errors.Is(err, context.Canceled) || kindOf(err) != KindCanceled {
				t.Errorf("%v", err)
			}
			select {
			case <-gone:
			case <-time.After(patience):
				t.Error("the engine still writes")
			}
			if st := e.Stats(); st.Active != 0 || st.Idle != 0 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// A request that an engine has read is not sent to it again when the connection
// then breaks, used before or not: a replay put two requests with one room into the
// fleet.
func TestRequestThatTheEngineHasReadIsNotReplayed(t *testing.T) {
	for _, how := range []string{"close", "reset"} {
		for _, reused := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reused %t", how, reused), func(t *testing.T) {
				var seen atomic.Int32
				s := script(t, func(n int, p *peer) {
					if reused {
						p.request()
						p.say(okAnswer)
					}
					if _, _, ok := p.request(); ok {
						seen.Add(1)
					}
					if how == "reset" {
						p.SetLinger(0)
					}
				})
				e := endpoint(t, Config{}, s.url)
				if reused {
					resp, err := e.Do(context.Background(), post("{}"))
					if err != nil {
						t.Fatal(err)
					}
					body(t, resp)
				}
				_, err := e.Do(context.Background(), post("{}"))
				var ue *Error
				if !errors.As(err, &ue) || ue.Reused != reused {
					t.Fatalf("%v", err)
				}
				if !ue.Sent || nothingSent(err) {
					t.Errorf("%v claims that nothing was sent", err)
				}
				if n := seen.Load(); n != 1 {
					t.Errorf("the engine saw it %d times", n)
				}
			})
		}
	}
}

// An engine that closed before it got the request cannot have run it. The kernel's
// count of acknowledged bytes is the proof.
func TestNothingArrivedBehindAClose(t *testing.T) {
	if !wire.RawIO {
		t.Skip("the count is asked for only where sockets are read directly")
	}
	closing, closed := make(chan struct{}), make(chan struct{})
	s := script(t, func(n int, p *peer) {
		p.request()
		p.say(okAnswer)
		<-closing
		p.Close()
		close(closed)
	})
	e := endpoint(t, Config{}, s.url)
	resp, err := e.Do(context.Background(), post("{}"))
	if err != nil {
		t.Fatal(err)
	}
	body(t, resp)
	o := e.t.(*own)
	c := o.idleConn(mono.Now())
	c.unseen = false // looked at, and found well
	close(closing)
	<-closed
	x := &exchange{own: o, c: c, ctx: context.Background()}
	if err := x.run(post("{}")); err == nil || err.Sent || !err.Reused || x.answered || !connectionLost(err) {
		t.Errorf("%+v", err)
	}
}

// deafConn is a connection that fails its writes from the second request on, unseen
// by the look at it.
type deafConn struct {
	net.Conn
	writes int
}

func (c *deafConn) Write(p []byte) (int, error) {
	if c.writes++; c.writes > 1 {
		return 0, syscall.EPIPE
	}
	return c.Conn.Write(p)
}

// What was not written is sent again, once, on a new connection.
func TestResend(t *testing.T) {
	s := script(t, func(n int, p *peer) {
		for {
			if _, _, ok := p.request(); !ok {
				return
			}
			p.say(okAnswer)
		}
	})
	e := endpoint(t, Config{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		return &deafConn{Conn: c}, err
	}}, s.url)
	for range 3 {
		resp, err := e.Do(context.Background(), post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		body(t, resp)
	}
	if st := e.Stats(); st.Resends != 2 || st.Dials != 3 {
		t.Errorf("stats %+v", st)
	}
}

// The worker's virtual host is addressed by its own name, and nothing of the
// client's connection is passed on.
func TestHostIsTheWorkersAndHopByHopHeadersStay(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		got := make(chan *http.Request, 1)
		s := server(t, func(w http.ResponseWriter, r *http.Request) { got <- r })
		e := endpoint(t, cfg, s.URL)
		req := post("{}")
		for _, n := range []string{"Host", "Connection", "keep-alive", "TE", "Trailer", "Upgrade", "Expect", "Proxy-Connection", "transfer-encoding", "Content-Length"} {
			req.Header.Add(n, "7")
		}
		req.Header.Add("X-Kept", "1")
		req.Header.Add("x-kept", "2")
		resp, err := e.Do(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		body(t, resp)
		r := <-got
		if r.Host != strings.TrimPrefix(s.URL, "http://") || r.ContentLength != 2 || len(r.TransferEncoding) != 0 {
			t.Errorf("host %q length %d", r.Host, r.ContentLength)
		}
		if len(r.Header["X-Kept"]) != 2 {
			t.Errorf("%v", r.Header)
		}
		r.Header.Del("X-Kept")
		r.Header.Del("Content-Type")
		r.Header.Del("Content-Length")
		if len(r.Header) != 0 {
			t.Errorf("more than asked for: %v", r.Header)
		}
	})
}

func TestHeaderInjection(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		e := endpoint(t, cfg, "http://127.0.0.1:1")
		for _, r := range []*Request{
			{Method: "GET", Path: "/", Header: Header{{"X-Id", "secret\r\nX-Evil: 1"}}},
			{Method: "GET", Path: "/", Header: Header{{"X-Id", "secret\x00"}}},
			{Method: "GET", Path: "/", Header: Header{{"X Id", "1"}}},
			{Method: "GET", Path: "/", Header: Header{{"", "1"}}},
			{Method: "GET", Path: "/ HTTP/1.1\r\nX: y"},
			{Method: "GET", Path: "/a b"},
			{Method: "GET", Path: "http://other/"},
			{Method: "GET", Path: ""},
			{Method: "GET /x", Path: "/"},
			{Method: "", Path: "/"},
			{Method: "HEAD", Path: "/", Body: [][]byte{{1}}},
		} {
			_, err := e.Do(context.Background(), r)
			if kindOf(err) != KindInvalid || EngineFault(err) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%+v: %v", r, err)
			}
		}
	})
}

func TestKeyIsSentAndNeverShown(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		s := server(t, func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, strings.Join(r.Header["Authorization"], "|"))
		})
		ask := func(cfg Config) string {
			resp, err := endpoint(t, cfg, s.URL).Do(context.Background(), &Request{Method: "GET", Path: "/", Header: Header{{"authorization", "Bearer clients"}}})
			if err != nil {
				t.Fatal(err)
			}
			return body(t, resp)
		}
		if got := ask(cfg); got != "Bearer clients" {
			t.Errorf("without a key: %q", got)
		}
		cfg.APIKey = "s3cret"
		if got := ask(cfg); got != "Bearer s3cret" {
			t.Errorf("with a key: %q", got)
		}
		cfg.URL = s.URL
		for _, out := range []string{fmt.Sprint(cfg), fmt.Sprintf("%+v", cfg), fmt.Sprintf("%#v", cfg), cfg.LogValue().String()} {
			if strings.Contains(out, "s3cret") {
				t.Errorf("the key is in %q", out)
			}
		}
		cfg.APIKey = "s3cret\n"
		if _, err := NewEndpoint(cfg); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("a key with a line break: %v", err)
		}
	})
}

// Long silence before the headers, and between events, is not an error by itself.
// A client with a limit per read that nobody had set failed a third of the calls.
func TestSlowEngineIsNotBroken(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		release := make(chan struct{})
		s := script(t, func(n int, p *peer) {
			p.request()
			<-release
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
			<-release
			p.say("k")
			p.gone()
		})
		e := endpoint(t, cfg, s.url)
		go func() { time.Sleep(300 * time.Millisecond); release <- struct{}{} }()
		resp, err := e.Do(context.Background(), post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		go func() { time.Sleep(300 * time.Millisecond); release <- struct{}{} }()
		if got := body(t, resp); got != "ok" {
			t.Error(got)
		}
	})
}

// When a limit does pass, the error names it with its value, and the engine's
// connection is closed.
func TestTheLimitThatPassesIsNamed(t *testing.T) {
	const long = time.Hour
	for _, tc := range []struct {
		limits Limits
		answer string
		op     Op
		limit  string
		value  time.Duration
	}{
		{Limits{Header: 30 * time.Millisecond, Total: long, FirstByte: long}, "HTTP/1.1 200 OK\r\n", OpHeader, LimitHeader, 30 * time.Millisecond},
		{Limits{Header: long, FirstByte: 31 * time.Millisecond, StreamIdle: long}, "", OpHeader, LimitFirstByte, 31 * time.Millisecond},
		{Limits{Header: long, FirstByte: 32 * time.Millisecond, StreamIdle: long}, "HTTP/1.1 200 OK\r\n\r\n", OpBody, LimitFirstByte, 32 * time.Millisecond},
		{Limits{Header: long, FirstByte: long, StreamIdle: 33 * time.Millisecond}, "HTTP/1.1 200 OK\r\n\r\nx", OpBody, LimitStreamIdle, 33 * time.Millisecond},
		{Limits{Header: long, StreamIdle: long, Total: 34 * time.Millisecond}, "HTTP/1.1 200 OK\r\n\r\nx", OpBody, LimitTotal, 34 * time.Millisecond},
		{Limits{Header: long, Total: 35 * time.Millisecond}, "", OpHeader, LimitTotal, 35 * time.Millisecond},
	} {
		t.Run(string(tc.op)+" "+tc.limit, func(t *testing.T) {
			transports(t, func(t *testing.T, cfg Config) {
				gone := make(chan struct{})
				s := script(t, func(n int, p *peer) {
					p.request()
					p.say(tc.answer)
					p.gone()
					close(gone)
				})
				e := endpoint(t, cfg, s.url)
				req := post("{}")
				req.Limits = tc.limits
				resp, err := e.Do(context.Background(), req)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
				}
				var ue *Error
				if !errors.As(err, &ue) || ue.Kind != KindTimeout || ue.Limit != tc.limit || ue.LimitValue != tc.value {
					t.Fatalf("%#v", err)
				}
				// The other limits may pass before the head is in on a slow machine.
				if ue.Op != tc.op && (tc.limit == LimitHeader || tc.limit == LimitStreamIdle) {
					t.Errorf("op %s", ue.Op)
				}
				if !strings.Contains(err.Error(), tc.limit) || !strings.Contains(err.Error(), tc.value.String()) {
					t.Error(err)
				}
				select {
				case <-gone:
				case <-time.After(patience):
					t.Error("the engine was not told")
				}
			})
		})
	}
}

// A limit is of one request: the alarm it leaves behind must not end the next one on
// the same connection, nor may one that rings early end a stream.
func TestAlarmsThatRingEarly(t *testing.T) {
	step := make(chan struct{})
	s := script(t, func(n int, p *peer) {
		for {
			if _, _, ok := p.request(); !ok {
				return
			}
			<-step
			p.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
			<-step
			p.say("k")
		}
	})
	e := endpoint(t, Config{}, s.url)
	for i, l := range []Limits{{}, {Header: time.Hour}, {}, {StreamIdle: time.Hour, Total: time.Hour}, {FirstByte: time.Hour}} {
		if i > 0 {
			c := e.t.(*own).pool.conns[0]
			c.arm(mono.Now()) // has rung by the time the connection is looked at
		}
		go func() { step <- struct{}{} }()
		resp, err := e.Do(context.Background(), &Request{Method: "GET", Path: "/", Limits: l})
		if err != nil {
			t.Fatal(i, err)
		}
		if p, err := resp.Body.Next(); string(p) != "o" || err != nil {
			t.Fatal(i, string(p), err)
		}
		resp.Body.(*exchange).c.arm(mono.Now())
		go func() { step <- struct{}{} }()
		if got := body(t, resp); got != "k" {
			t.Error(i, got)
		}
	}
	if n := s.accepted(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// Engines close idle connections at moments of their own. A connection given up
// before the engine does so never fails; and whatever the moments are, no request
// reaches the engine twice, and none is lost without an error that says so.
func TestEngineClosesIdleConnections(t *testing.T) {
	for _, tc := range []struct {
		name           string
		theirs, ours   time.Duration
		requests       int
		pauseMin, more time.Duration
		doubt          bool // the two limits are so close that a request may be caught in between
	}{
		{"our limit below theirs", 2 * time.Second, 20 * time.Millisecond, 60, 10 * time.Millisecond, 20 * time.Millisecond, false},
		{"at the very moment", 2 * time.Millisecond, time.Second, 300, 1400 * time.Microsecond, 1200 * time.Microsecond, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var mu sync.Mutex
			seen := map[string]int{}
			s := script(t, func(n int, p *peer) {
				for {
					_, b, ok := p.request()
					if !ok {
						return
					}
					mu.Lock()
					seen[b]++
					mu.Unlock()
					p.say(okAnswer)
					p.SetReadDeadline(time.Now().Add(tc.theirs))
				}
			})
			e := endpoint(t, Config{IdleTimeout: tc.ours}, s.url)
			answered := map[string]bool{}
			for i := range tc.requests {
				time.Sleep(tc.pauseMin + rand.N(tc.more)) // the load, not a synchronisation
				resp, err := e.Do(context.Background(), post(fmt.Sprint(i)))
				if err != nil {
					var ue *Error
					if !tc.doubt || !errors.As(err, &ue) || !ue.Sent || !ue.Reused || ue.Kind != KindReset && (wire.RawIO || ue.Kind != KindClosed) {
						t.Fatal(i, err)
					}
					continue
				}
				answered[fmt.Sprint(i)] = body(t, resp) == "ok"
			}
			t.Logf("%+v, %d answered", e.Stats(), len(answered))
			mu.Lock()
			defer mu.Unlock()
			for i := range tc.requests {
				b := fmt.Sprint(i)
				if seen[b] > 1 || answered[b] && seen[b] != 1 {
					t.Errorf("request %s arrived %d times", b, seen[b])
				}
			}
		})
	}
}

// Leftovers of an answer must not become the beginning of the next one: with two
// connections the first two requests went well and the rest got 400.
func TestLeftoversOnReusedConnections(t *testing.T) {
	s := script(t, func(n int, p *peer) {
		for {
			_, b, ok := p.request()
			if !ok {
				return
			}
			p.say(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s\r\n", len(b), b)) // two bytes too many
		}
	})
	e := endpoint(t, Config{}, s.url)
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			for i := range 8 {
				want := fmt.Sprint(w, i)
				resp, err := e.Do(context.Background(), post(want))
				if err != nil {
					t.Error(err)
					return
				}
				if got := body(t, resp); got != want {
					t.Errorf("%q for %q", got, want)
				}
			}
		})
	}
	wg.Wait()
}

// After a quiet time nothing of the old connections is used: they were given up
// before the engine, or something between, could have.
func TestNoConnectionIsReusedAfterTheIdleTimeout(t *testing.T) {
	var served sync.Map
	s := script(t, func(n int, p *peer) {
		for {
			if _, _, ok := p.request(); !ok {
				return
			}
			served.Store(n, true)
			p.say(okAnswer)
		}
	})
	e := endpoint(t, Config{IdleTimeout: 50 * time.Millisecond}, s.url)
	burst := func() {
		var open []*Response
		for range 20 {
			resp, err := e.Do(context.Background(), post("{}"))
			if err != nil {
				t.Error(err)
				return
			}
			open = append(open, resp)
		}
		for _, r := range open {
			body(t, r)
		}
	}
	burst()
	for deadline := time.Now().Add(patience); e.Stats().Idle > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still kept: %+v", e.Stats())
		}
	}
	burst()
	if st := e.Stats(); st.Reuses != 0 || st.Dials != 40 || st.Stale != 0 {
		t.Errorf("stats %+v", st)
	}
}

// The limit holds even when the timer that closes old connections comes late.
func TestIdleLimitIsCheckedAtUse(t *testing.T) {
	s := script(t, func(n int, p *peer) {
		for {
			if _, _, ok := p.request(); !ok {
				return
			}
			p.say(okAnswer)
		}
	})
	e := endpoint(t, Config{}, s.url)
	for range 2 {
		resp, err := e.Do(context.Background(), post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		body(t, resp)
		e.t.(*own).pool.conns[0].idleSince = mono.Now().Add(-DefaultIdleTimeout)
	}
	if st := e.Stats(); st.Reuses != 0 || st.Stale != 1 {
		t.Errorf("stats %+v", st)
	}
	if e, _ := NewEndpoint(Config{URL: s.url, IdleTimeout: time.Hour}); e.cfg.IdleTimeout >= 5*time.Second {
		t.Errorf("idle limit %s", e.cfg.IdleTimeout)
	}
}

func TestMaxIdleConns(t *testing.T) {
	s := script(t, func(n int, p *peer) {
		for {
			if _, _, ok := p.request(); !ok {
				return
			}
			p.say(okAnswer)
		}
	})
	e := endpoint(t, Config{MaxIdleConns: 3}, s.url)
	var open []*Response
	for range 10 {
		resp, err := e.Do(context.Background(), post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, resp)
	}
	for _, r := range open {
		body(t, r)
	}
	if st := e.Stats(); st.Idle != 3 || st.Active != 0 {
		t.Errorf("stats %+v", st)
	}
	e.CloseIdle()
	if st := e.Stats(); st.Idle != 0 {
		t.Errorf("stats %+v", st)
	}
	resp, err := e.Do(context.Background(), post("{}"))
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	if got := body(t, resp); got != "ok" {
		t.Error("a request in flight must outlive Close")
	}
	if _, err := e.Do(context.Background(), post("{}")); kindOf(err) != KindShutdown || !nothingSent(err) || EngineFault(err) {
		t.Error(err)
	}
	if st := e.Stats(); st.Idle != 0 {
		t.Errorf("stats %+v", st)
	}
}

// A node that drops packets costs its own requests the connect limit, no more.
func TestUnreachableEngineFailsAtTheConnectTimeout(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		cfg.ConnectTimeout = 40 * time.Millisecond
		cfg.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, 40*time.Millisecond)
			defer cancel()
			<-ctx.Done()
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
		}
		e := endpoint(t, cfg, "http://10.255.255.1:9")
		_, err := e.Do(context.Background(), post("{}"))
		var ue *Error
		if !errors.As(err, &ue) || ue.Op != OpDial || ue.Kind != KindTimeout || ue.Limit != LimitConnect || ue.LimitValue != 40*time.Millisecond || ue.Sent || !nothingSent(err) {
			t.Errorf("%#v", err)
		}
		// Leaving while the dial hangs.
		cfg.ConnectTimeout = -1
		dialing := make(chan struct{})
		cfg.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			close(dialing)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		e = endpoint(t, cfg, "http://10.255.255.1:9")
		ctx, cancel := context.WithCancel(context.Background())
		go func() { <-dialing; cancel() }()
		if _, err := e.Do(ctx, post("{}")); kindOf(err) != KindCanceled {
			t.Error(err)
		}
	})
}

// A hung engine must not take the others' connections, locks or time.
func TestHungEngineDoesNotStallOthers(t *testing.T) {
	hung := script(t, func(n int, p *peer) { p.request(); p.gone() })
	well := server(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	a, b := endpoint(t, Config{}, hung.url), endpoint(t, Config{}, well.URL)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if _, err := a.Do(ctx, post("{}")); kindOf(err) != KindCanceled {
				t.Error(err)
			}
		})
	}
	for range 100 {
		resp, err := b.Do(context.Background(), post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		body(t, resp)
	}
	cancel()
	wg.Wait()
	if n := a.Stats().Active; n != 0 {
		t.Errorf("%d active", n)
	}
}

// Running out of file descriptors or ports is this machine's fault: it must neither
// end the process nor be charged to the engine.
func TestLackOfFileDescriptorsIsNotChargedToTheEngine(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL} {
			cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", errno)}
			}
			_, err := endpoint(t, cfg, "http://a").Do(context.Background(), post("{}"))
			if kindOf(err) != KindLocal || EngineFault(err) || !nothingSent(err) {
				t.Error(err)
			}
		}
	})
}

func TestRefused(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ln.Close()
		_, err = endpoint(t, cfg, "http://"+ln.Addr().String()).Do(context.Background(), post("{}"))
		if kindOf(err) != KindRefused || !nothingSent(err) || !EngineFault(err) || !strings.Contains(err.Error(), ln.Addr().String()) {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := endpoint(t, cfg, "http://a").Do(ctx, post("{}")); kindOf(err) != KindCanceled {
			t.Error(err)
		}
		_, err = endpoint(t, cfg, "http://no-such-host.invalid").Do(context.Background(), post("{}"))
		if kindOf(err) != KindResolve && kindOf(err) != KindTimeout {
			t.Error(err)
		}
	})
}
