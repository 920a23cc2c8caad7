package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// started is a world of n members which decides, and in which nothing fails.
func started(t *testing.T, n int) *world {
	t.Helper()
	w := newWorld(1, scheduled{kind: oneAtATime, fallback: FallbackRefuse}, false)
	for host := range n {
		w.start(host, fmt.Sprintf("m%d", host))
	}
	w.run(w.now.Add(4 * w.o.Lease))
	if len(w.deciding()) != 1 {
		t.Fatal("nobody decides")
	}
	return w
}

// decidesAgain is how long it takes until the gate decides for n members.
func (w *world) decidesAgain(t *testing.T, n int) (after time.Duration) {
	t.Helper()
	began := w.now
	for w.now < began.Add(10*w.o.Lease) {
		w.run(w.now.Add(10 * time.Millisecond))
		if who := w.deciding(); len(who) == 1 && len(who[0].m.keeper.order) == n {
			return w.now.Sub(began)
		}
	}
	t.Fatal("nobody decides for all")
	return 0
}

// All routers are killed and started again under their names: each of them proves that the
// one before it has ended, so neither the record has to expire nor anybody has to be lost.
func TestAllAreKilledAndStartedAgain(t *testing.T) {
	for n := 1; n <= 4; n++ {
		w := started(t, n)
		for _, p := range w.living() {
			w.crash(p)
		}
		for host := range n {
			w.start(host, fmt.Sprintf("m%d", host))
		}
		if after := w.decidesAgain(t, n); after >= w.o.Lease {
			t.Errorf("%d members: the gate decides for all after %v, the lease is %v", n, after, w.o.Lease)
		}
		if w.failure != "" {
			t.Errorf("%d members: %s", n, w.failure)
		}
	}
}

// One of the routers does not come back: the others wait for it as for any that is lost.
func TestAllButOneAreStartedAgain(t *testing.T) {
	w := started(t, 3)
	for _, p := range w.living() {
		w.crash(p)
	}
	killed := w.now
	for host := range 2 {
		w.start(host, fmt.Sprintf("m%d", host))
	}
	w.decidesAgain(t, 3) // the lost one is among them
	if after := w.now.Sub(killed); after < w.o.Lease {
		t.Errorf("the gate decides after %v, before the third can be lost", after)
	}
}

// A process that has the name and address of a living keeper by mistake, and hears nothing
// of it, does not count it as ended: the keeper renews the record.
func TestANameThatALivingKeeperHas(t *testing.T) {
	w := started(t, 1)
	keeper := w.living()[0]
	w.link(0, 0).cut = true
	other := w.start(0, "m0")
	for range 100 {
		w.run(w.now.Add(50 * time.Millisecond))
		other.call(func(now admission.Instant) { other.m.LeadsHere(now, keeper.inc) })
		if who := w.deciding(); len(who) != 1 || who[0] != keeper {
			t.Fatalf("%d decide, and not the keeper alone", len(who))
		}
	}
	if other.m.election.hasEnded(keeper.inc) {
		t.Error("the keeper counts as ended")
	}
}
