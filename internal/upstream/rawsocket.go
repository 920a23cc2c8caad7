package upstream

import (
	"net"
	"syscall"

	"github.com/sluice-router/sluice/internal/wire"
)

// rawSocket reads and writes a socket around net.Conn, as conn does, for clients that are given
// a net.Conn: an ordinary system call wakes the runtime's monitor thread, which then polls,
// and that costs more than the call itself. It allows one reader and one writer at a time,
// which is what gRPC and crypto/tls have.
type rawSocket struct {
	net.Conn
	raw syscall.RawConn

	// owned by the reader
	in     []byte
	read   int
	inErr  error
	readFn func(uintptr) bool // tryRead, bound once so that no read allocates it

	// owned by the writer
	out     [1][]byte
	outErr  error
	writeFn func(uintptr) bool // tryWrite
}

// newRawSocket returns c itself where it cannot be read and written so.
func newRawSocket(c net.Conn) net.Conn {
	sock := c
	if k, ok := c.(*countedConn); ok {
		sock = k.Conn
	}
	raw := rawConn(sock)
	if raw == nil {
		return c
	}
	r := &rawSocket{Conn: c, raw: raw}
	r.readFn, r.writeFn = r.tryRead, r.tryWrite
	return r
}

// Read implements net.Conn. It waits for as long as the read deadline allows.
func (c *rawSocket) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	c.in, c.read, c.inErr = p, 0, nil
	err := c.raw.Read(c.readFn)
	c.in = nil
	if err == nil {
		err = c.inErr
	}
	return c.read, err
}

func (c *rawSocket) tryRead(fd uintptr) bool {
	n, err := wire.Read(fd, c.in)
	if err == wire.ErrWouldBlock {
		return false
	}
	c.read, c.inErr = n, err
	return true
}

// Write implements net.Conn. It waits for as long as the write deadline allows.
func (c *rawSocket) Write(p []byte) (int, error) {
	c.out[0], c.outErr = p, nil
	err := c.raw.Write(c.writeFn)
	n := len(p) - len(c.out[0])
	c.out[0] = nil
	if err == nil {
		err = c.outErr
	}
	return n, err
}

func (c *rawSocket) tryWrite(fd uintptr) bool {
	for len(c.out[0]) > 0 {
		n, err := wire.Write(fd, c.out[:])
		c.out[0] = c.out[0][n:]
		switch {
		case err != nil:
			c.outErr = err
			return true
		case n == 0:
			return false
		}
	}
	return true
}
