package cluster

import (
	"fmt"
	"testing"

	"github.com/sluice-router/sluice/admission"
)

// BenchmarkTableChange is a change of one rank that ten members have, with what the core and
// a member are told of it: it costs the same in a table of any size.
func BenchmarkTableChange(b *testing.B) {
	for _, ranks := range []int{64, 512, 4096} {
		b.Run(fmt.Sprint(ranks), func(b *testing.B) {
			x := newTable(Epoch{Number: 1, Keeper: 1})
			var all Observation
			for i := range ranks {
				id := fmt.Sprintf("http://10.0.%d.%d:8000", i/256, i%256)
				all.Ranks = append(all.Ranks, RankObservation{
					ID: id, Checks: Succeeded,
					Spec: admission.RankSpec{ID: id, Worker: id, Models: []string{"model"}, State: admission.RankState{Healthy: true}},
				})
			}
			all.Full = true
			for m := Incarnation(1); m <= 10; m++ {
				x.observe(0, m, &all)
			}
			x.changes(0, nil, nil)
			told := x.version
			one := Observation{Ranks: all.Ranks[ranks/2 : ranks/2+1]}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				one.Ranks[0].Spec.Priority = 1 - i&1
				for m := Incarnation(1); m <= 10; m++ {
					x.observe(0, m, &one)
				}
				if len(x.changes(0, nil, nil)) != 1 || len(x.rowsSince(0, told)) != 1 {
					b.Fatal("the change was not told")
				}
				told = x.version
			}
		})
	}
}
