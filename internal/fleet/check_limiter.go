package fleet

import "sync"

// checkLimiter bounds the checks that run at once. Workers whose last check failed
// may take half of the places, so that workers that hang do not delay the others.
type checkLimiter struct {
	// immutable
	max int

	mu sync.Mutex
	// guarded by mu
	running, failing int
	waiting          [2][]func() // others, doubtful
	closed           bool

	wg sync.WaitGroup
}

// start runs f on a goroutine of its own, now or when a place is free.
func (l *checkLimiter) start(doubt bool, f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if l.roomLocked(doubt) {
		l.goLocked(doubt, f)
		return
	}
	l.waiting[queueOf(doubt)] = append(l.waiting[queueOf(doubt)], f)
}

func queueOf(doubt bool) int {
	if doubt {
		return 1
	}
	return 0
}

func (l *checkLimiter) roomLocked(doubt bool) bool {
	return l.running < l.max && (!doubt || l.failing < max(l.max/2, 1))
}

func (l *checkLimiter) goLocked(doubt bool, f func()) {
	l.running++
	l.failing += queueOf(doubt)
	l.wg.Go(func() {
		defer l.finish(doubt)
		f()
	})
}

// close drops the checks that wait and waits for those that run.
func (l *checkLimiter) close() {
	l.mu.Lock()
	l.closed = true
	l.waiting = [2][]func(){}
	l.mu.Unlock()
	l.wg.Wait()
}

func (l *checkLimiter) finish(doubt bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	l.failing -= queueOf(doubt)
	for i, doubt := range []bool{false, true} {
		for len(l.waiting[i]) > 0 && l.roomLocked(doubt) {
			f := l.waiting[i][0]
			l.waiting[i][0] = nil
			l.waiting[i] = l.waiting[i][1:]
			l.goLocked(doubt, f)
		}
	}
}
