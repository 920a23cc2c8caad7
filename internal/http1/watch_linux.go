package http1

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// watcher notices that a client closed its side or that its connection broke, even
// behind unread bytes and without a read: it has an epoll of its own that reports
// nothing else. So a request needs no goroutine that reads ahead.
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
	// The runtime waits for non-blocking files with its own epoll, to which this one is
	// added.
	file := os.NewFile(uintptr(fd), "epoll")
	if w.raw, err = file.SyscallConn(); err != nil {
		_ = file.Close()
		return fmt.Errorf("cannot watch connections: %w", err)
	}
	w.file, w.conns, w.done = file, map[uint64]*conn{}, make(chan struct{})
	go w.run()
	return nil
}

// run handles events until the epoll's file is closed.
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

// connID is the connection id in an event's 64 bits of user data.
func connID(e *unix.EpollEvent) uint64 { return uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32 }

// add begins to watch a connection. If that fails, a disconnect is noticed at the next
// write.
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

// remove stops watching a connection. The kernel's part ends when the socket is closed.
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

// unreadBytes reports whether the socket has unread bytes. Callable from any goroutine.
func (c *conn) unreadBytes() bool {
	if c.raw == nil {
		return false
	}
	n := 0
	_ = c.raw.Control(func(fd uintptr) { // fails only if closed
		n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) // on an error n is 0
	})
	return n > 0
}
