//go:build !linux

package node

import "time"

// bootTime does not tell: the clock of the process is all there is.
func bootTime() (time.Duration, bool) { return 0, false }
