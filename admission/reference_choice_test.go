package admission

import "slices"

// refWarmUp is the turns of one pool by priority: each full rank of the priority gets one
// request in a turn, on average.
type refWarmUp struct {
	turn map[int]int64
	next map[*refRank]int64 // when a rank that warms up is due
}

const refTurn = 1 << 20

func (m *reference) warmUpOf(p *pool) *refWarmUp {
	if m.warmUps[p] == nil {
		m.warmUps[p] = &refWarmUp{turn: map[int]int64{}, next: map[*refRank]int64{}}
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
				u.next[r] = u.turn[r.real.priority]
			}
		}
	}
}

// took counts a request that r got in a pool.
func (m *reference) took(p *pool, r *refRank) {
	type counts struct{ full, warm, shares int64 }
	at := map[int]*counts{}
	all := counts{}
	for _, o := range m.ranks {
		if o.real.role != p.role || !o.serves(p.model.name) || !o.candidate() {
			continue
		}
		c := at[o.real.priority]
		if c == nil {
			c = &counts{}
			at[o.real.priority] = c
		}
		if s := o.share(); s > 0 {
			c.warm++
			c.shares += s
			all.warm++
		} else {
			c.full++
			all.full++
		}
	}
	if all.warm == 0 {
		return
	}
	u := m.warmUpOf(p)
	for priority, c := range at {
		switch {
		case priority < r.real.priority:
		case c.full > 0 || all.full == 0:
			u.turn[priority] += refTurn * 1000 / (c.full*1000 + c.shares)
		default:
			u.turn[priority] += refTurn / c.warm
		}
	}
	if s := r.share(); s > 0 {
		m.warmed++
		u.next[r] = max(u.next[r], u.turn[r.real.priority]-4*(refTurn*1000/s)) + refTurn*1000/s
	}
}

// best are those of some ranks of a pool that a policy is shown: of the highest priority
// of which some are left without those that had their share of their warm-up. Where all
// warm up these are not left out.
func (m *reference) best(p *pool, some []*refRank) (best []*refRank) {
	u := m.warmUpOf(p)
	if slices.ContainsFunc(some, func(r *refRank) bool { return r.share() == 0 }) {
		some = slices.DeleteFunc(slices.Clone(some), func(r *refRank) bool { return r.share() > 0 && u.next[r] > u.turn[r.real.priority] })
	}
	for _, r := range some {
		switch {
		case len(best) > 0 && r.real.priority < best[0].real.priority:
		case len(best) > 0 && r.real.priority > best[0].real.priority:
			best = []*refRank{r}
		case !slices.Contains(best, r):
			best = append(best, r)
		}
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
		if mine, others := r.amount(m.measure), o.amount(m.measure); m.leastLoaded && others < mine {
			m.complain("%s has load %d, but %s has %d", r.real.id, mine, o.real.id, others)
		}
	}
	return true
}
