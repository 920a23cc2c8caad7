package fleet

import (
	"fmt"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
)

// BenchmarkTakeRows is a change of the keeper's table, as the fleet takes it.
func BenchmarkTakeRows(b *testing.B) {
	for _, ranks := range []int{64, 512, 4096} {
		b.Run(fmt.Sprint(ranks), func(b *testing.B) {
			f := &Fleet{member: &membership{self: cluster.Member{Incarnation: 1}}}
			rows := map[string]*cluster.Row{}
			for i := range ranks {
				id := fmt.Sprintf("http://10.0.%d.%d:8000", i/256, i%256)
				rows[id] = &cluster.Row{Spec: &admission.RankSpec{ID: id, Worker: id}}
			}
			b.ReportAllocs()
			for b.Loop() {
				f.TakeRows(func(each func(*cluster.Row)) {
					for _, r := range rows {
						each(r)
					}
				})
			}
		})
	}
}
