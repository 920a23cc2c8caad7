package upstream

import (
	"context"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/wire"
)

// exchange is one request on one connection with its answer: the Response and the
// Body that the caller gets are parts of it.
type exchange struct {
	resp Response

	// immutable once the request is sent
	own     *own
	ctx     context.Context
	stop    func() bool // stops listening to a ctx that is no Notifier; nil if it never ends
	limits  Limits
	limited bool
	reused  bool
	start   mono.Instant  // of Do
	sent    mono.Instant  // when the connection was at hand
	base    int64         // bytes written to the connection before
	wrote   chan struct{} // closed when the writing goroutine is done; nil without one

	// owned by the caller's goroutine
	c        *conn // nil once the exchange is over
	answered bool  // a byte of the answer has come
	first    bool  // a byte of the body has come
	closing  bool  // the connection ends with this answer
	ended    bool  // the body's end has been seen
	framing  framing
	left     int64 // of a body framed by its length
	chunks   wire.Chunks
	form     error        // wrong framing behind the payload that is buffered
	lastRead mono.Instant // kept with Limits.StreamIdle only
	err      error        // sticky: io.EOF or an *Error

	// atomic
	failed atomic.Pointer[writeFailure]
}

// listen has the connection closed when the context ends.
func (x *exchange) listen() {
	if n, ok := x.ctx.(Notifier); ok {
		n.Notify(x.c)
	} else if x.ctx.Done() != nil {
		x.stop = context.AfterFunc(x.ctx, x.c.abortFn)
	}
}

// unlisten ends that, and reports whether the context has not ended before.
func (x *exchange) unlisten(c *conn) bool {
	if n, ok := x.ctx.(Notifier); ok {
		return n.Forget(c)
	}
	return x.stop == nil || x.stop()
}

// Buffered implements Body.
func (x *exchange) Buffered() int {
	if x.c == nil {
		return 0
	}
	n := x.c.in.Len()
	switch x.framing {
	case framedNone:
		return 0
	case framedLength:
		return int(min(int64(n), x.left))
	case framedChunked:
		return int(min(int64(n), x.chunks.Left))
	}
	return n
}

// Done implements Body.
func (x *exchange) Done() bool {
	if x.c == nil || x.form != nil || x.ended {
		return true
	}
	return x.framing == framedLength && int64(x.c.in.Len()) >= x.left
}

// take consumes n bytes of payload.
func (x *exchange) take(n int) []byte {
	in := &x.c.in
	p := in.B[in.R : in.R+n : in.R+n]
	in.R += n
	x.first = true
	switch x.framing {
	case framedLength:
		x.left -= int64(n)
	case framedChunked:
		x.chunks.Left -= int64(n)
	}
	x.advance()
	return p
}

// advance goes past the framing that is buffered, so that Buffered and Done know
// what the buffer holds.
func (x *exchange) advance() {
	switch x.framing {
	case framedLength:
		x.ended = x.left == 0
	case framedChunked:
		in := &x.c.in
		n, err := x.chunks.Advance(in.B[in.R:in.W])
		in.R += n
		if err != nil {
			x.form = malformed(err)
		}
		x.ended = x.chunks.Done()
	}
}

// ready waits until there is payload; false means that x.err is set.
func (x *exchange) ready() bool {
	for {
		switch {
		case x.Buffered() > 0:
			return true
		case x.err != nil:
			return false
		case x.form != nil:
			_ = x.fail(OpBody, x.form)
			return false
		case x.ended:
			x.err = io.EOF
			x.release(true)
			return false
		}
		switch err := x.fill(OpBody); {
		case err == nil:
			x.advance()
		case err == io.EOF && x.framing == framedEOF && x.ctx.Err() == nil:
			x.ended = true
		case err == io.EOF:
			_ = x.fail(OpBody, io.ErrUnexpectedEOF)
		default:
			_ = x.fail(OpBody, err)
		}
	}
}

// Next implements Body.
func (x *exchange) Next() ([]byte, error) {
	if !x.ready() {
		return nil, x.err
	}
	return x.take(x.Buffered()), nil
}

// Read implements Body.
func (x *exchange) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if !x.ready() {
		return 0, x.err
	}
	return copy(p, x.take(min(len(p), x.Buffered()))), nil
}

// WaitReadable implements Body.
func (x *exchange) WaitReadable() error {
	if !x.ready() {
		return x.err
	}
	return nil
}

// Trailer implements Body.
func (x *exchange) Trailer(name string) string {
	if x.err != io.EOF {
		return ""
	}
	return getLine(string(x.chunks.Trailers()), name)
}

// Close implements Body.
func (x *exchange) Close() error {
	if x.c == nil {
		return nil
	}
	whole := x.ended && x.form == nil
	x.err = io.EOF
	if !whole {
		x.err = &Error{Op: OpBody, Kind: KindShutdown, Addr: x.own.ep.addr, Sent: true, Reused: x.reused, Err: net.ErrClosed}
	}
	x.release(whole)
	return nil
}

// release ends the exchange: the connection goes back to the pool if the answer is
// whole and nothing speaks against it, and is closed at once otherwise.
func (x *exchange) release(whole bool) {
	c := x.c
	x.c = nil
	// If ctx ended meanwhile, abort has run or is running: the connection is lost.
	keep := x.unlisten(c) && whole && !x.closing && c.in.Len() == 0
	if x.wrote != nil {
		keep = keep && x.written()
		if !keep {
			c.abort()
		}
		<-x.wrote
	}
	c.dropOut()
	x.own.ep.n.active.Add(-1)
	if keep && x.failed.Load() == nil {
		then := x.lastRead
		if then == 0 {
			then = mono.Now()
		}
		x.own.pool.put(c, then)
		return
	}
	c.in.Drop()
	c.abort()
}

// RequestSent implements Body.
func (x *exchange) RequestSent() bool {
	if x.wrote == nil {
		return true
	}
	select {
	case <-x.wrote:
		return true
	default:
		return false
	}
}

// written reports whether the whole request is out. An engine that has read it all
// may have answered before the writing goroutine got to say so.
func (x *exchange) written() bool {
	for range 10 {
		select {
		case <-x.wrote:
			return true
		default:
			runtime.Gosched()
		}
	}
	if x.resp.Status >= 300 {
		return false // an early refusal, most likely; do not make anybody wait
	}
	t := time.NewTimer(10 * time.Millisecond)
	defer t.Stop()
	select {
	case <-x.wrote:
		return true
	case <-t.C:
		return false
	}
}
