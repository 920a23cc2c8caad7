package admission

import (
	"slices"
)

func (qs *queues) newProfileQueue(f *modelGroup, p *profile) *profileQueue {
	q := &profileQueue{profile: p, cursor: len(p.classes) - 1}
	for _, cl := range p.classes {
		cq := &classQueue{class: cl, modelGroup: f}
		cq.closed.queues, cq.closed.class = qs, qs.closedOf(cl.Name)
		q.classes = append(q.classes, cq)
	}
	return q
}

// join makes m a model of f.
func (qs *queues) join(m *model, f *modelGroup) {
	m.modelGroup = f
	p := qs.profileOf(m.name)
	for _, q := range f.profiles {
		if q.profile == p {
			m.queues = q
			return
		}
	}
	m.queues = qs.newProfileQueue(f, p)
	f.profiles = append(f.profiles, m.queues)
}

func (t *Ticket) queue() *classQueue { return t.Target.model.queues.classes[t.class.index] }

// first returns the lane whose head is the first in the order of the class; nil when
// nobody waits.
func (q *classQueue) first() *lane {
	if q.all.Len() == 0 {
		return nil
	}
	return q.all.First().lane
}

// head returns the first waiter in the order of the class.
func (q *classQueue) head() *Ticket {
	if l := q.first(); l != nil {
		return l.head()
	}
	return nil
}

// insert puts a waiter into the lane it belongs to. A new head may be looked at.
func (qs *queues) insert(now Instant, t *Ticket) {
	q := t.queue()
	if q.n == 0 {
		q.pace.since, q.pace.grantedThen = now, q.pace.granted
	}
	l := q.lane(qs, t)
	if l == nil {
		l = q.openLane(qs, t)
		t.lane = l
		l.waiters.Push(byPlace{t})
		q.all.Push(laneByHead{l})
		q.ready.Push(readyLane{l})
	} else {
		t.lane = l
		l.waiters.Push(byPlace{t})
		if len(l.front) > 0 {
			l.joinFront(t)
		}
		if l.head() == t {
			q.newHead(l)
		}
	}
	if t.Matcher != nil {
		q.joinMatchers(qs, t)
	}
	q.n++
	q.modelGroup.waiting++
	t.Target.model.queues.waiting++
	q.raw += t.queuedRaw
	q.cached += t.queuedCached
}

// extract takes a waiter out of its lane. It tells whether somebody may start
// because of that: the next of the lane, or those whom a fence kept off.
func (qs *queues) extract(now Instant, t *Ticket) bool {
	l := t.lane
	q := l.queue
	if t.declining() {
		qs.endDecline(now, t)
	}
	t.lane = nil
	head := l.head() == t
	// Where somebody is not blocked, others behind him may be looked at instead of t.
	others := head || qs.open(q.modelGroup)
	if l.waiters.Len() == 1 {
		q.all.Remove(l.classPos)
		if l.blocked() {
			q.unpark(l)
		} else {
			q.ready.Remove(l.readyPos)
		}
		l.remove(t)
		q.closeLane(qs, l)
	} else {
		l.remove(t)
		if head {
			q.newHead(l)
		}
	}
	if t.Matcher != nil {
		q.refresh.matchers--
		qs.matchers--
	}
	q.refresh.left++
	q.n--
	q.modelGroup.waiting--
	t.Target.model.queues.waiting--
	q.raw -= t.queuedRaw
	q.cached -= t.queuedCached
	if q.n == 0 {
		q.deficit, q.passedBy = 0, nil
		clear(q.passed)
		q.closed.set(ResourceNone, now)
	}
	if f := q.modelGroup; f.fence.owner == t {
		qs.endFence(f)
		return true
	}
	return others
}

func (q *classQueue) newHead(l *lane) {
	l.since, l.heldUp = 0, 0
	q.all.Fix(l.classPos)
	if l.blocked() {
		q.unblock(l)
	} else {
		q.ready.Fix(l.readyPos)
	}
}

// unblock lets the head of l, which was blocked, be looked at again.
func (q *classQueue) unblock(l *lane) {
	q.unpark(l)
	q.ready.Push(readyLane{l})
}

// block notes that the head of l cannot start until something changes that
// concerns it. few are the ranks that it waits for; none: they are many.
func (qs *queues) block(now Instant, l *lane, lack Resource, few []*Rank) {
	q := l.queue
	q.ready.Remove(l.readyPos)
	l.lack = lack
	park(l, few)
	if l.since == 0 {
		l.since, l.granted = max(now, 1), q.modelGroup.grants
		q.modelGroup.fenceAt = min(q.modelGroup.fenceAt, now.Add(qs.limits.StarvationGuard))
	}
}

// concerns tells whether r may be one of the ranks of t.
func (t *Target) concerns(r *Rank) bool {
	if t.shape != Disaggregated {
		return t.role(DecodeLeg) == r.role && (t.bits[DecodeLeg] == nil || t.bits[DecodeLeg].has(r.index))
	}
	for l := range numLegs {
		if t.role(l) == r.role && (t.bits[l] == nil || t.bits[l].has(r.index)) {
			return true
		}
	}
	return false
}

// wake lets those heads of f be looked at again that may use r, one of its
// ranks; nil: all.
func (qs *queues) wake(f *modelGroup, r *Rank) {
	for r != nil && len(r.parked) > 0 {
		l := r.parked[len(r.parked)-1].lane
		l.queue.unblock(l)
	}
	for _, p := range f.profiles {
		if p.waiting == 0 {
			continue
		}
		for _, q := range p.classes {
			if r == nil {
				for _, l := range q.all.All() {
					if l.blocked() {
						q.unblock(l.lane)
					}
				}
				continue
			}
			for i := len(q.wide) - 1; i >= 0; i-- {
				if l := q.wide[i]; l.mayUse(r) {
					q.unblock(l)
				}
			}
		}
	}
}

// note keeps the account of why the queues of f do not move.
func (f *modelGroup) note(now Instant) {
	for _, p := range f.profiles {
		for _, q := range p.classes {
			if l := q.first(); l != nil {
				q.closed.set(l.lackNow(), now)
			}
		}
	}
}

// eachWaiter calls f for every waiter of the model group.
func (f *modelGroup) eachWaiter(do func(*Ticket)) {
	for _, p := range f.profiles {
		for _, q := range p.classes {
			for _, l := range q.all.All() {
				for _, w := range l.waiters.All() {
					do(w.Ticket)
				}
			}
		}
	}
}

// inOrder returns the waiters of a model group by their first arrival.
func (f *modelGroup) inOrder() []*Ticket {
	var all []*Ticket
	f.eachWaiter(func(t *Ticket) { all = append(all, t) })
	slices.SortFunc(all, (*Ticket).compare)
	return all
}

// limit returns which limit of its class keeps t from queueing, the amount that
// waits, and the limit; kind is empty when it may queue.
func (q *classQueue) limit(t *Ticket) (kind LimitKind, current, limit int64) {
	cl := q.class
	if cl.RequestLimitPerWorker == nil && cl.RawTokenLimitPerWorker == nil && cl.CachedTokenLimitPerWorker == nil {
		return LimitNone, 0, 0
	}
	workers := float64(t.Target.gating().workerN())
	for _, l := range [...]struct {
		kind    LimitKind
		each    *float64
		current int64
	}{
		{LimitRequests, cl.RequestLimitPerWorker, int64(q.n)},
		{LimitRawTokens, cl.RawTokenLimitPerWorker, q.raw},
		{LimitCachedTokens, cl.CachedTokenLimitPerWorker, q.cached},
	} {
		if l.each == nil {
			continue
		}
		limit := int64(0)
		if *l.each > 0 {
			limit = max(int64(min(*l.each*workers, 1<<60)), 1)
			if qs := q.closed.queues; qs.share != nil {
				limit = shareOf(qs, limit, "class "+cl.Name+" "+string(l.kind))
			}
		}
		if l.current >= limit {
			return l.kind, l.current, limit
		}
	}
	return LimitNone, 0, 0
}

// gating is the pool whose workers a class's limits are multiplied by.
func (t *Target) gating() *pool {
	if t.shape == Disaggregated {
		return t.model.pools[RolePrefill]
	}
	return t.model.pools[t.role(DecodeLeg)]
}

func (p *pool) workerN() int { return len(p.workers) }

// classWait is what remains of the time t may wait in its class.
func (t *Ticket) classWait(now Instant) (until Instant, limit int64) {
	until = never
	if t.ClassDeadline != 0 {
		until = t.ClassDeadline
		limit = max(int64(t.ClassDeadline.Sub(t.arrival)), 0)
	}
	if w := t.class.MaxWait; w > 0 {
		if end := now.Add(w - t.waited); end < until {
			until, limit = end, int64(w)
		}
	}
	return until, limit
}

// wakeFor lets the heads be looked at again that may use r, from which a hold
// was taken, and returns the model group to drain, or nil.
func (qs *queues) wakeFor(r *Rank) *modelGroup {
	if qs.waiting == 0 || r.index < 0 {
		return nil
	}
	f := r.pools[0].model.modelGroup
	if f.waiting == 0 {
		return nil
	}
	qs.wake(f, r)
	return f
}
