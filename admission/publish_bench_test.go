package admission

import (
	"fmt"
	"testing"
)

// BenchmarkFleetChange is a change of one worker's labels, and so of what requests may run
// on, in a fleet of n prefill and n decode ranks with pinned targets, and with some that ask
// for labels.
func BenchmarkFleetChange(b *testing.B) {
	for _, n := range []int{64, 5000} {
		for _, targets := range []int{0, 200} {
			b.Run(fmt.Sprintf("%d/targets=%d", n, targets), func(b *testing.B) {
				g := benchGate(b, n, 4, 100, 1, newP2C)
				for i := range targets {
					spec := TargetSpec{Model: "m", Shape: Disaggregated, Pins: [2]string{fmt.Sprint("http://prefill-", i%n), ""}}
					if i%2 == 0 {
						spec = TargetSpec{Model: "m", Shape: Disaggregated, Require: [2][]Label{{{"gpu", fmt.Sprint(i % 10)}}, nil}, Topology: Topology(i % 3)}
					}
					g.Resolve(spec)
				}
				r := g.core.ranks[0]
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					i++
					g.Apply(Change{Op: SetAttributes, Rank: r, Attributes: RankAttributes{Models: []string{"m"}, PairGroup: "group0", Labels: map[string]string{"gpu": fmt.Sprint(i % 10)}}})
				}
			})
		}
	}
}

// BenchmarkMayUse is the question that is asked of each rank that holds a part of a prompt.
func BenchmarkMayUse(b *testing.B) {
	g := benchGate(b, 4096, 4, 100, 1, newP2C)
	target := g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
	r := g.core.ranks[4000]
	b.ReportAllocs()
	for b.Loop() {
		if !target.MayUse(PrefillLeg, r) {
			b.Fatal("it may")
		}
	}
}
