package fleet

import (
	"sync"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/config/configtest"
)

type listener struct{ notified chan struct{} }

func (m listener) WorkerDead() { m.notified <- struct{}{} }
func (m listener) RankWedged() { m.notified <- struct{}{} }

func newListener() listener { return listener{make(chan struct{}, 2)} }

func watchedRank() (*Rank, *liveness) {
	w := &Worker{fleet: &Fleet{clock: admission.NewSystemClock(), cfg: configtest.New(func(c *config.Config) { c.Health.Wedge = 0 })}}
	l := newLiveness()
	w.liveness.Store(l)
	return &Rank{worker: w}, l
}

func TestDeathListenersAreNotifiedOnce(t *testing.T) {
	r, l := watchedRank()
	a, b, c := newListener(), newListener(), newListener()
	var wa, wb, wc Watch
	r.Watch(&wa, a, Leg{})
	r.Watch(&wb, b, Leg{})
	r.Watch(&wc, c, Leg{})
	wb.Stop()
	wb.Stop()
	l.end(ErrDead)
	wa.Stop()
	if len(a.notified) != 1 || len(b.notified) != 0 || len(c.notified) != 1 {
		t.Errorf("notified %d, %d and %d times", len(a.notified), len(b.notified), len(c.notified))
	}
	r.Watch(&wb, b, Leg{})
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
				r.Watch(&w, m, Leg{})
				w.Stop()
				for len(m.notified) > 0 {
					<-m.notified
				}
			}
		})
	}
	wg.Go(func() { l.end(ErrDead) })
	wg.Wait()
	if l.legs.Len() != 0 {
		t.Error("a stopped watcher is still in the list")
	}
}
