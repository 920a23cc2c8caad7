package upstream

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout bounds how long sent data may stay unacknowledged. Best effort:
// a kernel that refuses keeps its own limit.
func setUserTimeout(fd int, d time.Duration) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
}

// sysReadable reports whether a read would return something, be it the end.
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
