package e2e

import "syscall"

// childAttributes put a child into a process group of its own, and end it with
// the tests, however these end. The latter follows the thread that started the
// child, so it must be started by one that stays: see spawner.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
