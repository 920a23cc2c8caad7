package nethttp

import "golang.org/x/sys/unix"

// unread tells whether bytes have come that were not read yet.
func (c *conn) unread() bool {
	raw, err := c.sock.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	_ = raw.Control(func(fd uintptr) { // fails only if closed
		n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) // an error is as good as nothing
	})
	return n > 0
}
