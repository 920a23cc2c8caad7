//go:build !linux

package upstream

import "time"

func setUserTimeout(int, time.Duration) {}
