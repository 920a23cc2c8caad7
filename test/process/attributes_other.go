//go:build unix && !linux

package process

import "syscall"

func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// stopped is not known here.
func stopped(int) bool { return true }
