//go:build !sluice_noraw

package wire

import (
	"bytes"
	"io"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// pair is a connection whose ends do not block.
func pair(t *testing.T) (a, b uintptr) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range fds {
			_ = unix.Close(fd) // may be closed already
		}
	})
	return uintptr(fds[0]), uintptr(fds[1])
}

// Short and long, one piece and several, arrive as they were sent.
func TestReadAndWrite(t *testing.T) {
	const short = 32 << 10 // where another way is taken
	for _, n := range []int{1, 4 << 10, short - 1, short, short + 1, 100 << 10} {
		for _, pieces := range []int{1, 3} {
			a, b := pair(t)
			sent := bytes.Repeat([]byte("0123456789abcdef_"), n/17+1)[:n]
			rest := [][]byte{bytes.Clone(sent)}
			if pieces > 1 {
				rest = [][]byte{sent[: n/3 : n/3], sent[n/3 : n/2 : n/2], sent[n/2:]}
			}
			var got []byte
			for buf := make([]byte, n); len(got) < n; {
				k, err := Write(a, rest)
				if err != nil {
					t.Fatal(err)
				}
				rest = Consume(rest, k)
				switch m, err := Read(b, buf); err {
				case nil:
					got = append(got, buf[:m]...)
				case ErrWouldBlock:
				default:
					t.Fatal(err)
				}
			}
			if !bytes.Equal(got, sent) {
				t.Errorf("%d bytes in %d pieces arrived changed", n, pieces)
			}
		}
	}
}

func TestReadAndWriteDoNotWait(t *testing.T) {
	for _, n := range []int{1, 100 << 10} {
		a, b := pair(t)
		buf := make([]byte, n)
		if k, err := Read(a, buf); k != 0 || err != ErrWouldBlock {
			t.Errorf("a read of %d with nothing there: %d, %v", n, k, err)
		}
		for full := false; !full; {
			k, err := Write(a, [][]byte{buf})
			if err != nil {
				t.Fatal(err)
			}
			full = k == 0
		}
		if err := unix.Close(int(b)); err != nil {
			t.Fatal(err)
		}
		if _, err := Write(a, [][]byte{buf}); err != syscall.EPIPE {
			t.Errorf("a write of %d to nobody: %v", n, err)
		}
		c, d := pair(t)
		if err := unix.Shutdown(int(d), unix.SHUT_WR); err != nil {
			t.Fatal(err)
		}
		if k, err := Read(c, buf); k != 0 || err != io.EOF {
			t.Errorf("a read of %d at the end: %d, %v", n, k, err)
		}
	}
}
