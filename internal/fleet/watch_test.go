package fleet

import (
	"sync"
	"testing"
)

type listener struct{ notified chan struct{} }

func (m listener) WorkerDead() { m.notified <- struct{}{} }

func newListener() listener { return listener{make(chan struct{}, 2)} }

func watchedRank() (*Rank, *liveness) {
	w := &Worker{}
	l := newLiveness()
	w.liveness.Store(l)
	return &Rank{worker: w}, l
}

func TestDeathListenersAreNotifiedOnce(t *testing.T) {
	r, l := watchedRank()
	a, b, c := newListener(), newListener(), newListener()
	var wa, wb, wc Watch
	r.Watch(&wa, a)
	r.Watch(&wb, b)
	r.Watch(&wc, c)
	wb.Stop()
	wb.Stop()
	l.end(ErrDead)
	wa.Stop()
	if len(a.notified) != 1 || len(b.notified) != 0 || len(c.notified) != 1 {
		t.Errorf("notified %d, %d and %d times", len(a.notified), len(b.notified), len(c.notified))
	}
	r.Watch(&wb, b)
	if len(b.notified) != 1 {
		t.Error("a listener that comes after the death is not notified")
	}
	wb.Stop()
	var unused Watch
	unused.Stop()
}

func TestDeathListenersUnderContention(t *testing.T) {
	r, l := watchedRank()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			m := newListener()
			for range 200 {
				var w Watch
				r.Watch(&w, m)
				w.Stop()
				for len(m.notified) > 0 {
					<-m.notified
				}
			}
		})
	}
	wg.Go(func() { l.end(ErrDead) })
	wg.Wait()
	if l.listeners.Len() != 0 {
		t.Error("a stopped watcher is still in the list")
	}
}
