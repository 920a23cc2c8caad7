package cluster

import (
	"cmp"
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// shareOfSettings are the settings of the gate with this member's share of each bound.
func (b *member) shareOfSettings() admission.Settings {
	who := b.m.o.Self.Incarnation
	s := *b.settings()
	parts := max(b.shared.parts(who), 1)
	if s.Limits.QueueSize > 0 {
		s.Limits.QueueSize = int(b.shared.bound(int64(s.Limits.QueueSize), "queue", who))
	}
	if s.Limits.MaxWaitingBytes > 0 {
		s.Limits.MaxWaitingBytes = max(s.Limits.MaxWaitingBytes/int64(parts), 1)
	}
	if s.Classes != nil {
		c := admission.Classes{Root: shareOfProfile(s.Classes.Root, parts)}
		if s.Classes.Models != nil {
			c.Models = make(map[string]*admission.Profile, len(s.Classes.Models))
			for name, p := range s.Classes.Models {
				c.Models[name] = shareOfProfile(p, parts)
			}
		}
		s.Classes = &c
	}
	s.Reject.ActivePrefillTokens = partOf(s.Reject.ActivePrefillTokens, parts)
	return s
}

func shareOfProfile(p *admission.Profile, parts int) *admission.Profile {
	if p == nil {
		return nil
	}
	out := *p
	out.Classes = slices.Clone(p.Classes)
	for i := range out.Classes {
		c := &out.Classes[i]
		c.PrefillBusyTokens = partOf(c.PrefillBusyTokens, parts)
		for _, limit := range [...]**float64{&c.RequestLimitPerWorker, &c.RawTokenLimitPerWorker, &c.CachedTokenLimitPerWorker} {
			if *limit != nil {
				v := **limit / float64(parts)
				*limit = &v
			}
		}
	}
	return &out
}

func partOf(amount *int64, parts int) *int64 {
	if amount == nil {
		return nil
	}
	v := *amount / int64(parts)
	return &v
}

// shareOfRanks are the ranks that this process has, with its share of what each can take.
// withheld: it has no share of others.
func (b *member) shareOfRanks() (ranks []admission.RankSpec, withheld bool) {
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
		if x.None {
			withheld = true
			continue
		}
		if x.Slots > 0 {
			spec.Limits.PrefillSlots = int(x.Slots)
		}
		if x.Calls > 0 {
			spec.Limits.Running = x.Calls
		}
		parts := int64(x.Parts)
		c := &spec.Capacity
		for _, v := range [...]*int64{&c.MaxBatchedTokens, &c.KVBlocks, &c.MaxRunning} {
			if *v > 0 {
				*v = max(*v/parts, 1)
			}
		}
		ranks = append(ranks, spec)
	}
	slices.SortFunc(ranks, func(x, y admission.RankSpec) int { return cmp.Compare(x.ID, y.ID) })
	return ranks, withheld
}
