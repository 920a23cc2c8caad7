package admission

import (
	"maps"
	"slices"
)

// What a gate that decides for several processes has to know beside.

// maskOf is whose mask t has; 0: nobody's.
func (m *reference) maskOf(t *refTicket) uint64 {
	if len(m.masks[t.origin]) == 0 {
		return 0
	}
	return t.origin
}

// heldByMask tells whether t could start if its origin could use all ranks.
func (m *reference) heldByMask(t *refTicket) bool {
	if m.maskOf(t) == 0 {
		return false
	}
	masks := m.masks
	m.masks = nil
	open := len(m.open(t)) > 0
	m.masks = masks
	return open
}

// barred tells whether t stands behind a head that is blocked, in strict order: not if that
// is held back by its mask alone.
func (m *reference) barred(t *refTicket) bool {
	if !m.strict {
		return false
	}
	for _, o := range m.waiters {
		h := m.laneHead(o)
		if o.key() == t.key() && !m.sameLane(o, t) && (h == nil || o.ahead(h)) && o.ahead(t) &&
			len(m.open(o)) == 0 && !m.overloaded(o) && !m.heldByMask(o) {
			return true
		}
	}
	return false
}

// setMask makes ranks those that an origin may not use.
func (m *reference) setMask(now Instant, origin uint64, ranks []*refRank) {
	had := len(m.masks[origin]) > 0
	m.masks = maps.Clone(m.masks)
	if m.masks == nil {
		m.masks = map[uint64][]*refRank{}
	}
	if had != (len(ranks) > 0) { // they come to other lanes, in order
		all := slices.Clone(m.waiters)
		slices.SortFunc(all, func(a, b *refTicket) int { return b2i(b.older(a)) - b2i(a.older(b)) })
		for _, t := range all {
			if t.origin == origin {
				t.endDecline(now)
			}
		}
		m.masks[origin] = ranks
		for _, t := range all {
			if t.origin == origin {
				m.overtake(t)
			}
		}
	}
	m.masks[origin] = ranks
	m.loseUnservable(now, func(t *refTicket) bool { return t.origin == origin })
	m.moveFences()
	m.lookAll()
	m.drain(now)
}

// suspend takes waiters out of their queues.
func (m *reference) suspend(now Instant, all []*refTicket) {
	for _, t := range all {
		m.suspended++
		m.lookWithout(t)
		m.leaveAt(now, t)
		t.waited -= int64(now - t.queuedAt)
		t.state = stateSuspended
	}
	m.drain(now)
}

// putBack queues suspended waiters again.
func (m *reference) putBack(now Instant, all []*refTicket) {
	slices.SortFunc(all, func(a, b *refTicket) int { return b2i(b.older(a)) - b2i(a.older(b)) })
	for _, t := range all {
		t.state = stateIdle
		m.reclassify(t)
		why := reasonNone
		switch {
		case m.noWaits:
			why = Draining
		case m.hasCandidate(t):
			t.lostAt = never
		case t.lostAt != never:
		case m.limits.NoWorkerWait > 0:
			t.lostAt = now.Add(m.limits.NoWorkerWait)
		default:
			why = NoWorkers
		}
		t.declineEnd = 0
		if why == reasonNone && t.bound() > now {
			t.queued, t.state = true, stateQueued
			m.enter(t)
			m.waiters = append(m.waiters, t)
			continue
		}
		t.waited += int64(now - t.queuedAt)
		if why == reasonNone {
			m.refuseAtBound(t)
		} else {
			m.refuse(t, why)
		}
	}
	m.lookAll()
	m.drain(now)
}

// setAside replaces what is set aside on r.
func (r *refRank) setAside(a Aside) {
	was := r.aside
	r.aside = a
	r.tokens += a.Tokens - was.Tokens
	if r.real.role == RolePrefill {
		r.slots += a.Slots - was.Slots
		r.legs += a.Calls - was.Calls
	} else {
		r.active += a.Calls - was.Calls
		r.blocks[1] += a.Blocks - was.Blocks
	}
}

// lacksShare tells whether this gate has no share of some rank that t could need.
func (m *reference) lacksShare(t *refTicket) bool {
	return slices.ContainsFunc(m.ranks, func(r *refRank) bool {
		return r.real.bounds.Share.None && r.serves(t.model) &&
			(r.real.role == t.role(DecodeLeg) || !t.single() && r.real.role == RolePrefill)
	})
}

// adopt is what another core makes of the tickets of this one. Bounds of waits are worked out
// anew, and whoever holds something of a rank that is tried counts as one who tries it.
func (m *reference) adopt(now Instant, all []*refTicket) {
	m.adopted++
	for _, r := range m.ranks {
		r.probes = 0
	}
	served := func(model string) bool {
		return slices.ContainsFunc(m.ranks, func(r *refRank) bool { return r.serves(model) })
	}
	for _, t := range all {
		if t.state == stateRefused {
			t.state = stateIdle
		}
		if !served(t.model) && served("") {
			t.model = "" // as if it came now
		}
		t.prefillEpoch, t.decEpoch = 0, 0
		if p := t.prefill; p != nil && slices.Contains(m.ranks, p) && p.state.Breaker == BreakerHalfOpen {
			p.probes++
			t.prefillEpoch = p.epoch
		}
		if d := t.decode; d != nil && slices.Contains(m.ranks, d) && d.state.Breaker == BreakerHalfOpen {
			d.probes++
			t.decEpoch = d.epoch
		}
	}
	waiters := m.waiters
	m.waiters = nil
	m.rebuilt(now, all)
	for _, t := range waiters {
		t.endDecline(now)
		t.queued, t.state = false, stateSuspended
	}
	for _, t := range all {
		if t.state == stateSuspended {
			m.boundAnew(t)
		}
	}
	m.putBack(now, waiters)
}

func (m *reference) boundAnew(t *refTicket) {
	t.limitAt, t.lostAt, t.classAt = never, never, never
	if m.limits.QueueTimeout > 0 {
		t.limitAt = t.queuedAt + Instant(int64(m.limits.QueueTimeout)-t.waited)
	}
	if t.real.ClassDeadline != 0 {
		t.classAt = t.real.ClassDeadline
	}
	if w := t.class.MaxWait; w > 0 {
		t.classAt = min(t.classAt, t.queuedAt+Instant(int64(w)-t.waited))
	}
}
