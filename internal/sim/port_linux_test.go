package sim

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

// The port of a killed worker, and that of its bootstrap server, were free for any
// process: a router met a stranger there, or the worker could not be restarted.
func TestPortOfAKilledWorkerIsKept(t *testing.T) {
	f, err := Start(Options{Prefill: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := f.Prefill(0)
	w.Kill()
	// stranger binds a port as most programs do.
	stranger := func(port uint16) error {
		fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Close(fd)
		return syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: int(port)})
	}
	addr := netip.MustParseAddrPort(strings.TrimPrefix(w.URL(), "http://"))
	for _, port := range []uint16{addr.Port(), uint16(w.BootstrapPort())} {
		if err := stranger(port); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("port %d could be taken: %v", port, err)
		}
	}
	if c, err := net.Dial("tcp", addr.String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connecting: %v, %v", c, err)
	}
	if err := w.Restart(); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	f.Close()
	if len(w.reserved) > 0 {
		t.Error("the ports are kept after the end")
	}
}
