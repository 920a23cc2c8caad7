//go:build !sluice_noraw

package wire

import (
	"io"
	"syscall"

	"golang.org/x/sys/unix"
)

// RawIO reports that the functions below work on this platform.
const RawIO = true

// maxVector is how many segments go out in one system call (IOV_MAX is 1024).
const maxVector = 1024

// Read reads once without waiting. The end is io.EOF, nothing yet ErrWouldBlock.
func Read(fd uintptr, p []byte) (int, error) {
	for {
		n, err := read(int(fd), p)
		switch {
		case err == nil && n == 0 && len(p) > 0:
			return 0, io.EOF
		case err == nil:
			return n, nil
		case err == syscall.EAGAIN:
			return 0, ErrWouldBlock
		case err != syscall.EINTR:
			return 0, err
		}
	}
}

// Write writes once without waiting, and returns how much the socket took.
func Write(fd uintptr, bufs [][]byte) (int, error) {
	for {
		var n int
		var err error
		if len(bufs) == 1 {
			n, err = write(int(fd), bufs[0])
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
