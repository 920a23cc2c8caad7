package node

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime is the time since the machine started, suspends included.
func bootTime() (time.Duration, bool) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return 0, false
	}
	return time.Duration(t.Nano()), true
}
