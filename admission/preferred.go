package admission

import "math/bits"

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

// preferRanks keeps, of the ranks that are left for a leg, those of the highest priority
// that are not held back by their warm-up: of a lower priority where all of a higher one
// are. Some are always left; where all that could be chosen warm up, none is held back.
func (ch *chooser) preferRanks(s *candidates, l Leg) {
	levels, p, set := ch.index.priorities, s.pool(l), s.of(l).set
	warm := p.warmUp.n > 0 && set.intersects(p.warmUp.members) && !set.within(p.warmUp.members)
	for i := range levels {
		x := &levels[i]
		if !set.intersects(x.members) {
			continue
		}
		turn := int64(0)
		if warm {
			if turn = p.level(x.priority).turn; !p.warmUp.due(set, x, turn) {
				continue
			}
		}
		if len(levels) > 1 {
			ch.keep(s, l, x.members)
		}
		if warm {
			ch.dropHeldBack(s, l, turn)
		}
		return
	}
}

// dropHeldBack takes the ranks from the candidates of a leg, all of one priority, that
// have had their share.
func (ch *chooser) dropHeldBack(s *candidates, l Leg, turn int64) {
	u, set := &s.pool(l).warmUp, s.of(l).set
	for w, warm := range u.members {
		for word := warm & set[w]; word != 0; word &= word - 1 {
			if i := w<<6 + bits.TrailingZeros64(word); u.next[i] > turn {
				ch.drop(s, l, ch.index.ranks[i])
			}
		}
	}
}
