package admission

import "slices"

// refWarmUp is the turns of one pool: each full rank of it gets one request in a turn, on
// average.
type refWarmUp struct {
	turn int64
	next map[*refRank]int64 // when a rank that warms up is due
}

const refTurn = 1 << 20

func (m *reference) warmUpOf(p *pool) *refWarmUp {
	if m.warmUps[p] == nil {
		m.warmUps[p] = &refWarmUp{next: map[*refRank]int64{}}
	}
	return m.warmUps[p]
}

// share is that of a rank that warms up, in thousandths, else 0.
func (r *refRank) share() int64 {
	if s := r.state.Share; r.candidate() && s > 0 && s < 1000 {
		return int64(s)
	}
	return 0
}

// beginWarmUps begins the warm-up of ranks that have not warmed up before, or have just
// been entered into their pools.
func (m *reference) beginWarmUps(fresh map[*refRank]bool) {
	for r := range fresh {
		if r.share() > 0 && r.real.present {
			for _, p := range r.real.pools {
				u := m.warmUpOf(p)
				u.next[r] = u.turn
			}
		}
	}
}

// took counts a request that r got in a pool.
func (m *reference) took(p *pool, r *refRank) {
	full, shares := int64(0), int64(0)
	for _, o := range m.ranks {
		if o.real.role == p.role && o.serves(p.model.name) && o.candidate() {
			if s := o.share(); s > 0 {
				shares += s
			} else {
				full++
			}
		}
	}
	if shares == 0 {
		return
	}
	u := m.warmUpOf(p)
	u.turn += refTurn * 1000 / (full*1000 + shares)
	if s := r.share(); s > 0 {
		m.warmed++
		u.next[r] = max(u.next[r], u.turn-4*(refTurn*1000/s)) + refTurn*1000/s
	}
}

// best are those of some ranks of a pool that a policy is shown: of the highest priority,
// and without those that had their share of their warm-up, if one is left that does not
// warm up.
func (m *reference) best(p *pool, some []*refRank) (best []*refRank) {
	for _, r := range some {
		switch {
		case len(best) > 0 && r.real.priority < best[0].real.priority:
		case len(best) > 0 && r.real.priority > best[0].real.priority:
			best = []*refRank{r}
		case !slices.Contains(best, r):
			best = append(best, r)
		}
	}
	if slices.ContainsFunc(best, func(r *refRank) bool { return r.share() == 0 }) {
		u := m.warmUpOf(p)
		best = slices.DeleteFunc(best, func(r *refRank) bool { return r.share() > 0 && u.next[r] > u.turn })
	}
	return best
}

// checkChoice compares what was chosen with what the labels that t likes, priorities and
// warm-ups leave. Pairs in quarantine are left out of it: labels of both ranks together
// take no account of them.
func (m *reference) checkChoice(t *refTicket, open []refPair, chosen refPair) {
	if len(m.quarantines) > 0 {
		return
	}
	most := 0
	for _, c := range open {
		most = max(most, t.liking(c))
	}
	if t.liking(chosen) < most {
		m.complain("a pair is liked for %d, but the chosen one for %d", most, t.liking(chosen))
		return
	}
	open = slices.DeleteFunc(slices.Clone(open), func(c refPair) bool { return t.liking(c) < most })
	pools := &t.target.model.pools
	if chosen.prefill != nil {
		var prefills []*refRank
		for _, c := range open {
			prefills = append(prefills, c.prefill)
		}
		if m.chosenAmong(m.best(pools[RolePrefill], prefills), chosen.prefill) {
			open = slices.DeleteFunc(open, func(c refPair) bool { return c.prefill != chosen.prefill })
		}
	}
	var decodes []*refRank
	for _, c := range open {
		decodes = append(decodes, c.decode)
	}
	m.chosenAmong(m.best(pools[t.target.role(DecodeLeg)], decodes), chosen.decode)
}

// chosenAmong checks that r is one of best, and one that the policy under test may choose
// of them.
func (m *reference) chosenAmong(best []*refRank, r *refRank) bool {
	if !slices.Contains(best, r) {
		m.complain("%s was chosen, which others go before", r.real.id)
		return false
	}
	for _, o := range best {
		if m.leastLoaded && o.load() < r.load() {
			m.complain("%s has load %d, but %s has %d", r.real.id, r.load(), o.real.id, o.load())
		}
	}
	return true
}
