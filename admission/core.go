package admission

import (
	"time"
)

// Options make a core.
type Options struct {
	Limits Limits
	// NewPolicy makes the policy of each pool; nil takes the first rank with
	// room.
	NewPolicy PolicyFactory
	// HealthInterval is what a client without any candidate is told to wait.
	HealthInterval time.Duration
	// Classes are the policy classes; nil: one synthetic class "default".
	Classes *Classes
	// Reject are the router-wide reject thresholds.
	Reject RejectThresholds
	// Order is how waiters of one class are kept.
	Order QueueOrder
	// AssumedMaxRequests is how many requests a rank of unknown capacity has
	// room for, where a class asks and the rank did not tell its
	// max_running_requests. Zero: 64.
	AssumedMaxRequests int
}

// QueueOrder is how the waiters of one class are kept.
type QueueOrder uint8

// The orders.
const (
	// OrderAuto is strict without configured classes, and lanes with them.
	OrderAuto QueueOrder = iota
	// OrderStrict keeps one queue a class and family: a head that cannot start
	// blocks all behind it.
	OrderStrict
	// OrderLanes keeps one queue a class and predicate: a blocked head delays
	// only requests that need the same ranks.
	OrderLanes
)

// recheckEvery is the period of the safety net that looks at blocked queues
// without an event. What it finds is counted: an event was missed.
const recheckEvery = time.Second

// Core is the step machine: see the package comment. It is not safe for
// concurrent use.
//
// Each step appends the tickets that it decided, other than the one it was
// called with, to the buffer it is lent; their state tells what became of them.
type Core struct {
	rankIndex // what is known of the ranks
	ledger    // what is booked on them
	queues    // who waits, and in which order
	chooser   // which ranks a request can start on
	decisions // what callers are told

	limits Limits
	loaded Settings // of the last reload, or of the start

	started    bool
	noArrivals bool
	noWaits    bool
	arrivals   uint64

	// counters
	missed     uint64
	fences     uint64
	fenceMoves uint64
}

// NewCore makes a core without ranks.
func NewCore(o Options) *Core {
	if o.NewPolicy == nil {
		o.NewPolicy = func(string, Role) Policy { return firstFit{} }
	}
	c := &Core{limits: o.Limits, loaded: Settings{o.Limits, o.Classes, o.Reject}}
	c.rankIndex = rankIndex{
		limits: &c.limits, newPolicy: o.NewPolicy, assumedMax: o.AssumedMaxRequests,
		models: map[string]*model{}, pinned: map[targetKey]*Target{}, named: map[string][]*Rank{},
	}
	c.ledger = ledger{index: &c.rankIndex}
	c.queues = queues{limits: &c.limits, order: o.Order, nextRecheck: never, drainEnd: never}
	c.chooser = chooser{index: &c.rankIndex, limits: &c.limits}
	c.decisions = decisions{queues: &c.queues, limits: &c.limits, healthInt: o.HealthInterval, early: defaultEvidence}
	c.setReject(o.Reject)
	c.setClasses(o.Classes)
	c.setThresholds(c.profiles)
	return c
}

func (c *Core) tick(now Instant) {
	if !c.started {
		c.started, c.start = true, now
	}
}

// wakeFor lets the heads be looked at again that may use r, from which a hold
// was taken, and returns the family to drain, or nil.
func (qs *queues) wakeFor(r *Rank) *family {
	if qs.waiting == 0 || r.index < 0 {
		return nil
	}
	f := r.pools[0].model.family
	if f.waiting == 0 {
		return nil
	}
	qs.wake(f, r)
	return f
}

// blockHead notes that the head of l lacks something until that changes.
func (c *Core) blockHead(now Instant, l *lane, lack Resource) {
	l.lack = lack
	c.block(now, l, c.few(l.head().Target, l.waitsOn()))
}

func (c *Core) drainAfter(now Instant, r *Rank, out *[]*Ticket) {
	if f := c.wakeFor(r); f != nil {
		c.drain(now, f, out)
	}
}

// Cancel takes a waiter out of the queue. It reports false when the ticket was
// not waiting: then it was decided before, and a granted one must be released.
func (c *Core) Cancel(now Instant, t *Ticket, out *[]*Ticket) bool {
	if t.state != stateQueued {
		return false
	}
	f := t.family
	if c.dequeue(now, t) {
		c.drain(now, f, out)
	}
	return true
}

// endPrefill ends the prefill holds of t, if it still has them.
func (c *Core) endPrefill(now Instant, t *Ticket) bool {
	ended := c.dropPrefill(now, t)
	if ended {
		c.endRun(now, t, PrefillLeg)
	}
	return ended
}

// endDecode ends the decode holds of t, if it still has them.
func (c *Core) endDecode(now Instant, t *Ticket) bool {
	ended := c.dropAnswer(now, t)
	if ended {
		c.endRun(now, t, DecodeLeg)
	}
	return ended
}

// EndPrefill ends the prefill slot and the prefill load of a ticket. Repeated
// calls do nothing.
func (c *Core) EndPrefill(now Instant, t *Ticket, out *[]*Ticket) {
	if c.endPrefill(now, t) {
		c.drainAfter(now, t.Prefill, out)
	}
}

// EndDecode ends the decode holds of a ticket, or all of an aggregated one's.
// Repeated calls do nothing.
func (c *Core) EndDecode(now Instant, t *Ticket, out *[]*Ticket) {
	if c.endDecode(now, t) {
		c.drainAfter(now, t.Decode, out)
	}
}

// Release ends every hold of a ticket. Repeated calls do nothing.
func (c *Core) Release(now Instant, t *Ticket, out *[]*Ticket) {
	p, d := c.endPrefill(now, t), c.endDecode(now, t)
	if t.state == stateGranted {
		t.state = stateIdle
	}
	// Both ends come free together: who needs both sees both.
	var fp, fd *family
	if p {
		fp = c.wakeFor(t.Prefill)
	}
	if d {
		fd = c.wakeFor(t.Decode)
	}
	if fp != nil && fp != fd {
		c.drain(now, fp, out)
	}
	if fd != nil {
		c.drain(now, fd, out)
	}
}

// Apply makes fleet changes take effect together. Waiters that are left without
// a candidate are ended, those for whom there is room now are granted.
func (c *Core) Apply(now Instant, changes []Change, out *[]*Ticket) {
	c.tick(now)
	structure := false
	for _, ch := range changes {
		switch ch.Op {
		case AddRank:
			structure = structure || len(ch.Rank.models) > 1
			c.addRank(ch.Rank)
		case RemoveRank:
			structure = structure || len(ch.Rank.models) > 1
			c.removeRank(ch.Rank)
		case SetState:
			if ch.Rank.present {
				c.setState(ch.Rank, ch.State)
			}
		case SetFacts:
			if ch.Rank.present {
				structure = structure || len(ch.Rank.models) > 1 || len(ch.Facts.Models) > 1
				c.setFacts(ch.Rank, ch.Facts)
			}
		case BarPair:
			c.quarantine(ch.Rank, ch.Other)
		case UnbarPair:
			c.endQuarantine(ch.Rank, ch.Other)
		}
	}
	c.chooser.grow()
	c.restructure(now, &c.rankIndex, structure)
	for _, m := range c.modelsByName {
		for _, t := range m.targets {
			c.recheckTarget(now, t)
		}
	}
	for _, t := range c.pinned {
		c.recheckTarget(now, t)
	}
	c.refuseUnservable(now, NoWorkers, ResourceWorker, out)
	c.dropUnusedModels()
	for _, f := range c.families {
		c.moveFence(f)
		c.wake(f, nil)
		c.drain(now, f, out)
	}
}

// Advance lets time pass: waits that are over end, and the safety net looks for
// room that no event told of.
func (c *Core) Advance(now Instant, out *[]*Ticket) {
	c.expire(now, out)
	if now < c.nextRecheck {
		return
	}
	c.nextRecheck = now.Add(recheckEvery)
	for _, f := range c.families {
		if f.waiting > 0 {
			if c.placeFence(now, f) {
				c.drain(now, f, out) // that it was due is no missed event
			}
			c.wake(f, nil)
			c.missed += uint64(c.drain(now, f, out))
			if !c.laned {
				c.chooser.noteHeldUp(now, f)
			}
		}
	}
	c.refuseTooLate(now, out)
	if c.waiting == 0 {
		c.nextRecheck = never
	}
}

// NextDeadline is when Advance must be called at the latest.
func (c *Core) NextDeadline() Instant { return min(c.deadlines.next(), c.nextRecheck) }

// expire ends the waits whose time is over, then serves those behind them.
func (c *Core) expire(now Instant, out *[]*Ticket) {
	for c.deadlines.next() <= now {
		t := c.deadlines.h[0]
		f := t.family
		lack := t.lane.queue.lackFor(ResourceOrder)
		before := t.waited
		others := c.dequeue(now, t)
		switch t.wakeAt { // what ends first names the reason
		case t.lostAt:
			c.refuse(now, t, NoWorkers, ResourceWorker, 0, out)
		case t.Deadline:
			c.refuseLate(now, t, LimitClientWait, lack, t.patience(), out)
		case t.classAt:
			c.refuseLate(now, t, LimitClassWait, lack, t.classLimit, out)
		default:
			c.refuse(now, t, QueueTimeout, lack, int64(t.limitAt.Sub(t.queuedAt)+before), out)
		}
		if others {
			c.drain(now, f, out)
		}
	}
}

// StopArrivals refuses new requests from now on. Those who wait are served, and
// requests that were admitted before may still be retried.
func (c *Core) StopArrivals() { c.noArrivals = true }

// DrainWithin tells that waiting ends in d, because the router stops. Those who
// cannot start before that, at the pace of their queue, are refused now, and so is
// who would have to wait from now on. It is looked at again once a second.
func (c *Core) DrainWithin(now Instant, d time.Duration, out *[]*Ticket) {
	c.drainEnd = now.Add(d)
	c.refuseTooLate(now, out)
}

// RefuseWaiters ends every wait because the router shuts down; from now on
// nobody may wait, retries included.
func (c *Core) RefuseWaiters(now Instant, out *[]*Ticket) {
	c.noWaits = true
	for _, f := range c.families {
		for _, t := range f.inOrder() {
			c.dequeue(now, t)
			c.refuse(now, t, Draining, ResourceNone, 0, out)
		}
	}
}
