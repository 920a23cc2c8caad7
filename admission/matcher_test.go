package admission

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// matcher hands in what it is told, and notes how it was called.
type matcher struct {
	mu      sync.Mutex
	clock   Clock
	calls   []time.Duration
	targets []*Target
	next    *[2]Hint
}

func (m *matcher) Match(t *Ticket, hints *[2]Hint) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls = append(m.calls, time.Duration(m.clock.Now()).Round(time.Millisecond))
	m.targets = append(m.targets, t.Matched())
	if m.next == nil {
		return false
	}
	*hints = *m.next
	return true
}

// Hints are renewed by the goroutine that waits, outside the gate's lock: at first after half
// a second, and as often again. What they say is in force at once: who declined because of
// the old ones takes what there is.
func TestHintsAreRenewedByTheGoroutineThatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := NewSystemClock()
		g := NewGate(Options{
			Limits:    Limits{PrefillSlots: 1, QueueSize: 9, AffinityLookahead: 2, AffinityMaxPasses: 8, AffinityWait: 10 * time.Second},
			QueueMode: QueueLanes, NewPolicy: func(string, Role) Policy { return mostHeld{} },
		}, clock, nil)
		defer g.Close()
		p1, p2, d := rank("http://p1", RolePrefill, "m"), rank("http://p2", RolePrefill, "m"), rank("http://d1", RoleDecode, "m")
		g.Apply(Change{Op: AddRank, Rank: p1}, Change{Op: AddRank, Rank: p2}, Change{Op: AddRank, Rank: d})
		target := g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
		holder := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated, Pins: [2]string{"http://p1", ""}})}
		if err := g.Acquire(t.Context(), holder); err != nil {
			t.Fatal(err)
		}
		m := &matcher{clock: clock}
		k := &Ticket{Target: target, PromptTokens: 100, Matcher: m}
		k.Hints[PrefillLeg].Holders[0] = Holder{p1, 100}
		granted := make(chan error, 1)
		go func() { granted <- g.Acquire(t.Context(), k) }()
		time.Sleep(1700 * time.Millisecond)
		synctest.Wait()
		m.mu.Lock()
		if want := []time.Duration{500 * time.Millisecond, time.Second, 1500 * time.Millisecond}; !slices.Equal(m.calls, want) || m.targets[0] != target {
			t.Errorf("matched at %v, want %v", m.calls, want)
		}
		m.next = &[2]Hint{{Holders: [MaxHolders]Holder{{p2, 60}}}}
		m.mu.Unlock()
		time.Sleep(400 * time.Millisecond)
		synctest.Wait()
		select {
		case err := <-granted:
			if err != nil || k.Prefill != p2 || g.RankStats(p2).PrefillTokens != 40 {
				t.Errorf("granted %v (%v), %d tokens there; want p2 and 40", refOf(k.Prefill), err, g.RankStats(p2).PrefillTokens)
			}
		default:
			t.Error("it still waits, though the rank with room holds its prompt by the new hints")
		}
		k.Close()
		holder.Close()
	})
}

// A ticket may be decided, cancelled and come again while hints are renewed all the time.
func TestHintsAreRenewedBesideEverythingElse(t *testing.T) {
	g := benchGate(t, 2, 1, 100, 1, func(string, Role) Policy { return mostHeld{} })
	g.SetLimits(Limits{PrefillSlots: 1, QueueSize: 100, AffinityLookahead: 8, AffinityMaxPasses: 2, AffinityWait: time.Second})
	target := g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
	ranks := []*Rank{g.core.ranks[0], g.core.ranks[2]}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			m := &matcher{clock: g.clock, next: &[2]Hint{{Holders: [MaxHolders]Holder{{ranks[i%2], 90}}}}}
			for j := range 100 {
				ctx, cancel := context.WithCancel(t.Context())
				k := &Ticket{Target: target, PromptTokens: 100, Matcher: m}
				k.Hints[PrefillLeg].Holders[0] = Holder{ranks[j%2], 80}
				if j%5 == 0 {
					go cancel()
				}
				if err := g.Acquire(ctx, k); err == nil {
					k.StartDecode()
					k.EndPrefill()
				}
				cancel()
				k.Close()
			}
		})
	}
	done := make(chan struct{})
	var asking sync.WaitGroup
	asking.Go(func() { // as if hints were old at once
		for {
			select {
			case <-done:
				return
			default:
			}
			g.step(func(now Instant, _ *[]*Ticket) {
				for _, f := range g.core.modelGroups {
					f.eachWaiter(func(t *Ticket) { g.core.asked = append(g.core.asked, t) })
				}
			})
		}
	})
	all.Wait()
	close(done)
	asking.Wait()
	for _, s := range g.Stats().Ranks {
		if s.PrefillSlots != 0 || s.PrefillTokens != 0 || s.Load() != 0 {
			t.Errorf("%s holds %+v", s.ID, s)
		}
	}
}

// A ticket that has no Matcher costs nothing: no class is looked through for it, and no time
// is set.
func TestNothingIsAskedWithoutMatchers(t *testing.T) {
	c := NewCore(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 9}})
	var out []*Ticket
	for _, role := range []Role{RolePrefill, RoleDecode} {
		c.Apply(0, []Change{{Op: AddRank, Rank: NewRank(RankSpec{ID: fmt.Sprint(role), Role: role, Models: []string{"m"}, State: RankState{Healthy: true}})}}, &out)
	}
	for range 3 {
		c.Arrive(1, &Ticket{Target: c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}, &out)
	}
	if c.waiting != 2 || c.NextDeadline() != Instant(1).Add(recheckEvery) || c.nextRefresh != never || c.matchers != 0 {
		t.Errorf("%d wait, next deadline %d, next refresh %d", c.waiting, c.NextDeadline(), c.nextRefresh)
	}
}
