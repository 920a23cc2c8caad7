package grpcchannel

import (
	"context"
	"io"
	"net"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/rawmessage"
	"github.com/sluice-router/sluice/internal/upstream"
	"github.com/sluice-router/sluice/internal/wire"
)

// stream is one call.
type stream struct {
	// immutable
	ch     *Channel
	k      *conn
	ctx    context.Context    // the caller's
	cancel context.CancelFunc // ends the call
	stop   func() bool        // stops listening to a ctx that is no Notifier; nil if it never ends
	inner  context.Context    // that cancel ends
	cs     grpc.ClientStream

	// owned by the caller's goroutine
	in    rawmessage.Message
	held  bool  // in has not been given to the caller yet
	first bool  // a message has come
	err   error // sticky
	// fast counts messages in a row that came fast, the last one at last; then reader has them.
	fast   int
	last   mono.Instant
	reader *reader

	over   atomic.Bool // the call has ended and given its connection back
	closed atomic.Bool // by Close
	limits limits
}

// start sends a call. The message is copied: grpc-go may still be sending it when the caller
// wants its memory back.
func (c *Channel) start(ctx context.Context, desc *grpc.StreamDesc, method string, msg []byte, o upstream.CallOptions) (*stream, error) {
	if ctx.Err() != nil {
		return nil, upstream.NewCanceled(ctx, &upstream.Error{Op: upstream.OpDial, Addr: c.cfg.Addr})
	}
	if method == "" || method[0] != '/' || strings.Count(method, "/") != 2 {
		return nil, &upstream.Error{Op: upstream.OpRequest, Kind: upstream.KindInvalid, Addr: c.cfg.Addr, Err: errMethod}
	}
	k, err := c.take()
	if err != nil {
		return nil, err
	}
	s := &stream{ch: c, k: k, ctx: ctx}
	// grpc-go derives its own context from this one, at no cost of a goroutine since it is
	// the standard library's.
	inner, cancel := context.WithCancel(context.Background())
	s.inner, s.cancel = inner, cancel
	s.limits.begin(o.Limits, cancel)
	if n, ok := ctx.(upstream.Notifier); ok {
		n.Notify(s)
	} else if ctx.Done() != nil {
		s.stop = context.AfterFunc(ctx, cancel)
	}
	inner = c.withMetadata(inner, o.Header)
	cs, err := k.cc.NewStream(inner, desc, method)
	if err != nil {
		return nil, s.fail(upstream.OpDial, err)
	}
	s.cs = cs
	s.limits.sent()
	out := rawmessage.Message{Data: mem.BufferSlice{mem.Copy(msg, mem.DefaultBufferPool())}}
	err = cs.SendMsg(&out)
	out.Free()
	if err != nil && err != io.EOF { // with io.EOF RecvMsg tells what happened
		return nil, s.fail(upstream.OpWrite, err)
	}
	return s, nil
}

// withMetadata adds the lines of a call. Those that belong to the connection or to gRPC are
// left out, and values that gRPC cannot carry.
func (c *Channel) withMetadata(ctx context.Context, h upstream.Header) context.Context {
	var room [8]string
	list := room[:0] // names and values in turn
	for _, f := range h {
		name := strings.ToLower(f.Name)
		if reserved(name) || c.cfg.APIKey != "" && name == "authorization" || !wire.ValidToken(name) || !printable(f.Value) {
			continue
		}
		list = append(list, name, f.Value)
	}
	if c.cfg.APIKey != "" {
		list = append(list, "authorization", "Bearer "+c.cfg.APIKey)
	}
	if len(list) == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, list...)
}

// ContextEnded implements upstream.Listener.
func (s *stream) ContextEnded() { s.cancel() }

// Next implements upstream.MessageStream.
func (s *stream) Next() ([]byte, error) {
	if err := s.Wait(); err != nil {
		return nil, err
	}
	s.held = false
	return s.in.Bytes(keptFlat), nil
}

// Wait implements upstream.MessageStream.
func (s *stream) Wait() error {
	switch {
	case s.held:
		return nil
	case s.err != nil:
		return s.err
	}
	s.in.Free()
	op := upstream.OpBody
	if !s.first {
		op = upstream.OpHeader
		if s.limits.wantsHeader() {
			if h, _ := s.cs.Header(); h != nil { // an error comes from RecvMsg too
				s.limits.header()
			}
		}
	}
	s.limits.wait()
	var err error
	if s.reader != nil {
		s.in.Data, err = s.reader.next()
	} else {
		err = s.cs.RecvMsg(&s.in)
	}
	s.limits.came(err == nil && !s.first)
	if err != nil {
		return s.fail(op, err)
	}
	s.first, s.held = true, true
	if s.reader == nil {
		s.measure()
	}
	return nil
}

// measure starts a reader if the stream is fast.
func (s *stream) measure() {
	now := mono.Now()
	if now.Sub(s.last) < fastGap {
		s.fast++
	} else {
		s.fast = 0
	}
	s.last = now
	if s.fast == fastMessages {
		s.reader = startReader(s.inner, s.cs)
	}
}

// Ready implements upstream.MessageStream.
func (s *stream) Ready() int {
	n := 0
	if s.held {
		n = 1
	}
	if s.reader != nil {
		n += s.reader.ready()
	}
	return n
}

// Close implements upstream.MessageStream.
func (s *stream) Close() {
	s.closed.Store(true)
	s.release()
}

// release gives back everything but the error, once.
func (s *stream) release() {
	if s.over.Swap(true) {
		return
	}
	if n, ok := s.ctx.(upstream.Notifier); ok {
		n.Forget(s)
	} else if s.stop != nil {
		s.stop()
	}
	s.limits.end()
	s.cancel()
	s.ch.give(s.k)
}

// fail ends the call with what err means.
func (s *stream) fail(op upstream.Op, err error) error {
	if err == io.EOF && s.ctx.Err() == nil {
		s.err = io.EOF
		s.release()
		return s.err
	}
	e := &upstream.Error{Op: op, Kind: upstream.KindOther, Addr: s.ch.cfg.Addr, Sent: s.cs != nil, Err: err}
	limit, value := s.limits.passed()
	switch {
	case s.ctx.Err() != nil:
		s.err = upstream.NewCanceled(s.ctx, e)
	case limit != "":
		s.err = upstream.NewTimeout(limit, value, e)
	case s.closed.Load():
		e.Kind, e.Err = upstream.KindShutdown, net.ErrClosed
		s.err = e
	default:
		s.err = s.k.explain(e, err)
	}
	s.release()
	return s.err
}
