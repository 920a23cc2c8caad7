//go:build race && !sluice_noraw

package wire

import "syscall"

// The race detector has to see what the kernel reads and writes.

func read(fd int, p []byte) (int, error)  { return syscall.Read(fd, p) }
func write(fd int, p []byte) (int, error) { return syscall.Write(fd, p) }
