package admission

import "time"

// Hints grow old while a request waits: ranks forget what they held, and others have come to
// hold it. They are found outside the gate's lock, so that a grant cannot wait for new ones.
// Those are asked for ahead of time, of the waiters that the next turns will look at.

const (
	// refreshEvery is how old hints get before new ones are asked for.
	refreshEvery = 500 * time.Millisecond
	// refreshApart is the least time between two looks at a class that no departures cause.
	refreshApart = 50 * time.Millisecond
)

// classRefresh is what a class remembers of it.
type classRefresh struct {
	matchers int     // waiters with a Matcher
	left     int     // waiters that left since the last look
	next     Instant // when it is due; never: not by time
}

// Asked returns the waiters whose hints are to be renewed, each once, since it was last
// called. The slice is the core's own, until the next step.
func (a *affinity) Asked() []*Ticket {
	asked := a.asked
	a.asked = a.asked[:0]
	return asked
}

// joinMatchers notes a waiter whose hints can be renewed.
func (q *classQueue) joinMatchers(qs *queues, t *Ticket) {
	qs.matchers++
	if q.refresh.matchers++; q.refresh.matchers == 1 {
		q.refresh.left, q.refresh.next = 0, never
	}
	q.refresh.next = min(q.refresh.next, t.hintsAt.Add(refreshEvery))
	qs.nextRefresh = min(qs.nextRefresh, q.refresh.next)
}

// ask asks for new hints of the first waiters of q that have old ones: when that is due,
// or when so many have left that others may have come among those that are looked at.
func (a *affinity) ask(now Instant, q *classQueue) {
	r := &q.refresh
	k := a.core.limits.lookahead()
	if r.matchers == 0 || r.left < k && now < r.next {
		return
	}
	r.left, r.next = 0, never
	a.eachFirst(q, 2*k, func(t *Ticket) {
		if t.Matcher == nil {
			return
		}
		if now.Sub(t.hintsAt) >= refreshEvery {
			t.hintsAt = now
			a.asked = append(a.asked, t)
		}
		r.next = min(r.next, t.hintsAt.Add(refreshEvery))
	})
	if r.next != never {
		r.next = max(r.next, now.Add(refreshApart))
		a.core.nextRefresh = min(a.core.nextRefresh, r.next)
	}
}

// askDue asks for the hints that are due by time.
func (a *affinity) askDue(now Instant) {
	c := a.core
	if now < c.nextRefresh {
		return
	}
	c.nextRefresh = never
	for _, f := range c.modelGroups {
		a.askAll(now, f)
		for _, p := range f.profiles {
			for _, q := range p.classes {
				if q.refresh.matchers > 0 {
					c.nextRefresh = min(c.nextRefresh, q.refresh.next)
				}
			}
		}
	}
}

// askAll is ask for each class of f.
func (a *affinity) askAll(now Instant, f *modelGroup) {
	for _, p := range f.profiles {
		if p.waiting == 0 {
			continue
		}
		for _, q := range p.classes {
			a.ask(now, q)
		}
	}
}

// eachFirst calls do for the first n waiters of q, in its order over all lanes.
func (a *affinity) eachFirst(q *classQueue, n int, do func(*Ticket)) {
	w, lanes := &a.walk, q.all.All()
	w.fill = n
	if len(lanes) > 0 {
		w.enter(lanes[0].lane, 0)
	}
	for i := range n {
		x, ok := w.next()
		if !ok {
			break
		}
		do(x.waiter)
		if i == n-1 {
			break
		}
		if x.i == 0 {
			for child := 2*x.lane.classPos + 1; child <= 2*x.lane.classPos+2 && child < len(lanes); child++ {
				w.enter(lanes[child].lane, 0)
			}
		}
		w.enter(x.lane, x.i+1)
	}
	w.end()
}

// Refresh gives a waiter new hints. Its class, its cost and what it counts for in its queue
// stay those of its arrival. It does nothing to a ticket that does not wait.
func (a *affinity) Refresh(now Instant, t *Ticket, hints *[2]Hint, out *[]*Ticket) {
	if t.state != stateQueued {
		return
	}
	c, l := a.core, t.lane
	t.Hints, t.hintsAt = *hints, now
	if l.blocked() && l.head() == t && l.lack == ResourceFence {
		l.queue.unblock(l) // it takes fewer tokens from the fenced rank, perhaps
	}
	if !l.blocked() || c.open(t.modelGroup()) {
		c.drain(now, t.modelGroup(), out)
	}
}
