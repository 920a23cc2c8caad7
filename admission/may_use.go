package admission

import "slices"

// Outside of the gate's lock it matters, too, which ranks a request may run on: of the
// ranks that hold the beginning of its prompt only these are of any use to it.

// rankFacts are what MayUse has to know of a registered rank. They are replaced whole.
type rankFacts struct {
	models        []string
	labels        map[string]string
	adapters      []string
	group, domain int
}

func (f *rankFacts) serves(model string) bool {
	return slices.Contains(f.models, model) || model == "" && len(f.models) == 0
}

// MayUse tells whether a request for the target may ever run leg l on r: r is registered,
// of the leg's role, in the pool of the model, and what pins, allowed sets, labels and
// the adapter ask for; and some registered rank that may be its partner is so too. Health,
// breakers and room do not matter. A request that needs one rank runs only DecodeLeg.
//
// It takes no lock: it answers by the last fleet change that was completed.
func (t *Target) MayUse(l Leg, r *Rank) bool {
	if r == nil || r.role != t.role(l) || t.shape != Disaggregated && l != DecodeLeg {
		return false
	}
	f := r.facts.Load()
	if f == nil || !f.serves(t.model.name) || !t.names(l, r) || !t.accepts(l, f.labels, f.adapters) {
		return false
	}
	if t.shape != Disaggregated {
		return true
	}
	with := f.group
	if t.topology == TopologyRequired {
		with = f.domain
	}
	partners := t.partners[PrefillLeg+DecodeLeg-l].Load()
	return partners != nil && with>>6 < len(*partners) && partners.has(with)
}

// publishAllPartners renews what MayUse goes by, of all targets.
func publishAllPartners(ix *rankIndex) {
	for _, m := range ix.modelsByName {
		publishPartners(ix, m.targets[Disaggregated])
	}
	for _, t := range ix.pinned {
		publishPartners(ix, t)
	}
}

// publishPartners renews the partners of a target, where they have changed.
func publishPartners(ix *rankIndex, t *Target) {
	if t.shape != Disaggregated {
		return
	}
	groups := ix.groupsOf(t)
	for l := range numLegs {
		p, old := t.model.pools[t.role(l)], t.partners[l].Load()
		with := func(g int) bool {
			if t.free {
				return p.groupSize[g] > 0
			}
			return groups[g].shares(p.members, t.bits[l])
		}
		same := old != nil && len(*old)<<6 >= len(groups)
		for g := range groups {
			same = same && old.has(g) == with(g)
		}
		if same {
			continue
		}
		partners := make(bitmap, (len(groups)+63)>>6)
		for g := range groups {
			partners.put(g, with(g))
		}
		t.partners[l].Store(&partners)
	}
}
