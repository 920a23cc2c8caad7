package upstream

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/wire"
)

// conn is one connection. Between requests it belongs to the pool; during one, to
// the goroutine that reads the answer, except where noted.
//
// Reads go around net.Conn to the non-blocking socket: a buffer is borrowed for
// the moment of the system call and given back if there was nothing to read, so a
// silent connection holds none while the runtime's poller waits for it. A request
// goes out with the first read of its answer, in the same visit to the socket.
//
// With many engines a connection has left the processor's caches by the time it is
// used again, so what every request touches stands together.
type conn struct {
	// immutable
	raw    syscall.RawConn    // of the socket; nil if reads must go through nc
	readFn func(uintptr) bool // tryRead, bound once so that no read allocates it

	// owned by the pool or by the reading goroutine
	out       *outgoing    // what is to be sent; nil: nothing, or it is somebody else's task
	armed     mono.Instant // the read deadline the socket has; zero: none
	idleSince mono.Instant

	// atomic
	written atomic.Int64 // bytes given to the socket since connect
	writing atomic.Bool  // a goroutine is still sending the request

	tls bool // immutable

	// owned by the pool or by the reading goroutine
	used   bool // has carried a request
	unseen bool // was idle, and is to be looked at before it is written to
	in     wire.ReadBuf
	ioErr  error // what tryRead met

	// immutable
	nc         net.Conn // what the request is written to: a *tls.Conn or the socket
	sock       net.Conn // the socket
	readableFn func(uintptr) bool
	abortFn    func()
	sockets    *Sockets // or nil

	over atomic.Bool // it is closed, and counts no more
}

// outgoing is what of a request is still to be written. It has its memory with it.
type outgoing struct {
	vec  [][]byte
	vec0 [8][]byte          // for vec
	buf  [wire.BufSize]byte // for what vec begins with
}

var outPool = sync.Pool{New: func() any { return new(outgoing) }}

// drop lets go of the request: a long silent answer must not hold it.
func (o *outgoing) drop() {
	clear(o.vec0[:])
	o.vec = nil
	outPool.Put(o)
}

func (c *conn) dropOut() {
	if c.out != nil {
		c.out.drop()
		c.out = nil
	}
}

// What readOnce finds instead of bytes while a request is to be sent, besides a
// *writeFailure.
var (
	errStale = errors.New("the connection did not outlive its idle time")
	errFull  = errors.New("the socket takes no more for now")
)

func newConn(nc, sock net.Conn, raw syscall.RawConn) *conn {
	c := &conn{nc: nc, sock: sock, raw: raw}
	_, c.tls = nc.(*tls.Conn)
	c.readFn, c.readableFn, c.abortFn = c.tryRead, c.tryReadable, c.abort
	return c
}

// abort ends the connection from whatever goroutine; what waits on it wakes up.
func (c *conn) abort() {
	if c.writing.Load() {
		// A FIN would queue up behind the rest of the request.
		if tc, ok := c.sock.(*net.TCPConn); ok {
			_ = tc.SetLinger(0)
		}
	}
	_ = c.sock.Close()
	c.countOut()
}

// countOut is called when the connection was closed, by whom ever.
func (c *conn) countOut() {
	if !c.over.Swap(true) {
		c.sockets.closed()
	}
}

// ContextEnded implements Listener.
func (c *conn) ContextEnded() { c.abort() }

// closeIdle ends a connection between requests, politely.
func (c *conn) closeIdle() {
	c.in.Drop()
	_ = c.nc.Close()
	c.countOut()
}

// tryRead is what is done with the socket each time there may be something to
// read, and once before. It returns false to wait for the next time.
func (c *conn) tryRead(fd uintptr) bool {
	if c.out != nil {
		idle := c.unseen
		if c.ioErr = c.trySend(fd); c.ioErr != nil {
			return true
		}
		if idle {
			// The look found nothing, and whatever has come since wakes the wait: the
			// poller was told before the look to begin anew.
			return false
		}
	}
	c.in.Room()
	n, err := wire.Read(fd, c.in.B[c.in.W:])
	if err == wire.ErrWouldBlock {
		if c.in.Len() == 0 {
			c.in.Drop()
		}
		return false
	}
	c.in.Filled(n)
	c.ioErr = err
	return true
}

// trySend sends the request as far as the socket takes it without waiting. A
// connection that was idle is looked at first: it is fit for a request if nothing,
// no end and no byte, has come since the last answer ended.
func (c *conn) trySend(fd uintptr) error {
	if c.unseen {
		var b [1]byte
		if _, err := wire.Read(fd, b[:]); err != wire.ErrWouldBlock {
			return errStale
		}
		c.unseen = false
	}
	for out := c.out; len(out.vec) > 0; {
		n, err := wire.Write(fd, out.vec)
		c.written.Add(int64(n))
		out.vec = wire.Consume(out.vec, n)
		switch {
		case err != nil:
			return &writeFailure{err, mono.Now()}
		case n == 0:
			return errFull
		}
	}
	c.dropOut()
	return nil
}

func (c *conn) tryReadable(fd uintptr) bool { return sysReadable(fd) }

// readOnce adds bytes to c.in. It waits for them for as long as the socket's
// deadline allows. If a request is to be sent it does that first; a deadline that
// has passed already keeps it from both.
func (c *conn) readOnce() error {
	if c.raw != nil && !c.tls {
		if err := c.raw.Read(c.readFn); err != nil {
			return err
		}
		return c.ioErr
	}
	if c.out != nil {
		if err := c.writeOut(); err != nil {
			return err
		}
	}
	var n int
	var err error
	if c.tls && c.raw != nil {
		n, err = c.readTLS(false)
	} else {
		c.in.Room()
		n, err = c.nc.Read(c.in.B[c.in.W:])
	}
	if n > 0 {
		c.in.Filled(n)
		return nil // an error, if any, comes again
	}
	return err
}

// writeOut sends the request where only net.Conn can.
func (c *conn) writeOut() error {
	if len(c.out.vec) > 1 {
		return errFull
	}
	// It fits any socket's buffer, as nothing else is in it.
	n, err := c.nc.Write(c.out.vec[0])
	if !c.tls {
		c.written.Add(int64(n))
	}
	c.dropOut()
	if err != nil {
		return &writeFailure{err, mono.Now()}
	}
	return nil
}

// readTLS is a read of plaintext that holds no buffer of ours while it waits.
// crypto/tls asks the socket only when it has no whole record left, so when the
// socket has nothing either, waiting for the socket is right.
func (c *conn) readTLS(nowait bool) (int, error) {
	for {
		c.in.Room()
		n, err := c.nc.Read(c.in.B[c.in.W:])
		if n > 0 || !errors.Is(err, wire.ErrWouldBlock) {
			return n, err
		}
		if c.in.Len() == 0 {
			c.in.Drop()
		}
		if nowait {
			return 0, wire.ErrWouldBlock
		}
		if err := c.raw.Read(c.readableFn); err != nil {
			return 0, err
		}
	}
}

func (c *conn) arm(deadline mono.Instant) {
	_ = c.sock.SetReadDeadline(deadline.Time()) // fails only if closed, as the read will
	c.armed = deadline
}

// fresh reports whether an idle connection is still fit for a request, as far as
// that is to be found out now: a plain socket is looked at when it is written to.
func (c *conn) fresh() bool {
	if c.raw == nil {
		return true
	}
	if !c.tls {
		c.unseen = true
		return true
	}
	_, err := c.readTLS(true)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.arm(0)
		_, err = c.readTLS(true)
	}
	return err == wire.ErrWouldBlock
}

// acked reports whether the engine's kernel may have acknowledged bytes behind the
// first base ones. It counts the SYN as a byte.
func (c *conn) acked(base int64) bool {
	if c.raw == nil {
		return true
	}
	var n uint64
	var ok bool
	err := c.raw.Control(func(fd uintptr) { n, ok = sysAcked(fd) })
	return err != nil || !ok || n > uint64(base)+1
}

// underTLS is the socket beneath a TLS connection: after the handshake its reads do
// not wait. It counts what is written.
type underTLS struct {
	net.Conn
	c     *conn
	raw   syscall.RawConn
	ready atomic.Bool // the handshake is done
	// Used by one reader at a time, which crypto/tls sees to.
	p  []byte
	n  int
	e  error
	fn func(uintptr) bool
}

func (w *underTLS) Read(p []byte) (int, error) {
	if w.raw == nil || !w.ready.Load() {
		return w.Conn.Read(p)
	}
	w.p, w.n = p, 0
	err := w.raw.Read(w.fn)
	w.p = nil
	if err != nil {
		return 0, err
	}
	return w.n, w.e
}

func (w *underTLS) try(fd uintptr) bool {
	w.n, w.e = wire.Read(fd, w.p)
	return true
}

func (w *underTLS) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	w.c.written.Add(int64(n))
	return n, err
}
