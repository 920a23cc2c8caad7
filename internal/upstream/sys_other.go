//go:build !linux

package upstream

import "time"

// Elsewhere connections are read and written through net.Conn: correct, but an
// idle stream holds its buffer, and a request is resent only if none of it was
// written.

func setUserTimeout(int, time.Duration) {}

func sysReadable(uintptr) bool        { return true }
func sysAcked(uintptr) (uint64, bool) { return 0, false }
