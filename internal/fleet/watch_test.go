package fleet

import (
	"sync"
	"testing"
)

type mourner struct{ told chan struct{} }

func (m mourner) WorkerDead() { m.told <- struct{}{} }

func newMourner() mourner { return mourner{make(chan struct{}, 2)} }

func watchedRank() (*Rank, *liveness) {
	w := &Worker{}
	l := newLiveness()
	w.liveness.Store(l)
	return &Rank{worker: w}, l
}

func TestWatchersAreToldOnce(t *testing.T) {
	r, l := watchedRank()
	a, b, c := newMourner(), newMourner(), newMourner()
	var wa, wb, wc Watch
	r.Watch(&wa, a)
	r.Watch(&wb, b)
	r.Watch(&wc, c)
	wb.Stop()
	wb.Stop()
	l.end(ErrDead)
	wa.Stop()
	if len(a.told) != 1 || len(b.told) != 0 || len(c.told) != 1 {
		t.Errorf("told %d, %d and %d times", len(a.told), len(b.told), len(c.told))
	}
	r.Watch(&wb, b)
	if len(b.told) != 1 {
		t.Error("who comes after the death is not told")
	}
	wb.Stop()
	var unused Watch
	unused.Stop()
}

func TestWatchersUnderContention(t *testing.T) {
	r, l := watchedRank()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			m := newMourner()
			for range 200 {
				var w Watch
				r.Watch(&w, m)
				w.Stop()
				for len(m.told) > 0 {
					<-m.told
				}
			}
		})
	}
	wg.Go(func() { l.end(ErrDead) })
	wg.Wait()
	if l.first != nil {
		t.Error("a stopped watcher is still in the list")
	}
}
