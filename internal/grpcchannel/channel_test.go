package grpcchannel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-router/sluice/internal/upstream"
)

func TestMessagesGoBothWaysUnchanged(t *testing.T) {
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		for i := range 3 {
			if err := s.SendMsg(append([]byte{byte(i)}, in...)); err != nil {
				return err
			}
		}
		return nil
	})
	c := channelTo(t, e.addr)
	big := strings.Repeat("\x00\xff tokens", 100_000)
	for _, msg := range []string{"", "a", big} {
		got := readAll(t, openStream(context.Background(), t, c, msg, upstream.Limits{}))
		if want := []string{"\x00" + msg, "\x01" + msg, "\x02" + msg}; !slices.Equal(got, want) {
			t.Errorf("message of %d bytes: got %d messages of other bytes", len(msg), len(got))
		}
	}
	if n := c.Active(); n != 0 {
		t.Errorf("%d calls are active after their end", n)
	}
}

func TestTheMessageMayBeChangedOnceSent(t *testing.T) {
	e := startEngine(t, "127.0.0.1:0", echo)
	c := channelTo(t, e.addr)
	for range 50 {
		msg := []byte(strings.Repeat("x", 300_000))
		s, err := c.Stream(context.Background(), method, msg, upstream.CallOptions{})
		if err != nil {
			t.Fatal(err)
		}
		clear(msg)
		if got := readAll(t, s)[0]; strings.Count(got, "x") != 300_000 {
			t.Fatal("the engine got what the caller wrote after the call was sent")
		}
	}
}

func TestMetadataCarriesKeyAndHeader(t *testing.T) {
	var md metadata.MD
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		md, _ = metadata.FromIncomingContext(s.Context())
		return s.SendMsg(in)
	})
	ep := endpoint(t, "grpc://"+e.addr, func(c *upstream.Config) { c.APIKey = "secret" })
	_, err := ep.Channel().Invoke(context.Background(), method, nil, upstream.CallOptions{Header: upstream.Header{
		{Name: "X-Request-Id", Value: "r1"}, {Name: "Authorization", Value: "Bearer client"}, {Name: "Connection", Value: "close"},
		{Name: "grpc-timeout", Value: "1n"}, {Name: "x-text", Value: "caf\xc3\xa9"}, {Name: "x-request-id", Value: "r2"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if got := md["x-request-id"]; !slices.Equal(got, []string{"r1", "r2"}) {
		t.Errorf("x-request-id is %q", got)
	}
	if got := md["authorization"]; !slices.Equal(got, []string{"Bearer secret"}) {
		t.Errorf("authorization is %q", got)
	}
	if got := md["x-text"]; got != nil {
		t.Errorf("a value that gRPC cannot carry was sent: %q", got)
	}
	if got := md["user-agent"]; len(got) != 1 || !strings.HasPrefix(got[0], "sluice ") {
		t.Errorf("user-agent is %q", got)
	}
	if got := md[":authority"]; !slices.Equal(got, []string{e.addr}) {
		t.Errorf("authority is %q, want %q", got, e.addr)
	}
}

func TestStatusOfTheEngineIsItsOwn(t *testing.T) {
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		if string(in) == "later" {
			_ = s.SendMsg(in)
		}
		return status.Error(codes.InvalidArgument, "max_tokens must be at least 1, got 0.")
	})
	c := channelTo(t, e.addr)
	check := func(err error) {
		t.Helper()
		st, ok := err.(*upstream.StatusError)
		if !ok || st.Code != 3 || st.Name != "INVALID_ARGUMENT" || st.Message != "max_tokens must be at least 1, got 0." {
			t.Errorf("got %#v", err)
		}
	}
	_, err := c.Invoke(context.Background(), method, nil, upstream.CallOptions{})
	check(err)
	s := openStream(context.Background(), t, c, "", upstream.Limits{})
	_, err = s.Next()
	check(err)
	s = openStream(context.Background(), t, c, "later", upstream.Limits{})
	if _, err := s.Next(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it stays
		_, err = s.Next()
		check(err)
	}
}

// UNAVAILABLE of an engine that lives is a status, not a broken connection.
func TestUnavailableOfALivingEngineIsAStatus(t *testing.T) {
	e := startEngine(t, "127.0.0.1:0", func(grpc.ServerStream, []byte) error {
		return status.Error(codes.Unavailable, "EngineCore is starting")
	})
	_, err := channelTo(t, e.addr).Invoke(context.Background(), method, nil, upstream.CallOptions{})
	if st, ok := err.(*upstream.StatusError); !ok || st.Name != "UNAVAILABLE" {
		t.Errorf("got %#v", err)
	}
}

func TestUnaryAnswerOfNoMessageOrTwoIsMalformed(t *testing.T) {
	for _, n := range []int{0, 2} {
		e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
			for range n {
				_ = s.SendMsg(in)
			}
			return nil
		})
		_, err := channelTo(t, e.addr).Invoke(context.Background(), method, nil, upstream.CallOptions{})
		if err == nil {
			t.Fatalf("%d messages: no error", n)
		}
		if e := transportError(t, err); e.Kind != upstream.KindMalformed {
			t.Errorf("%d messages: kind %s (%v)", n, e.Kind, err)
		}
	}
}

func TestMessageOverTheBoundIsTooLarge(t *testing.T) {
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, _ []byte) error { return s.SendMsg(make([]byte, 1001)) })
	c := channelTo(t, e.addr)
	c.maxMessage = 1000
	_, err := c.Invoke(context.Background(), method, nil, upstream.CallOptions{})
	wantKind(t, err, upstream.KindTooLarge, upstream.OpBody, true)
}

// An engine that is made with grpc-go says of a message to it what this end says of its answer.
func TestMessageOverTheEnginesBoundIsItsOwnWord(t *testing.T) {
	e := startEngine(t, "127.0.0.1:0", echo, grpc.MaxRecvMsgSize(1000))
	_, err := channelTo(t, e.addr).Invoke(context.Background(), method, make([]byte, 1001), upstream.CallOptions{})
	var st *upstream.StatusError
	if !errors.As(err, &st) || st.Name != "RESOURCE_EXHAUSTED" {
		t.Errorf("got %v", err)
	}
}

// A server that heeds the bound which it is told resets the stream by itself.
func TestMetadataOverTheBoundIsNotTaken(t *testing.T) {
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		_ = s.SetHeader(metadata.Pairs("x", strings.Repeat("y", 5000)))
		return s.SendMsg(in)
	})
	ep := endpoint(t, "grpc://"+e.addr, func(c *upstream.Config) { c.MaxHeaderBytes = 4096 })
	_, err := ep.Channel().Invoke(context.Background(), method, nil, upstream.CallOptions{})
	if err == nil {
		t.Fatal("no error")
	}
	if e := transportError(t, err); e.Kind != upstream.KindTooLarge && e.Kind != upstream.KindReset {
		t.Errorf("kind %s (%v)", e.Kind, err)
	}
}

// Many calls at a time make more connections, up to the bound, and none fails.
func TestConnectionsGrowWithCalls(t *testing.T) {
	var mu sync.Mutex
	waiting := 0
	all, release := make(chan struct{}), make(chan struct{})
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		mu.Lock()
		if waiting++; waiting == 100 {
			close(all)
		}
		mu.Unlock()
		<-release
		return s.SendMsg(in)
	})
	c := channelTo(t, e.addr)
	c.perConn = 4
	var ss []upstream.MessageStream
	for i := range 100 {
		ss = append(ss, openStream(context.Background(), t, c, fmt.Sprint(i), upstream.Limits{}))
		if i == 3 && len(c.conns) != 1 {
			t.Errorf("%d connections for 4 calls", len(c.conns))
		}
	}
	soon(t, all, "the arrival of all calls")
	if len(c.conns) != maxConns {
		t.Errorf("%d connections, want %d", len(c.conns), maxConns)
	}
	if n := c.Active(); n != 100 {
		t.Errorf("%d calls are active, want 100", n)
	}
	close(release)
	for i, s := range ss {
		if got := readAll(t, s); !slices.Equal(got, []string{fmt.Sprint(i)}) {
			t.Errorf("call %d got %q", i, got)
		}
	}
	if n := c.Idle(); n != maxConns {
		t.Errorf("%d idle connections, want %d", n, maxConns)
	}
	// As if they had been idle for long: the first stays.
	for _, k := range c.conns {
		k.idleSince = time.Now().Add(-spareIdle)
	}
	c.reapSpare()
	if len(c.conns) != 1 {
		t.Errorf("%d connections are kept, want 1", len(c.conns))
	}
}

func TestSocketsAreCountedAndClosedWhereFilesRunShort(t *testing.T) {
	e := startEngine(t, "127.0.0.1:0", echo)
	var sockets upstream.Sockets
	ep := endpoint(t, "grpc://"+e.addr, func(c *upstream.Config) { c.Sockets = &sockets })
	call := func() {
		t.Helper()
		if _, err := ep.Channel().Invoke(context.Background(), method, []byte("x"), upstream.CallOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	call()
	if n := sockets.Open(); n != 1 {
		t.Errorf("%d open sockets, want 1", n)
	}
	if st := ep.Stats(); st.Idle != 1 || st.Active != 0 || st.Dials != 1 {
		t.Errorf("stats are %+v", st)
	}
	if n := sockets.CloseIdle(5); n != 1 {
		t.Errorf("CloseIdle closed %d", n)
	}
	if n := sockets.Open(); n != 0 {
		t.Errorf("%d open sockets after CloseIdle", n)
	}
	call() // dials again
	ep.Close()
	if n := sockets.Open(); n != 0 {
		t.Errorf("%d open sockets after Close", n)
	}
	_, err := ep.Channel().Invoke(context.Background(), method, nil, upstream.CallOptions{})
	wantKind(t, err, upstream.KindShutdown, upstream.OpDial, false)
}

// Close lets calls in flight end.
func TestCloseLeavesCallsInFlightAlone(t *testing.T) {
	got, release := make(chan struct{}), make(chan struct{})
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		close(got)
		<-release
		return s.SendMsg(in)
	})
	c := channelTo(t, e.addr)
	s := openStream(context.Background(), t, c, "x", upstream.Limits{})
	soon(t, got, "the call's arrival")
	c.Close()
	close(release)
	if got := readAll(t, s); !slices.Equal(got, []string{"x"}) {
		t.Errorf("got %q", got)
	}
}

// A client that does not read holds back its own call only.
func TestAnUnreadStreamIsHeldBackAndNoOther(t *testing.T) {
	sent := make(chan int, 100_000)
	stopped := make(chan struct{})
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		if string(in) == "short" {
			return s.SendMsg(in)
		}
		defer close(stopped)
		for i := range 10_000 {
			if err := s.SendMsg(make([]byte, 1000)); err != nil {
				return err
			}
			sent <- i
		}
		return nil
	})
	c := channelTo(t, e.addr)
	s := openStream(context.Background(), t, c, "long", upstream.Limits{})
	for range 20 { // so many that a reader takes over
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		if _, err := c.Invoke(context.Background(), method, []byte("short"), upstream.CallOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(sent); n > 2000 {
		t.Errorf("the engine could send %d messages of 1000 bytes while nobody read", n)
	}
	s.Close()
	soon(t, stopped, "the end of the call at the engine")
}

// Of messages that came together the caller knows.
func TestReadyTellsOfMessagesThatCameTogether(t *testing.T) {
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		for i := range 2000 {
			if err := s.SendMsg(fmt.Append(nil, i)); err != nil {
				return err
			}
		}
		return nil
	})
	s := openStream(context.Background(), t, channelTo(t, e.addr), "", upstream.Limits{})
	together := 0
	for i := 0; ; i++ {
		p, err := s.Next()
		if err == io.EOF {
			if i != 2000 {
				t.Errorf("%d messages, want 2000", i)
			}
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprint(i); string(p) != want {
			t.Fatalf("message %s came as %s", want, p)
		}
		if s.Ready() > 0 {
			together++
		}
	}
	if together < 200 {
		t.Errorf("of 2000 messages sent at once only %d were known to have another behind them", together)
	}
}

func TestDialIsSharedAndTheCallerNeedNotWaitForIt(t *testing.T) {
	dialing := make(chan struct{}, 10)
	ep := endpoint(t, "grpc://127.0.0.1:1", func(c *upstream.Config) {
		c.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			dialing <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	ctx, cancel := context.WithCancelCause(context.Background())
	errs := make(chan error, 5)
	for range 5 {
		go func() {
			_, err := ep.Channel().Stream(ctx, method, nil, upstream.CallOptions{})
			errs <- err
		}()
	}
	<-dialing
	cancel(io.ErrClosedPipe)
	for range 5 {
		e := wantKind(t, <-errs, upstream.KindCanceled, upstream.OpDial, false)
		if e.Err != io.ErrClosedPipe {
			t.Errorf("the cause is %v", e.Err)
		}
	}
	if len(dialing) > 0 {
		t.Errorf("%d more dials for calls that waited for one", len(dialing))
	}
}
