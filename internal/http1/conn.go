package http1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/wire"
)

// States of a connection.
const (
	stateNew     int32 = iota // no byte was received yet
	stateIdle                 // between requests
	stateHead                 // from the first byte of a request to the end of its head
	stateActive               // from there to the end of the answer, except for the next two:
	stateWaits                // waits for bytes of the client, and no request runs
	stateStalled              // the client takes no bytes, and no request runs
	stateClosed               // closed from outside while idle or new
	stateEvicted              // closed to make room for other connections
)

// conn is one client's connection. It is owned by its goroutine, except where noted.
type conn struct {
	// immutable
	srv    *Server
	sock   *net.TCPConn
	raw    syscall.RawConn // nil where only package net can read and write
	remote string
	ctx    *connContext
	id     uint64 // of the watcher
	// Bound methods, made once so that a request does not allocate them.
	readFn, writeFn func(uintptr) bool

	state     atomic.Int32
	waitState // in the order of eviction
	// sentHead: it has sent a whole head.
	sentHead atomic.Bool
	// progress: bytes were received since it last waited for some; parked: it was in
	// stateWaits meanwhile. Both are owned by the goroutine that reads.
	progress, parked bool
	// running: the handler has called Running.
	running bool
	// overLimit: there are too many connections; it is refused. Set before serve.
	overLimit  bool
	headMemory HeadMemory
	// isCut: cut was called.
	isCut atomic.Bool
	// inBody: the handler waits for bytes of its request's body.
	inBody atomic.Bool

	in    wire.ReadBuf
	armed time.Time // the read deadline the socket has

	// arguments and results of the bound methods
	dst     []byte // where a read goes; nil: into in
	readN   int
	readErr error
	vec     [][]byte
	vec0    [3][]byte
	wait    bool // a write may wait
	sentN   int
	sentErr error

	peek peeker
	x    exchange
}

func newConn(s *Server, sock *net.TCPConn) (*conn, error) {
	c := &conn{srv: s, sock: sock, remote: sock.RemoteAddr().String()}
	if wire.RawIO && !s.plain {
		raw, err := sock.SyscallConn()
		if err != nil {
			return nil, err
		}
		c.raw = raw
	}
	c.readFn, c.writeFn, c.peek.c = c.tryRead, c.tryWrite, c
	c.since.Store(int64(mono.Now()))
	return c, nil
}

// follow makes the context of the connection's requests.
func (c *conn) follow(base context.Context) {
	c.ctx = newConnContext(base)
	c.ctx.AfterFunc(func() {
		if base.Err() != nil && c.inBody.Load() {
			c.interrupt()
		}
	})
	c.x.init(c)
}

// interrupt ends a wait for bytes. The reader checks the context before it waits, and is
// woken by this if the context ends later.
func (c *conn) interrupt() { _ = c.sock.SetReadDeadline(time.Unix(1, 0)) } // a closed connection has no reads

// gone is called when the client closed its side or the connection broke, from the
// watcher's goroutine.
func (c *conn) gone() { c.ctx.end(ErrClientGone) }

// closeIf closes a connection that is in the given state, in which no request is under
// way. It reports whether it did. Callable from any goroutine.
func (c *conn) closeIf(state int32) bool {
	if !c.state.CompareAndSwap(state, stateClosed) {
		return false
	}
	_ = c.sock.Close()
	return true
}

// cut closes the connection whatever is under way. Callable from any goroutine. It sends
// a reset: an answer that ends with its connection must not look complete.
func (c *conn) cut() {
	c.isCut.Store(true) // first: a handler that sees the context end may return normally
	c.ctx.end(errConnClosed)
	_ = c.sock.SetLinger(0)
	_ = c.sock.Close()
}

// serve serves one request after another.
func (c *conn) serve() {
	defer c.end()
	if c.overLimit {
		defer c.srv.refusing.Add(-1)
		c.refuse(TooManyConnections())
		return
	}
	limit := c.srv.HeaderTimeout // of a connection that is new
	for {
		head, p, err := c.readHead(limit)
		switch {
		case err == ErrEvicted:
			c.endEvicted()
			return
		case err != nil:
			return
		case !c.beginRequest():
			if c.evicted() { // while its head was read
				c.x.beginRefusal()
				c.answer(TooManyConnections())
			}
			return
		case p == nil:
			p = c.x.begin(head)
		}
		if p != nil {
			c.refuse(p)
			return
		}
		if !c.handle() {
			return
		}
		if !c.becomeIdle() {
			c.linger()
			return
		}
		limit = c.srv.IdleTimeout
	}
}

// becomeIdle reports whether the connection may wait for another request.
func (c *conn) becomeIdle() bool {
	if !c.state.CompareAndSwap(stateActive, stateIdle) {
		return false
	}
	// draining is read after the state is set: a drain first sets draining and then
	// closes idle connections.
	return (!c.srv.draining.Load() || c.in.Len() > 0) && !c.last.Load()
}

// end closes the connection and returns its buffers to their pools.
func (c *conn) end() {
	c.ctx.close()
	c.peek.end()
	if c.x.resp.framing == untilEnd && !c.x.resp.whole {
		_ = c.sock.SetLinger(0) // without a reset the answer would look complete
	}
	c.x.free()
	c.in.Drop()
	c.holdHead(0)
	_ = c.sock.Close()
	c.srv.forget(c)
}

// maxLeadingLines is how many bytes of empty lines before a request are skipped, as
// some clients send one behind a body.
const maxLeadingLines = 8

// skipLines removes empty lines from the buffer. skipped counts their bytes. It reports
// whether what is left begins a request. A CR alone does not: the LF may follow.
func (c *conn) skipLines(skipped *int) bool {
	for *skipped < maxLeadingLines {
		n := 0
		switch b := c.in.B[c.in.R:c.in.W]; {
		case len(b) == 0 || len(b) == 1 && b[0] == '\r':
			return false
		case b[0] == '\n':
			n = 1
		case b[0] == '\r' && b[1] == '\n':
			n = 2
		default:
			return true
		}
		c.in.R += n
		*skipped += n
	}
	return c.in.Len() > 0
}

// tlsHandshake is the first byte of a client that tries to speak TLS. What follows does
// not contain the end of a head.
const tlsHandshake = 0x16

// readHead waits for a request, reads its head, and removes it from the buffer. limit is
// how long the first byte may take.
func (c *conn) readHead(limit time.Duration) (head string, p *Problem, err error) {
	deadline := time.Time{}
	started := c.state.Load() == stateNew // then limit holds for the whole head
	scanned, skipped := 0, 0
	for begun := false; ; {
		if begun = begun || c.skipLines(&skipped); begun {
			if c.state.Load() != stateHead && !c.beginHead() {
				return "", nil, c.closedBy()
			}
			b := c.in.B[c.in.R:c.in.W]
			if b[0] == tlsHandshake {
				return "", malformed("this port speaks plain HTTP, not TLS: use http://, or a proxy in front that terminates TLS"), nil
			}
			if n := wire.HeadEnd(b, &scanned); n >= 0 && n <= c.srv.MaxHeaderBytes {
				if !c.holdHead(n) {
					return "", NoMemoryForHead(), nil
				}
				c.in.R += n
				return string(b[:n]), nil, nil
			}
			if len(b) > c.srv.MaxHeaderBytes {
				return "", HeadTooLarge(c.srv.MaxHeaderBytes), nil
			}
			if !c.holdHead(len(c.in.B)) {
				return "", NoMemoryForHead(), nil
			}
			if !started {
				started, deadline, limit = true, time.Time{}, c.srv.HeaderTimeout
			}
		}
		if deadline.IsZero() {
			now := time.Now()
			c.since.Store(int64(mono.Of(now)))
			deadline = now.Add(limit)
		}
		switch err := c.fill(deadline); {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded) && begun:
			return "", &Problem{Status: http.StatusRequestTimeout, Message: "the request's head did not come within " + c.srv.HeaderTimeout.String()}, nil
		case err == io.EOF && begun:
			return "", &Problem{Status: http.StatusBadRequest, Message: "the request's head is cut off"}, nil
		default:
			return "", nil, err
		}
	}
}

// beginHead sets the state to stateHead. It returns false if the connection was closed
// meanwhile.
func (c *conn) beginHead() bool {
	return c.state.CompareAndSwap(stateIdle, stateHead) || c.state.CompareAndSwap(stateNew, stateHead)
}

// closedBy is why a connection was closed from outside.
func (c *conn) closedBy() error {
	if c.evicted() {
		return ErrEvicted
	}
	return errConnClosed
}

// beginRequest sets the state to stateActive. It returns false if the connection was
// closed meanwhile.
func (c *conn) beginRequest() bool {
	if !c.sentHead.Load() {
		c.srv.waiting.firstHead(c)
	}
	return c.state.CompareAndSwap(stateHead, stateActive)
}

// fill reads more into the buffer. While the buffer is empty and no bytes arrive, it is
// returned to its pool.
func (c *conn) fill(deadline time.Time) error {
	c.dst = nil
	n, err := c.read(deadline)
	if n > 0 {
		c.in.Filled(n)
		c.progress = true
		return nil // the next read returns the error again
	}
	return err
}

// releaseBuffer returns the buffer to its pool if it is empty.
func (c *conn) releaseBuffer() {
	if c.in.Len() == 0 {
		c.in.Drop()
	}
}

// readInto reads into p.
func (c *conn) readInto(p []byte, deadline time.Time) (int, error) {
	c.dst = p
	n, err := c.read(deadline)
	c.dst = nil
	if n > 0 {
		c.progress = true
		return n, nil
	}
	return 0, err
}

// read reads once, and waits until the deadline, if there is one. The socket's own
// deadline is not later; if it expires too early, it is set again. So a connection that
// is never silent for long sets a timer once in a while and not at each read.
func (c *conn) read(deadline time.Time) (int, error) {
	for {
		if !deadline.IsZero() && (c.armed.IsZero() || c.armed.After(deadline)) {
			c.arm(deadline)
		}
		if c.inBody.Load() && c.srv.Base.Err() != nil {
			return 0, os.ErrDeadlineExceeded
		}
		if c.evicted() {
			return 0, ErrEvicted // its deadline may just have been armed anew
		}
		n, err := c.readOnce()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if !deadline.IsZero() && !time.Now().Before(deadline) {
			return 0, err
		}
		c.arm(deadline)
	}
}

func (c *conn) arm(deadline time.Time) {
	_ = c.sock.SetReadDeadline(deadline) // fails only if closed, as the read will
	c.armed = deadline
}

func (c *conn) readOnce() (int, error) {
	c.readN, c.parked = 0, false
	if c.raw == nil {
		c.parkReading()
		n, err := c.sock.Read(c.room())
		if c.parked && !c.unpark(stateWaits) {
			return 0, ErrEvicted
		}
		return n, err
	}
	err := c.raw.Read(c.readFn)
	if c.parked && !c.unpark(stateWaits) {
		return 0, ErrEvicted
	}
	if err != nil {
		return 0, err
	}
	return c.readN, c.readErr
}

// room is the buffer for the next read.
func (c *conn) room() []byte {
	if c.dst != nil {
		return c.dst
	}
	c.in.Room()
	return c.in.B[c.in.W:]
}

func (c *conn) tryRead(fd uintptr) bool {
	n, err := wire.Read(fd, c.room())
	if err == wire.ErrWouldBlock {
		if c.in.Len() == 0 {
			c.in.Drop()
		}
		c.parkReading()
		return false
	}
	c.readN, c.readErr = n, err
	return true
}

// write sends all of vec, and waits for the socket until the deadline if it is full.
func (c *conn) write(vec [][]byte, deadline time.Time) error {
	if c.evicted() {
		deadline = time.Now().Add(evictedWriteTimeout)
	}
	if c.raw == nil {
		_ = c.sock.SetWriteDeadline(deadline) // fails only if closed, as the write will
		parked := c.parkWriting()
		bufs := net.Buffers(vec)
		_, err := bufs.WriteTo(c.sock)
		if parked && !c.unpark(stateStalled) {
			return ErrEvicted
		}
		return err
	}
	c.wait = false
	for len(vec) > 0 {
		c.vec, c.sentN, c.sentErr = vec, 0, nil
		parked := c.wait && c.parkWriting()
		err := c.raw.Write(c.writeFn)
		c.vec = nil
		switch {
		case parked && !c.unpark(stateStalled):
			return ErrEvicted
		case err != nil && !(errors.Is(err, os.ErrDeadlineExceeded) && !c.wait):
			return err
		case c.sentErr != nil:
			return c.sentErr
		}
		vec = wire.Consume(vec, c.sentN)
		if c.sentN == 0 && !c.wait {
			// The socket is full: only now is a deadline needed.
			_ = c.sock.SetWriteDeadline(deadline) // fails only if closed, as the write will
			c.wait = true
		}
	}
	return nil
}

func (c *conn) tryWrite(fd uintptr) bool {
	c.sentN, c.sentErr = wire.Write(fd, c.vec)
	return c.sentN > 0 || c.sentErr != nil || !c.wait
}

// refuse answers input that cannot be parsed as HTTP, or must not be served.
func (c *conn) refuse(p *Problem) {
	if c.state.Load() != stateActive && !(c.beginHead() && c.beginRequest()) {
		return
	}
	c.x.beginRefusal()
	c.answer(p)
	c.linger()
}

// handle runs the handler on the current request. It reports whether another request may
// follow on the connection.
func (c *conn) handle() bool {
	x := &c.x
	c.releaseBuffer()
	c.peek.begin()
	whole := c.answer(nil)
	c.running = false
	c.peek.end()
	switch {
	case !whole && (x.resp.framing == untilEnd || x.resp.err != nil):
		return false // closed with a reset, or the client disconnected
	case !whole || x.resp.closing || !x.body.discard():
		// The last bytes of an incomplete answer may be an error that the client reads.
		c.linger()
		return false
	}
	x.reset()
	c.holdHead(0)
	return true
}

// answer calls the handler, or if p is not nil, Server.Refuse. It reports whether the
// answer is complete.
func (c *conn) answer(p *Problem) (whole bool) {
	x := &c.x
	defer func() {
		switch v := recover(); v {
		case nil:
		case http.ErrAbortHandler:
			whole = false
		default:
			whole = false
			c.srv.Report("panic in a handler", fmt.Sprintf("%v\n%s", v, debug.Stack()))
		}
	}()
	if p != nil {
		c.srv.Refuse(&x.resp, p)
	} else {
		c.srv.Handler.ServeHTTP(&x.resp, x.req)
	}
	return !c.isCut.Load() && x.resp.finish()
}

const (
	// lingerTime and lingerBytes bound what is read from a client after its last answer.
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 256 << 10
)

// linger closes the connection for writing and reads a moment longer: if bytes are unread
// at a close, the kernel sends a reset, which may destroy the answer on its way.
func (c *conn) linger() {
	if c.x.body.ended() && c.in.Len() == 0 && !c.x.refused && !c.unread() {
		return // the client has nothing more to send
	}
	if c.sock.CloseWrite() != nil || c.evicted() {
		return
	}
	c.progress = true
	end := time.Now().Add(lingerTime)
	c.arm(time.Time{})
	for left := lingerBytes; left > 0; {
		c.in.R = c.in.W
		if c.fill(end) != nil {
			return
		}
		left -= c.in.Len()
	}
}

// lookTime is how long unread waits for bytes where it cannot read without waiting.
const lookTime = 5 * time.Millisecond

// unread reports whether the socket has unread bytes, such as those behind a request, and
// reads them into the buffer.
func (c *conn) unread() bool {
	if c.raw == nil {
		return c.fill(time.Now().Add(lookTime)) == nil
	}
	n := 0
	_ = c.raw.Control(func(fd uintptr) { // fails only if closed
		c.in.Room()
		n, _ = wire.Read(fd, c.in.B[c.in.W:]) // on an error n is 0
		c.in.Filled(n)
	})
	return n > 0
}
