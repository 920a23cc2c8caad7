package admission

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Defaults of the model test; flags on the command line win.
	flag.Set("rapid.checks", modelChecks)
	flag.Set("rapid.steps", "60")
	goleak.VerifyTestMain(m)
}

func rank(id string, role Role, models ...string) *Rank {
	return NewRank(RankSpec{ID: id, Worker: id, Role: role, Models: models, State: RankState{Healthy: true}})
}

// pairGate is a gate with one prefill and one decode rank of model m.
func pairGate(l Limits) (g *Gate, p, d *Rank) {
	g = NewGate(Options{Limits: l}, NewSystemClock(), nil)
	p, d = rank("p1", RolePrefill, "m"), rank("d1", RoleDecode, "m")
	g.Apply(Change{Op: AddRank, Rank: p}, Change{Op: AddRank, Rank: d})
	return g, p, d
}

func (g *Gate) disaggregated() *Ticket {
	return &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}
}

func reason(err error) Reason {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Reason
	}
	return reasonNone
}

// visit is one request against a prefill worker that takes 3 s and an immediate
// decode worker.
type visit struct {
	err     error
	at, end time.Duration // when Acquire returned and when prefill was over
	waited  time.Duration
}

// overlapping sends n requests one millisecond apart and returns when all are
// over. look is called while they run.
func overlapping(g *Gate, n int, look func()) []visit {
	visits := make([]visit, n)
	start := time.Now()
	var all sync.WaitGroup
	for i := range visits {
		v := &visits[i]
		all.Go(func() {
			k := g.disaggregated()
			defer k.Close()
			v.err = g.Acquire(context.Background(), k)
			v.at, v.waited = time.Since(start), k.Waited()
			if v.err == nil {
				time.Sleep(3 * time.Second)
				k.EndPrefill()
				v.end = time.Since(start)
			}
		})
		time.Sleep(time.Millisecond)
	}
	look()
	all.Wait()
	return visits
}

func TestScenarioQueueOfOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p, d := pairGate(Limits{PrefillSlots: 1, QueueSize: 1, QueueTimeout: 2 * time.Second})
		defer g.Close()
		v := overlapping(g, 3, func() {})
		if v[0].err != nil || v[0].at != 0 || v[0].end != 3*time.Second {
			t.Errorf("first: %+v", v[0])
		}
		if reason(v[1].err) != QueueTimeout || v[1].waited != 2*time.Second || v[1].at != 2*time.Second+time.Millisecond {
			t.Errorf("second: %+v", v[1])
		}
		if reason(v[2].err) != QueueFull || v[2].waited != 0 || v[2].at != 2*time.Millisecond {
			t.Errorf("third: %+v", v[2])
		}
		wantIdle(t, g, p, d)
	})
}

func TestScenarioQueueOfFour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p, d := pairGate(Limits{PrefillSlots: 1, QueueSize: 4, QueueTimeout: 30 * time.Second})
		defer g.Close()
		v := overlapping(g, 3, func() {
			if s := g.RankStats(p); s.PrefillSlots != 1 || g.Waiting() != 2 {
				t.Errorf("in flight %d, queued %d", s.PrefillSlots, g.Waiting())
			}
		})
		var waits time.Duration
		for i := range v {
			if v[i].err != nil || v[i].end != time.Duration(i+1)*3*time.Second {
				t.Errorf("request %d: %+v", i, v[i])
			}
			waits += v[i].waited
		}
		if waits < 8*time.Second || waits > 9*time.Second {
			t.Errorf("the waits add up to %s", waits)
		}
		wantIdle(t, g, p, d)
	})
}

func TestScenarioNothingQueues(t *testing.T) {
	for _, slots := range []int{-1, 0, 3, 100} {
		synctest.Test(t, func(t *testing.T) {
			g, p, d := pairGate(Limits{PrefillSlots: slots, QueueSize: 0})
			defer g.Close()
			for i, v := range overlapping(g, 3, func() {}) {
				if v.err != nil || v.waited != 0 {
					t.Errorf("slots %d, request %d: %+v", slots, i, v)
				}
			}
			wantIdle(t, g, p, d)
		})
	}
}

// wantIdle fails unless nobody waits, all ranks hold nothing, and no pinned
// target is left.
func wantIdle(t *testing.T, g *Gate, ranks ...*Rank) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range ranks {
		if !r.idle() {
			t.Errorf("%s still holds: %+v", r.id, r.stats())
		}
	}
	if g.core.waiting != 0 || len(g.core.pinned) != 0 || g.core.missed != 0 {
		t.Errorf("%d wait, %d pinned targets, %d events missed", g.core.waiting, len(g.core.pinned), g.core.missed)
	}
	if err := checkIndexes(g.core); err != nil {
		t.Error(err)
	}
}

// The caller gives up at the moment of its grant. Either order leaves no hold,
// and the next waiter gets the slot.
func TestCancelVersusGrant(t *testing.T) {
	for _, granted := range []bool{false, true} {
		t.Run(fmt.Sprintf("grant first %t", granted), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, p, d := pairGate(Limits{PrefillSlots: 1, QueueSize: 5})
				defer g.Close()
				a, b, c := g.disaggregated(), g.disaggregated(), g.disaggregated()
				if err := g.Acquire(t.Context(), a); err != nil {
					t.Fatal(err)
				}
				ctx, leave := context.WithCancelCause(t.Context())
				gone := errors.New("the client is gone")
				var errB, errC error
				go func() { errB = g.Acquire(ctx, b) }()
				synctest.Wait()
				go func() { errC = g.Acquire(t.Context(), c) }()
				synctest.Wait()

				if granted {
					// The grant happens while the caller already is on its way
					// to cancel; its answer comes last.
					g.mu.Lock()
					leave(gone)
					var out []*Ticket
					g.core.Release(g.clock.Now(), a, &out)
					g.mu.Unlock()
					if !slices.Equal(out, []*Ticket{b}) {
						t.Fatal("the head was not granted")
					}
					synctest.Wait() // b lost the race and waits for the answer
					b.wake <- struct{}{}
				} else {
					leave(gone)
					synctest.Wait()
					a.Release()
				}
				synctest.Wait()
				if !errors.Is(errB, gone) {
					t.Errorf("b: %v", errB)
				}
				if errC != nil || c.state != stateGranted {
					t.Errorf("c: %v", errC)
				}
				c.Release()
				wantIdle(t, g, p, d)
			})
		})
	}
}

// A refusal that meets a cancellation is a cancellation.
func TestCancelVersusRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p, d := pairGate(Limits{PrefillSlots: 1, QueueSize: 5})
		defer g.Close()
		a, b := g.disaggregated(), g.disaggregated()
		if err := g.Acquire(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		var errB error
		go func() { errB = g.Acquire(ctx, b) }()
		synctest.Wait()
		g.mu.Lock()
		leave()
		var out []*Ticket
		g.core.RefuseWaiters(g.clock.Now(), &out)
		g.mu.Unlock()
		synctest.Wait()
		b.wake <- struct{}{}
		synctest.Wait()
		if !errors.Is(errB, context.Canceled) {
			t.Error(errB)
		}
		a.Release()
		wantIdle(t, g, p, d)
	})
}

// Thousands of requests from many goroutines, cancelled at any moment, on a
// fleet that changes under them: no slot is granted twice and nothing is left.
func TestStress(t *testing.T) {
	const workers, slots, rounds, callers = 3, 2, 250, 24
	g := NewGate(Options{
		Limits:    Limits{PrefillSlots: slots, QueueSize: callers, QueueTimeout: 20 * time.Millisecond, NoWorkerWait: time.Millisecond},
		NewPolicy: func(string, Role) Policy { return leastLoaded{} },
	}, NewSystemClock(), nil)

	var inPrefill sync.Map // *Rank → *atomic.Int32
	var every []*Rank      // all generations
	fresh := func(id string, role Role) *Rank {
		r := rank(id, role, "m")
		inPrefill.Store(r, new(atomic.Int32))
		every = append(every, r)
		return r
	}
	live := map[string]*Rank{}
	for i := range workers {
		for _, role := range []Role{RolePrefill, RoleDecode} {
			id := fmt.Sprint(role, i)
			live[id] = fresh(id, role)
			g.Apply(Change{Op: AddRank, Rank: live[id]})
		}
	}
	done := make(chan struct{})
	var fleet, all sync.WaitGroup
	fleet.Go(func() {
		rnd := rand.New(rand.NewPCG(1, 2))
		for {
			select {
			case <-done:
				return
			case <-time.After(200 * time.Microsecond):
			}
			role := Role(1 + rnd.IntN(2))
			id := fmt.Sprint(role, rnd.IntN(workers))
			old := live[id]
			if rnd.IntN(2) == 0 {
				state := RankState{Healthy: rnd.IntN(4) > 0, Breaker: Breaker(rnd.IntN(3)), Probes: 1}
				g.Apply(Change{Op: SetState, Rank: old, State: state})
				continue
			}
			live[id] = fresh(id, role)
			g.Apply(Change{Op: RemoveRank, Rank: old}, Change{Op: AddRank, Rank: live[id]})
		}
	})
	var grants, cancels atomic.Int64
	for i := range callers {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(3, uint64(i)))
			for range rounds {
				ctx, leave := context.WithCancel(t.Context())
				spec := TargetSpec{Model: "m", Shape: Disaggregated}
				if rnd.IntN(4) == 0 {
					spec.Pins[PrefillLeg] = fmt.Sprint(RolePrefill, rnd.IntN(workers))
				}
				k := &Ticket{Target: g.Resolve(spec), Legs: 1 + rnd.IntN(3)}
				if rnd.IntN(3) == 0 {
					time.AfterFunc(time.Duration(rnd.IntN(300))*time.Microsecond, leave)
				}
				for range 2 {
					err := g.Acquire(ctx, k)
					if ctx.Err() != nil {
						cancels.Add(1)
					}
					if err != nil {
						break
					}
					grants.Add(1)
					n, _ := inPrefill.Load(k.Prefill)
					if now := n.(*atomic.Int32).Add(1); now > slots {
						t.Errorf("%d in prefill on %s", now, k.Prefill.ID())
					}
					if rnd.IntN(2) == 0 {
						time.Sleep(time.Duration(rnd.IntN(50)) * time.Microsecond)
					}
					k.StartDecode()
					n.(*atomic.Int32).Add(-1)
					if rnd.IntN(2) == 0 {
						k.EndPrefill()
					}
					k.Release()
					k.Retry = true
					k.Exclude.Add(PrefillLeg, k.Prefill)
				}
				k.Close()
				leave()
			}
		})
	}
	all.Wait()
	close(done)
	fleet.Wait()
	g.Close()
	if grants.Load() == 0 || cancels.Load() == 0 {
		t.Errorf("%d grants, %d cancelled: the test tests nothing", grants.Load(), cancels.Load())
	}
	wantIdle(t, g, every...)
}

// leastLoaded takes the rank with the least booked, by a measure.
type leastLoaded struct {
	firstFit
	measure Measure
}

func (p leastLoaded) Measure() Measure        { return p.measure }
func (leastLoaded) Pick(v *View, _ *Hint) int { return v.Min() }

// manualClock has its hands moved by the test. Timers do not fire by
// themselves, so that late and stale ones can be made.
type manualClock struct {
	now    Instant
	timers []*manualTimer
}

type manualTimer struct {
	at      Instant
	f       func()
	stopped bool
}

func (c *manualClock) Now() Instant { return c.now }

func (c *manualClock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	m := &manualTimer{at: c.now.Add(d), f: f}
	c.timers = append(c.timers, m)
	return func() bool { m.stopped = true; return true }
}

func (c *manualClock) live() (all []*manualTimer) {
	for _, m := range c.timers {
		if !m.stopped {
			all = append(all, m)
		}
	}
	return all
}

func TestTimerIsArmedForTheNextDeadline(t *testing.T) { synctest.Test(t, testTimer) }

func testTimer(t *testing.T) {
	clock := &manualClock{}
	g := NewGate(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 5, QueueTimeout: 700 * time.Millisecond}}, clock, nil)
	g.Apply(Change{Op: AddRank, Rank: rank("p", RolePrefill, "m")}, Change{Op: AddRank, Rank: rank("d", RoleDecode, "m")})
	a := g.disaggregated()
	if err := g.Acquire(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if n := len(clock.live()); n != 0 {
		t.Fatalf("%d timers though nobody waits", n)
	}
	errs := make(chan error, 2)
	wait := func(k *Ticket) {
		go func() { errs <- g.Acquire(t.Context(), k) }()
		synctest.Wait()
	}
	armed := func(at time.Duration) *manualTimer {
		t.Helper()
		g.mu.Lock()
		defer g.mu.Unlock()
		live := clock.live()
		if len(live) != 1 || live[0].at != Instant(at) {
			t.Fatalf("%d timers, want one at %s", len(live), at)
		}
		return live[0]
	}
	wait(g.disaggregated())
	first := armed(700 * time.Millisecond)
	early := g.disaggregated()
	early.Deadline = Instant(300 * time.Millisecond)
	wait(early) // an earlier deadline moves the timer forward
	armed(300 * time.Millisecond)

	// The first timer had begun to fire when it was stopped: it must neither
	// end a wait too early nor leave the second beside its own.
	first.stopped = true
	first.f()
	second := armed(300 * time.Millisecond)
	clock.now = second.at
	second.stopped = true
	second.f()
	if err := <-errs; reason(err) != DeadlineExceeded {
		t.Fatal(err)
	}
	third := armed(700 * time.Millisecond)
	clock.now = third.at
	third.stopped = true
	third.f()
	if err := <-errs; reason(err) != QueueTimeout {
		t.Fatal(err)
	}
	if n := len(clock.live()); n != 0 {
		t.Fatalf("%d timers though nobody waits", n)
	}
	a.Release()
	wantIdle(t, g)
}

// A waiter that left leaves its timer armed; Close stops it, and a step after
// Close arms none.
func TestCloseLeavesNoTimer(t *testing.T) {
	clock := &manualClock{}
	g := NewGate(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 5, QueueTimeout: time.Second}}, clock, nil)
	g.Apply(Change{Op: AddRank, Rank: rank("p", RolePrefill, "m")}, Change{Op: AddRank, Rank: rank("d", RoleDecode, "m")})
	a := g.disaggregated()
	if err := g.Acquire(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	ctx, leave := context.WithCancel(t.Context())
	leave()
	if err := g.Acquire(ctx, g.disaggregated()); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if len(clock.live()) != 1 {
		t.Fatal("no timer was armed: the test tests nothing")
	}
	timer := clock.live()[0]
	g.Close()
	g.Close()
	if n := len(clock.live()); n != 0 {
		t.Fatalf("%d timers after Close", n)
	}
	timer.f() // it had begun to fire
	g.Apply(Change{Op: AddRank, Rank: rank("p2", RolePrefill, "m")})
	if n := len(clock.live()); n != 0 {
		t.Fatalf("%d timers after Close", n)
	}
}

// The clock may seem to run back between goroutines; waits never get negative
// and order stays.
func TestTimeNeverRunsBack(t *testing.T) {
	clock := &manualClock{now: Instant(time.Hour)}
	g := NewGate(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 5}}, clock, nil)
	g.Apply(Change{Op: AddRank, Rank: rank("p", RolePrefill, "m")}, Change{Op: AddRank, Rank: rank("d", RoleDecode, "m")})
	clock.now -= Instant(time.Second)
	a := g.disaggregated()
	if err := g.Acquire(t.Context(), a); err != nil || a.arrival != Instant(time.Hour) {
		t.Fatal(err, a.arrival)
	}
	if s := g.Stats(); s.Queues[0].OldestWait < 0 {
		t.Fatal(s)
	}
}

// Pinned targets live as long as a ticket uses them, whatever became of it.
func TestPinnedTargetsAreGivenBack(t *testing.T) {
	g, p, d := pairGate(Limits{PrefillSlots: 1, QueueSize: 0})
	defer g.Close()
	spec := TargetSpec{Model: "m", Shape: Disaggregated, Pins: [numLegs]string{"p1", ""}}
	unused, granted, refused := &Ticket{Target: g.Resolve(spec)}, &Ticket{Target: g.Resolve(spec)}, &Ticket{Target: g.Resolve(spec)}
	if unused.Target != granted.Target {
		t.Error("two targets of one pin")
	}
	if err := g.Acquire(t.Context(), granted); err != nil {
		t.Fatal(err)
	}
	if err := g.Acquire(t.Context(), refused); reason(err) != QueueFull {
		t.Fatal(err)
	}
	unused.Close()
	unused.Close() // not twice: the others still use it
	refused.Close()
	refused.Close()
	if g.core.pinned[granted.Target.key] == nil {
		t.Error("the target went with a ticket still using it")
	}
	granted.Close()
	wantIdle(t, g, p, d)

	// A free target belongs to nobody.
	k := g.disaggregated()
	k.Close()
	if g.Resolve(TargetSpec{Model: "other"}) != nil {
		t.Error("a target for a model nobody serves")
	}
	(&Ticket{}).Close()
}

func TestMatches(t *testing.T) {
	g := NewGate(Options{}, NewSystemClock(), nil)
	defer g.Close()
	r := NewRank(RankSpec{ID: "http://w@1", Worker: "http://w", Role: RolePrefill, Models: []string{"m"}})
	g.Apply(Change{Op: AddRank, Rank: r})
	f := func(pin string, role Role, want bool) {
		t.Helper()
		if got := g.Matches(pin, role); got != want {
			t.Errorf("Matches(%q, %s) = %t", pin, role, got)
		}
	}
	f("http://w", RolePrefill, true)
	f("http://w@1", RolePrefill, true)
	f("http://w@2", RolePrefill, false)
	f("http://w", RoleDecode, false)
	f("", RolePrefill, false)
	g.Apply(Change{Op: RemoveRank, Rank: r})
	f("http://w", RolePrefill, false)
}

// A number without a worker is that data-parallel rank of any worker; one that comes
// later serves who waits for it.
func TestPinOnARankNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 10}}, NewSystemClock(), nil)
		defer g.Close()
		rank := func(id, worker string, role Role) *Rank {
			r := NewRank(RankSpec{ID: id, Worker: worker, Role: role, Models: []string{"m"}, State: RankState{Healthy: true}})
			g.Apply(Change{Op: AddRank, Rank: r})
			return r
		}
		rank("d", "d", RoleDecode)
		a1 := rank("a@1", "a", RolePrefill)
		rank("a@0", "a", RolePrefill)
		whole := rank("b", "b", RolePrefill)
		take := func(pin string) *Ticket {
			k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated, Pins: [numLegs]string{pin, ""}})}
			if err := g.Acquire(t.Context(), k); err != nil {
				t.Error(err)
			}
			return k
		}
		first := take("@1")
		if first.Prefill != a1 {
			t.Errorf("rank 1 is %s", first.Prefill.ID())
		}
		zero, other := take("@0"), take("@0") // the others of a, and b, which has one rank
		if zero.Prefill == a1 || other.Prefill == a1 || zero.Prefill != whole && other.Prefill != whole {
			t.Errorf("ranks 0 are %s and %s", zero.Prefill.ID(), other.Prefill.ID())
		}
		done := make(chan *Ticket)
		go func() { done <- take("@1") }()
		synctest.Wait()
		c1 := rank("c@1", "c", RolePrefill)
		second := <-done
		if second.Prefill != c1 {
			t.Errorf("who waited for a rank 1 is given %s", second.Prefill.ID())
		}
		for _, k := range []*Ticket{first, second, zero, other} {
			k.Close()
		}
	})
}

// Shutting down while many wait: each gets its answer.
func TestRefuseWaitersWakesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, p, d := pairGate(Limits{PrefillSlots: 1, QueueSize: 100})
		defer g.Close()
		a := g.disaggregated()
		if err := g.Acquire(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		errs := make(chan error, 100)
		for range 100 {
			go func() { errs <- g.Acquire(t.Context(), g.disaggregated()) }()
		}
		synctest.Wait()
		g.StopArrivals()
		if err := g.Acquire(t.Context(), g.disaggregated()); reason(err) != Draining {
			t.Error(err)
		}
		g.RefuseWaiters()
		for range 100 {
			if err := <-errs; reason(err) != Draining {
				t.Error(err)
			}
		}
		a.Close()
		wantIdle(t, g, p, d)
	})
}
