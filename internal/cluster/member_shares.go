package cluster

import (
	"cmp"
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// shareOfRanks are the ranks that this process has, with its share of what each can take.
func (b *member) shareOfRanks() (ranks []admission.RankSpec) {
	who := b.m.o.Self.Incarnation
	for id, own := range b.m.observed.ranks {
		row := b.m.ranks.find(id)
		spec := own.Spec
		if row != nil {
			if slices.Contains(row.Masked, who) && own.Legs != Succeeded {
				continue
			}
			spec = *row.Spec
		}
		spec.Generation, spec.State, spec.Reported, spec.Data = b.ref(id).Generation, stateFor(row, &own), own.Spec.Reported, nil
		x := b.shared.rank(&spec, who)
		if x.Slots > 0 {
			spec.Limits.PrefillSlots = int(x.Slots)
		}
		if x.Calls > 0 {
			spec.Limits.Running = x.Calls
		}
		spec.Limits.Share = admission.RankShare{None: x.None, Parts: x.Parts, NotFirst: !x.First}
		ranks = append(ranks, spec)
	}
	slices.SortFunc(ranks, func(x, y admission.RankSpec) int { return cmp.Compare(x.ID, y.ID) })
	return ranks
}
