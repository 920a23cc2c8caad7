package upstream

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// wouldBlockError is what a non-blocking read returns when there is nothing. It is
// a temporary net.Error, after which crypto/tls goes on where it stopped.
type wouldBlockError struct{}

func (wouldBlockError) Error() string   { return "nothing to read yet" }
func (wouldBlockError) Timeout() bool   { return true }
func (wouldBlockError) Temporary() bool { return true }

var errWouldBlock error = wouldBlockError{}

// conn is one connection. Between requests it belongs to the pool; during one, to
// the goroutine that reads the answer, except where noted.
//
// Reads go around net.Conn to the non-blocking socket: a buffer is borrowed for
// the moment of the system call and given back if there was nothing to read, so a
// silent connection holds none while the runtime's poller waits for it.
type conn struct {
	// immutable
	nc   net.Conn        // what the request is written to: a *tls.Conn or the socket
	sock net.Conn        // the socket
	raw  syscall.RawConn // of the socket; nil if reads must go through nc
	tls  bool
	// Bound methods, made once so that a request does not allocate them.
	readFn, writeFn, readableFn func(uintptr) bool
	abortFn                     func()

	// owned by the pool or by the reading goroutine
	in        readBuf
	armed     time.Time // the read deadline the socket has
	idleSince time.Time
	used      bool // has carried a request

	// results and arguments of the bound methods
	nowait bool
	ioN    int
	ioErr  error
	vec    [][]byte
	vec0   [8][]byte // the segments of a request; the writing goroutine's while there is one

	// atomic
	written atomic.Int64 // bytes given to the socket since connect
	writing atomic.Bool  // a goroutine is still sending the request
}

func newConn(nc, sock net.Conn, raw syscall.RawConn) *conn {
	c := &conn{nc: nc, sock: sock, raw: raw}
	_, c.tls = nc.(*tls.Conn)
	c.readFn, c.writeFn, c.readableFn, c.abortFn = c.tryRead, c.tryWrite, c.tryReadable, c.abort
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
}

// closeIdle ends a connection between requests, politely.
func (c *conn) closeIdle() {
	c.in.drop()
	_ = c.nc.Close()
}

func (c *conn) tryRead(fd uintptr) bool {
	c.in.room()
	n, err := sysRead(fd, c.in.b[c.in.w:])
	if err == errWouldBlock {
		if c.in.len() == 0 {
			c.in.drop()
		}
		if !c.nowait {
			return false
		}
	}
	c.ioN, c.ioErr = n, err
	return true
}

func (c *conn) tryReadable(fd uintptr) bool { return sysReadable(fd) }

func (c *conn) tryWrite(fd uintptr) bool {
	c.ioN, c.ioErr = sysWrite(fd, c.vec)
	return true
}

// readOnce adds bytes to c.in. It waits for them unless nowait is set, for as long
// as the socket's deadline allows.
func (c *conn) readOnce(nowait bool) error {
	var n int
	var err error
	switch {
	case c.raw == nil:
		c.in.room()
		n, err = c.nc.Read(c.in.b[c.in.w:])
	case c.tls:
		n, err = c.readTLS(nowait)
	default:
		c.nowait, c.ioN = nowait, 0
		if err = c.raw.Read(c.readFn); err == nil {
			n, err = c.ioN, c.ioErr
		}
	}
	if n > 0 {
		c.in.filled(n)
		return nil // an error, if any, comes again
	}
	return err
}

// readTLS is a read of plaintext that holds no buffer of ours while it waits.
// crypto/tls asks the socket only when it has no whole record left, so when the
// socket has nothing either, waiting for the socket is right.
func (c *conn) readTLS(nowait bool) (int, error) {
	for {
		c.in.room()
		n, err := c.nc.Read(c.in.b[c.in.w:])
		if n > 0 || !errors.Is(err, errWouldBlock) {
			return n, err
		}
		if c.in.len() == 0 {
			c.in.drop()
		}
		if nowait {
			return 0, errWouldBlock
		}
		if err := c.raw.Read(c.readableFn); err != nil {
			return 0, err
		}
	}
}

func (c *conn) arm(deadline time.Time) {
	_ = c.sock.SetReadDeadline(deadline) // fails only if closed, as the read will
	c.armed = deadline
}

// fresh tells whether an idle connection is still fit for a request: nothing has
// come, no end and no byte, since the last answer ended.
func (c *conn) fresh() bool {
	if c.raw == nil {
		return true
	}
	err := c.readOnce(true)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.arm(time.Time{})
		err = c.readOnce(true)
	}
	return err == errWouldBlock
}

// write sends vec as far as the socket takes it without waiting.
func (c *conn) write(vec [][]byte) (int, error) {
	c.vec = vec
	err := c.raw.Write(c.writeFn)
	c.vec = nil
	if err != nil {
		return 0, err
	}
	c.written.Add(int64(c.ioN))
	return c.ioN, c.ioErr
}

// acked tells whether the engine's kernel may have acknowledged bytes behind the
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

// wire is the socket beneath a TLS connection: after the handshake its reads do
// not wait. It counts what is written.
type wire struct {
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

func (w *wire) Read(p []byte) (int, error) {
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

func (w *wire) try(fd uintptr) bool {
	w.n, w.e = sysRead(fd, w.p)
	return true
}

func (w *wire) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	w.c.written.Add(int64(n))
	return n, err
}
