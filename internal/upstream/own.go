package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/text"
	"github.com/sluice-router/sluice/internal/wire"
)

// own is the package's own HTTP/1.1 client.
type own struct {
	// immutable
	ep    *Endpoint
	path  string // the base URL's
	lines string // the head's lines that are the same in every request
	keyed bool   // they have the endpoint's key
	bound int    // Config.MaxHeaderBytes

	pool pool

	// immutable
	tls  *tls.Config // nil for http
	dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func newOwn(e *Endpoint, tc *tls.Config) *own {
	o := &own{ep: e, path: e.base.Path, bound: e.cfg.MaxHeaderBytes, tls: tc, dial: e.cfg.Dial}
	if o.dial == nil {
		o.dial = e.dialer().DialContext
	}
	o.lines = " HTTP/1.1\r\nHost: " + e.base.Authority() + "\r\n"
	if o.keyed = e.cfg.APIKey != ""; o.keyed {
		o.lines += "Authorization: Bearer " + e.cfg.APIKey + "\r\n"
	}
	o.pool.max, o.pool.limit, o.pool.sockets = e.cfg.MaxIdleConns, e.cfg.IdleTimeout, e.cfg.Sockets
	return o
}

func (o *own) closeIdle() { o.pool.drain(false) }
func (o *own) close()     { o.pool.drain(true) }
func (o *own) idle() int  { return o.pool.len() }

// idleConn returns an unused connection that may be fit for use, or nil. One that
// the engine has closed, or has written to unasked, is not used again; see
// conn.fresh.
func (o *own) idleConn(now mono.Instant) *conn {
	for {
		c := o.pool.pop()
		if c == nil || now.Sub(c.idleSince) < o.pool.limit && c.fresh() {
			return c
		}
		o.ep.n.stale.Add(1)
		c.closeIdle()
	}
}

func (o *own) do(ctx context.Context, req *Request) (*Response, error) {
	start := mono.Now()
	c := o.idleConn(start)
	for {
		if c == nil {
			var err *Error
			if c, err = o.connect(ctx, start, req.Limits.Total); err != nil {
				return nil, err
			}
		}
		x := &exchange{own: o, c: c, ctx: ctx, limits: req.Limits, limited: req.Limits != Limits{}, start: start}
		err := x.run(req)
		if err != nil && err.Err == errStale {
			o.ep.n.stale.Add(1)
			c = o.idleConn(start)
			continue
		}
		if x.reused {
			o.ep.n.reuses.Add(1)
		}
		if err == nil {
			return &x.resp, nil
		}
		// The rule of the package comment. It ends, as the second connection is new.
		if !err.Reused || x.answered || !connectionLost(err) || err.Sent && !idempotent(req) {
			return nil, err
		}
		o.ep.n.resends.Add(1)
		c = nil
	}
}

// connectionLost reports whether the connection may have been lost before the request
// was sent.
func connectionLost(e *Error) bool {
	return e.Kind == KindReset || e.Kind == KindClosed || e.Kind == KindTimeout && e.Limit == LimitDeadPeer
}

// idempotent reports whether an engine may receive the request twice without harm.
func idempotent(r *Request) bool { return r.Method == "GET" || r.Method == "HEAD" }

// appendHead builds the request's head.
func (o *own) appendHead(b []byte, r *Request, length int64) []byte {
	b = append(b, r.Method...)
	b = append(b, ' ')
	if !r.AtRoot {
		b = append(b, o.path...)
	}
	b = append(b, r.Path...)
	b = append(b, o.lines...)
	for i := range r.Header {
		f := &r.Header[i]
		if connectionHeader(f.Name) || o.keyed && strings.EqualFold(f.Name, "Authorization") {
			continue
		}
		b = append(b, f.Name...)
		b = append(b, ": "...)
		b = append(b, f.Value...)
		b = append(b, "\r\n"...)
	}
	if length > 0 || len(r.Body) > 0 || r.Method == "POST" || r.Method == "PUT" || r.Method == "PATCH" {
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, length, 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...)
}

// run sends the request and reads the head of the answer. On an error everything
// is given back.
func (x *exchange) run(req *Request) *Error {
	x.own.ep.n.active.Add(1)
	x.reused = x.c.used
	x.c.used = true
	x.listen()
	x.base = x.c.written.Load()
	x.sent = x.start
	if x.limited && !x.reused {
		x.sent = mono.Now() // the dial took its time
	}
	x.load(req)
	return x.readHead(req.Method)
}

// load gives the connection the request to send. A small one is copied into one
// piece.
func (x *exchange) load(req *Request) {
	c := x.c
	length := bodyLen(req)
	out := outPool.Get().(*outgoing)
	first := x.own.appendHead(out.buf[:0], req, length)
	segs := req.Body
	var off int // of the first of segs
	for len(segs) > 0 && (c.tls || int64(len(first))+length <= wire.BufSize) && len(first) < wire.BufSize {
		k := min(wire.BufSize-len(first), len(segs[0])-off)
		first = append(first, segs[0][off:off+k]...)
		if off += k; off == len(segs[0]) {
			segs, off = segs[1:], 0
		}
	}
	vec := append(out.vec0[:0], first)
	for _, s := range segs {
		if len(s) > off {
			vec = append(vec, s[off:])
		}
		off = 0
	}
	out.vec = vec
	c.out = out
}

// sendBeside writes the rest of the request on another goroutine, so that an answer
// that comes before the engine has read the body is noticed.
func (x *exchange) sendBeside() {
	c := x.c
	out := c.out
	c.out = nil
	c.writing.Store(true)
	x.wrote = make(chan struct{})
	go func() {
		defer close(x.wrote)
		n, err := writeRest(c.nc, out.vec)
		if !c.tls {
			c.written.Add(n)
		}
		out.drop()
		c.writing.Store(false)
		if err != nil {
			x.failed.Store(&writeFailure{err, mono.Now()})
			// Wakes the reader, which then waits for an answer for answerGrace only.
			_ = c.sock.SetReadDeadline(time.Now())
		}
	}()
}

// writeRest makes a panic an error of this request: on a goroutine of its own it would
// end the process.
func writeRest(w io.Writer, vec [][]byte) (n int64, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic while sending the request: %v", p)
		}
	}()
	rest := net.Buffers(vec)
	return rest.WriteTo(w)
}

// writeFailure is why and when sending ended early. It is only recorded at first: the
// engine may have answered before it closed the connection, and the answer matters
// more.
type writeFailure struct {
	err error
	at  mono.Instant
}

func (f *writeFailure) Error() string { return f.err.Error() }

// answerGrace is how long to wait for an answer after writing the request failed. An
// answer that the engine has sent is in the socket by then.
const answerGrace = time.Second

// readHead reads up to the head of the final answer.
func (x *exchange) readHead(method string) *Error {
	c := x.c
	bound := x.own.bound
	scanned, informational := 0, 0
	for {
		b := c.in.B[c.in.R:c.in.W]
		end := wire.HeadEnd(b, &scanned)
		if !startsLikeHTTP(b) {
			return x.fail(OpHeader, malformed(protocolOf(b, errors.New("the answer does not begin like HTTP/1: \""+text.Clip(string(b), text.MaxQuoted)+"\""))))
		}
		if end > bound || end < 0 && len(b) >= bound {
			return x.fail(OpHeader, malformed(wire.TooLarge("the head of the answer", x.own.bound, "bytes")))
		}
		if end < 0 {
			if err := x.fill(OpHeader); err != nil {
				return x.fail(OpHeader, err)
			}
			x.answered = true
			continue
		}
		h, err := parseHead(b[:end], method)
		if err != nil {
			return x.fail(OpHeader, malformed(err))
		}
		if h.status < 200 {
			informational++
			if h.status == 101 || informational > maxInformational {
				return x.fail(OpHeader, malformed(errors.New("status "+strconv.Itoa(h.status)+" was not asked for")))
			}
			c.in.R += end
			bound -= end
			scanned = 0
			continue
		}
		x.begin(&h)
		c.in.R += end
		x.advance()
		return nil
	}
}

// begin sets up the response. h lies in the buffer still.
func (x *exchange) begin(h *head) {
	x.resp = Response{Status: h.status, ContentLength: h.length, Reused: x.reused, Body: x, head: string(h.lines)}
	x.framing, x.left, x.closing = h.framing, h.length, h.close
	if x.framing == framedNone {
		x.ended = true
	}
}

// fill reads more, within the limits, and sends the request first if that is still
// to be done. The socket's deadline is moved only when it
// has to be earlier; one that rings too early is set anew. So a stream that is
// never silent for long costs a timer once in a while and not once a read.
func (x *exchange) fill(op Op) error {
	c := x.c
	for {
		f := x.failed.Load()
		var deadline mono.Instant
		if x.limited {
			deadline, _, _ = x.deadline(op)
		}
		if f != nil {
			if g := f.at.Add(answerGrace); deadline == 0 || g < deadline {
				deadline = g
			}
		}
		if deadline != 0 && (c.armed == 0 || c.armed > deadline) {
			c.arm(deadline)
		}
		if x.wrote != nil && x.failed.Load() != f {
			continue // its ring may have been silenced by arm
		}
		err := c.readOnce()
		switch w, _ := err.(*writeFailure); {
		case err == nil:
			if x.limits.StreamIdle > 0 {
				x.lastRead = mono.Now()
			}
			return nil
		case err == errFull:
			x.sendBeside()
			continue
		case w != nil:
			x.failed.Store(w)
			if c.written.Load() == x.base {
				return err // no answer can come to nothing
			}
			c.dropOut()
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || deadline != 0 && mono.Now() >= deadline {
			return err
		}
		c.arm(deadline)
	}
}

// deadline is the limit that passes first in the phase op.
func (x *exchange) deadline(op Op) (at mono.Instant, name string, value time.Duration) {
	add := func(limit string, d time.Duration, from mono.Instant) {
		if d > 0 {
			if t := from.Add(d); name == "" || t < at {
				at, name, value = t, limit, d
			}
		}
	}
	add(LimitTotal, x.limits.Total, x.start)
	if op == OpHeader {
		add(LimitHeader, x.limits.Header, x.sent)
	} else {
		add(LimitStreamIdle, x.limits.StreamIdle, x.lastRead)
	}
	if !x.first {
		add(LimitFirstByte, x.limits.FirstByte, x.sent)
	}
	return at, name, value
}

// fail turns err into the exchange's error and ends it.
func (x *exchange) fail(op Op, err error) *Error {
	e := &Error{Op: op, Kind: KindOther, Addr: x.own.ep.addr, Sent: true, Reused: x.reused, Err: err}
	f := x.failed.Load()
	var form *formError
	switch {
	case x.ctx.Err() != nil:
		_ = canceled(x.ctx, e)
	case errors.As(err, &form):
		e.Kind, e.Err = KindMalformed, form.err
		if errors.Is(form.err, wire.ErrTooLarge) {
			e.Kind = KindTooLarge
		}
	case f != nil && op == OpHeader:
		e.Op, e.Err = OpWrite, f.err
		classify(e, f.err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		e.Kind, e.Err = KindTimeout, errLimit
		_, e.Limit, e.LimitValue = x.deadline(op)
	default:
		classify(e, err)
	}
	if errors.Is(e.Err, syscall.ETIMEDOUT) {
		e.Kind, e.Limit, e.LimitValue = KindTimeout, LimitDeadPeer, x.own.ep.cfg.DeadPeerTimeout
	}
	if !x.answered {
		e.Sent = !x.unsent(err, f)
	}
	x.err = e
	x.release(false)
	return e
}

// unsent reports whether it is certain that no byte of the request has reached the
// engine's process. err is what reading gave, f what writing gave.
//
// The witness is the engine's FIN: it acknowledges all that its kernel had by then,
// and what comes behind a close is never delivered. (A close with unread data sends
// a reset instead.) A reset proves nothing: its acknowledgement is not counted, so
// the engine may have read the request and died. A failed write takes the socket's
// error with it, after which the end cannot be told from a reset.
func (x *exchange) unsent(err error, f *writeFailure) bool {
	if x.wrote == nil && x.c.written.Load() == x.base {
		return true // a writing goroutine counts late
	}
	fin := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE)
	return fin && f == nil && !x.c.acked(x.base)
}

// formError marks what is wrong with the form of an answer.
type formError struct{ err error }

func (f *formError) Error() string { return f.err.Error() }

func malformed(err error) error { return &formError{err} }
