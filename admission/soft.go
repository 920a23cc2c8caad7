package admission

import (
	"slices"
	"time"
)

// Soft is what a core knows beside its [State] and that another one can do without, but not
// without a loss for somebody: what the round robin owes classes, who has a fence, and how
// fast queues move. It has no instants.
type Soft struct {
	Age    time.Duration // since pace began to be counted
	Queues []SoftQueue
	Total  SoftRate
}

// SoftQueue is a class in one model group.
type SoftQueue struct {
	Model   string // one of the group's
	Profile string // the model whose classes these are; empty: the root's
	Class   string
	Deficit int64
	Turn    bool // it is the class's turn
	// Granted are its admissions so far. Waits is for how long somebody has waited without
	// a break, GrantedInWait the admissions in that time.
	Granted       uint64
	Waits         time.Duration
	GrantedInWait uint64
	Rate          SoftRate
	Holds         [numLegs]SoftHold
	// Fence is the ticket of the class that has the fence of the group; 0: none has.
	Fence uint64
	// BlockedFor is for how long its first head has been blocked while others were granted.
	BlockedFor time.Duration
}

// SoftRate are the admissions of the last seconds, the present one first.
type SoftRate []uint32

// SoftHold is how long holds of one leg last.
type SoftHold struct {
	Mean  time.Duration
	Ended int32
}

// Soft returns what a planned successor goes on with.
func (p *Port) Soft(now Instant) Soft {
	c := p.core
	s := Soft{Age: now.Sub(c.start), Total: c.total.soft(now)}
	for _, f := range c.modelGroups {
		for _, q := range f.profiles {
			model := ""
			for _, m := range c.modelsByName {
				if m.queues == q {
					model = m.name
					break
				}
			}
			for i, k := range q.classes {
				x := SoftQueue{
					Model: model, Profile: q.profile.name, Class: k.class.Name, Deficit: k.deficit, Turn: i == q.cursor,
					Granted: k.pace.granted, Rate: k.pace.rate.soft(now),
				}
				for l := range numLegs {
					x.Holds[l] = SoftHold{k.pace.runs[l].mean, k.pace.runs[l].ended}
				}
				if k.n > 0 {
					x.Waits, x.GrantedInWait = now.Sub(k.pace.since), k.pace.granted-k.pace.grantedThen
				}
				if o := f.fence.owner; o != nil && o.lane.queue == k {
					x.Fence = o.extra.number
				}
				if l := k.first(); l != nil && l.since != 0 && l.granted != f.grants {
					x.BlockedFor = now.Sub(l.since)
				}
				s.Queues = append(s.Queues, x)
			}
		}
	}
	return s
}

// SetSoft goes on with what another core knew. Tickets and ranks are as they were there, or
// it is taken as far as they are. Decided are those whom a fence lets start.
func (p *Port) SetSoft(now Instant, s Soft) Answer {
	c := p.core
	c.tick(now)
	c.start = now.Add(-min(max(s.Age, 0), rateWindow*time.Second))
	c.total.setSoft(now, s.Total)
	for i := range s.Queues {
		x := &s.Queues[i]
		m := c.models[x.Model]
		if m == nil || m.queues.profile.name != x.Profile {
			continue
		}
		at := slices.IndexFunc(m.queues.classes, func(k *classQueue) bool { return k.class.Name == x.Class })
		if at < 0 {
			continue
		}
		k, f := m.queues.classes[at], m.modelGroup
		if k.n > 0 {
			k.deficit = min(max(x.Deficit, -maxAmount<<10), maxAmount<<10)
		}
		if x.Turn {
			m.queues.cursor = at
		}
		k.pace.rate.setSoft(now, x.Rate)
		for l := range numLegs {
			if h := x.Holds[l]; h.Ended > 0 && h.Mean >= 0 {
				k.pace.runs[l].mean, k.pace.runs[l].ended = h.Mean, min(h.Ended, holdMemory)
			}
		}
		k.pace.granted += x.Granted
		if k.n > 0 {
			k.pace.since, k.pace.grantedThen = now.Add(-max(x.Waits, 0)), k.pace.granted-min(x.GrantedInWait, k.pace.granted)
			if l := k.first(); x.BlockedFor > 0 && l.since != 0 {
				l.since, l.granted = max(now.Add(-x.BlockedFor), 1), f.grants-1
				f.fenceAt = 0
			}
		}
		if t := p.tickets[x.Fence]; x.Fence != 0 && t != nil && t.state == stateQueued && t.modelGroup() == f && f.fence.owner == nil && c.limits.StarvationGuard > 0 {
			prefill, decode := c.chooser.fenceable(t)
			f.fence = fence{t, prefill, decode}
		}
	}
	for _, f := range c.modelGroups {
		c.drain(now, f, &p.out)
	}
	var a Answer
	p.answer(true, &a)
	return a
}

// soft is what the meter has counted, by the age of the seconds.
func (m *rateMeter) soft(now Instant) SoftRate {
	x := *m // asking changes it
	x.advance(now)
	if x.sum == 0 {
		return nil
	}
	counts := make(SoftRate, rateWindow)
	for age := range int64(rateWindow) {
		counts[age] = x.counts[((x.last-age)%rateWindow+rateWindow)%rateWindow]
	}
	return counts[:rateWindow-trailingZeros(counts)]
}

func trailingZeros(counts SoftRate) (n int) {
	for i := len(counts) - 1; i >= 0 && counts[i] == 0; i-- {
		n++
	}
	return n
}

// setSoft has the meter go on from what another counted.
func (m *rateMeter) setSoft(now Instant, counts SoftRate) {
	m.advance(now)
	for age, n := range counts[:min(len(counts), rateWindow)] {
		at := ((m.last-int64(age))%rateWindow + rateWindow) % rateWindow
		m.counts[at] += n
		m.sum += uint64(n)
	}
}
