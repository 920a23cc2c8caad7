package admission

import (
	"fmt"
	"sync"
	"testing"
)

// What a request may run on is told without the lock, and by fleet changes alone: not by
// health or room, but by registration, role, model, pins, labels, adapter, and a partner.
func TestMayUse(t *testing.T) {
	g := NewGate(Options{Limits: Limits{PrefillSlots: 1}}, NewSystemClock(), nil)
	defer g.Close()
	rank := func(id string, role Role, s RankSpec) *Rank {
		s.ID, s.Worker, s.Role = id, id, role
		if s.Models == nil {
			s.Models = []string{"m"}
		}
		return NewRank(s)
	}
	p1 := rank("p1", RolePrefill, RankSpec{Labels: map[string]string{"gpu": "h"}, Topology: "r1"})
	p2 := rank("p2", RolePrefill, RankSpec{Adapters: []string{"lora"}, Topology: "r2"})
	p3 := rank("p3", RolePrefill, RankSpec{PairGroup: "other"})
	d1 := rank("d1", RoleDecode, RankSpec{Adapters: []string{"lora"}, Topology: "r1"})
	d2 := rank("d2", RoleDecode, RankSpec{Topology: "r2"})
	other := rank("x1", RolePrefill, RankSpec{Models: []string{"x"}})
	a1 := rank("a1", RoleRegular, RankSpec{})
	for _, r := range []*Rank{p1, p2, p3, d1, d2, other, a1} {
		g.Apply(Change{Op: AddRank, Rank: r})
	}
	check := func(what string, target *Target, l Leg, want ...*Rank) {
		t.Helper()
		may := map[*Rank]bool{}
		for _, r := range want {
			may[r] = true
		}
		for _, r := range []*Rank{p1, p2, p3, d1, d2, other, a1, nil} {
			if got := target.MayUse(l, r); got != may[r] {
				t.Errorf("%s: may run %s on %v: %t", what, l, refOf(r), got)
			}
		}
	}
	resolve := func(s TargetSpec) *Target {
		s.Model = "m"
		return g.Resolve(s)
	}
	free := resolve(TargetSpec{Shape: Disaggregated})
	check("free", free, PrefillLeg, p1, p2) // p3 has no partner
	check("free", free, DecodeLeg, d1, d2)
	regular := resolve(TargetSpec{Shape: Aggregated})
	check("aggregated", regular, DecodeLeg, a1)
	check("aggregated", regular, PrefillLeg)
	check("bypass", resolve(TargetSpec{Shape: Bypass}), DecodeLeg, d1, d2)
	pinned := resolve(TargetSpec{Shape: Disaggregated, Pins: [2]string{"p1", ""}})
	check("pinned", pinned, PrefillLeg, p1)
	check("labels", resolve(TargetSpec{Shape: Disaggregated, Require: [2][]Label{{{"gpu", "h"}}, nil}}), PrefillLeg, p1)
	check("adapter", resolve(TargetSpec{Shape: Disaggregated, Adapter: "lora"}), PrefillLeg, p2)
	check("adapter", resolve(TargetSpec{Shape: Disaggregated, Adapter: "lora"}), DecodeLeg, d1)
	check("allowed", resolve(TargetSpec{Shape: Disaggregated, Allowed: [2][]string{{"p2", "p3"}, nil}}), PrefillLeg, p2)
	near := resolve(TargetSpec{Shape: Disaggregated, Topology: TopologyRequired, Pins: [2]string{"", "d2"}})
	check("domain", near, PrefillLeg, p2)
	check("domain", near, DecodeLeg, d2)

	g.Apply(Change{Op: AddRank, Rank: rank("d3", RoleDecode, RankSpec{PairGroup: "other"})})
	check("its partner has come", free, PrefillLeg, p1, p2, p3)
	g.Apply(Change{Op: SetAttributes, Rank: d2, Attributes: RankAttributes{Models: []string{"m"}, Topology: "r1"}})
	check("its partner has moved", near, PrefillLeg, p1)
	g.Apply(Change{Op: RemoveRank, Rank: p1})
	check("removed", free, PrefillLeg, p2, p3)
	check("removed", pinned, PrefillLeg)
	g.Apply(Change{Op: RemoveRank, Rank: d1}, Change{Op: RemoveRank, Rank: d2})
	check("its partners are removed", free, PrefillLeg, p3)
}

// Readers need no lock while the fleet changes.
func TestMayUseBesideFleetChanges(t *testing.T) {
	g := benchGate(t, 4, 1, 10, 2, nil)
	free := g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
	pinned := g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated, Pins: [2]string{"http://prefill-1", ""}})
	ranks := []*Rank{g.core.ranks[0], g.core.ranks[1], g.core.ranks[2]}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				for _, r := range ranks {
					free.MayUse(PrefillLeg, r)
					pinned.MayUse(DecodeLeg, r)
				}
			}
		})
	}
	for i := range 200 {
		r := NewRank(RankSpec{ID: fmt.Sprint("http://more-", i), Role: Role(1 + i%2), Models: []string{"m"}, PairGroup: fmt.Sprint(i), State: RankState{Healthy: true}})
		g.Apply(Change{Op: AddRank, Rank: r}, Change{Op: SetAttributes, Rank: ranks[i%3], Attributes: RankAttributes{Models: []string{"m"}, PairGroup: fmt.Sprint("group", i%2)}})
		g.Apply(Change{Op: RemoveRank, Rank: r})
	}
	close(done)
	readers.Wait()
}
