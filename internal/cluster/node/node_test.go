package node

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
)

// load has members ask for grants without a pause, and counts how many hold the prefill rank
// at once, as they know it.
type load struct {
	stop    context.CancelFunc
	done    sync.WaitGroup
	held    atomic.Int64
	most    atomic.Int64
	granted atomic.Int64
	mu      sync.Mutex
	by      map[string]int
	errs    []error
}

func (w *world) load(callers int, members ...*process) *load {
	ctx, stop := context.WithCancel(w.t.Context())
	l := &load{stop: stop, by: map[string]int{}}
	for _, p := range members {
		for range callers {
			l.done.Go(func() {
				for ctx.Err() == nil {
					l.one(ctx, p)
				}
			})
		}
	}
	w.t.Cleanup(l.end)
	return l
}

// one takes a grant and gives it back.
func (l *load) one(ctx context.Context, p *process) {
	k := p.ticket()
	defer k.Close()
	if err := p.gate.Acquire(ctx, k); err != nil {
		if ctx.Err() == nil {
			l.mu.Lock()
			l.errs = append(l.errs, err)
			l.mu.Unlock()
			time.Sleep(10 * time.Millisecond) // as a client would that comes again
		}
		return
	}
	for now, most := l.held.Add(1), l.most.Load(); now > most && !l.most.CompareAndSwap(most, now); most = l.most.Load() {
	}
	l.granted.Add(1)
	l.mu.Lock()
	l.by[p.Self().Name]++
	l.mu.Unlock()
	time.Sleep(time.Millisecond) // the prefill
	l.held.Add(-1)
	k.EndPrefill()
	k.StartDecode()
	k.FirstToken()
	k.EndDecode()
}

func (l *load) end() {
	l.stop()
	l.done.Wait()
}

// goesOn waits until each of the members was granted something more.
func (l *load) goesOn(t *testing.T, members ...*process) {
	t.Helper()
	l.mu.Lock()
	before := map[string]int{}
	for k, v := range l.by {
		before[k] = v
	}
	l.mu.Unlock()
	eventually(t, "grants for all", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, p := range members {
			if name := p.Self().Name; l.by[name] < before[name]+5 {
				return false
			}
		}
		return true
	})
}

// nothingHeld waits until the keeper has nothing booked and nobody waiting.
func nothingHeld(t *testing.T, members ...*process) {
	t.Helper()
	eventually(t, "nothing is held", func() bool {
		var s *admission.Stats
		for _, p := range members { // a busy machine may have made another one the keeper
			if s = p.Stats(); s != nil {
				break
			}
		}
		if s == nil || s.Waiting != 0 {
			return false
		}
		for _, r := range s.Ranks {
			if r.PrefillSlots+r.PrefillLegs+r.PendingDecode+r.ActiveDecode != 0 {
				return false
			}
		}
		return true
	})
}

// Three members are granted together what one limit allows, and nothing is left over.
func TestThreeMembersAreOneGate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.start("a", nil), w.start("b", nil), w.start("c", nil)
	w.keeperOf(a, b, c)
	l := w.load(4, a, b, c)
	l.goesOn(t, a, b, c)
	l.goesOn(t, a, b, c)
	l.end()
	if most := l.most.Load(); most > int64(w.slots) || most < 2 {
		t.Errorf("%d in prefill at once, the limit is %d", most, w.slots)
	}
	if len(l.errs) > 0 {
		t.Errorf("%d were refused: %v", len(l.errs), l.errs[0])
	}
	nothingHeld(t, a, b, c)
}

// A limit that one member uses up is used up for all; what it gives back goes to the next,
// and a caller that leaves leaves nothing.
func TestAWaiterIsServedWhenAnotherMemberEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.start("a", nil), w.start("b", nil)
	keeper := w.keeperOf(a, b)
	first, second := a.acquire(t), b.acquire(t)
	ctx, leave := context.WithCancel(t.Context())
	var leaver, waiter error
	var wg sync.WaitGroup
	k := b.ticket()
	wg.Go(func() { leaver = b.gate.Acquire(ctx, b.ticket()) })
	eventually(t, "one waits", func() bool { s := keeper.Stats(); return s != nil && s.Waiting == 1 })
	wg.Go(func() { waiter = b.gate.Acquire(t.Context(), k) })
	eventually(t, "two wait", func() bool { s := keeper.Stats(); return s != nil && s.Waiting == 2 })
	leave()
	eventually(t, "one left", func() bool { s := keeper.Stats(); return s != nil && s.Waiting == 1 })
	first.Close()
	wg.Wait()
	if !errors.Is(leaver, context.Canceled) || waiter != nil {
		t.Fatalf("the one that left: %v; the other: %v", leaver, waiter)
	}
	if !k.Queued() || k.Prefill.ID() != "http://prefill0" || k.Decode.ID() != "http://decode0" {
		t.Errorf("it was granted %v and %v, queued %v", k.Prefill, k.Decode, k.Queued())
	}
	k.Close()
	second.Close()
	nothingHeld(t, a, b)
}

// A planned handover under load refuses nobody and exceeds nothing.
func TestHandoverUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.start("a", nil), w.start("b", nil), w.start("c", nil)
	keeper := w.keeperOf(a, b, c)
	rest := others(keeper, a, b, c)
	l := w.load(4, a, b, c)
	l.goesOn(t, a, b, c)
	if err := rest[0].HandOver(t.Context()); !errors.Is(err, cluster.ErrNotKeeper) {
		t.Errorf("who is not the keeper hands over: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if err := keeper.HandOver(ctx); err != nil {
		t.Fatal(err)
	}
	l.goesOn(t, a, b, c)
	next := w.keeperOf(a, b, c)
	if next == keeper {
		t.Error("it is the keeper still")
	}
	// The one that leaves takes nothing along.
	l.end()
	next.Leave(ctx)
	w.keeperOf(others(next, a, b, c)...)
	nothingHeld(t, others(next, a, b, c)...)
	if most := l.most.Load(); most > int64(w.slots) {
		t.Errorf("%d in prefill at once, the limit is %d", most, w.slots)
	}
	if len(l.errs) > 0 {
		t.Errorf("%d were refused: %v", len(l.errs), l.errs[0])
	}
}

// A keeper that is gone without a word is replaced; what it held is given to others when it
// is counted no more.
func TestTheKeeperIsKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b, c := w.start("a", nil), w.start("b", nil), w.start("c", nil)
	keeper := w.keeperOf(a, b, c)
	rest := others(keeper, a, b, c)
	keeper.acquire(t) // a slot that dies with it
	l := w.load(3, rest...)
	l.goesOn(t, rest...)
	keeper.Close()
	next := w.keeperOf(rest...)
	l.goesOn(t, rest...)
	l.end()
	if most := l.most.Load(); most > int64(w.slots)-1 {
		t.Errorf("%d in prefill at once beside the one that died with its member, the limit is %d", most, w.slots)
	}
	eventually(t, "the lost member is forgotten", func() bool { return len(next.Status().View.Members) == 2 })
	x, y := rest[0].acquire(t), rest[1].acquire(t) // both slots
	x.Close()
	y.Close()
	nothingHeld(t, rest...)
}

// A member that is cut off from the keeper, in one way or both, is granted nothing and
// disturbs nobody; mended, it is one of them again.
func TestALinkIsCut(t *testing.T) {
	for _, c := range []struct {
		name             string
		fromKeeper, back bool
	}{
		{"from the keeper", true, false},
		{"to the keeper", false, true},
		{"both", true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			a, b, d := w.start("a", nil), w.start("b", nil), w.start("c", nil)
			keeper := w.keeperOf(a, b, d)
			rest := others(keeper, a, b, d)
			cut, fine := rest[0], rest[1]
			l := w.load(3, a, b, d)
			l.goesOn(t, a, b, d)
			k, x := keeper.Self().Name, cut.Self().Name
			w.links.set(k, x, c.fromKeeper)
			w.links.set(x, k, c.back)
			eventually(t, "it is seen", func() bool { v := keeper.Status().View; return v != nil && answering(v) == 2 })
			l.goesOn(t, keeper, fine)
			w.links.set(k, x, false)
			w.links.set(x, k, false)
			w.keeperOf(a, b, d)
			l.goesOn(t, a, b, d)
			l.end()
			if most := l.most.Load(); most > int64(w.slots) {
				t.Errorf("%d in prefill at once, the limit is %d", most, w.slots)
			}
		})
	}
}

// The state of the whole is told by every member, and is old when the keeper does not tell.
func TestEveryMemberTellsOfTheWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a, b := w.start("a", nil), w.start("b", nil)
	keeper := w.keeperOf(a, b)
	other := others(keeper, a, b)[0]
	k := keeper.acquire(t)
	defer k.Close()
	for _, p := range []*process{a, b} {
		eventually(t, "the whole at "+p.Self().Name, func() bool {
			s, age, whole, err := p.GateStats(t.Context())
			return err == nil && whole && age == 0 && slots(&s) == 1
		})
	}
	if other.Stats() != nil || keeper.Stats() == nil {
		t.Error("gauges are to come from the keeper alone")
	}
	eventually(t, "the load of the pool", func() bool {
		l, ok := other.PoolLoad("m", admission.RolePrefill)
		return ok && l.Ranks == 1 && l.Requests == 1
	})
	k.Close()
	eventually(t, "the load of the pool without the request", func() bool {
		l, ok := other.PoolLoad("m", admission.RolePrefill)
		return ok && l.Ranks == 1 && l.Requests == 0
	})
	for range 2 { // the second is answered by the sum that was kept
		if l, ok := other.PoolLoad("another", admission.RolePrefill); !ok || l.Ranks != 0 {
			t.Errorf("a pool without ranks has the load %+v, known %v", l, ok)
		}
	}
	keeper.Close()
	eventually(t, "an old view", func() bool {
		_, age, whole, err := other.GateStats(t.Context())
		return err == nil && whole && age > 0
	})
}

func slots(s *admission.Stats) (n int) {
	for _, r := range s.Ranks {
		n += r.PrefillSlots
	}
	return n
}

// A gate whose node is closed refuses: nobody waits for ever.
func TestAClosedNodeRefuses(t *testing.T) {
	w := newWorld(t)
	p := w.start("a", nil)
	w.keeperOf(p)
	p.Close()
	var r *admission.Refusal
	if err := p.gate.Acquire(t.Context(), p.ticket()); !errors.As(err, &r) || r.Reason != admission.GateUnavailable {
		t.Fatal(err)
	}
	if err := p.HandOver(t.Context()); err == nil {
		t.Error("it hands over")
	}
	p.Close()
}
