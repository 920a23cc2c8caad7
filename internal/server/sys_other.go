//go:build !linux

package server

import (
	"net"
	"time"
)

func setUserTimeout(*net.TCPConn, time.Duration) {}

func openFilesLimit() int { return 1 << 30 }
