package admission

import (
	"math"
	"slices"
)

func (t *refTicket) older(o *refTicket) bool {
	return t.arrival < o.arrival || t.arrival == o.arrival && t.seq < o.seq
}

// score is what the order of the class goes by, the highest first.
func (t *refTicket) score() float64 {
	switch t.class.Order {
	case WSPT:
		return (1 + t.real.PriorityJump) / float64(max(t.weight, 1))
	case LCFS:
		return t.real.PriorityJump*1e9 + float64(t.arrival)
	}
	return t.real.PriorityJump*1e9 - float64(t.arrival)
}

// ahead is the order within a class.
func (t *refTicket) ahead(o *refTicket) bool {
	switch {
	case t.real.StrictPriority != o.real.StrictPriority:
		return t.real.StrictPriority > o.real.StrictPriority
	case t.orderBy != o.orderBy:
		return t.orderBy < o.orderBy
	case t.score() != o.score():
		return t.score() > o.score()
	}
	return t.older(o)
}

func (m *reference) sameLane(t, o *refTicket) bool {
	return t.key() == o.key() && m.maskOf(t) == m.maskOf(o) && (m.strict && m.maskOf(t) == 0 || t.target == o.target &&
		slices.Equal(t.exclude[0], o.exclude[0]) && slices.Equal(t.exclude[1], o.exclude[1]))
}

// key is the queue t belongs to.
func (t *refTicket) key() refQueue { return refQueue{t.target.model.queues, t.class.Name} }

// laneHead is the first of those t queues with, without it; nil when alone.
func (m *reference) laneHead(t *refTicket) (head *refTicket) {
	for _, o := range m.waiters {
		if o != t && m.sameLane(t, o) && (head == nil || o.ahead(head)) {
			head = o
		}
	}
	return head
}

// heads are the heads of the lanes of one queue, in order.
func (m *reference) heads(q refQueue) (heads []*refTicket) {
	for _, t := range m.waiters {
		if t.queue == q {
			if h := m.laneHead(t); h == nil || t.ahead(h) {
				heads = append(heads, t)
			}
		}
	}
	slices.SortFunc(heads, func(a, b *refTicket) int {
		if a.ahead(b) {
			return -1
		}
		return 1
	})
	return heads
}

func (m *reference) depth(q refQueue) (n int) {
	for _, t := range m.waiters {
		if t.queue == q {
			n++
		}
	}
	return n
}

// endsAt is when something becomes of t, if nothing else happens: its wait ends, or it does
// not decline ranks any more.
func (t *refTicket) endsAt() Instant {
	if t.declineEnd != 0 {
		return min(t.bound(), t.declineEnd)
	}
	return t.bound()
}

// bound is when the wait of t ends.
func (t *refTicket) bound() Instant {
	end := min(t.limitAt, t.lostAt, t.classAt)
	if t.real.Deadline != 0 {
		end = min(end, t.real.Deadline)
	}
	return end
}

// queues is the number of queues somebody waits in, but for those whose first waiter declines
// the room there is.
func (m *reference) queues() int {
	first := map[refQueue]*refTicket{}
	for _, t := range m.waiters {
		if o := first[t.queue]; o == nil || t.ahead(o) {
			first[t.queue] = t
		}
	}
	n := 0
	for _, t := range first {
		if m.lookahead() == 1 || t.blockedAt != 0 {
			n++
		}
	}
	return n
}

// profile is the classes of a model.
func (m *reference) profile(model string) *Profile {
	if m.classes != nil {
		if p := m.classes.Models[model]; p != nil {
			return p
		}
		if m.classes.Root != nil {
			return m.classes.Root
		}
	}
	return &Profile{Classes: []Class{{Name: "default", Quantum: 1}}}
}

// classify finds the class of t from its name and weight.
func (m *reference) classify(t *refTicket) *Class {
	p := m.profile(t.model)
	for i := range p.Classes {
		if c := &p.Classes[i]; c.Family == "" && c.Name == t.real.Class {
			return c
		}
	}
	bucket := ""
	for _, b := range p.Buckets {
		if b.MinTokens <= t.weight {
			bucket = b.Name
		}
	}
	find := func(family string) *Class {
		for i := range p.Classes {
			if c := &p.Classes[i]; c.Family != "" && c.Family == family && c.Bucket == bucket {
				return c
			}
		}
		return nil
	}
	if c := find(t.real.Class); c != nil {
		return c
	}
	if c := find(p.DefaultFamily); c != nil {
		return c
	}
	return &p.Classes[0]
}

// reclassify gives t the class of its name in the configuration in force, or
// finds it one.
func (m *reference) reclassify(t *refTicket) {
	defer t.order()
	p := m.profile(t.model)
	for i := range p.Classes {
		if p.Classes[i].Name == t.class.Name {
			t.class = &p.Classes[i]
			return
		}
	}
	t.class = m.classify(t)
}

// order gives t the deadline that orders it in its class.
func (t *refTicket) order() {
	t.orderBy = never
	if t.real.ClassDeadline != 0 {
		t.orderBy = t.real.ClassDeadline
	}
	if t.class.MaxWait > 0 {
		t.orderBy = min(t.orderBy, t.arrival.Add(t.class.MaxWait))
	}
}

// drain grants to waiters until nobody can start.
func (m *reference) drain(now Instant) {
	for _, f := range m.groups() {
		if m.lookahead() > 1 && !m.looked[f] {
			continue // who declines is looked at when the code does, because it ends by time
		}
		for {
			if m.looked[f] {
				m.placeFence(now, f)
			}
			ended := m.fencesEnded
			t := m.next(now, f)
			if t == nil && m.fencesEnded > ended {
				continue // who was kept off by the fence may start
			}
			if t == nil {
				break
			}
			open := m.open(t)
			m.charge(t)
			m.leaveAt(now, t)
			for _, o := range t.passing {
				o.passes++
				m.passedOver++
			}
			t.passing = nil
			m.grant(t, open)
		}
	}
	clear(m.looked)
}

func (t *refTicket) cost() int64 {
	if t.real.Retry {
		return 0
	}
	return max(t.weight, 1)
}

func (m *reference) charge(t *refTicket) { m.deficit[t.key()] -= t.cost() }

// groups are the model groups somebody waits in.
func (m *reference) groups() (all []*modelGroup) {
	for _, t := range m.waiters {
		if f := t.group(); !slices.Contains(all, f) {
			all = append(all, f)
		}
	}
	return all
}

// next is who of a model group is granted next: before all others the owner of its fence.
func (m *reference) next(now Instant, f *modelGroup) (first *refTicket) {
	if x := m.fences[f]; x != nil && len(m.open(x.owner)) > 0 {
		x.owner.passing = nil
		return x.owner
	}
	var profiles []*profileQueue
	for _, t := range m.waiters {
		if p := t.queue.profile; t.group() == f && !slices.Contains(profiles, p) {
			profiles = append(profiles, p)
		}
	}
	for _, p := range profiles {
		if t := m.nextIn(now, p); t != nil && (first == nil || t.older(first)) {
			first = t
		}
	}
	return first
}

// nextIn is one decision of the round robin between the classes of a profile.
func (m *reference) nextIn(now Instant, p *profileQueue) *refTicket {
	n := len(p.classes)
	if _, ok := m.cursor[p]; !ok {
		m.cursor[p] = n - 1
	}
	unaffordable := map[int]*refTicket{}
	rounds := int64(math.MaxInt64)
	for i := range n {
		at := (m.cursor[p] + i) % n
		q := refQueue{p, p.classes[at].class.Name}
		t := m.startable(now, q)
		if t == nil {
			continue
		}
		if m.deficit[q] >= t.cost() {
			m.cursor[p] = at
			return t
		}
		unaffordable[at] = t
		lacks := float64(t.cost() - m.deficit[q])
		rounds = min(rounds, int64(math.Ceil(lacks/float64(t.class.Quantum))))
	}
	if len(unaffordable) > 0 {
		m.credited++
	}
	for at, t := range unaffordable {
		m.deficit[refQueue{p, p.classes[at].class.Name}] += rounds * t.class.Quantum
	}
	for i := range n { // the one whose turn is over is the last
		at := (m.cursor[p] + 1 + i) % n
		if t := unaffordable[at]; t != nil && m.deficit[t.queue] >= t.cost() {
			m.cursor[p] = at
			return t
		}
	}
	return nil
}

// startable is the first head of a class with room.
func (m *reference) startable(now Instant, q refQueue) *refTicket {
	if m.lookahead() > 1 {
		return m.first(now, q)
	}
	for _, t := range m.waiters {
		if t.queue == q {
			t.endDecline(now)
		}
	}
	for {
		again := false
		heads := m.heads(q)
		for i, t := range heads {
			if m.barred(t) {
				for _, o := range heads[i:] {
					o.blockedAt = 0 // it is not for want of anything
				}
				return nil
			}
			if m.reconsider(t) {
				again = true
				break
			}
			if len(m.open(t)) > 0 {
				t.passing = nil // found while there was a lookahead
				return t
			}
			if m.overloaded(t) {
				m.leaveAt(now, t)
				m.refuse(t, AllOverloaded)
				again = true
				break
			}
			m.block(now, t)
		}
		if !again {
			return nil
		}
	}
}

// full tells which bound keeps t from queueing.
func (m *reference) full(t *refTicket) (why Reason, kind LimitKind, current, limit int64) {
	workers := map[string]bool{}
	role := t.role(PrefillLeg)
	for _, r := range m.ranks {
		if r.real.role == role && r.serves(t.model) {
			workers[r.real.worker] = true
		}
	}
	var n, raw, cached, bytes int64
	for _, o := range m.waiters {
		bytes += o.real.Bytes
		if o.queue == t.key() {
			n++
			raw += o.raw
			cached += o.cached
		}
	}
	for i, each := range []*float64{t.class.RequestLimitPerWorker, t.class.RawTokenLimitPerWorker, t.class.CachedTokenLimitPerWorker} {
		if each == nil {
			continue
		}
		limit := max(int64(*each*float64(len(workers))), 1)
		if *each == 0 {
			limit = 0
		}
		if current := []int64{n, raw, cached}[i]; current >= limit {
			return ClassQueueFull, []LimitKind{LimitRequests, LimitRawTokens, LimitCachedTokens}[i], current, limit
		}
	}
	if len(m.waiters) >= m.limits.QueueSize {
		return QueueFull, LimitRequests, int64(len(m.waiters)), int64(m.limits.QueueSize)
	}
	if m.limits.MaxWaitingBytes > 0 && bytes+t.real.Bytes > m.limits.MaxWaitingBytes {
		return QueueFull, LimitBytes, bytes, m.limits.MaxWaitingBytes
	}
	return reasonNone, LimitNone, 0, 0
}

func (t *refTicket) never() bool {
	zero := func(v *float64) bool { return v != nil && *v == 0 }
	return zero(t.class.RequestLimitPerWorker) || zero(t.class.RawTokenLimitPerWorker) || zero(t.class.CachedTokenLimitPerWorker)
}
