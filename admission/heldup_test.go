package admission

import (
	"testing"
	"time"
)

// countingPolicy counts how often it is asked.
type countingPolicy struct {
	firstFit
	asked *int
}

func (p countingPolicy) Pick(v *View, h *Hint) int { *p.asked++; return p.firstFit.Pick(v, h) }

// A head that waits for one rank holds up, in strict order, those behind it that
// could start on another. That is told with its time, and asks no policy; lanes
// have nothing to tell.
func TestHeldUp(t *testing.T) {
	const second = Instant(time.Second)
	for _, order := range []QueueMode{QueueStrict, QueueLanes} {
		asked := 0
		c := NewCore(Options{
			Limits: Limits{PrefillSlots: 1, QueueSize: 1000}, QueueMode: order,
			NewPolicy: func(string, Role) Policy { return countingPolicy{asked: &asked} },
		})
		var out []*Ticket
		healthy := RankState{Healthy: true}
		p1 := NewRank(RankSpec{ID: "p1", Role: RolePrefill, Models: []string{"m"}, State: healthy})
		p2 := NewRank(RankSpec{ID: "p2", Role: RolePrefill, Models: []string{"m"}, State: healthy})
		d := NewRank(RankSpec{ID: "d", Role: RoleDecode, Models: []string{"m"}, State: healthy})
		c.Apply(0, []Change{{Op: AddRank, Rank: p1}, {Op: AddRank, Rank: p2}, {Op: AddRank, Rank: d}}, &out)
		free := c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
		pinned := c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated, Pins: [numLegs]string{"p1"}})
		send := func(now Instant, target *Target) *Ticket {
			k := &Ticket{Target: target}
			c.Arrive(now, k, &out)
			return k
		}
		on1, on2 := send(second, pinned), send(second, free)
		send(2*second, pinned) // the head
		send(2*second, pinned) // it would wait in any order
		for range 2 {
			send(2*second, free)
		}
		advance := func(from, to Instant) {
			for now := from; now <= to; now += second {
				c.Advance(now, &out)
			}
		}
		told := func(now Instant, held int, since time.Duration) {
			t.Helper()
			before := asked
			if k := c.Snapshot(now).Queues[0].Classes[0]; k.HeldUp != held || k.HeldUpFor != since {
				t.Errorf("order %d: %d are held up for %s, want %d for %s", order, k.HeldUp, k.HeldUpFor, held, since)
			}
			if asked != before {
				t.Errorf("order %d: a policy was asked", order)
			}
			if k := c.Stats(now).Queues[0].Classes[0]; k.HeldUp != 0 {
				t.Error("Stats, which is for every scrape, looked for those held up")
			}
		}
		advance(3*second, 5*second)
		told(5*second, 0, 0) // both ranks are taken: nobody could start
		c.Release(5*second, on2, &out)
		if order == QueueLanes {
			advance(6*second, 9*second)
			told(9*second, 0, 0)
			continue
		}
		told(5*second, 2, 0)
		advance(6*second, 9*second)
		told(9*second, 2, 3*time.Second)
		c.Release(9*second, on1, &out) // the head starts; the next one is held up by the pin again
		told(9*second, 2, 0)
		advance(10*second, 11*second)
		told(11*second, 2, time.Second)
		c.Apply(11*second, []Change{{Op: SetState, Rank: p2, State: RankState{Healthy: true, Draining: true}}}, &out)
		told(11*second, 0, 0)
		advance(12*second, 12*second)
		c.Apply(13*second, []Change{{Op: SetState, Rank: p2, State: healthy}}, &out)
		told(13*second, 2, 0) // not since before it was away
		if c.missed != 0 {
			t.Errorf("%d events were missed", c.missed)
		}
	}
}

// However many wait, a count looks at 256 of them.
func TestHeldUpIsBounded(t *testing.T) {
	c := NewCore(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 1000}})
	var out []*Ticket
	var add []Change
	for _, r := range []struct {
		id   string
		role Role
	}{{"p1", RolePrefill}, {"p2", RolePrefill}, {"d", RoleDecode}} {
		add = append(add, Change{Op: AddRank, Rank: NewRank(RankSpec{ID: r.id, Role: r.role, Models: []string{"m"}, State: RankState{Healthy: true}})})
	}
	c.Apply(0, add, &out)
	pinned := c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated, Pins: [numLegs]string{"p1"}})
	for range 2 {
		c.Arrive(1, &Ticket{Target: pinned}, &out)
	}
	for range 600 {
		c.Arrive(2, &Ticket{Target: c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}, &out)
	}
	if k := c.Snapshot(3).Queues[0].Classes[0]; k.Depth != 601 || k.HeldUp != heldUpLooks {
		t.Errorf("%d of %d are held up, want %d", k.HeldUp, k.Depth, heldUpLooks)
	}
}
