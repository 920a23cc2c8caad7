package grpcchannel

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-router/sluice/internal/upstream"
)

// hang tells when it was reached and when the client has gone.
type hang struct{ reached, gone chan struct{} }

func (h *hang) serve(s grpc.ServerStream, in []byte) error {
	if string(in) == "header" {
		_ = s.SendHeader(metadata.MD{})
	}
	if string(in) == "first" {
		_ = s.SendMsg(in)
	}
	close(h.reached)
	<-s.Context().Done()
	close(h.gone)
	return nil
}

func startHang(t *testing.T) (*Channel, *hang) {
	h := &hang{make(chan struct{}), make(chan struct{})}
	return channelTo(t, startEngine(t, "127.0.0.1:0", h.serve).addr), h
}

func TestLimitsEndTheCallAndTellTheEngine(t *testing.T) {
	const d = 30 * time.Millisecond
	for _, c := range []struct {
		name, limit string
		msg         string
		limits      upstream.Limits
		op          upstream.Op
	}{
		{"no header", upstream.LimitHeader, "", upstream.Limits{Header: d, Total: time.Hour}, upstream.OpHeader},
		{"header but no message", upstream.LimitFirstByte, "header", upstream.Limits{Header: time.Hour, FirstByte: d}, upstream.OpHeader},
		{"header and silence", upstream.LimitStreamIdle, "header", upstream.Limits{StreamIdle: d}, upstream.OpHeader},
		{"message and silence", upstream.LimitStreamIdle, "first", upstream.Limits{Header: time.Hour, FirstByte: time.Hour, StreamIdle: d}, upstream.OpBody},
		{"in all", upstream.LimitTotal, "first", upstream.Limits{Total: d * 3, StreamIdle: time.Hour}, upstream.OpBody},
	} {
		t.Run(c.name, func(t *testing.T) {
			ch, h := startHang(t)
			s := openStream(context.Background(), t, ch, c.msg, c.limits)
			var err error
			for err == nil {
				_, err = s.Next()
			}
			e := wantKind(t, err, upstream.KindTimeout, c.op, true)
			if e.Limit != c.limit {
				t.Errorf("limit %q passed, want %q", e.Limit, c.limit)
			}
			soon(t, h.gone, "the end of the call at the engine")
		})
	}
}

// Silence counts only while the caller waits for the engine.
func TestSlowCallerDoesNotPassTheStreamIdleLimit(t *testing.T) {
	const idle = 60 * time.Millisecond
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		for range 3 {
			_ = s.SendMsg(in)
		}
		return nil
	})
	s := openStream(context.Background(), t, channelTo(t, e.addr), "x", upstream.Limits{StreamIdle: idle})
	for range 3 {
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * idle) // what is tested is that this time does not count
	}
}

// notifier is a context whose Done is never asked for.
type notifier struct {
	context.Context
	mu  sync.Mutex
	l   upstream.Listener
	err error
}

func (n *notifier) Notify(l upstream.Listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.l = l
}

func (n *notifier) Forget(upstream.Listener) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.l != nil
	n.l = nil
	return was
}

func (n *notifier) end(err error) {
	n.mu.Lock()
	l := n.l
	n.err, n.l = err, nil
	n.mu.Unlock()
	l.ContextEnded()
}

func (n *notifier) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

func (n *notifier) Done() <-chan struct{} { panic("Done was asked for") }

func TestWhoeverLeavesIsSeenByTheEngine(t *testing.T) {
	for _, msg := range []string{"", "first"} {
		t.Run("context "+msg, func(t *testing.T) {
			ch, h := startHang(t)
			ctx, cancel := context.WithCancelCause(context.Background())
			s := openStream(ctx, t, ch, msg, upstream.Limits{})
			<-h.reached
			why := errors.New("the client has gone")
			cancel(why)
			soon(t, h.gone, "the end of the call at the engine")
			var err error
			for err == nil {
				_, err = s.Next()
			}
			e := transportError(t, err)
			if e.Kind != upstream.KindCanceled || !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
		t.Run("notifier "+msg, func(t *testing.T) {
			ch, h := startHang(t)
			ctx := &notifier{Context: context.Background()}
			s := openStream(ctx, t, ch, msg, upstream.Limits{})
			<-h.reached
			ctx.end(context.Canceled)
			soon(t, h.gone, "the end of the call at the engine")
			var err error
			for err == nil {
				_, err = s.Next()
			}
			if e := transportError(t, err); e.Kind != upstream.KindCanceled {
				t.Errorf("got %v", err)
			}
		})
		t.Run("close "+msg, func(t *testing.T) {
			ch, h := startHang(t)
			s := openStream(context.Background(), t, ch, msg, upstream.Limits{})
			<-h.reached
			waits := make(chan error)
			go func() { // another goroutine than the one that closes
				for {
					if _, err := s.Next(); err != nil {
						waits <- err
						return
					}
				}
			}()
			s.Close()
			soon(t, h.gone, "the end of the call at the engine")
			if e := transportError(t, <-waits); e.Kind != upstream.KindShutdown {
				t.Errorf("got %+v", e)
			}
			if n := ch.Active(); n != 0 {
				t.Errorf("%d calls are active", n)
			}
		})
	}
}

// A reader that has run ahead ends with its call too; the leak check would tell.
func TestCloseEndsAReaderThatRanAhead(t *testing.T) {
	gone := make(chan struct{})
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		defer close(gone)
		for {
			if err := s.SendMsg(in); err != nil {
				return err
			}
		}
	})
	s := openStream(context.Background(), t, channelTo(t, e.addr), "x", upstream.Limits{StreamIdle: time.Minute})
	for s.Ready() < readAhead {
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
		if s.Ready() > 0 {
			time.Sleep(time.Millisecond)
		}
	}
	s.Close()
	soon(t, gone, "the end of the call at the engine")
}

// Large messages are not read ahead by their number.
func TestReaderIsBoundedInBytes(t *testing.T) {
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		big := make([]byte, 1<<20)
		for i := range 100 {
			if i >= 20 {
				in = big
			}
			if err := s.SendMsg(in); err != nil {
				return err
			}
		}
		return nil
	})
	c := channelTo(t, e.addr)
	s := openStream(context.Background(), t, c, "x", upstream.Limits{})
	for range 20 { // so many that a reader takes over
		if _, err := s.Next(); err != nil {
			t.Fatal(err)
		}
	}
	if s.(*stream).reader == nil {
		t.Fatal("no reader")
	}
	for range 50 { // what comes in the time of other calls
		short := openStream(context.Background(), t, c, "y", upstream.Limits{})
		if _, err := short.Next(); err != nil {
			t.Fatal(err)
		}
		short.Close()
	}
	if n := s.Ready(); n > 2 {
		t.Errorf("%d messages of 1 MiB were read ahead", n)
	}
	n := 20
	for range 80 {
		if _, err := s.Next(); err != nil {
			t.Fatalf("message %d: %v", n, err)
		}
		n++
	}
}
