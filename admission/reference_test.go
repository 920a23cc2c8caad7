package admission

import (
	"fmt"
	"slices"
)

// reference is the contract of the gate, written down as plainly as possible:
// lists, scans and no indexes. Where a policy chooses, it accepts any choice
// with room and follows it.
type reference struct {
	limits             Limits
	ranks              []*refRank // registered ones
	gone               []*refRank
	waiters            []*refTicket // in no order
	seq                uint64
	stopped, noWaits   bool
	leastLoaded        bool // the policy under test
	decided            []*refTicket
	arriving           *refTicket
	closed             int64 // nanoseconds with a blocked head, over all queues
	complaint          error
	grants, refusals   int
	retried, postponed int
}

type refRank struct {
	real    *Rank
	state   RankState
	slots   int
	legs    int
	pending int
	active  int
	probes  int
	epoch   int
}

type refTicket struct {
	real     *Ticket
	model    string
	exclude  [numLegs][]*refRank
	arrived  bool
	arrival  Instant
	seq      uint64
	queued   bool
	queuedAt Instant
	waited   int64
	limitAt  Instant
	lostAt   Instant
	state    ticketState
	reason   Reason
	depth    int

	prefill, decode        *refRank // that it holds
	active                 bool
	prefillEpoch, decEpoch int // of the probe it holds, 0: none
}

func (m *reference) complain(format string, args ...any) {
	if m.complaint == nil {
		m.complaint = fmt.Errorf(format, args...)
	}
}

func (r *refRank) serves(model string) bool {
	return slices.Contains(r.real.models, model) || len(r.real.models) == 0 && model == ""
}

func (r *refRank) candidate() bool {
	return r.state.Healthy && !r.state.Draining && r.state.Breaker != BreakerOpen
}

func (m *reference) room(r *refRank) bool {
	if !r.candidate() || r.state.Breaker == BreakerHalfOpen && r.probes >= r.state.Probes {
		return false
	}
	return r.real.role != RolePrefill || m.limits.PrefillSlots <= 0 || r.slots < m.limits.PrefillSlots
}

// refPair is a choice; prefill is nil for an aggregated request.
type refPair struct{ prefill, decode *refRank }

func (m *reference) fits(t *refTicket, l Leg, r *refRank) bool {
	role := RoleRegular
	if t.real.Target.shape == Disaggregated {
		role = RoleDecode
		if l == PrefillLeg {
			role = RolePrefill
		}
	}
	pin := t.real.Target.pins[l]
	return r.real.role == role && r.serves(t.model) && (pin == "" || pin == r.real.id || pin == r.real.worker)
}

func (m *reference) choices(t *refTicket, ok func(*refRank) bool, avoid legSet) (all []refPair) {
	side := func(l Leg) (rs []*refRank) {
		for _, r := range m.ranks {
			if m.fits(t, l, r) && ok(r) && !(avoid&(1<<l) != 0 && slices.Contains(t.exclude[l], r)) {
				rs = append(rs, r)
			}
		}
		return rs
	}
	for _, d := range side(DecodeLeg) {
		if t.real.Target.shape == Aggregated {
			all = append(all, refPair{nil, d})
			continue
		}
		for _, p := range side(PrefillLeg) {
			if p.real.group == d.real.group {
				all = append(all, refPair{p, d})
			}
		}
	}
	return all
}

func (m *reference) hasCandidate(t *refTicket) bool {
	return len(m.choices(t, (*refRank).candidate, 0)) > 0
}

// open is what t could be given now.
func (m *reference) open(t *refTicket) []refPair {
	avoid := legSet(0)
	for _, legs := range []legSet{onPrefill | onDecode, onPrefill, onDecode} {
		if len(m.choices(t, (*refRank).candidate, legs)) > 0 {
			avoid = legs
			break
		}
	}
	return m.choices(t, m.room, avoid)
}

// related tells whether two models compete: they are one, or are joined by
// ranks that serve several.
func (m *reference) related(a, b string) bool {
	seen := []string{a}
	for i := 0; i < len(seen); i++ {
		for _, r := range m.ranks {
			if !slices.Contains(r.real.models, seen[i]) {
				continue
			}
			for _, name := range r.real.models {
				if !slices.Contains(seen, name) {
					seen = append(seen, name)
				}
			}
		}
	}
	return slices.Contains(seen, b)
}

func (t *refTicket) older(o *refTicket) bool {
	return t.arrival < o.arrival || t.arrival == o.arrival && t.seq < o.seq
}

func (m *reference) head(model string) (head *refTicket) {
	for _, t := range m.waiters {
		if m.related(model, t.model) && (head == nil || t.older(head)) {
			head = t
		}
	}
	return head
}

func (m *reference) depth(model string) (n int) {
	for _, t := range m.waiters {
		if m.related(model, t.model) {
			n++
		}
	}
	return n
}

func (t *refTicket) endsAt() Instant {
	end := min(t.limitAt, t.lostAt)
	if t.real.Deadline != 0 {
		end = min(end, t.real.Deadline)
	}
	return end
}

// queues is the number of queues somebody waits in.
func (m *reference) queues() (n int) {
	for _, t := range m.waiters {
		if m.head(t.model) == t {
			n++
		}
	}
	return n
}

func (m *reference) decide(t *refTicket, s ticketState) {
	t.state = s
	if t != m.arriving {
		m.decided = append(m.decided, t)
	}
}

func (m *reference) refuse(t *refTicket, why Reason) {
	m.refusals++
	t.depth = m.depth(t.model)
	if why == QueueFull {
		t.depth = len(m.waiters)
	}
	if t.real.Retry && why != Draining {
		why = RetryRefused
	}
	t.reason = why
	m.decide(t, stateRefused)
}

// grant follows the choice of the code, if it is a right one.
func (m *reference) grant(t *refTicket, open []refPair) {
	m.grants++
	var chosen refPair
	found := false
	for _, c := range open {
		if c.decode.real == t.real.Decode && (c.prefill == nil) == (t.real.Prefill == nil) &&
			(c.prefill == nil || c.prefill.real == t.real.Prefill) {
			chosen, found = c, true
		}
	}
	m.decide(t, stateGranted)
	if !found {
		m.complain("a request (granted: %t) was to be granted one of %d choices, and got another", t.real.state == stateGranted, len(open))
		return
	}
	if m.leastLoaded {
		for _, c := range open {
			if c.prefill != nil && c.prefill.legs < chosen.prefill.legs {
				m.complain("%s has load %d, but %s has %d", chosen.prefill.real.id, chosen.prefill.legs, c.prefill.real.id, c.prefill.legs)
			}
			if c.prefill == chosen.prefill && c.decode.load() < chosen.decode.load() {
				m.complain("%s has load %d, but %s has %d", chosen.decode.real.id, chosen.decode.load(), c.decode.real.id, c.decode.load())
			}
		}
	}
	n := t.real.legs()
	if p := chosen.prefill; p != nil {
		p.slots++
		p.legs += n
		if p.state.Breaker == BreakerHalfOpen {
			p.probes++
			t.prefillEpoch = p.epoch
		}
	}
	d := chosen.decode
	d.pending += n
	if d.state.Breaker == BreakerHalfOpen {
		d.probes++
		t.decEpoch = d.epoch
	}
	t.prefill, t.decode, t.active = chosen.prefill, d, false
}

func (r *refRank) load() int { return r.pending + r.active }

func (m *reference) drain() {
	for again := true; again; {
		again = false
		for _, t := range m.waiters {
			if m.head(t.model) != t {
				continue
			}
			if open := m.open(t); len(open) > 0 {
				m.leave(t)
				m.grant(t, open)
				again = true
				break
			}
		}
	}
}

func (m *reference) leave(t *refTicket) {
	m.waiters = slices.DeleteFunc(m.waiters, func(o *refTicket) bool { return o == t })
	t.queued = false
	t.state = stateIdle
}

func (m *reference) leaveAt(now Instant, t *refTicket) {
	m.leave(t)
	t.waited += int64(now - t.queuedAt)
}

func (m *reference) arrive(now Instant, t *refTicket) {
	m.expire(now)
	m.arriving = t
	defer func() { m.arriving = nil }()
	if !t.arrived {
		m.seq++
		t.arrived, t.arrival, t.seq = true, now, m.seq
	}
	left := never
	if m.limits.QueueTimeout > 0 {
		left = Instant(int64(m.limits.QueueTimeout) - t.waited)
	}
	candidate := m.hasCandidate(t)
	head := m.head(t.model)
	open := m.open(t)
	switch {
	case m.stopped && !t.real.Retry:
		m.refuse(t, Draining)
	case !candidate && m.limits.NoWorkerWait <= 0:
		m.refuse(t, NoWorkers)
	case (head == nil || t.older(head)) && len(open) > 0:
		m.grant(t, open)
	case m.noWaits:
		m.refuse(t, Draining)
	case t.real.Retry && (m.limits.QueueSize <= 0 || left <= 0):
		m.refuse(t, RetryRefused)
	case !t.real.Retry && len(m.waiters) >= m.limits.QueueSize && !candidate && m.limits.QueueSize <= 0:
		m.refuse(t, NoWorkers)
	case !t.real.Retry && len(m.waiters) >= m.limits.QueueSize:
		m.refuse(t, QueueFull)
	case left <= 0:
		m.refuse(t, QueueTimeout)
	case t.real.Deadline != 0 && t.real.Deadline <= now:
		m.refuse(t, DeadlineExceeded)
	default:
		m.postponed++
		t.queued, t.state, t.queuedAt = true, stateQueued, now
		t.limitAt, t.lostAt = never, never
		if left != never {
			t.limitAt = now + left
		}
		if !candidate {
			t.lostAt = now.Add(m.limits.NoWorkerWait)
		}
		m.waiters = append(m.waiters, t)
	}
}

func (m *reference) expire(now Instant) {
	for {
		var first *refTicket
		for _, t := range m.waiters {
			if end := t.endsAt(); end <= now && (first == nil || end < first.endsAt() || end == first.endsAt() && t.older(first)) {
				first = t
			}
		}
		if first == nil {
			return
		}
		m.leaveAt(now, first)
		switch first.endsAt() {
		case first.lostAt:
			m.refuse(first, NoWorkers)
		case first.real.Deadline:
			m.refuse(first, DeadlineExceeded)
		default:
			m.refuse(first, QueueTimeout)
		}
		m.drainAt(now)
	}
}

func (m *reference) drainAt(now Instant) {
	before := slices.Clone(m.waiters)
	m.drain()
	for _, t := range before {
		if !t.queued {
			t.waited += int64(now - t.queuedAt)
		}
	}
}

func (m *reference) cancel(now Instant, t *refTicket) bool {
	if !t.queued {
		return false
	}
	m.leaveAt(now, t)
	m.drainAt(now)
	return true
}

func (m *reference) endPrefill(t *refTicket) {
	if p := t.prefill; p != nil {
		p.slots--
		p.legs -= t.real.legs()
		if t.prefillEpoch == p.epoch && p.state.Breaker == BreakerHalfOpen {
			p.probes--
		}
		t.prefill, t.prefillEpoch = nil, 0
	}
}

func (m *reference) startDecode(t *refTicket) {
	if t.decode != nil && !t.active {
		t.active = true
		t.decode.pending -= t.real.legs()
		t.decode.active += t.real.legs()
	}
}

func (m *reference) endDecode(t *refTicket) {
	if d := t.decode; d != nil {
		if t.active {
			d.active -= t.real.legs()
		} else {
			d.pending -= t.real.legs()
		}
		if t.decEpoch == d.epoch && d.state.Breaker == BreakerHalfOpen {
			d.probes--
		}
		t.decode, t.decEpoch = nil, 0
	}
}

func (m *reference) find(r *Rank) *refRank {
	for _, x := range append(slices.Clone(m.ranks), m.gone...) {
		if x.real == r {
			return x
		}
	}
	return nil
}

func (m *reference) apply(now Instant, changes []Change) {
	for _, ch := range changes {
		switch ch.Op {
		case AddRank:
			r := &refRank{real: ch.Rank, state: ch.State, epoch: 1}
			m.ranks = append(m.ranks, r)
		case RemoveRank:
			r := m.find(ch.Rank)
			m.ranks = slices.DeleteFunc(m.ranks, func(x *refRank) bool { return x == r })
			m.gone = append(m.gone, r)
		case SetState:
			r := m.find(ch.Rank)
			if ch.State.Breaker == BreakerHalfOpen && r.state.Breaker != BreakerHalfOpen {
				r.epoch++
				r.probes = 0
			}
			r.state = ch.State
		}
	}
	lost := slices.Clone(m.waiters)
	slices.SortFunc(lost, func(a, b *refTicket) int {
		if a.older(b) {
			return -1
		}
		return 1
	})
	for _, t := range lost {
		switch {
		case m.hasCandidate(t):
			t.lostAt = never
		case m.limits.NoWorkerWait <= 0:
			m.leaveAt(now, t)
			m.refuse(t, NoWorkers)
		case t.lostAt == never:
			t.lostAt = now.Add(m.limits.NoWorkerWait)
		}
	}
	m.drainAt(now)
}
