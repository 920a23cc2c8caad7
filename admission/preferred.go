package admission

// preferPrefill keeps the prefill ranks of the best pairs: labels of both ranks and the
// domain they share count together.
func (ch *chooser) preferPrefill(t *Target, s *candidates) {
	p, d := s.sets[PrefillLeg].set, s.sets[DecodeLeg].set
	pp, pd := &t.prefer[PrefillLeg], &t.prefer[DecodeLeg]
	most := -1
	clear(ch.spare)
	consider := func(groups []bitmap, extra int) {
		for _, g := range groups {
			bestP, ok := pp.best(p, g)
			if !ok {
				continue
			}
			bestD, ok := pd.best(d, g)
			if !ok {
				continue
			}
			sum := bestP.weight + bestD.weight + extra
			if sum < most {
				continue
			}
			if sum > most {
				most = sum
				clear(ch.spare)
			}
			pp.keep(ch.spare, p, g, bestP.weight)
		}
	}
	consider(ch.index.groupsOf(t), 0)
	if t.topology == TopologyPreferred {
		consider(ch.index.domains, t.topologyWeight())
	}
	ch.keepSpare(s, PrefillLeg)
}

// preferDecode keeps, of the ranks that may follow pr, the best for that. pr may have
// been removed since; then its domain counts for nothing.
func (ch *chooser) preferDecode(t *Target, s *candidates, pr *Rank) {
	set := s.sets[DecodeLeg].set
	pd := &t.prefer[DecodeLeg]
	best, _ := pd.best(set, nil)
	clear(ch.spare)
	if t.topology == TopologyPreferred && pr != nil && pr.present {
		domain := ch.index.domains[pr.domainID]
		if near, ok := pd.best(set, domain); ok && near.weight+t.topologyWeight() >= best.weight {
			pd.keep(ch.spare, set, domain, near.weight)
			if near.weight+t.topologyWeight() > best.weight {
				ch.keepSpare(s, DecodeLeg)
				return
			}
		}
	}
	pd.keep(ch.spare, set, nil, best.weight)
	ch.keepSpare(s, DecodeLeg)
}

// preferSingle keeps the best ranks for a request that needs one.
func (ch *chooser) preferSingle(t *Target, s *candidates) { ch.preferDecode(t, s, nil) }

// keepSpare makes the candidates of a leg those in the spare set.
func (ch *chooser) keepSpare(s *candidates, l Leg) {
	ch.own[l].copyFrom(ch.spare)
	*s.of(l) = rankSet{set: ch.own[l], n: -1}
}
