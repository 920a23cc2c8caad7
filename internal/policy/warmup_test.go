package policy

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/sluice-router/sluice/admission"
)

// Under every policy a rank that warms up gets its share of what the others get, and no
// more; all of it when no other has room; and its due when the warm-up is over.
func TestWarmUpUnderEveryPolicy(t *testing.T) {
	const others, share, rounds = 7, 250, 8000
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			newPolicy, err := New(name, 7)
			if err != nil {
				t.Fatal(err)
			}
			gate := admission.NewGate(admission.Options{NewPolicy: newPolicy}, admission.NewSystemClock(), nil)
			defer gate.Close()
			spec := func(id string, share uint16) *admission.Rank {
				return admission.NewRank(admission.RankSpec{ID: id, Role: admission.RoleRegular, Models: []string{"m"}, State: admission.RankState{Healthy: true, Share: share}})
			}
			cold := spec("cold", share)
			warm := make([]*admission.Rank, others)
			for i := range warm {
				warm[i] = spec(fmt.Sprintf("warm%d", i), 0)
				gate.Apply(admission.Change{Op: admission.AddRank, Rank: warm[i]})
			}
			gate.Apply(admission.Change{Op: admission.AddRank, Rank: cold})
			n := 0
			// run grants many requests, of which 40 run at a time, and counts those of the cold rank.
			run := func() (got int) {
				var running []*admission.Ticket
				for range rounds {
					n++
					tk := &admission.Ticket{Target: gate.Resolve(admission.TargetSpec{Model: "m"})}
					tk.Hints[admission.DecodeLeg] = admission.Hint{Key: HashKey(fmt.Sprint(n)), HasKey: true}
					if err := gate.Acquire(context.Background(), tk); err != nil {
						t.Fatal(err)
					}
					if tk.Decode == cold {
						got++
					}
					if running = append(running, tk); len(running) > 40 {
						running[0].Release()
						running = running[1:]
					}
				}
				for _, tk := range running {
					tk.Release()
				}
				return got
			}
			due := rounds * share / (others*1000 + share)
			if got := run(); got < due*8/10 || got > due+5 {
				t.Errorf("it got %d requests of %d while it warmed up, want about %d", got, rounds, due)
			}
			var down []admission.Change
			for _, r := range warm {
				down = append(down, admission.Change{Op: admission.SetState, Rank: r})
			}
			gate.Apply(down...)
			if got := run(); got != rounds {
				t.Errorf("it got %d requests of %d with no other there", got, rounds)
			}
			for i := range down {
				down[i].State.Healthy = true
			}
			gate.Apply(append(down, admission.Change{Op: admission.SetState, Rank: cold, State: admission.RankState{Healthy: true}})...)
			if got, due := run(), rounds/(others+1); got < due/2 || got > due*2 {
				t.Errorf("it got %d requests of %d after its warm-up, want about %d", got, rounds, due)
			}
		})
	}
}

// When most of a fleet warms up, as in a rollout, the others do not get all of it.
func TestWarmUpOfMostOfAFleet(t *testing.T) {
	newPolicy, err := New(PowerOfTwo, 7)
	if err != nil {
		t.Fatal(err)
	}
	gate := admission.NewGate(admission.Options{NewPolicy: newPolicy}, admission.NewSystemClock(), nil)
	defer gate.Close()
	got := map[string]int{}
	for i := range 10 {
		state := admission.RankState{Healthy: true}
		if i > 0 {
			state.Share = 250
		}
		gate.Apply(admission.Change{Op: admission.AddRank, Rank: admission.NewRank(admission.RankSpec{ID: fmt.Sprint(i), Role: admission.RoleRegular, Models: []string{"m"}, State: state})})
	}
	for range 1300 {
		tk := &admission.Ticket{Target: gate.Resolve(admission.TargetSpec{Model: "m"})}
		if err := gate.Acquire(context.Background(), tk); err != nil {
			t.Fatal(err)
		}
		got[tk.Decode.ID()]++
		tk.Release()
	}
	// 1 + 9 × 0.25 shares: 400 for the one, 100 for each of the others.
	if got["0"] < 350 || got["0"] > 450 {
		t.Errorf("the one that is warm got %d of 1300, the others %v", got["0"], got)
	}
	for i := 1; i < 10; i++ {
		if n := got[fmt.Sprint(i)]; n < 70 || n > 130 {
			t.Errorf("%d got %d of 1300, want about 100", i, n)
		}
	}
}

// A rank of a higher priority gets the share of what its priority would give it, and those
// of lower ones the rest: it does not take all at once because no other has its priority.
func TestWarmUpWithPriorities(t *testing.T) {
	type rank struct {
		priority int
		share    uint16
		want     int // of 1600
	}
	for _, tc := range []struct {
		name  string
		ranks []rank
	}{
		{"one of the highest priority", []rank{{1, 250, 400}, {0, 0, 600}, {0, 0, 600}}},
		{"two of it share what one would get", []rank{{1, 250, 200}, {1, 250, 200}, {0, 0, 1200}}},
		{"a full one of the same priority takes the rest", []rank{{1, 250, 320}, {1, 0, 1280}, {0, 0, 0}, {0, 250, 0}}},
		{"on each priority", []rank{{2, 250, 400}, {1, 500, 600}, {0, 0, 480}, {0, 250, 120}}},
		{"a lower one gets nothing", []rank{{1, 0, 1600}, {0, 250, 0}}},
		{"no other rank is full", []rank{{1, 250, 1600}, {0, 250, 0}}},
	} {
		for _, name := range Names() {
			t.Run(tc.name+"/"+name, func(t *testing.T) {
				newPolicy, err := New(name, 7)
				if err != nil {
					t.Fatal(err)
				}
				gate := admission.NewGate(admission.Options{NewPolicy: newPolicy}, admission.NewSystemClock(), nil)
				defer gate.Close()
				for i, r := range tc.ranks {
					gate.Apply(admission.Change{Op: admission.AddRank, Rank: admission.NewRank(admission.RankSpec{
						ID: fmt.Sprint(i), Role: admission.RoleRegular, Models: []string{"m"}, Priority: r.priority, State: admission.RankState{Healthy: true, Share: r.share},
					})})
				}
				got, want := map[string]int{}, map[string]int{}
				// With round_robin the turn of each rank depends on what was chosen before among
				// other ranks: the shares of the priorities are kept, not those within them.
				share := func(id string) string {
					if i, _ := strconv.Atoi(id); name == RoundRobin {
						return fmt.Sprint("priority ", tc.ranks[i].priority)
					}
					return id
				}
				for i, r := range tc.ranks {
					want[share(fmt.Sprint(i))] += r.want
				}
				for n := range 1600 {
					tk := &admission.Ticket{Target: gate.Resolve(admission.TargetSpec{Model: "m"})}
					tk.Hints[admission.DecodeLeg] = admission.Hint{Key: HashKey(fmt.Sprint(n)), HasKey: true}
					if err := gate.Acquire(context.Background(), tk); err != nil {
						t.Fatal(err)
					}
					got[share(tk.Decode.ID())]++
					tk.Release()
				}
				for who, want := range want {
					if n := got[who]; n < want*85/100-4 || n > want*115/100+4 || want == 0 && n > 0 {
						t.Errorf("%s got %d of 1600, want about %d", who, n, want)
					}
				}
			})
		}
	}
}

// Neither a warm-up nor priorities make a choice allocate.
func TestPreferredRanksAllocateNothing(t *testing.T) {
	newPolicy, err := New(PowerOfTwo, 7)
	if err != nil {
		t.Fatal(err)
	}
	gate := admission.NewGate(admission.Options{NewPolicy: newPolicy}, admission.NewSystemClock(), nil)
	defer gate.Close()
	for i := range 100 {
		gate.Apply(admission.Change{Op: admission.AddRank, Rank: admission.NewRank(admission.RankSpec{
			ID: fmt.Sprint(i), Role: admission.RoleRegular, Models: []string{"m"}, Priority: i % 3, State: admission.RankState{Healthy: true, Share: uint16(i % 2 * 250)},
		})})
	}
	tk := &admission.Ticket{Target: gate.Resolve(admission.TargetSpec{Model: "m"})}
	if n := testing.AllocsPerRun(1000, func() {
		if err := gate.Acquire(context.Background(), tk); err != nil {
			t.Fatal(err)
		}
		tk.Release()
	}); n > 0 {
		t.Errorf("%g allocations for a request", n)
	}
}
