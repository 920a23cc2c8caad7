//go:build !linux || sluice_noraw

package wire

import "errors"

// RawIO is false: the functions below do not work. Outside Linux, and with the build tag
// sluice_noraw, connections are read and written through net.Conn.
const RawIO = false

// Read is for Linux.
func Read(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

// Write is for Linux.
func Write(uintptr, [][]byte) (int, error) { return 0, errors.ErrUnsupported }
