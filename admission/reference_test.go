package admission

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// reference is the contract of the gate, written down as plainly as possible:
// lists, scans and no indexes. Where a policy chooses, it accepts any choice
// with room and follows it. Of the code it takes only names: which family and
// queue of a profile a model belongs to; checkFamilies proves those right.
type reference struct {
	limits             Limits
	reject             RejectThresholds
	classes            *Classes
	strict             bool       // one lane a class
	ranks              []*refRank // registered ones
	gone               []*refRank
	quarantines        []refBar
	waiters            []*refTicket // in no order
	seq                uint64
	stopped, noWaits   bool
	drainEnd           Instant
	leastLoaded        bool // the policy under test
	predictable        bool // it is mostHeld
	measure            Measure
	decided            []*refTicket
	masks              map[uint64][]*refRank // by origin
	suspended, masked  int                   // waiters; grants with a mask
	asides, unshared   int                   // set aside; refused for want of a share
	adopted            int                   // cores whose tickets were adopted
	barredN            int                   // arrivals behind the head of another lane
	arriving           *refTicket
	deficit            map[refQueue]int64
	cursor             map[*profileQueue]int
	closed             int64 // nanoseconds with a blocked head, over all queues
	complaint          error
	grants, refusals   int
	retried, postponed int
	reasons            [numReasons]int
	moved, credited    int
	tooLate, earlyN    int
	rebuilds           int
	withoutBypass      int
	warmed             int
	warmUps            map[*pool]*refWarmUp
	passedOver         int // waiters, by grants of those behind them
	declined           int // looks at waiters that declined
	wentOn             int // clocks of declining that had stood
	held               int // grants with a hint that named an eligible rank
	refreshed          int
	vetoes, unbooked   int // reports that made a rank vetoed, or told of unbooked blocks

	fences      map[*modelGroup]*refFence
	fenced      int // fences set so far
	fencesEnded int // so far, but for those that a step ended as such
	groupGrants map[*modelGroup]int
	looked      map[*modelGroup]bool // in this step
	evidence    earlyEvidence
	now, start  Instant
	paces       map[refQueue]*refPace
	total       []Instant
	runs        [numLegs][]*refRun // of all
}

type refRank struct {
	real  *Rank
	state RankState
	aside Aside // a part of what it holds
	// attributes are what was drawn for it; the real one has them, too
	attributes RankAttributes
	slots      int
	legs       int
	pending    int
	active     int
	tokens     int64
	blocks     [2]int64 // pending, active
	probes     int
	epoch      int

	report    RankReport
	blockSize int64 // tokens
	unbooked  int64 // blocks that the engine had in use beyond ours when it was asked
	vetoed    bool
}

type refBar struct{ prefill, decode *refRank }

// refQueue is the waiters of one class in one family.
type refQueue struct {
	profile *profileQueue
	class   string
}

type refTicket struct {
	number    uint64
	origin    uint64
	real      *Ticket
	drawn     Ticket         // what it was to ask for
	specs     [2]*TargetSpec // of target and instead
	model     string
	exclude   [numLegs][]*refRank
	arrived   bool
	arrival   Instant
	seq       uint64
	queued    bool
	queuedAt  Instant
	waited    int64
	limitAt   Instant
	lostAt    Instant
	classAt   Instant
	state     ticketState
	reason    Reason
	kind      LimitKind
	predicted bool
	current   int64
	limit     int64
	depth     int
	// by the leg whose holds the request lacked; 0: not known here
	retryAfter [numLegs]time.Duration
	estimate   [numLegs]float64 // seconds, of who is refused early

	hints                  [numLegs][]refHolder
	renew                  bool
	passes                 int
	passing                []*refTicket  // whom it passes over, when it is granted
	declined               time.Duration // ranks, but for since declinesAt; 0: it does not
	declinesAt, declineEnd Instant

	class   *Class
	weight  int64
	orderBy Instant
	raw     int64
	cached  int64
	queue   refQueue // that it waits in

	// What it is placed on, and what it may be placed on instead, which is decided once.
	target, instead *Target
	reconsidered    bool
	exchanged       bool // of these two one is the other now

	blockedAt  Instant // since when it is the head of its lane and cannot start; 0: it is not
	grantsThen int     // of its model group

	runs [numLegs]*refRun

	prefill, decode        *refRank // that it holds
	prefillWas             *refRank
	tokens, blocks         int64
	size                   int64 // of a block where it decodes
	output, outgrown       int64 // tokens that came; blocks booked for them
	counter                *output
	active                 bool
	prefillEpoch, decEpoch int // of the probe it holds, 0: none
}

func (m *reference) complain(format string, args ...any) {
	if m.complaint == nil {
		m.complaint = fmt.Errorf(format, args...)
	}
}

func (m *reference) decide(t *refTicket, s ticketState) {
	t.state = s
	if t != m.arriving {
		m.decided = append(m.decided, t)
	}
}

func (m *reference) refuse(t *refTicket, why Reason) {
	m.refusals++
	t.depth = m.depth(t.key())
	if why == QueueFull {
		t.depth = len(m.waiters)
	}
	if why == NoWorkers && m.lacksShare(t) {
		why = GateUnavailable
		m.unshared++
	}
	if t.real.Retry && why != Draining {
		why = RetryRefused
	}
	m.reasons[why]++
	t.predicted = false
	for l := range numLegs {
		t.retryAfter[l] = m.retryAfter(t, why, l)
	}
	t.reason = why
	t.kind, t.current, t.limit = LimitNone, 0, 0
	m.decide(t, stateRefused)
}

// grant follows the choice of the code, if it is a right one.
func (m *reference) grant(t *refTicket, open []refPair) {
	m.grants++
	m.groupGrants[t.group()]++
	var chosen refPair
	found := false
	for _, c := range open {
		if c.decode.real == t.real.Decode && (c.prefill == nil) == (t.real.Prefill == nil) &&
			(c.prefill == nil || c.prefill.real == t.real.Prefill) {
			chosen, found = c, true
		}
	}
	m.masked += b2i(m.maskOf(t) != 0)
	m.decide(t, stateGranted)
	if !found {
		m.complain("a request (granted: %t) was to be granted one of %d choices, and got another", t.real.state == stateGranted, len(open))
		return
	}
	m.checkChoice(t, open, chosen)
	if m.predictable {
		if c := m.predict(t, open); c != chosen {
			m.complain("a request was to be granted %v, and got %v", refOf(c.decode.real), refOf(chosen.decode.real))
		}
	}
	why := m.whyOf(t, open, chosen)
	if got := t.real.Choice(); got != why {
		m.complain("a request was granted its rank by %+v, want %+v", got, why)
	}
	if why.Why != ChosenWithoutHolder {
		m.held++
	}
	t.tokens = t.uncachedOn(t.gating(), chosen.gate())
	if p := chosen.prefill; p != nil {
		p.slots++
		p.legs += t.real.legs()
		p.tokens += t.tokens
		if p.state.Breaker == BreakerHalfOpen {
			p.probes++
			t.prefillEpoch = p.epoch
		}
		m.took(t.target.model.pools[RolePrefill], p)
	} else {
		chosen.decode.tokens += t.tokens
	}
	t.prefill, t.prefillWas = chosen.prefill, chosen.prefill
	m.bookDecode(t, chosen.decode)
	m.took(t.target.model.pools[t.target.role(DecodeLeg)], chosen.decode)
	m.begin(t)
}

func (m *reference) leaveAt(now Instant, t *refTicket) {
	m.waiters = slices.DeleteFunc(m.waiters, func(o *refTicket) bool { return o == t })
	t.queued = false
	t.state = stateIdle
	t.waited += int64(now - t.queuedAt)
	t.blockedAt = 0
	t.endDecline(now)
	m.endFence(t)
	if m.depth(t.queue) == 0 {
		delete(m.deficit, t.queue)
	}
}

func (m *reference) arrive(now Instant, t *refTicket) {
	t.target, t.instead = t.real.Target, t.real.Instead
	m.expire(now)
	m.arriving = t
	defer func() { m.arriving = nil }()
	if !t.arrived {
		m.seq++
		t.arrived, t.arrival, t.seq = true, now, m.seq
		t.weight = max(t.real.PromptTokens-t.real.CachedTokens, 0)
		t.class = m.classify(t)
		t.order()
	} else {
		m.reclassify(t)
	}
	left := never
	if m.limits.QueueTimeout > 0 {
		left = Instant(int64(m.limits.QueueTimeout) - t.waited)
	}
	t.classAt = never
	if t.real.ClassDeadline != 0 {
		t.classAt = t.real.ClassDeadline
	}
	if w := t.class.MaxWait; w > 0 {
		t.classAt = min(t.classAt, now+Instant(int64(w)-t.waited))
	}
	candidate := m.hasCandidate(t)
	if (!m.stopped || t.real.Retry) && (candidate || m.limits.NoWorkerWait > 0) && m.placeFence(now, t.group()) {
		m.look(t.group())
		m.drain(now)
	}
	head := m.laneHead(t)
	barred := m.barred(t)
	first := (head == nil || t.ahead(head)) && !barred
	tried := first || m.among(t) && !barred
	m.barredN += b2i(barred)
	open := m.open(t)
	why, kind, current, limit := m.full(t)
	switch {
	case m.stopped && !t.real.Retry:
		m.refuse(t, Draining)
	case !candidate && m.limits.NoWorkerWait <= 0:
		m.refuse(t, NoWorkers)
	case tried && len(open) > 0 && m.waits(now, t, open):
		m.queue(now, t, candidate)
		t.reconsidered = true
		m.look(t.group())
		m.drain(now)
	case tried && len(open) > 0:
		if head != nil {
			m.charge(t)
		}
		over := m.overs()
		m.grant(t, open)
		if m.overs() > over {
			m.look(t.group())
		}
		m.lookAgain(t.group())
		m.drain(now) // heads whose last candidate is overloaded now
	case m.overloaded(t):
		m.refuse(t, AllOverloaded)
	case m.noWaits:
		m.refuse(t, Draining)
	case candidate && m.late(t, m.aheadOf(t)):
		m.refuse(t, Draining)
	case t.real.Retry && (m.limits.QueueSize <= 0 || left <= 0 || t.never() || t.classAt <= now):
		m.refuse(t, RetryRefused)
	case !t.real.Retry && why != reasonNone && !candidate && (t.never() || m.limits.QueueSize <= 0):
		m.refuse(t, NoWorkers)
	case !t.real.Retry && why != reasonNone:
		m.refuse(t, why)
		t.kind, t.current, t.limit = kind, current, limit
	case left <= 0:
		m.refuse(t, QueueTimeout)
	case t.real.Deadline != 0 && t.real.Deadline <= now && t.real.Deadline <= t.classAt:
		m.refuse(t, DeadlineExceeded)
		t.kind = LimitClientWait
	case t.classAt <= now:
		m.refuse(t, DeadlineExceeded)
		t.kind = LimitClassWait
	case m.early(t, candidate):
		m.earlyN++
		switch m.firstBound(t) {
		case t.real.Deadline:
			m.refuse(t, DeadlineExceeded)
			t.kind = LimitClientWait
		case t.classAt:
			m.refuse(t, DeadlineExceeded)
			t.kind = LimitClassWait
		default:
			m.refuse(t, QueueTimeout)
		}
		t.predicted = true
		t.retryAfter = [numLegs]time.Duration{}
	default:
		m.queue(now, t, candidate)
		t.reconsidered = t.reconsidered || tried // it was decided just now
		if first {
			m.block(now, t)
			if m.strict && slices.ContainsFunc(m.waiters, func(o *refTicket) bool { return o.key() == t.key() && m.maskOf(o) != 0 }) {
				m.look(t.group())
				m.drain(now)
			}
		}
	}
}

// queue has t, which arrives, wait.
func (m *reference) queue(now Instant, t *refTicket, candidate bool) {
	m.postponed++
	t.queued, t.state, t.queuedAt = true, stateQueued, now
	t.limitAt, t.lostAt = never, never
	if m.limits.QueueTimeout > 0 {
		t.limitAt = now + Instant(int64(m.limits.QueueTimeout)-t.waited)
	}
	if !candidate {
		t.lostAt = now.Add(m.limits.NoWorkerWait)
	}
	t.raw = t.real.PromptTokens
	t.cached = min(t.real.CachedTokens, t.raw)
	m.enter(t)
	m.waiters = append(m.waiters, t)
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
		if first.declineEnd != 0 && first.declineEnd < first.bound() { // it takes now what it declined
			first.endDecline(now)
			if first.endsAt() > now {
				m.look(first.group())
				m.drain(now)
			}
			continue
		}
		m.lookWithout(first)
		m.leaveAt(now, first)
		m.refuseAtBound(first)
		m.drain(now)
	}
}

// refuseAtBound refuses t, whose wait is over.
func (m *reference) refuseAtBound(t *refTicket) {
	switch t.bound() {
	case t.lostAt:
		m.refuse(t, NoWorkers)
	case t.real.Deadline:
		m.refuse(t, DeadlineExceeded)
		t.kind = LimitClientWait
	case t.classAt:
		m.refuse(t, DeadlineExceeded)
		t.kind = LimitClassWait
	default:
		m.refuse(t, QueueTimeout)
	}
}

func (m *reference) cancel(now Instant, t *refTicket) bool {
	if t.state == stateSuspended {
		t.waited += int64(now - t.queuedAt)
		t.state = stateIdle
		return true
	}
	if !t.queued {
		return false
	}
	m.lookWithout(t)
	m.leaveAt(now, t)
	m.drain(now)
	return true
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
	if len(changes) > 0 && !slices.ContainsFunc(changes, func(ch Change) bool { return ch.Op != SetReport }) {
		m.reported(now, changes)
		return
	}
	fresh := map[*refRank]bool{}
	for _, ch := range changes {
		switch ch.Op {
		case AddRank:
			r := &refRank{real: ch.Rank, state: ch.State, epoch: 1, attributes: ch.Attributes}
			r.blockSize = r.real.blockSize()
			m.ranks = append(m.ranks, r)
			fresh[r] = true
		case SetAttributes:
			r := m.find(ch.Rank)
			r.attributes = ch.Attributes
			fresh[r] = true
			if size := cmp.Or(ch.Attributes.Capacity.BlockSize, 16); size != r.blockSize {
				r.blockSize, r.unbooked = size, 0
			}
		case RemoveRank:
			r := m.find(ch.Rank)
			m.ranks = slices.DeleteFunc(m.ranks, func(x *refRank) bool { return x == r })
			m.gone = append(m.gone, r)
			r.setAside(Aside{})
			m.quarantines = slices.DeleteFunc(m.quarantines, func(b refBar) bool { return b.prefill == r || b.decode == r })
		case SetState:
			r := m.find(ch.Rank)
			if ch.State.Breaker == BreakerHalfOpen && r.state.Breaker != BreakerHalfOpen {
				r.epoch++
				r.probes = 0
			}
			fresh[r] = fresh[r] || r.share() == 0
			r.state = ch.State
			fresh[r] = fresh[r] || r.share() == 0
		case SetReport:
			m.report(m.find(ch.Rank), ch.Report)
		case SetAside:
			m.find(ch.Rank).setAside(ch.Aside)
			m.asides += b2i(ch.Aside != Aside{})
		case QuarantinePair:
			b := refBar{m.find(ch.Rank), m.find(ch.Other)}
			if !slices.Contains(m.quarantines, b) {
				m.quarantines = append(m.quarantines, b)
			}
		case EndQuarantine:
			b := refBar{m.find(ch.Rank), m.find(ch.Other)}
			m.quarantines = slices.DeleteFunc(m.quarantines, func(o refBar) bool { return o == b })
		}
	}
	for r, now := range fresh {
		if !now {
			delete(fresh, r)
		}
	}
	m.beginWarmUps(fresh)
	m.requeue()
	m.loseUnservable(now, func(*refTicket) bool { return true })
	m.moveFences()
	m.lookAll()
	m.drain(now)
}

// loseUnservable ends the waits of those for whom there is no candidate any more, or begins
// the time that they have.
func (m *reference) loseUnservable(now Instant, of func(*refTicket) bool) {
	lost := slices.Clone(m.waiters)
	slices.SortFunc(lost, func(a, b *refTicket) int {
		if a.older(b) {
			return -1
		}
		return 1
	})
	lost = slices.DeleteFunc(lost, func(t *refTicket) bool {
		switch {
		case !of(t):
		case m.hasCandidate(t):
			t.lostAt = never
		case m.limits.NoWorkerWait <= 0:
			return false
		case t.lostAt == never:
			t.lostAt = now.Add(m.limits.NoWorkerWait)
		}
		return true
	})
	for _, t := range lost {
		m.leaveAt(now, t)
		m.refuse(t, NoWorkers)
	}
}

// requeue moves waiters of models that changed their family.
func (m *reference) requeue() {
	var left []refQueue
	for _, t := range m.waiters {
		if t.queue != t.key() {
			left = append(left, t.queue)
			m.endFence(t)
			m.enter(t)
		}
	}
	for _, q := range left {
		if m.depth(q) == 0 {
			delete(m.deficit, q)
		}
	}
}

// reload puts other classes in force. The waiters' queues are new, with the
// deficits of those of their name.
func (m *reference) reload(now Instant, cs *Classes, strict bool, old map[*profileQueue]string) {
	type name struct {
		f              *modelGroup
		profile, class string
	}
	deficits := map[name]int64{}
	for _, t := range m.waiters {
		deficits[name{t.target.model.modelGroup, old[t.queue.profile], t.queue.class}] = m.deficit[t.queue]
	}
	m.classes, m.strict = cs, strict
	m.deficit, m.cursor = map[refQueue]int64{}, map[*profileQueue]int{}
	for _, t := range m.waiters {
		m.reclassify(t)
		m.enter(t)
	}
	for _, t := range m.waiters {
		m.deficit[t.queue] = deficits[name{t.target.model.modelGroup, t.queue.profile.profile.name, t.queue.class}]
	}
	m.moveFences()
	m.lookAll()
	m.drain(now)
}

// GoString names the rank where a drawn one is printed.
func (r *refRank) GoString() string { return r.real.id }
