package dispatch

import (
	"sync"
	"time"
)

// latch is closed once, like a channel. It has one only if somebody must wait.
type latch struct {
	mu sync.Mutex
	// guarded by mu
	closed bool
	ch     chan struct{}
}

// close must not be called twice.
func (l *latch) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.ch != nil {
		close(l.ch)
	}
}

func (l *latch) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// wait returns a channel that is closed when the latch is.
func (l *latch) wait() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ch == nil {
		l.ch = make(chan struct{})
		if l.closed {
			close(l.ch)
		}
	}
	return l.ch
}

// waitFor waits for l, at most d.
func waitFor(l *latch, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-l.wait():
	case <-t.C:
	}
}
