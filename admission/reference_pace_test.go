package admission

import (
	"math"
	"slices"
	"time"
)

// refPace is the admissions of one queue and their holds by leg.
type refPace struct {
	admitted []Instant
	runs     [numLegs][]*refRun
	mean     [numLegs]time.Duration
	ended    [numLegs]int
	// the stretch of waiting: since when, and admitted then
	since       Instant
	grantedThen int
}

// refRun is a hold under way.
type refRun struct {
	began Instant
	pace  *refPace
}

func (m *reference) paceOf(q refQueue) *refPace {
	p := m.paces[q]
	if p == nil {
		p = &refPace{}
		m.paces[q] = p
	}
	return p
}

// begin counts an admission and its holds.
func (m *reference) begin(t *refTicket) {
	p := m.paceOf(t.key())
	p.admitted = append(p.admitted, m.now)
	m.total = append(m.total, m.now)
	for l := range numLegs {
		if l == DecodeLeg || t.prefill != nil {
			t.runs[l] = &refRun{m.now, p}
			p.runs[l] = append(p.runs[l], t.runs[l])
			m.runs[l] = append(m.runs[l], t.runs[l])
		}
	}
}

func (m *reference) endRun(t *refTicket, l Leg) {
	r, p := t.runs[l], t.runs[l].pace
	is := func(o *refRun) bool { return o == r }
	p.runs[l] = slices.DeleteFunc(p.runs[l], is)
	m.runs[l] = slices.DeleteFunc(m.runs[l], is)
	p.ended[l] = min(p.ended[l]+1, 32)
	p.mean[l] += (m.now.Sub(r.began) - p.mean[l]) / time.Duration(p.ended[l])
}

// counted is the admissions of the last half minute, by whole seconds, and how many
// a second that is.
func (m *reference) counted(admitted []Instant) (n int, perSecond float64) {
	for _, at := range admitted {
		if at/Instant(time.Second) > m.now/Instant(time.Second)-30 {
			n++
		}
	}
	return n, float64(n) / min(max(m.now.Sub(m.start), time.Second), 30*time.Second).Seconds()
}

// age is how long the holds of a queue have lasted, on average.
func (m *reference) age(p *refPace, l Leg) (age time.Duration) {
	for _, k := range p.runs[l] {
		age += m.now.Sub(k.began)
	}
	return age / time.Duration(max(len(p.runs[l]), 1))
}

// running is how many holds end a second.
func (m *reference) running(p *refPace, l Leg) float64 {
	n := time.Duration(len(p.runs[l]))
	if n == 0 {
		return 0
	}
	hold := max(m.age(p, l), p.mean[l], time.Microsecond)
	if p.ended[l] == 0 {
		hold = max(2*m.age(p, l), 5*time.Second)
	}
	return float64(n) / hold.Seconds()
}

func (m *reference) perSecond(p *refPace, l Leg) float64 {
	n, r := m.counted(p.admitted)
	if n < 20 {
		r = max(r, m.running(p, l))
	}
	return r
}

// totalPerSecond is the pace of all queues; how long a hold lasts is what p knows.
func (m *reference) totalPerSecond(p *refPace, l Leg) float64 {
	n, r := m.counted(m.total)
	if n >= 20 {
		return r
	}
	all := refPace{mean: p.mean, ended: p.ended}
	all.runs[l] = m.runs[l]
	return max(r, m.running(&all, l))
}

// retryAfter is what a request that is refused is told, if it lacked what holds of
// leg l take; 0: the pools' releases tell it, which the reference does not count.
func (m *reference) retryAfter(t *refTicket, why Reason, l Leg) time.Duration {
	secs := 5.0
	q := t.key()
	r, depth := m.perSecond(m.paceOf(q), l), m.depth(q)
	if why == QueueFull {
		r, depth = m.totalPerSecond(m.paceOf(q), l), len(m.waiters)
	}
	switch {
	case why == ClassQueueFull && t.never():
		return 0
	case why == Draining, why == GateUnavailable:
		secs = 1
	case why == NoWorkers:
		secs = 3
	default:
		var head *refTicket
		end := never
		for _, o := range m.waiters {
			end = min(end, o.endsAt())
			if o.queue == q && (head == nil || o.ahead(head)) {
				head = o
			}
		}
		if r > 0 {
			secs = float64(depth+1) / r
		} else if head != nil && head.bound() != never {
			secs = head.bound().Sub(m.now).Seconds()
		} else if why == QueueFull && end != never {
			secs = end.Sub(m.now).Seconds()
		}
	}
	return time.Duration(min(max(math.Ceil(secs), 1), 60)) * time.Second
}

// enter puts t into the queue that it belongs to. A stretch of waiting begins when
// nobody waits there.
func (m *reference) enter(t *refTicket) {
	q := t.key()
	if p := m.paceOf(q); m.depth(q) == 0 {
		p.since, p.grantedThen = m.now, len(p.admitted)
	}
	t.queue = q
	m.overtake(t)
}

// overtake has those whom t, new in their lane, is ahead of be blocked no longer: they are
// not its head.
func (m *reference) overtake(t *refTicket) {
	t.blockedAt = 0
	for _, o := range m.waiters {
		if o != t && m.sameLane(t, o) && t.ahead(o) {
			o.blockedAt = 0
		}
	}
}

// aheadOf is how many waiters of its lane t would be served behind.
func (m *reference) aheadOf(t *refTicket) (n int) {
	for _, o := range m.waiters {
		if o != t && m.sameLane(t, o) && o.ahead(t) {
			n++
		}
	}
	return n
}

// atBest is the fastest that the queue of t is known to be, if holds of leg l lack.
func (m *reference) atBest(t *refTicket, l Leg) float64 {
	q := t.key()
	p := m.paceOf(q)
	_, r := m.counted(p.admitted)
	r = max(r, m.running(p, l))
	if d := m.now.Sub(p.since); m.depth(q) > 0 && d >= time.Second {
		r = max(r, float64(len(p.admitted)-p.grantedThen)/d.Seconds())
	}
	return r
}

// byLeg asks for each leg that t may lack holds of. What a request lacks is of no
// other concern to the reference, so where the answers differ that of the code is
// taken.
func (m *reference) byLeg(t *refTicket, code bool, is func(Leg) bool) bool {
	head := m.laneHead(t)
	if head == nil || t.queued && t.ahead(head) {
		head = t
	}
	if head.single() || is(PrefillLeg) == is(DecodeLeg) {
		return is(DecodeLeg)
	}
	return code
}

// late tells whether t, behind so many others, cannot start before the drain ends.
func (m *reference) late(t *refTicket, ahead int) bool {
	if m.drainEnd == never {
		return false
	}
	refused := t.real.state == stateRefused && t.real.refusal.Reason == Draining
	return m.byLeg(t, refused, func(l Leg) bool {
		r := m.atBest(t, l)
		left := m.drainEnd.Sub(m.now) + m.age(m.paceOf(t.key()), l)
		return r > 0 && float64(ahead+1)/r > left.Seconds()
	})
}

// refuseTooLate refuses the waiters who cannot start before the drain ends.
func (m *reference) refuseTooLate() {
	var late []*refTicket
	for _, t := range m.waiters {
		if t.lostAt == never && m.late(t, m.aheadOf(t)) {
			late = append(late, t)
		}
	}
	slices.SortFunc(late, func(a, b *refTicket) int {
		if a.older(b) {
			return -1
		}
		return 1
	})
	for _, t := range late {
		m.tooLate++
		m.look(t.group())
		m.leaveAt(m.now, t)
		m.refuse(t, Draining)
	}
	m.drain(m.now)
}

// firstBound is when the wait of t, were it to begin now, would end first.
func (m *reference) firstBound(t *refTicket) Instant {
	end := t.classAt
	if m.limits.QueueTimeout > 0 {
		end = min(end, m.now+Instant(int64(m.limits.QueueTimeout)-t.waited))
	}
	if t.real.Deadline != 0 {
		end = min(end, t.real.Deadline)
	}
	return end
}

// early tells whether t is refused because of how long it would wait.
func (m *reference) early(t *refTicket, candidate bool) bool {
	p, end, ahead := m.paceOf(t.key()), m.firstBound(t), m.aheadOf(t)
	n, _ := m.counted(p.admitted)
	if !m.limits.RefuseEarly || !candidate || t.real.Retry || end == never || ahead == 0 ||
		m.depth(t.key()) == 0 || m.now.Sub(p.since) < m.evidence.stretch || uint64(n) < m.evidence.admissions {
		return false
	}
	return m.byLeg(t, t.real.state == stateRefused && t.real.refusal.Predicted, func(l Leg) bool {
		t.estimate[l] = float64(ahead+1) / m.atBest(t, l)
		return t.estimate[l] > 1.5*end.Sub(m.now).Seconds()
	})
}
