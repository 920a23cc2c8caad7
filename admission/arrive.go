package admission

import (
	"math"
	"time"
)

// Arrive brings a ticket to the gate. It is granted, refused, or queued.
func (c *Core) Arrive(now Instant, t *Ticket, out *[]*Ticket) {
	c.tick(now)
	c.expire(now, out)
	if t.state == stateQueued || t.holdsPrefill || t.holdsDecode {
		panic("BUG: a ticket arrived that waits or holds something")
	}
	t.wasQueue = false
	t.Prefill, t.Decode = nil, nil
	if !t.arrived {
		t.arrived, t.arrival = true, now
		c.seq++
		t.seq = c.seq
	}
	c.arriving = t
	defer func() { c.arriving = nil }()

	if m := t.Target.model; m.dead && m.queues.profile != c.profileOf(m.name) {
		c.join(m, &family{fenceAt: never}) // it missed a reload
	}
	c.classify(t)
	if c.noArrivals && !t.Retry {
		c.refuse(now, t, Draining, ResourceNone, 0, out)
		return
	}
	if m := t.Target.model; m.dead {
		// The last rank left after the target was resolved; others may have
		// come since.
		if c.models[m.name] == nil && c.noWorkerWait(t) <= 0 {
			c.refuse(now, t, NoWorkers, ResourceWorker, 0, out)
			return
		}
		c.revive(now, t)
		c.classify(t)
	}
	f := t.Target.model.family
	pair := c.hasPair(t.Target)
	if !pair && c.noWorkerWait(t) <= 0 {
		c.refuse(now, t, NoWorkers, ResourceWorker, 0, out)
		return
	}
	q := t.queue()
	if c.placeFence(now, f) {
		c.drain(now, f, out)
	}
	lack := ResourceOrder
	// A request whose lane is empty starts when there is room: those who wait
	// have been found without. In its lane it may pass those that the order of
	// the class puts behind it, among them all that are younger than a retry.
	// It is looked at before the bounds, which are for those who have to wait.
	l := q.lane(c, t)
	if l == nil || t.ahead(l.head()) {
		if lack = c.choose(t); lack == ResourceNone {
			if l != nil {
				q.deficit -= t.cost()
			}
			if c.grant(now, t, f, out) {
				c.drain(now, f, out)
			}
			return
		}
	}
	if lack == ResourceOverloaded || lack == ResourceOrder && c.rejecting && c.allOverloaded(t) {
		c.refuse(now, t, AllOverloaded, ResourceOverloaded, 0, out)
		return
	}
	t.classAt, t.classLimit = t.classWait(now)
	switch {
	case c.noWaits, pair && c.drainEnd != never && c.late(now, q, l.aheadOf(t), l.leg(t, lack)):
		c.refuse(now, t, Draining, ResourceNone, 0, out)
		return
	case t.Retry && (c.limits.QueueSize <= 0 || c.timeLeft(t) <= 0 || q.class.never || t.classAt <= now):
		c.refuse(now, t, RetryRefused, lack, 0, out)
		return
	case !t.Retry && c.refuseFull(now, t, q, pair, lack, out):
		return
	case c.timeLeft(t) <= 0:
		c.refuse(now, t, QueueTimeout, q.lackFor(lack), int64(c.limits.QueueTimeout), out)
		return
	case t.Deadline != 0 && t.Deadline <= now && t.Deadline <= t.classAt:
		c.refuseLate(now, t, LimitClientWait, q.lackFor(lack), t.patience(), out)
		return
	case t.classAt <= now:
		c.refuseLate(now, t, LimitClassWait, q.lackFor(lack), t.classLimit, out)
		return
	}
	if c.limits.RefuseEarly && pair && !t.Retry && c.refuseEarly(now, t, q, l, lack, out) {
		return
	}
	t.lacked = q.lackFor(lack)
	c.enqueue(now, t, pair)
	if t.lane.head() == t {
		t.reconsidered = true // it was decided just now
		c.block(now, t.lane, lack)
		f.note(now)
	}
}

// refuseFull refuses a request that there is no place for in its class's queue
// or in the router's.
func (c *Core) refuseFull(now Instant, t *Ticket, q *classQueue, pair bool, lack Resource, out *[]*Ticket) bool {
	kind, current, limit := q.limit(t)
	why := ClassQueueFull
	if kind == LimitNone {
		why = QueueFull
		switch bytes := c.waitingSize + t.size(); {
		case c.waiting >= c.limits.QueueSize:
			kind, current, limit = LimitRequests, int64(c.waiting), int64(c.limits.QueueSize)
		case c.limits.MaxWaitingBytes > 0 && bytes > c.limits.MaxWaitingBytes:
			kind, current, limit = LimitBytes, c.waitingSize, c.limits.MaxWaitingBytes
		default:
			return false
		}
	}
	if !pair && (q.class.never || c.limits.QueueSize <= 0) {
		c.refuse(now, t, NoWorkers, ResourceWorker, 0, out)
		return true
	}
	c.refuse(now, t, why, q.lackFor(lack), limit, out)
	t.refusal.LimitKind, t.refusal.Current = kind, current
	return true
}

// refuseLate refuses a request whose deadline has passed.
func (c *Core) refuseLate(now Instant, t *Ticket, kind LimitKind, lack Resource, limit int64, out *[]*Ticket) {
	c.refuse(now, t, DeadlineExceeded, lack, limit, out)
	t.refusal.LimitKind = kind
}

// size is what t counts for in the bytes that wait.
func (t *Ticket) size() int64 { return min(max(t.Bytes, 0), maxAmount) }

// lackFor names what the head of the queue waits for, for one who waits behind
// it.
func (q *classQueue) lackFor(own Resource) Resource {
	if own == ResourceOrder && q.closed.by != ResourceNone {
		return q.closed.by
	}
	return own
}

// timeLeft is what remains of the wait that the limits allow, over all waits.
func (c *Core) timeLeft(t *Ticket) time.Duration {
	if c.limits.QueueTimeout <= 0 {
		return math.MaxInt64
	}
	return c.limits.QueueTimeout - t.waited
}

// noWorkerWait is how long t may wait without a candidate.
func (c *Core) noWorkerWait(t *Ticket) time.Duration {
	return c.limits.NoWorkerWait - min(max(t.NoWorkerWaited, 0), c.limits.NoWorkerWait)
}

func (c *Core) enqueue(now Instant, t *Ticket, pair bool) {
	t.state, t.wasQueue = stateQueued, true
	t.queuedAt = now
	t.limitAt, t.lostAt = never, never
	if left := c.timeLeft(t); left != math.MaxInt64 {
		t.limitAt = now.Add(left)
	}
	if !pair {
		t.lostAt = now.Add(c.noWorkerWait(t))
	}
	t.setWake()
	t.queuedRaw = min(max(t.PromptTokens, 0), maxAmount)
	t.queuedCached = min(max(t.CachedTokens, 0), t.queuedRaw)
	c.insert(now, t)
	c.deadlines.push(t)
	t.Target.waiters.add(t)
	t.Target.paired = pair
	c.waitingBy[t.Target.shape]++
	c.waitingSize += t.size()
	if c.waiting++; c.waiting == 1 {
		c.nextRecheck = now.Add(recheckEvery)
	}
}

func (t *Ticket) setWake() {
	t.wakeAt = min(t.limitAt, t.lostAt, t.classAt)
	if t.Deadline != 0 {
		t.wakeAt = min(t.wakeAt, t.Deadline)
	}
}

// dequeue takes a waiter out of every list. The caller decides it. It tells
// whether others may start because of that.
func (c *Core) dequeue(now Instant, t *Ticket) bool {
	others := c.extract(now, t)
	c.deadlines.remove(t)
	t.Target.waiters.remove(t)
	t.waited += now.Sub(t.queuedAt)
	t.state = stateIdle
	c.waitingBy[t.Target.shape]--
	c.waitingSize -= t.size()
	if c.waiting--; c.waiting == 0 {
		c.nextRecheck = never
	}
	return others
}

// grant books what choose chose. It tells whether that took a rank over a reject
// threshold, so that heads whose last candidate it was have to be refused.
func (c *Core) grant(now Instant, t *Ticket, f *family, out *[]*Ticket) bool {
	turns := c.overTurns
	c.book(t)
	m := t.Target.model
	if t.Prefill != nil {
		m.pools[RolePrefill].policy.Booked(t.Prefill.index, t.Hints[PrefillLeg])
	}
	m.pools[t.Target.role(DecodeLeg)].policy.Booked(t.Decode.index, t.Hints[DecodeLeg])
	c.beginRuns(now, t)
	f.grants++
	if f.fenceWaits {
		f.fenceWaits, f.fenceAt = false, now
	}
	c.decide(t, stateGranted, out)
	if c.overTurns == turns {
		return false
	}
	c.wake(f, nil)
	return true
}

func (c *Core) decide(t *Ticket, s ticketState, out *[]*Ticket) {
	t.state = s
	if t != c.arriving {
		*out = append(*out, t)
	}
}

func (c *Core) refuse(now Instant, t *Ticket, why Reason, lack Resource, limit int64, out *[]*Ticket) {
	if t.Retry && why != Draining {
		why = RetryRefused // the client is owed the failure of the attempt before
	}
	q := t.queue()
	depth := c.waiting
	if why != QueueFull {
		depth = q.n
	}
	t.refusal = &Refusal{
		Reason: why, Resource: lack, Class: t.class.Name, Limit: limit, Depth: depth, Waited: t.waited,
		PrefillSlots: c.limits.PrefillSlots > 0,
		RetryAfter:   c.retryAfter(now, t, why, lack, depth),
	}
	c.decide(t, stateRefused, out)
}

// retryAfter is when the queue, at its pace, will have served those who wait and
// one more.
func (c *Core) retryAfter(now Instant, t *Ticket, why Reason, lack Resource, depth int) time.Duration {
	secs := 5.0
	q := t.queue()
	switch why {
	case NoWorkers:
		secs = c.healthInt.Seconds()
	case Draining:
		secs = 1
	default:
		var r float64
		switch {
		case why == QueueFull:
			r = c.totalPace(now, q, t.legOf(lack))
		case why == ClassQueueFull && q.class.never:
			depth, r = 0, c.releases(t, lack).perSecond(now, c.start)
		default:
			r = q.pace.perSecond(now, c.start, t.legOf(lack))
		}
		if r > 0 {
			secs = float64(depth+1) / r
		} else if h := q.head(); h != nil && h.wakeAt != never {
			secs = h.wakeAt.Sub(now).Seconds()
		} else if end := c.deadlines.next(); why == QueueFull && end != never {
			secs = end.Sub(now).Seconds() // waiters of other queues fill the router's
		}
	}
	return wholeSeconds(secs)
}

// wholeSeconds is what a client is told to wait: from a second to a minute.
func wholeSeconds(secs float64) time.Duration {
	return time.Duration(min(max(math.Ceil(secs), 1), 60)) * time.Second
}

// releases counts the ends of what t lacks.
func (c *Core) releases(t *Ticket, lack Resource) *rateMeter {
	return &t.Target.model.pools[t.Target.role(t.legOf(lack))].released
}
