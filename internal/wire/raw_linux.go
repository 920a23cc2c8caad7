//go:build !race && !sluice_noraw

package wire

import (
	"syscall"
	"unsafe"
)

// shortIO is the size in bytes up to which reads and writes are raw system calls.
// Larger ones take the kernel long enough that the scheduler should know of them, so
// that another goroutine gets the processor meanwhile.
const shortIO = 32 << 10

// read and write are read(2) and write(2) on non-blocking sockets, by RawSyscall. An
// ordinary Syscall enters entersyscall, which wakes the runtime's monitor thread
// (sysmon); it then polls every 20 µs, and that alone cost 12 % of all CPU time. These
// calls return within microseconds and never block, so they do not need it.
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
