package admission

import (
	"fmt"
	"testing"
)

// BenchmarkLateBinding is one request through a queue of 10,000 with late binding: it arrives
// at the tail, a rank has room again, and of the first 32 one is granted; or the first, for
// comparison.
//
// lane: in one lane, without classes. classes: of a class with thresholds of both pools.
// lanes: in 64 lanes. declining: the first half declines. Half of the waiters have hints.
func BenchmarkLateBinding(b *testing.B) {
	for _, kind := range []string{"lane", "classes", "lanes", "declining"} {
		for _, n := range []int{64, 4096} {
			for _, k := range []int{1, 32} {
				b.Run(fmt.Sprintf("%s/%d/lookahead=%d", kind, n, k), func(b *testing.B) { benchLateBinding(b, kind, n, k) })
			}
		}
	}
}

func benchLateBinding(b *testing.B, kind string, n, lookahead int) {
	const waiters = 10_000
	o := Options{
		Limits:    Limits{PrefillSlots: 1, QueueSize: waiters + 1, AffinityLookahead: lookahead, AffinityMaxPasses: 8, AffinityWait: 1 << 62},
		NewPolicy: func(string, Role) Policy { return mostHeldOf4{} }, QueueMode: QueueLanes,
	}
	if kind == "classes" {
		o.Classes = &Classes{Root: &Profile{Classes: []Class{bothThresholds("c")}}}
	}
	c := NewCore(o)
	var out []*Ticket
	var ch []Change
	prefill := make([]*Rank, n)
	for i := range n {
		for _, role := range []Role{RolePrefill, RoleDecode} {
			r := NewRank(RankSpec{
				ID: fmt.Sprintf("http://%s-%d", role, i), Role: role, Models: []string{"m"}, State: RankState{Healthy: true},
				Labels: map[string]string{"all": "1"}, Capacity: Capacity{MaxBatchedTokens: 8192, KVBlocks: 4000, BlockSize: 16},
			})
			ch = append(ch, Change{Op: AddRank, Rank: r})
			if role == RolePrefill {
				prefill[i] = r
			}
		}
	}
	c.Apply(0, ch, &out)
	free := c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
	full := NewRank(RankSpec{ID: "full", Role: RolePrefill, Models: []string{"m"}, State: RankState{Healthy: true}})
	if kind == "declining" {
		c.Apply(0, []Change{{Op: AddRank, Rank: full}}, &out)
		c.Arrive(0, &Ticket{Target: c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated, Pins: [2]string{"full", ""}})}, &out)
	}
	targets := []*Target{free}
	if kind == "lanes" {
		for i := range 64 {
			targets = append(targets, c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated, Prefer: [2][]Preference{{{Label{"all", "1"}, 1 + i}}, nil}}))
		}
		targets = targets[1:]
	}
	now, sent, decliners := Instant(1), 0, 0
	draw := uint64(1)
	random := func(n int) int {
		draw = draw*6364136223846793005 + 1442695040888963407
		return int((draw >> 33) % uint64(n))
	}
	send := func() *Ticket {
		now++
		sent++
		t := &Ticket{Target: targets[sent%len(targets)], PromptTokens: 1000 + int64(random(1000))}
		if random(2) == 0 {
			for i := range t.Hints[PrefillLeg].Holders {
				t.Hints[PrefillLeg].Holders[i] = Holder{prefill[random(n)], int64(400 - 100*i)}
			}
		}
		if decliners > 0 {
			decliners--
			t.Hints[PrefillLeg].Holders[0] = Holder{full, 2000}
		}
		c.Arrive(now, t, &out)
		return t
	}
	running := make([]*Ticket, n)
	for i := range running {
		running[i] = &Ticket{Target: free}
		c.Arrive(now, running[i], &out)
	}
	out = out[:0]
	if kind == "declining" {
		decliners = lookahead / 2
	}
	for range waiters - 1 {
		send()
	}
	out = out[:0]
	decliners = 0
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		send()
		c.Release(now, running[i], &out)
		if len(out) != 1 {
			b.Fatalf("%d grants, want 1", len(out))
		}
		running[i] = out[0]
		i = (i + 1) % n
		out = out[:0]
	}
}

// mostHeldOf4 chooses the holder that has most, else the rank with the least tokens: what the
// policy that goes by caches asks of a view.
type mostHeldOf4 struct{ firstFit }

func (mostHeldOf4) Pick(v *View, h *Hint) int {
	for i := range h.Holders {
		if at := v.Index(h.Holders[i].Rank); at >= 0 {
			return at
		}
	}
	return v.Min()
}
