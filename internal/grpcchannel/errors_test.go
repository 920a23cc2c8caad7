package grpcchannel

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-router/sluice/internal/upstream"
)

// closedPort is an address at which nobody listens.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A refused connection is told as such, and the first call after the engine is up works.
func TestRefusedConnectionIsTriedAnewByTheNextCall(t *testing.T) {
	addr := closedPort(t)
	c := channelTo(t, addr)
	for range 3 {
		_, err := c.Invoke(context.Background(), method, nil, upstream.CallOptions{})
		wantKind(t, err, upstream.KindRefused, upstream.OpDial, false)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			_, err := c.Invoke(context.Background(), method, nil, upstream.CallOptions{})
			var e *upstream.Error
			if !errors.As(err, &e) || e.Kind != upstream.KindRefused || e.Sent {
				t.Errorf("of many at a time: %v", err)
			}
		})
	}
	wg.Wait()
	startEngine(t, addr, echo)
	if _, err := c.Invoke(context.Background(), method, nil, upstream.CallOptions{}); err != nil {
		t.Errorf("the first call after the engine came up: %v", err)
	}
}

func TestNameWithoutAddressIsNotResolved(t *testing.T) {
	ep := endpoint(t, "grpc://worker.invalid:50051", func(c *upstream.Config) {
		c.Dial = func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.DNSError{Err: "no such host", Name: "worker.invalid", IsNotFound: true}
		}
	})
	_, err := ep.Channel().Invoke(context.Background(), method, nil, upstream.CallOptions{})
	wantKind(t, err, upstream.KindResolve, upstream.OpDial, false)
}

func TestConnectLimit(t *testing.T) {
	ep := endpoint(t, "grpc://127.0.0.1:1", func(c *upstream.Config) {
		c.ConnectTimeout = 20 * time.Millisecond
		c.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	_, err := ep.Channel().Invoke(context.Background(), method, nil, upstream.CallOptions{})
	e := wantKind(t, err, upstream.KindTimeout, upstream.OpDial, false)
	if e.Limit != upstream.LimitConnect || e.LimitValue != 20*time.Millisecond {
		t.Errorf("limit is %q %s", e.Limit, e.LimitValue)
	}
}

// A server that accepts and says nothing is no engine yet: the connect limit holds for it.
func TestSilentServerPassesTheConnectLimit(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ep := endpoint(t, "grpc://"+l.Addr().String(), func(c *upstream.Config) { c.ConnectTimeout = 50 * time.Millisecond })
	_, err = ep.Channel().Invoke(context.Background(), method, nil, upstream.CallOptions{})
	e := transportError(t, err)
	if e.Sent || e.Kind != upstream.KindTimeout || e.Limit != upstream.LimitConnect {
		t.Errorf("got %+v", e)
	}
}

func TestServerOfHTTP1IsMalformed(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	_, err := channelTo(t, strings.TrimPrefix(s.URL, "http://")).Invoke(context.Background(), method, nil, upstream.CallOptions{})
	e := transportError(t, err)
	if e.Kind != upstream.KindMalformed || e.Sent {
		t.Errorf("got %+v", e)
	}
}

// An HTTP/2 server that is no gRPC server answers with its HTTP status.
func TestServerOfPlainHTTP2IsNoGRPC(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hi")) }))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	defer s.Close()
	_, err := channelTo(t, strings.TrimPrefix(s.URL, "http://")).Invoke(context.Background(), method, nil, upstream.CallOptions{})
	if e := transportError(t, err); e.Kind != upstream.KindMalformed {
		t.Errorf("got %+v", e)
	}
}

func TestEngineThatDiesInTheMiddle(t *testing.T) {
	got := make(chan struct{}, 2)
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		if len(in) > 0 {
			_ = s.SendMsg(in)
		}
		got <- struct{}{}
		<-s.Context().Done()
		return nil
	})
	c := channelTo(t, e.addr)
	before := openStream(context.Background(), t, c, "", upstream.Limits{})
	during := openStream(context.Background(), t, c, "x", upstream.Limits{})
	if _, err := during.Next(); err != nil {
		t.Fatal(err)
	}
	<-got
	<-got
	e.Stop()
	for _, err := range []error{during.Wait(), before.Wait()} {
		e := transportError(t, err)
		if !e.Sent || e.Kind != upstream.KindClosed && e.Kind != upstream.KindReset {
			t.Errorf("got %+v", e)
		}
	}
	_, err := c.Invoke(context.Background(), method, nil, upstream.CallOptions{})
	wantKind(t, err, upstream.KindRefused, upstream.OpDial, false)
}

// A server that goes in an orderly way ends the calls it has; the next goes to its
// successor at the same address without an error.
func TestGoAwayFailsNoCall(t *testing.T) {
	got, release := make(chan struct{}), make(chan struct{})
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		if string(in) != "old" {
			return s.SendMsg([]byte("before GOAWAY"))
		}
		close(got)
		<-release
		return s.SendMsg(in)
	})
	c := channelTo(t, e.addr)
	s := openStream(context.Background(), t, c, "old", upstream.Limits{})
	soon(t, got, "the call's arrival")
	gone := make(chan struct{})
	go func() { defer close(gone); e.GracefulStop() }()
	for { // the listener is closed first
		conn, err := net.Dial("tcp", e.addr)
		if err != nil {
			break
		}
		conn.Close()
		time.Sleep(time.Millisecond)
	}
	startEngine(t, e.addr, func(s grpc.ServerStream, _ []byte) error { return s.SendMsg([]byte("new")) })
	for i := 0; i < 20; {
		answer, err := c.Invoke(context.Background(), method, nil, upstream.CallOptions{})
		if err != nil {
			t.Fatalf("a call about GOAWAY: %v", err)
		}
		if string(answer) == "new" {
			i++
		}
	}
	close(release)
	if got := readAll(t, s); len(got) != 1 || got[0] != "old" {
		t.Errorf("the call in flight got %q", got)
	}
	<-gone
}

func TestMethodMustBeAFullName(t *testing.T) {
	c := channelTo(t, closedPort(t))
	for _, m := range []string{"", "Generate", "/v1/chat/completions", "/generate"} {
		_, err := c.Invoke(context.Background(), m, nil, upstream.CallOptions{})
		wantKind(t, err, upstream.KindInvalid, upstream.OpRequest, false)
	}
}

// frames is a server of HTTP/2 that answers the head of each request with one frame.
func frames(t *testing.T, kind byte, payload ...byte) (addr string, asked func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var heads atomic.Int32
	var wg sync.WaitGroup
	serve := func(c net.Conn) {
		defer c.Close()
		if _, err := io.ReadFull(c, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
			return
		}
		_, _ = c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0}) // SETTINGS
		var h [9]byte
		for {
			if _, err := io.ReadFull(c, h[:]); err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, c, int64(h[0])<<16|int64(h[1])<<8|int64(h[2])); err != nil {
				return
			}
			switch {
			case h[3] == 4 && h[4] == 0:
				_, _ = c.Write([]byte{0, 0, 0, 4, 1, 0, 0, 0, 0})
			case h[3] == 1: // HEADERS
				heads.Add(1)
				_, _ = c.Write(append([]byte{0, 0, byte(len(payload)), kind, 4, h[5], h[6], h[7], h[8]}, payload...))
			}
		}
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(c) })
		}
	})
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { l.Close() })
	return l.Addr().String(), func() int { return int(heads.Load()) }
}

// A stream that the server refuses was not looked at: it is sent once more, and then it may
// go elsewhere. One that it resets in another way may have run.
func TestResetStreams(t *testing.T) {
	const reset = 3
	for _, c := range []struct {
		name string
		code byte
		kind upstream.Kind
		sent bool
		asks int
	}{
		{"refused", 7, upstream.KindClosed, false, 2},
		{"internal error", 2, upstream.KindReset, true, 1},
		{"cancelled", 8, upstream.KindReset, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr, asked := frames(t, reset, 0, 0, 0, c.code)
			ch := channelTo(t, addr)
			t.Cleanup(ch.Close) // before the server is waited for
			_, err := ch.Invoke(context.Background(), method, []byte("x"), upstream.CallOptions{})
			wantKind(t, err, c.kind, upstream.OpHeader, c.sent)
			if n := asked(); n != c.asks {
				t.Errorf("it was sent %d times, want %d", n, c.asks)
			}
		})
	}
}

// A broken frame is the server's fault, and ends nothing else than the connection.
func TestFramesThatAreWrong(t *testing.T) {
	addr, _ := frames(t, 1, 0xff, 0xff, 0xff, 0xff) // HEADERS that cannot be decoded
	ch := channelTo(t, addr)
	t.Cleanup(ch.Close)
	_, err := ch.Invoke(context.Background(), method, []byte("x"), upstream.CallOptions{})
	if err == nil {
		t.Fatal("no error")
	}
	if e := transportError(t, err); !upstream.EngineFault(e) {
		t.Errorf("got %+v", e)
	}
}

// Connections that the engine ends are counted: another may be at its address then. Those
// that are closed here are not.
func TestLostConnectionsAreCounted(t *testing.T) {
	e := startEngine(t, "127.0.0.1:0", echo)
	ep := endpoint(t, "grpc://"+e.addr, nil)
	told := make(chan struct{}, 1)
	ep.OnLost(func() { told <- struct{}{} })
	call := func() {
		t.Helper()
		if _, err := ep.Channel().Invoke(context.Background(), method, nil, upstream.CallOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	call()
	ep.CloseIdle()
	call()
	if n := ep.Lost(); n != 0 {
		t.Errorf("%d connections are said to be lost", n)
	}
	e.Stop()
	soon(t, told, "the notice of a lost connection")
	if n := ep.Lost(); n != 1 {
		t.Errorf("%d connections are said to be lost, want 1", n)
	}
	startEngine(t, e.addr, echo)
	call()
	soon(t, told, "the notice that somebody is there again")
	ep.CloseIdle()
	call()
	if n := ep.Lost(); n != 1 || len(told) != 0 {
		t.Errorf("%d connections are said to be lost, want 1; %d notices more", n, len(told))
	}
}
