package sim

import (
	"fmt"
	"net/netip"
	"syscall"
)

// reserve takes a free port of host and keeps it from other processes until release: its
// socket is bound but does not listen, so that a worker can listen on the port, and
// connections are refused while none does. Without it a killed worker's port could be
// given to anybody. Port 0 means that nothing is reserved: host is no IP address.
func reserve(host string) (port int, release func(), err error) {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return 0, func() {}, nil
	}
	family := syscall.AF_INET6
	var sa syscall.Sockaddr
	if addr.Is4() {
		family, sa = syscall.AF_INET, &syscall.SockaddrInet4{Addr: addr.As4()}
	} else {
		sa = &syscall.SockaddrInet6{Addr: addr.As16()}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("cannot reserve a port: %w", err)
	}
	release = func() { _ = syscall.Close(fd) }
	if err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err == nil {
		err = syscall.Bind(fd, sa)
	}
	if err == nil {
		sa, err = syscall.Getsockname(fd)
	}
	if err != nil {
		release()
		return 0, nil, fmt.Errorf("cannot reserve a port of %s: %w", host, err)
	}
	switch sa := sa.(type) {
	case *syscall.SockaddrInet4:
		port = sa.Port
	case *syscall.SockaddrInet6:
		port = sa.Port
	}
	return port, release, nil
}
