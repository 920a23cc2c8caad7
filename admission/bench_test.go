package admission

import (
	"context"
	"fmt"
	"slices"
	"testing"
)

// p2c is the shape of the default policy, so that benchmarks pay for a choice.
type p2c struct{ state uint64 }

func (p *p2c) next(n int) int {
	p.state = p.state*6364136223846793005 + 1442695040888963407
	return int((p.state >> 33) % uint64(n))
}

func (p *p2c) Pick(v *View, _ *Hint) int {
	a := v.Nth(p.next(v.Len()))
	b := v.Nth(p.next(v.Len()))
	if v.Load(b) < v.Load(a) {
		return b
	}
	return a
}
func (*p2c) Booked(int, *Hint)     {}
func (*p2c) RankAdded(int, string) {}
func (*p2c) RankRemoved(int)       {}

func newP2C(string, Role) Policy   { return &p2c{} }
func newLeast(string, Role) Policy { return leastLoaded{} }

func benchGate(tb testing.TB, n, slots, queue, groups int, policy PolicyFactory) *Gate {
	tb.Helper()
	g := NewGate(Options{
		Limits:    Limits{PrefillSlots: slots, QueueSize: queue},
		NewPolicy: policy,
	}, NewSystemClock(), nil)
	var ch []Change
	for i := range n {
		for _, role := range []Role{RolePrefill, RoleDecode} {
			ch = append(ch, Change{Op: AddRank, Rank: NewRank(RankSpec{
				ID: fmt.Sprintf("http://%s-%d", role, i), Role: role, Models: []string{"m"},
				PairGroup: fmt.Sprint("group", i%groups), State: RankState{Healthy: true},
			})})
		}
	}
	g.Apply(ch...)
	tb.Cleanup(g.Close)
	return g
}

var gateSizes = []int{64, 512, 4096, 16384}

// BenchmarkGate is one uncontended request: arrive, grant with both bookings,
// and both releases, on a fleet of n prefill and n decode ranks.
func BenchmarkGate(b *testing.B) {
	for _, n := range gateSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			g := benchGate(b, n, 4, 100, 1, newP2C)
			ctx := context.Background()
			target := g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
			b.ReportAllocs()
			for b.Loop() {
				t := &Ticket{Target: target}
				if err := g.Acquire(ctx, t); err != nil {
					b.Fatal(err)
				}
				t.StartDecode()
				t.EndPrefill()
				t.Release()
			}
		})
	}
}

// fillCore takes every slot of a core with n + n ranks and queues waiters.
func fillCore(b *testing.B, n, waiters int) (*Core, []*Ticket, []*Ticket) {
	g := benchGate(b, n, 1, waiters+1, 1, newP2C)
	c := g.core
	target := g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
	var out []*Ticket
	holders := make([]*Ticket, n)
	for i := range holders {
		holders[i] = &Ticket{Target: target}
		c.Arrive(1, holders[i], &out)
	}
	queued := make([]*Ticket, waiters)
	for i := range queued {
		queued[i] = &Ticket{Target: target}
		c.Arrive(Instant(2+i), queued[i], &out)
		if queued[i].state != stateQueued {
			b.Fatal("not queued")
		}
	}
	return c, holders, queued
}

// BenchmarkGateQueued is one request through a queue of 10 000: it arrives at
// the tail, a slot is released, and the head is granted.
func BenchmarkGateQueued(b *testing.B) {
	for _, n := range gateSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c, holders, queued := fillCore(b, n, 10_000)
			target := queued[0].Target
			fifo := slices.Concat(holders, queued)
			now := Instant(1_000_000)
			var out []*Ticket
			b.ReportAllocs()
			head := 0
			for b.Loop() {
				now++
				t := &Ticket{Target: target}
				c.Arrive(now, t, &out)
				done := fifo[head]
				fifo[head] = t
				head = (head + 1) % len(fifo)
				c.Release(now, done, &out)
				if len(out) != 1 {
					b.Fatalf("%d grants, want 1", len(out))
				}
				out = out[:0]
			}
		})
	}
}

// BenchmarkGateCancel cancels one of 10 000 waiters and lets another arrive.
func BenchmarkGateCancel(b *testing.B) {
	c, _, queued := fillCore(b, 64, 10_000)
	target := queued[0].Target
	now := Instant(1_000_000)
	var out []*Ticket
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		now++
		i = (i*31 + 7919) % len(queued)
		if !c.Cancel(now, queued[i], &out) {
			b.Fatal("not waiting")
		}
		queued[i] = &Ticket{Target: target}
		c.Arrive(now, queued[i], &out)
	}
}

// BenchmarkGateNarrowed is one request on a large fleet for which not every
// rank with room will do: a pin, a retry's exclusion, two pairing groups (the
// better one's winners are of no use to the other), with both ways to choose.
func BenchmarkGateNarrowed(b *testing.B) {
	for name, policy := range map[string]PolicyFactory{"p2c": newP2C, "least": newLeast} {
		for _, c := range []struct {
			name         string
			groups       int
			pin, exclude bool
		}{{"free", 1, false, false}, {"pin", 1, true, false}, {"exclude", 1, false, true}, {"groups", 2, false, false}, {"all", 2, true, true}} {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				g := benchGate(b, 4096, 4, 100, c.groups, policy)
				spec := TargetSpec{Model: "m", Shape: Disaggregated}
				if c.pin {
					spec.Pins[PrefillLeg] = "http://prefill-4000"
				}
				target := g.Resolve(spec)
				ctx := context.Background()
				var x Exclusions
				if c.exclude {
					first := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}
					if err := g.Acquire(ctx, first); err != nil {
						b.Fatal(err)
					}
					x.Add(PrefillLeg, first.Prefill)
					x.Add(DecodeLeg, first.Decode)
					first.Release()
				}
				b.ReportAllocs()
				for b.Loop() {
					t := &Ticket{Target: target, Exclude: x}
					if err := g.Acquire(ctx, t); err != nil {
						b.Fatal(err)
					}
					t.StartDecode()
					t.EndPrefill()
					t.Release()
				}
			})
		}
	}
}

// BenchmarkGateBlockedHead is a release that a blocked head cannot use: its
// pinned rank stays full while others come and go behind it, with a second
// pairing group.
func BenchmarkGateBlockedHead(b *testing.B) {
	g := benchGate(b, 4096, 1, 100, 2, newLeast)
	c := g.core
	var out []*Ticket
	now := Instant(1)
	target := g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
	pinned := g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated, Pins: [numLegs]string{"http://prefill-4000", ""}})
	holder, head := &Ticket{Target: pinned}, &Ticket{Target: pinned}
	c.Arrive(now, holder, &out)
	var others []*Ticket
	for range 4000 {
		t := &Ticket{Target: target}
		c.Arrive(now, t, &out)
		others = append(others, t)
	}
	c.Arrive(now, head, &out)
	if head.state != stateQueued {
		b.Fatal("the head does not wait")
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		now++
		// A hold ends and is booked again past the queue, so that every
		// release changes room.
		t := others[i%len(others)]
		c.EndPrefill(now, t, &out)
		t.holdsPrefill = true
		t.Prefill.slots++
		t.Prefill.prefill++
		c.refresh(t.Prefill, 0)
		i++
	}
	if len(out) != 0 {
		b.Fatal("somebody was granted")
	}
}

// BenchmarkMinAmongTheLoaded is a choice among ranks that are all more loaded than those
// that may not be chosen: those with a label, say, while the others are idle.
func BenchmarkMinAmongTheLoaded(b *testing.B) {
	for _, n := range []int{64, 512, 4096} {
		for _, oneOf := range []int{2, 32} {
			b.Run(fmt.Sprintf("%d of %d", n/oneOf, n), func(b *testing.B) {
				var tree loadTree
				tree.join(0, n)
				all, set := make(bitmap, n/64), make(bitmap, n/64)
				r := p2c{state: 1}
				for i := range n {
					load := int64(r.next(1000))
					if i%oneOf == 0 {
						load += 1000
						set.set(i)
					}
					all.set(i)
					tree.put(i, 0, load, uint64(r.next(n)), true)
				}
				groups := []bitmap{all}
				for b.Loop() {
					tree.min(set, n/oneOf, -1, &groups)
				}
			})
		}
	}
}
