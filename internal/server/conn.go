package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// keepAlive finds out that a client's machine is gone while nothing is sent.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 4}

// listen opens a port. SO_REUSEADDR is set by package net, so that the next
// process can have the port at once.
func listen(ctx context.Context, what, addr string) (*net.TCPListener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s for %s: %w", addr, what, err)
	}
	return l.(*net.TCPListener), nil
}

// clientListener hands out connections that are watched for their end.
type clientListener struct {
	*net.TCPListener
	open *atomic.Int64
	// ahead counts the connections that are read ahead now.
	ahead *atomic.Int64
	// unacked is how long a client's machine may leave data unacknowledged.
	unacked time.Duration
}

func (l *clientListener) Accept() (net.Conn, error) {
	c, err := l.AcceptTCP()
	if err != nil {
		return nil, err
	}
	if l.unacked > 0 {
		setUserTimeout(c, l.unacked)
	}
	l.open.Add(1)
	return &clientConn{TCPConn: c, listener: l}, nil
}

// maxAhead bounds what is read ahead of a connection. A client that has sent
// more behind its request is not watched further.
const maxAhead = 64 << 10

// clientConn is a client's connection of which the end is noticed even if bytes
// come before it that nobody reads yet.
//
// While a handler runs, net/http waits for the connection's end with a read of
// one byte. If instead of the end a byte arrives (a pipelined request, or only a
// stray newline behind the body, as some clients send), net/http keeps it and
// looks no further: from then on a client may leave, even by a reset, and the
// request runs on for nobody. So such a read is followed up by one that goes on,
// into a buffer from which later reads are served, until the end.
type clientConn struct {
	*net.TCPConn
	listener *clientListener
	closed   atomic.Bool
	// gone ends the requests of the connection, unfollow what follow began. Both
	// are set before the first read.
	gone     context.CancelCauseFunc
	unfollow func() bool
	// reading: a handler reads a request's body.
	reading atomic.Bool
	// ahead is nil as long as nothing was read ahead. It belongs to the reader,
	// of which there is one at a time.
	ahead *ahead
}

type connKey struct{}

// connOf is the connection of a request's context; nil for one made in a test.
func connOf(ctx context.Context) *clientConn {
	c, _ := ctx.Value(connKey{}).(*clientConn)
	return c
}

// setReading tells whether a handler reads a body now.
func (c *clientConn) setReading(on bool) {
	if c != nil {
		c.reading.Store(on)
	}
}

// follow returns the context of the connection's requests. It ends with parent,
// and when the end of the connection is noticed.
//
// The end of parent also ends a handler's read of a body, which knows no
// context. It leaves net/http's own reads alone: those would take it for a
// client that left, and end a request that is to be told why.
func (c *clientConn) follow(parent context.Context) context.Context {
	ctx, gone := context.WithCancelCause(context.WithValue(parent, connKey{}, c))
	c.gone = gone
	c.unfollow = context.AfterFunc(parent, func() {
		if c.reading.Load() {
			_ = c.SetReadDeadline(time.Unix(1, 0)) // a closed connection has no reads
		}
	})
	return ctx
}

func (c *clientConn) Close() error {
	if c.closed.CompareAndSwap(false, true) {
		c.listener.open.Add(-1)
		if c.gone != nil {
			c.unfollow()
			c.gone(net.ErrClosed) // or parent would keep it for ever
		}
	}
	return c.TCPConn.Close()
}

func (c *clientConn) Read(p []byte) (int, error) {
	if c.ahead != nil {
		n, err, served := c.ahead.read(p)
		if served {
			return n, err
		}
		c.ahead = nil
	}
	n, err := c.TCPConn.Read(p)
	if n == 1 && len(p) == 1 && err == nil {
		c.ahead = &ahead{conn: c}
		c.ahead.more.L = &c.ahead.mu
		c.ahead.start()
	}
	return n, err
}

// ahead is what was read of a connection before anybody asked for it.
type ahead struct {
	// immutable
	conn *clientConn

	mu   sync.Mutex
	more sync.Cond // of mu
	// guarded by mu
	buf     []byte
	err     error // of the connection; comes after buf
	running bool  // a goroutine reads
	waiting bool  // a reader waits for what it brings
}

// read serves a read from what was read ahead; served is false when there is
// nothing of it left and the connection is to be read directly again.
func (a *ahead) read(p []byte) (n int, err error, served bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(a.buf) == 0 && a.running {
		a.waiting = true
		a.more.Wait()
		a.waiting = false
	}
	if len(a.buf) > 0 {
		n = copy(p, a.buf)
		a.buf = a.buf[n:]
		if len(p) == 1 && !a.running && a.err == nil && len(a.buf) < maxAhead {
			a.start()
		}
		return n, nil, true
	}
	return 0, a.err, a.err != nil
}

// start makes a goroutine read. It needs the lock, or that nobody else has a.
func (a *ahead) start() {
	a.running = true
	a.conn.listener.ahead.Add(1)
	go a.run()
}

// run reads until the connection's end, a deadline, or a full buffer. It ends
// early when somebody reads who can go on by himself. Deadlines and Close of the
// connection end its read.
func (a *ahead) run() {
	var chunk [2 << 10]byte
	for {
		n, err := a.conn.TCPConn.Read(chunk[:])
		a.mu.Lock()
		a.buf = append(a.buf, chunk[:n]...)
		stop := err != nil || a.waiting || len(a.buf) >= maxAhead
		over := err != nil && !isTimeout(err)
		if over {
			// A deadline is not handed on: net/http may have taken it back
			// meanwhile. Whoever waits reads by himself and sees what holds now.
			a.err = err
		}
		if stop {
			a.running = false
			a.conn.listener.ahead.Add(-1)
			a.more.Broadcast()
		}
		a.mu.Unlock()
		if over && a.conn.gone != nil {
			a.conn.gone(errClientGone)
		}
		if stop {
			return
		}
	}
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
