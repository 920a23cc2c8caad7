package http1

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// watcher notices that a client closed its side or that its connection broke,
// whatever bytes lie unread before that, and without a read: one epoll of its own
// is told of nothing else. So a request needs no goroutine that reads ahead for it.
type watcher struct {
	file *os.File // the epoll
	raw  syscall.RawConn
	done chan struct{} // closed when run has returned

	mu sync.Mutex
	// guarded by mu
	conns map[uint64]*conn
	last  uint64
}

const watched = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR | unix.EPOLLET

func (w *watcher) start() error {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cannot watch connections: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("cannot watch connections: %w", err)
	}
	// A file that does not block is waited for by the runtime's own epoll, in which
	// this one lies then.
	file := os.NewFile(uintptr(fd), "epoll")
	if w.raw, err = file.SyscallConn(); err != nil {
		_ = file.Close()
		return fmt.Errorf("cannot watch connections: %w", err)
	}
	w.file, w.conns, w.done = file, map[uint64]*conn{}, make(chan struct{})
	go w.run()
	return nil
}

// run ends when the file is closed.
func (w *watcher) run() {
	defer close(w.done)
	var events [64]unix.EpollEvent
	for {
		n := 0
		err := w.raw.Read(func(fd uintptr) bool {
			var err error
			for n, err = unix.EpollWait(int(fd), events[:], 0); err == unix.EINTR; {
				n, err = unix.EpollWait(int(fd), events[:], 0)
			}
			return n > 0 || err != nil
		})
		if err != nil || n < 0 {
			return
		}
		for i := range n {
			if c := w.find(connID(&events[i])); c != nil {
				c.gone()
			}
		}
	}
}

func (w *watcher) find(id uint64) *conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conns[id]
}

// connID is what an event's 64 bits of user data hold.
func connID(e *unix.EpollEvent) uint64 { return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32 }

// add begins to watch a connection. If that is not possible its end is noticed
// when it is written to.
func (w *watcher) add(c *conn) {
	if c.raw == nil {
		return // see peeker
	}
	w.mu.Lock()
	w.last++
	c.id = w.last
	w.conns[c.id] = c
	w.mu.Unlock()
	_ = w.raw.Control(func(epoll uintptr) {
		_ = c.raw.Control(func(fd uintptr) {
			e := unix.EpollEvent{Events: watched, Fd: int32(uint32(c.id)), Pad: int32(uint32(c.id >> 32))}
			if err := unix.EpollCtl(int(epoll), unix.EPOLL_CTL_ADD, int(fd), &e); err != nil {
				c.srv.Report("cannot watch a connection for its end", err)
			}
		})
	})
}

// remove forgets a connection. The kernel has done so when it was closed.
func (w *watcher) remove(c *conn) {
	w.mu.Lock()
	delete(w.conns, c.id)
	w.mu.Unlock()
}

func (w *watcher) stop() {
	if w.file == nil {
		return
	}
	_ = w.file.Close()
	<-w.done
}

// unreadBytes tells whether bytes have come that were not read yet. Callable from every
// goroutine.
func (c *conn) unreadBytes() bool {
	if c.raw == nil {
		return false
	}
	n := 0
	_ = c.raw.Control(func(fd uintptr) { // fails only if closed
		n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) // an error is as good as nothing
	})
	return n > 0
}
