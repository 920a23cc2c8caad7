//go:build !race && !sluice_noraw

package wire

import (
	"syscall"
	"unsafe"
)

// shortIO is up to how many bytes are read or written without telling the
// scheduler. More takes the kernel long enough that another goroutine should have
// the processor meanwhile.
const shortIO = 32 << 10

// read and write are read(2) and write(2) on sockets that do not block. Told of a
// system call, the runtime wakes the thread that takes processors away from those
// that block, which then looks every 20 µs; here that thread alone was an eighth of
// all CPU time. What takes a few microseconds and never blocks need not be told.
func read(fd int, p []byte) (int, error) {
	if len(p) == 0 || len(p) > shortIO {
		return syscall.Read(fd, p)
	}
	return untold(syscall.SYS_READ, fd, p)
}

func write(fd int, p []byte) (int, error) {
	if len(p) == 0 || len(p) > shortIO {
		return syscall.Write(fd, p)
	}
	return untold(syscall.SYS_WRITE, fd, p)
}

func untold(call uintptr, fd int, p []byte) (int, error) {
	n, _, errno := syscall.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}
