package admission

import (
	"slices"
	"time"
)

// refHolder is a rank that is believed to hold so many tokens of a prompt.
type refHolder struct {
	rank   *refRank
	tokens int64
}

// held is how many of the tokens of t r is believed to hold on leg l.
func (t *refTicket) held(l Leg, r *refRank) int64 {
	for _, h := range t.hints[l] {
		if h.rank == r {
			return h.tokens
		}
	}
	return 0
}

// uncachedOn is what r has to compute of the prompt of t.
func (t *refTicket) uncachedOn(l Leg, r *refRank) int64 {
	return max(t.real.PromptTokens-t.held(l, r), 0)
}

// gating is the leg that prefills t, and what of a choice runs it.
func (t *refTicket) gating() Leg {
	if t.single() {
		return DecodeLeg
	}
	return PrefillLeg
}

func (c refPair) gate() *refRank {
	if c.prefill != nil {
		return c.prefill
	}
	return c.decode
}

// whyOf tells what the best eligible rank holds of the prompt of t, what the chosen one does,
// and why it is another.
func (m *reference) whyOf(t *refTicket, open []refPair, chosen refPair) Choice {
	l := t.gating()
	c := Choice{Leg: l}
	for _, h := range t.hints[l] {
		room := slices.ContainsFunc(open, func(o refPair) bool { return o.gate() == h.rank })
		excluded := slices.ContainsFunc(t.exclude[l], func(x *refRank) bool { return x == h.rank || x.real.worker == h.rank.real.worker })
		if h.tokens <= 0 || !room && (!slices.Contains(m.ranks, h.rank) || !h.rank.candidate() || !m.fits(t, l, h.rank) || excluded) {
			continue
		}
		c.Best, c.Held = h.tokens, t.held(l, chosen.gate())
		switch {
		case c.Held >= c.Best:
			c.Why = ChosenAsHolder
		case room:
			c.Why = ChosenByLoad
		default:
			c.Why = ChosenByRoom
		}
		break
	}
	return c
}

// mostHeld chooses the rank that holds most, among equals the one with the lowest index.
type mostHeld struct{ firstFit }

func (mostHeld) Pick(v *View, h *Hint) int {
	best, held := v.Next(-1), int64(-1)
	for i := range v.Len() {
		at := v.Nth(i)
		if n := h.Cached(v.ranks[at]); n > held {
			best, held = at, n
		}
	}
	return best
}

// predict is what mostHeld chooses for t of what is open to it.
func (m *reference) predict(t *refTicket, open []refPair) refPair {
	most := 0
	for _, c := range open {
		most = max(most, t.liking(c))
	}
	open = slices.DeleteFunc(slices.Clone(open), func(c refPair) bool { return t.liking(c) < most })
	choose := func(l Leg, of func(refPair) *refRank) *refRank {
		var some []*refRank
		for _, c := range open {
			some = append(some, of(c))
		}
		best := m.best(t.target.model.pools[t.role(l)], some)
		return slices.MinFunc(best, func(a, b *refRank) int {
			if n := t.held(l, b) - t.held(l, a); n != 0 {
				return int(n)
			}
			return a.real.index - b.real.index
		})
	}
	var chosen refPair
	if !t.single() {
		chosen.prefill = choose(PrefillLeg, func(c refPair) *refRank { return c.prefill })
		open = slices.DeleteFunc(open, func(c refPair) bool { return c.prefill != chosen.prefill })
	}
	chosen.decode = choose(DecodeLeg, func(c refPair) *refRank { return c.decode })
	return chosen
}

func (m *reference) lookahead() int { return max(m.limits.AffinityLookahead, 1) }

// willing is one of the first waiters that has room, and takes it.
type willing struct {
	*refTicket
	chosen refPair
	held   int64
}

// first is who of the first waiters of a class is granted next.
func (m *reference) first(now Instant, q refQueue) *refTicket {
	for {
		t, again := m.lookAtFirst(now, q)
		if !again {
			return t
		}
	}
}

func (m *reference) lookAtFirst(now Instant, q refQueue) (first *refTicket, again bool) {
	var waiters, blocked []*refTicket
	for _, t := range m.waiters {
		if t.queue == q {
			waiters = append(waiters, t)
		}
	}
	slices.SortFunc(waiters, func(a, b *refTicket) int {
		if a.ahead(b) {
			return -1
		}
		return 1
	})
	bar := false
	var all []willing
	var declining []*refTicket
	line := map[*refRank]int{}
	looked := 0
	for _, t := range waiters {
		if slices.ContainsFunc(blocked, func(o *refTicket) bool { return m.sameLane(o, t) }) {
			continue
		}
		if bar {
			t.blockedAt = 0 // and those behind it
			continue
		}
		if looked == m.lookahead() || len(all) > 0 && !t.equals(all[0].refTicket) {
			break
		}
		was := t.reconsidered
		if m.reconsider(t) || t.target.shape == Bypass && !was {
			return nil, true
		}
		h := m.laneHead(t)
		head := h == nil || t.ahead(h)
		open := m.open(t)
		switch {
		case head && len(open) == 0 && m.overloaded(t):
			m.leaveAt(now, t)
			m.refuse(t, AllOverloaded)
			return nil, true
		case head && len(open) == 0:
			m.block(now, t)
			blocked = append(blocked, t)
			bar = m.strict && !m.heldByMask(t)
			continue
		}
		looked++
		if len(open) == 0 {
			continue
		}
		c := m.predict(t, open)
		inLine := true
		if r := m.awaited(t, open, c); r != nil {
			inLine = line[r] < maxInLine
			line[r]++
		}
		if inLine && m.declinesUntil(now, t, open, c) > now {
			m.declined++
			declining = append(declining, t)
			if head {
				t.blockedAt = 0
			}
			continue
		}
		all = append(all, willing{t, c, t.held(t.gating(), c.gate())})
	}
	var best *willing
	for i := range all {
		w := &all[i]
		if best != nil && w.held <= best.held {
			continue
		}
		stopped := false
		for _, o := range all[:i] {
			stopped = stopped || m.couldUse(o.refTicket, w.chosen) && (o.passes >= m.limits.AffinityMaxPasses || o.real.Retry || o.pinned() || m.isUrgent(now, o.refTicket))
		}
		if !stopped {
			best = w
		}
	}
	if best == nil {
		for _, t := range waiters {
			if !slices.Contains(declining, t) {
				t.endDecline(now)
			}
		}
		for _, t := range declining {
			open := m.open(t)
			t.declineEnd = m.declinesUntil(now, t, open, m.predict(t, open))
			if t.declinesAt == 0 {
				m.wentOn += b2i(t.declined > 0)
				t.declinesAt = now
			}
		}
		return nil, false
	}
	best.passing = nil
	for _, o := range all {
		if o.refTicket == best.refTicket {
			break
		}
		if m.couldUse(o.refTicket, best.chosen) {
			best.passing = append(best.passing, o.refTicket)
		}
	}
	return best.refTicket, false
}

func (m *reference) couldUse(t *refTicket, c refPair) bool {
	return slices.ContainsFunc(m.open(t), func(o refPair) bool { return o.gate() == c.gate() })
}

func (t *refTicket) pinned() bool {
	return t.target.spec.Pins != [numLegs]string{}
}

// isUrgent tells whether the class of t ends its wait soon.
func (m *reference) isUrgent(now Instant, t *refTicket) bool {
	return t.class.MaxWait > 0 && t.classAt <= now.Add(m.limits.AffinityWait)
}

// equals tells whether t and o differ in nothing that goes before the arrival and the size of
// their prompts, but for the deadlines that their class gives them.
func (t *refTicket) equals(o *refTicket) bool {
	due := func(t *refTicket) Instant {
		if c := t.real.ClassDeadline; c != 0 && c == t.orderBy {
			return c
		}
		return never
	}
	return t.real.StrictPriority == o.real.StrictPriority && due(t) == due(o)
}

// awaited is the rank that holds most of t's prompt, if it has no room; else nil.
func (m *reference) awaited(t *refTicket, open []refPair, chosen refPair) *refRank {
	why := m.whyOf(t, open, chosen)
	if why.Why != ChosenByRoom {
		return nil
	}
	l := t.gating()
	for _, h := range t.hints[l] {
		excluded := slices.ContainsFunc(t.exclude[l], func(x *refRank) bool { return x == h.rank || x.real.worker == h.rank.real.worker })
		if h.tokens > 0 && slices.Contains(m.ranks, h.rank) && h.rank.candidate() && m.fits(t, l, h.rank) && !excluded {
			return h.rank
		}
	}
	return nil
}

// declinesUntil is until when t does not take what is chosen for it, because the rank that
// holds half of its prompt or more has no room; not after now: it takes it.
func (m *reference) declinesUntil(now Instant, t *refTicket, open []refPair, chosen refPair) Instant {
	why := m.whyOf(t, open, chosen)
	if why.Why != ChosenByRoom || 2*why.Best < t.real.PromptTokens || m.limits.AffinityWait <= 0 {
		return 0
	}
	spent := t.declined
	if t.declinesAt != 0 {
		spent += time.Duration(now - t.declinesAt)
	}
	waited := t.waited
	if t.queued {
		waited += int64(now - t.queuedAt)
	}
	end := min(now+Instant(m.limits.AffinityWait-spent), now+10*Instant(m.limits.AffinityWait)-Instant(waited))
	if bound := t.bound(); bound != never {
		end = min(end, bound-Instant(m.limits.AffinityWait))
	}
	return end
}

// endDecline stops the clock of t, if it runs.
func (t *refTicket) endDecline(now Instant) {
	if t.declinesAt != 0 {
		t.declined += time.Duration(now - t.declinesAt)
	}
	t.declinesAt, t.declineEnd = 0, 0
}

// unblocked tells whether the head of some lane of f is not known to be without room.
func (m *reference) unblocked(f *modelGroup) bool {
	if m.lookahead() == 1 {
		return false
	}
	return slices.ContainsFunc(m.waiters, func(t *refTicket) bool {
		h := m.laneHead(t)
		return t.group() == f && (h == nil || t.ahead(h)) && t.blockedAt == 0
	})
}

// lookAgain is look where room was taken: who declined it may have none now.
func (m *reference) lookAgain(f *modelGroup) {
	if m.unblocked(f) {
		m.look(f)
	}
}

// among tells whether t, which arrives, is among the first waiters that are not blocked.
func (m *reference) among(t *refTicket) bool {
	if m.lookahead() == 1 || m.laneHead(t) == nil || m.laneHead(t).blockedAt != 0 {
		return false
	}
	n := 0
	for _, o := range m.waiters {
		if o.queue != t.key() || !o.ahead(t) {
			continue
		}
		h := m.laneHead(o)
		if h == nil || o.ahead(h) {
			h = o
		}
		if h.blockedAt == 0 {
			n++
		}
	}
	return n < m.lookahead()
}

// behindDecliners tells whether t declines what there is, or is behind so many who are not
// blocked that it is not looked at.
func (m *reference) behindDecliners(t *refTicket) bool {
	if m.lookahead() == 1 {
		return false
	}
	n := 0
	for _, o := range m.waiters {
		h := m.laneHead(o)
		if h == nil || o.ahead(h) {
			h = o
		}
		if o.queue == t.queue && o != t && o.ahead(t) && h.blockedAt == 0 {
			n++
		}
	}
	return t.blockedAt == 0 || n >= m.lookahead()
}

// waits tells whether t, which arrives and has room, waits for another rank instead.
func (m *reference) waits(now Instant, t *refTicket, open []refPair) bool {
	why, _, _, _ := m.full(t)
	if m.lookahead() == 1 || why != reasonNone || t.never() || m.noWaits || m.drainEnd != never || m.limits.QueueSize <= len(m.waiters) {
		return false
	}
	t.limitAt, t.lostAt = never, never
	if m.limits.QueueTimeout > 0 {
		t.limitAt = now + Instant(int64(m.limits.QueueTimeout)-t.waited)
	}
	return m.declinesUntil(now, t, open, m.predict(t, open)) > now
}

// refresh gives t new hints.
func (m *reference) refresh(t *refTicket, hints [numLegs][]refHolder) {
	if !t.queued {
		return
	}
	t.hints = hints
	m.lookAgain(t.group())
	h := m.laneHead(t)
	if x := m.fences[t.group()]; x != nil && (h == nil || t.ahead(h)) && len(m.open(t)) > 0 {
		m.look(t.group())
	}
}
