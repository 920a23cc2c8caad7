//go:build !linux

package upstream

import (
	"errors"
	"time"
)

// Elsewhere connections are read and written through net.Conn: correct, but an
// idle stream holds its buffer, and a request is resent only if none of it was
// written.
const rawIO = false

func setUserTimeout(int, time.Duration) {}

func sysRead(uintptr, []byte) (int, error)    { return 0, errors.ErrUnsupported }
func sysWrite(uintptr, [][]byte) (int, error) { return 0, errors.ErrUnsupported }
func sysReadable(uintptr) bool                { return true }
func sysAcked(uintptr) (uint64, bool)         { return 0, false }
