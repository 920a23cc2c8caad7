package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// childAttributes makes a child end with its parent.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// stopped says whether all threads of a process were stopped by a signal.
func stopped(pid int) bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return false
	}
	for _, file := range threads {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// "PID (NAME) STATE …", where the name may have any letters
		if _, state, ok := bytes.Cut(b[max(0, bytes.LastIndexByte(b, ')')):], []byte(") ")); !ok || state[0] != 'T' {
			return false
		}
	}
	return true
}
