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
		}
	}
}

func (m *reference) endRun(t *refTicket, l Leg) {
	r, p := t.runs[l], t.runs[l].pace
	p.runs[l] = slices.DeleteFunc(p.runs[l], func(o *refRun) bool { return o == r })
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

// running is how many holds end a second.
func (m *reference) running(p *refPace, l Leg) float64 {
	n := time.Duration(len(p.runs[l]))
	if n == 0 {
		return 0
	}
	age := time.Duration(0)
	for _, k := range p.runs[l] {
		age += m.now.Sub(k.began)
	}
	hold := max(age/n, p.mean[l], time.Microsecond)
	if p.ended[l] == 0 {
		hold = max(2*(age/n), 5*time.Second)
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

func (m *reference) totalPerSecond(l Leg) float64 {
	n, r := m.counted(m.total)
	if n >= 20 {
		return r
	}
	sum := 0.0
	for _, f := range m.live() {
		for _, p := range f.profiles {
			for _, q := range p.classes {
				sum += m.running(m.paceOf(refQueue{p, q.class.Name}), l)
			}
		}
	}
	return max(r, sum)
}

// retryAfter is what a request that is refused is told, if it lacked what holds of
// leg l take; 0: the pools' releases tell it, which the reference does not count.
func (m *reference) retryAfter(t *refTicket, why Reason, l Leg) time.Duration {
	secs := 5.0
	q := t.key()
	r, depth := m.perSecond(m.paceOf(q), l), m.depth(q)
	if why == QueueFull {
		r, depth = m.totalPerSecond(l), len(m.waiters)
	}
	switch {
	case why == ClassQueueFull && t.never():
		return 0
	case why == Draining:
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
		} else if head != nil && head.endsAt() != never {
			secs = head.endsAt().Sub(m.now).Seconds()
		} else if why == QueueFull && end != never {
			secs = end.Sub(m.now).Seconds()
		}
	}
	return time.Duration(min(max(math.Ceil(secs), 1), 60)) * time.Second
}
