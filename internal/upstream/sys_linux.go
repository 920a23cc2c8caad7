package upstream

import (
	"errors"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxVector is how many segments go out in one system call (Linux: IOV_MAX 1024).
const maxVector = 1024

// setUserTimeout bounds how long sent data may stay unacknowledged. Best effort:
// a kernel that refuses keeps its own limit.
func setUserTimeout(fd int, d time.Duration) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
}

// sysRead reads once without waiting.
func sysRead(fd uintptr, p []byte) (int, error) {
	for {
		n, err := syscall.Read(int(fd), p)
		switch {
		case err == nil && n == 0 && len(p) > 0:
			return 0, io.EOF
		case err == nil:
			return n, nil
		case err == syscall.EAGAIN:
			return 0, errWouldBlock
		case err != syscall.EINTR:
			return 0, err
		}
	}
}

// sysWrite writes once without waiting, and returns how much the socket took.
func sysWrite(fd uintptr, bufs [][]byte) (int, error) {
	for {
		var n int
		var err error
		if len(bufs) == 1 {
			n, err = syscall.Write(int(fd), bufs[0])
		} else {
			n, err = unix.Writev(int(fd), bufs[:min(len(bufs), maxVector)])
		}
		switch err {
		case nil:
			return n, nil
		case syscall.EAGAIN:
			return 0, nil
		case syscall.EINTR:
		default:
			return 0, err
		}
	}
}

// sysReadable tells whether a read would return something, be it the end.
func sysReadable(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return n > 0 || err != nil && !errors.Is(err, unix.EINTR)
}

// sysAcked returns how many bytes the peer's kernel has acknowledged over the
// connection's life, one for the SYN included. It also works on a connection that
// has ended.
func sysAcked(fd uintptr) (uint64, bool) {
	info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, false
	}
	return info.Bytes_acked, true
}

// rawIO tells that the functions above work.
const rawIO = true
