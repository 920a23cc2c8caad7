package upstream

import (
	"net"
	"syscall"
)

// dialer connects with the endpoint's limits. Names are looked up at each dial, so
// a moved engine is found at its new address; both address families are tried.
func (e *Endpoint) dialer() *net.Dialer {
	d := &net.Dialer{}
	if e.cfg.ConnectTimeout > 0 {
		d.Timeout = e.cfg.ConnectTimeout
	}
	if dead := e.cfg.DeadPeerTimeout; dead > 0 {
		// A silent connection is probed soon enough that a vanished machine is
		// noticed within about dead.
		d.KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: dead / 2, Interval: dead / 6, Count: 3}
		d.Control = func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { setUserTimeout(int(fd), dead) })
		}
	}
	return d
}
