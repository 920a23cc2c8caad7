package admission

// Late binding: when it is the turn of a class, not its head is offered but one of its
// first waiters: the one that finds most of its prompt cached where it would be sent. A
// head that always takes the rank that has become free finds nothing there just when the
// fleet is full, and so makes more work.
//
// It is bounded by how many are looked at, by how often each may be passed over, and by
// the time that a waiter may decline ranks because the one that holds its prompt has no
// room.

// maxLookahead bounds how many waiters are looked at for one grant.
const maxLookahead = 256

// lookahead is how many of the first waiters of a class are looked at.
func (l *Limits) lookahead() int { return min(max(l.AffinityLookahead, 1), maxLookahead) }

// affinity looks for who is granted next among the first waiters of a class, and keeps
// hints fresh. What it has is memory of one look.
type affinity struct {
	core *Core

	preview preview
	walk    laneWalk
	blocked []blockedLane
	looked  []*Ticket
	willing []*Ticket // those that have room and do not decline, in order
	base    *Ticket   // the first of those that count together
	decline []*Ticket // those that have room and decline it
	holders []*Rank   // the best for those that have room elsewhere, where these have none

	asked []*Ticket // whose hints are to be renewed, since they were handed out last
}

// blockedLane is a lane whose head was found without room.
type blockedLane struct {
	lane *lane
	lack Resource
}

// startable returns the waiter of q to be granted next, with its ranks chosen, or nil.
// Lanes whose heads have no room are blocked then.
func (a *affinity) startable(now Instant, q *classQueue, out *[]*Ticket) *Ticket {
	for {
		best, first := a.look(now, q)
		switch {
		case first == nil:
			return best
		case first.Target.shape == Bypass && !first.reconsidered:
			a.core.reconsider(now, first)
		default:
			a.core.dequeue(now, first)
			a.core.refuse(now, first, AllOverloaded, ResourceOverloaded, 0, out)
		}
	}
}

// look is startable, but that it ends at a waiter that has to be decided on before others are
// looked at: whether it prefills where it decodes, or that all its ranks are overloaded.
func (a *affinity) look(now Instant, q *classQueue) (best, first *Ticket) {
	if len(q.masked) > 0 {
		q.unbar()
	}
	var bar *Ticket
	most, w := a.core.limits.lookahead(), &a.walk
	w.fill, a.preview.target = 2*most, nil
	if q.ready.Len() > 0 {
		w.enter(q.ready.First().lane, 0)
	}
	for len(a.looked) < most {
		x, ok := w.next()
		if !ok {
			break
		}
		l, t := x.lane, x.waiter
		if len(q.masked) > 0 && a.barred(q, t) {
			bar = t
			break
		}
		if len(a.willing) > 0 && !equalTurn(t, a.base) {
			break
		}
		if t.Target.shape == Bypass && !t.reconsidered {
			first = t
			break
		}
		lack := a.preview.choose(t)
		if x.i == 0 {
			if lack == ResourceOverloaded {
				first = t
				break
			}
			for child := 2*l.readyPos + 1; child <= 2*l.readyPos+2 && child < q.ready.Len(); child++ {
				w.enter(q.ready.All()[child].lane, 0)
			}
			if lack != ResourceNone {
				a.blocked = append(a.blocked, blockedLane{l, lack})
				continue
			}
		}
		w.enter(l, x.i+1)
		a.looked = append(a.looked, t)
		switch {
		case lack != ResourceNone:
		case a.inLine(t) && a.patience(now, t) > now:
			a.decline = append(a.decline, t)
			if x.i == 0 {
				l.lack, l.since, l.heldUp = ResourceNone, 0, 0
			}
		default:
			if len(a.willing) == 0 {
				a.base = t
			}
			a.willing = append(a.willing, t)
		}
	}
	if first == nil {
		if best = a.choose(now, q); best != nil {
			a.preview.complete(best)
		} else {
			a.nowDecline(now, q)
		}
	}
	a.end(now, q, best)
	if bar != nil {
		q.bar(bar)
	}
	return best, first
}

// end ends a look that has found best, or nobody.
func (a *affinity) end(now Instant, q *classQueue, best *Ticket) {
	for _, t := range a.looked {
		if t != best {
			t.Prefill, t.Decode = nil, nil
		}
	}
	for _, x := range a.blocked {
		a.core.block(now, x.lane, x.lack, a.core.few(x.lane.head().Target, x.lane.waitsOn(x.lack)))
	}
	a.walk.end()
	clear(a.blocked)
	clear(a.looked)
	clear(a.willing)
	clear(a.decline)
	clear(a.holders)
	a.holders = a.holders[:0]
	a.blocked, a.looked, a.willing, a.base, a.decline = a.blocked[:0], a.looked[:0], a.willing[:0], nil, a.decline[:0]
}

// maxInLine is how many of those that are looked at, and have room elsewhere, wait for one
// holder. Those behind them would hardly get it in time. And of what many prompts share a copy
// pays: without this all would wait for the first rank that has it, and the others have
// nothing to do.
const maxInLine = 2

// inLine tells whether t, for which ranks were chosen, is among the first of those that are
// looked at to whom the same holder is the best.
func (a *affinity) inLine(t *Ticket) bool {
	l, ahead := t.choice.Leg, 0
	if t.choice.Why != ChosenByRoom {
		return true
	}
	for _, h := range &t.Hints[l].Holders {
		if h.Rank == nil || !a.core.chooser.couldHold(t, l, h.Rank) {
			continue
		}
		for _, r := range a.holders {
			if r == h.Rank {
				ahead++
			}
		}
		a.holders = append(a.holders, h.Rank)
		break
	}
	return ahead < maxInLine
}

// choose returns the one of those that are willing that has the most tokens cached on the
// rank it would be sent to, among equals the first, and notes whom it passes over.
func (a *affinity) choose(now Instant, q *classQueue) (best *Ticket) {
	at := 0
	for i, t := range a.willing {
		if (best == nil || t.choice.Held > best.choice.Held) && !a.passesTooMany(now, i) {
			best, at = t, i
		}
	}
	clear(q.passed)
	q.passed, q.passedBy = q.passed[:0], best
	for _, t := range a.willing[:at] {
		if a.couldUse(t, best) {
			q.passed = append(q.passed, t)
		}
	}
	return best
}

// pass counts that those were passed over whom t is granted before.
func (q *classQueue) pass(t *Ticket) {
	if q.passedBy == t { // and not by a fence
		for _, o := range q.passed {
			o.passes = min(o.passes, 254) + 1
		}
	}
	clear(q.passed)
	q.passed, q.passedBy = q.passed[:0], nil
}

// passesTooMany tells whether somebody before the i-th of those that are willing may not be
// passed over by it.
func (a *affinity) passesTooMany(now Instant, i int) bool {
	for _, t := range a.willing[:i] {
		if !a.mayBePassed(now, t) && a.couldUse(t, a.willing[i]) {
			return true
		}
	}
	return false
}

// mayBePassed tells whether another one may be granted before t once more.
func (a *affinity) mayBePassed(now Instant, t *Ticket) bool {
	return int(t.passes) < a.core.limits.AffinityMaxPasses && !t.Retry && !t.Target.pinned() &&
		(t.class.MaxWait <= 0 || t.classAt.Sub(now) > a.core.limits.AffinityWait)
}

// pinned tells whether a leg must run on a certain worker.
func (t *Target) pinned() bool { return t.pins != [numLegs]string{} }

// couldUse tells whether t, which has room, could be given the rank that is to prefill o.
func (a *affinity) couldUse(t, o *Ticket) bool {
	f := &a.core.chooser.filter
	target := t.Target
	if target == o.Target && target.free && t.Exclude.empty() && o.Exclude.empty() && f.unrestricted(t) &&
		(target.shape == Disaggregated || t.class.blockThreshold < 0) {
		return true // they choose from the same ranks
	}
	var s candidates
	return f.find(t, &s) == ResourceNone && s.of(s.gating()).set.has(o.prefillRank().index)
}

// equalTurn tells whether t and o, of one class, are equal in strict priority and deadline: in
// that of a classifier. What their class gives them is in the order in which they came.
func equalTurn(t, o *Ticket) bool {
	return t.StrictPriority == o.StrictPriority && classifiersDeadline(t) == classifiersDeadline(o)
}

func classifiersDeadline(t *Ticket) Instant {
	if t.orderBy != t.ClassDeadline {
		return never
	}
	return t.orderBy
}

// lookAgain looks at those of f who are not blocked, after room was taken: who declined it
// may have none now.
func (a *affinity) lookAgain(now Instant, f *modelGroup, out *[]*Ticket) {
	if a.core.open(f) {
		a.core.drain(now, f, out)
	}
}

// open tells whether somebody in f waits without being blocked: he declines what there is, or
// is behind such.
func (qs *queues) open(f *modelGroup) bool {
	if f.waiting == 0 || qs.limits.lookahead() == 1 {
		return false
	}
	for _, p := range f.profiles {
		if p.waiting == 0 {
			continue
		}
		for _, q := range p.classes {
			if q.ready.Len() > 0 || q.anyBarred() {
				return true
			}
		}
	}
	return false
}

// among tells whether t, which arrives, would be one of the first waiters of q that are looked at.
func (a *affinity) among(q *classQueue, t *Ticket) bool {
	most := a.core.limits.lookahead()
	ahead := 0
	for _, l := range q.ready.All() {
		for i := 0; i < min(most, l.waiters.Len()) && a.core.first(l.lane, i+1, 2*most)[i].ahead(t); i++ {
			if ahead++; ahead >= most {
				return false
			}
		}
	}
	return true
}
