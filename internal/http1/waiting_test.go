package http1

import (
	"math/rand/v2"
	"testing"

	"github.com/sluice-router/sluice/internal/mono"
)

// Whatever connections do between the searches, the one that is found is the oldest of
// those that have never sent a head, else the one of those that wait whose last progress
// is longest ago; and none is forgotten.
func TestConnectionsAreEvictedInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := &Server{}
	w := &s.waiting
	all := map[*conn]bool{}
	clock := int64(0)
	tick := func() int64 { clock++; return clock }
	// want is the victim found by looking at all.
	want := func() (victim *conn) {
		for c := range all {
			met := c.sentHead.Load()
			switch state := c.state.Load(); {
			case state == stateActive:
			case victim == nil, !met && victim.sentHead.Load(), met == victim.sentHead.Load() && c.since.Load() < victim.since.Load():
				victim = c
			}
		}
		return victim
	}
	pick := func() *conn {
		for c := range all { // any
			return c
		}
		return nil
	}
	found := 0
	for range 100_000 {
		c := pick()
		switch op := rng.IntN(10); {
		case c == nil || op < 2 && len(all) < 200:
			c = &conn{srv: s}
			c.since.Store(tick())
			w.add(c)
			all[c] = true
		case op < 3: // a head comes
			if !c.sentHead.Load() {
				w.firstHead(c)
			}
			c.state.Store(stateActive)
		case op < 5: // its answer is sent
			if c.state.CompareAndSwap(stateActive, stateIdle) {
				c.since.Store(tick())
				c.park(stateWaits)
			}
		case op < 6: // bytes of a body are waited for
			if c.state.Load() == stateActive {
				c.since.Store(tick())
				c.park(stateWaits)
			}
		case op < 7: // bytes come
			if c.sentHead.Load() && c.state.Load() != stateActive {
				c.since.Store(tick())
			}
		case op < 8: // it ends
			w.remove(c)
			delete(all, c)
		default:
			should := want()
			got, _ := w.victim(minAges{}, nil)
			if got != should {
				t.Fatalf("found %+v, want %+v", got, should)
			}
			if got != nil {
				found++
				if got.state.Load() != stateEvicted {
					t.Fatal("what was found may go on")
				}
				w.remove(got)
				delete(all, got)
			}
		}
	}
	if found < 1000 {
		t.Errorf("%d were found", found)
	}
	silent := 0
	for c := range all {
		if !c.sentHead.Load() {
			silent++
		}
	}
	if n := w.silent.Load(); n != int64(silent) {
		t.Errorf("%d are counted that have sent no head, there are %d", n, silent)
	}
}

// A search costs what connections have done since the last one, not how many there are.
func TestSearchForAVictimIsNotLinear(t *testing.T) {
	s := &Server{}
	now := int64(mono.Now())
	var all []*conn
	for i := range 10_000 {
		c := &conn{srv: s}
		c.since.Store(now + int64(i))
		s.waiting.add(c)
		s.waiting.firstHead(c)
		c.state.Store(stateIdle)
		all = append(all, c)
	}
	// The first search sorts them; then half of them get a request.
	if c, _ := s.waiting.victim(minAges{}, nil); c != all[0] {
		t.Fatal("not the first")
	}
	for _, c := range all[5000:] {
		c.state.Store(stateActive)
	}
	for i := 1; i < 5000; i++ {
		if c, _ := s.waiting.victim(minAges{}, nil); c != all[i] {
			t.Fatal("not the next")
		}
	}
	if n := s.waiting.others.Len(); n != 5000 {
		t.Errorf("%d are left", n)
	}
	// One search takes all off that have requests, and the next finds nothing to look at.
	for range 2 {
		if c, _ := s.waiting.victim(minAges{}, nil); c != nil {
			t.Fatal("one with a request was found")
		}
	}
	if n := s.waiting.others.Len(); n != 0 {
		t.Errorf("%d with requests are looked at each time", n)
	}
	// They come back as they wait.
	all[7000].state.Store(stateIdle)
	all[7000].park(stateWaits)
	if c, _ := s.waiting.victim(minAges{}, nil); c != all[7000] {
		t.Error("one that waits again was not found")
	}
}
