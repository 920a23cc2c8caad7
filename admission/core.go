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
	limits    Limits
	loaded    Settings // of the last reload, or of the start
	newPolicy PolicyFactory
	healthInt time.Duration
	start     Instant
	started   bool

	models    map[string]*model
	ordered   []*model  // the same by name: every step is deterministic
	families  []*family // of living models, without duplicates
	pinned    map[targetKey]*Target
	structure int // counts changes of models

	ranks     []*Rank // by index
	indexes   int     // indexes handed out so far
	indexCap  int
	words     int
	freeIndex []int
	named     map[string][]*Rank // by what a pin may say: id and worker

	groupNames []string
	groups     []bitmap // members by group id, over all pools
	domainKeys []domainKey
	domains    []bitmap // members by pairing group and topology domain
	sizes      []blockSize
	bars       []bar
	idle       []*Target // interned targets without users, the oldest first

	order        QueueOrder
	laned        bool
	root         *profile
	profiles     []*profile // the root's first
	prefillGates []*prefillGate
	blockGates   []*blockGate
	reject       RejectThresholds
	rejecting    bool
	over         bitmap // ranks over a reject threshold
	overTurns    uint64 // how often a rank came to be over one
	assumedMax   int
	needsTokens  bool // some class needs MaxBatchedTokens
	needsBlocks  bool // some class needs KVBlocks
	lanes        int
	spareLanes   []*lane
	poor         []poor // scratch

	scratchP, scratchD bitmap
	scratchU           bitmap
	viewP, viewD       View

	waiting     int
	waitingBy   [numShapes]int
	waitingSize int64     // bytes
	lost        []*Ticket // scratch: to be ended
	deadlines   deadlineHeap
	seq         uint64
	total       rateMeter
	runs        [numLegs]running // of all requests, without how long they last
	arriving    *Ticket
	noArrivals  bool
	noWaits     bool
	early       earlyEvidence
	drainEnd    Instant // when waiting ends because the router stops; never: not known
	nextRecheck Instant

	// counters
	missed       uint64
	fences       uint64
	fenceMoves   uint64
	unknownClass uint64
	closedFor    [numResources]time.Duration
	// closedBy is closedFor by the name of the class, for each that ever was.
	closedBy map[string]*[numResources]time.Duration
}

// NewCore makes a core without ranks.
func NewCore(o Options) *Core {
	if o.NewPolicy == nil {
		o.NewPolicy = func(string, Role) Policy { return firstFit{} }
	}
	c := &Core{
		limits: o.Limits, loaded: Settings{o.Limits, o.Classes, o.Reject}, newPolicy: o.NewPolicy, healthInt: o.HealthInterval,
		models: map[string]*model{}, pinned: map[targetKey]*Target{}, named: map[string][]*Rank{},
		nextRecheck: never, drainEnd: never, early: defaultEvidence, order: o.Order, assumedMax: o.AssumedMaxRequests,
	}
	c.setReject(o.Reject)
	c.setClasses(o.Classes, o.Order)
	return c
}

func (c *Core) tick(now Instant) {
	if !c.started {
		c.started, c.start = true, now
	}
}

// wakeFor lets the heads be looked at again that may use r, from which a hold
// was taken, and returns the family to drain, or nil.
func (c *Core) wakeFor(r *Rank) *family {
	if c.waiting == 0 || r.index < 0 {
		return nil
	}
	f := r.pools[0].model.family
	if f.waiting == 0 {
		return nil
	}
	c.wake(f, r)
	return f
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

// StartDecode turns the decode booking from pending to active.
func (c *Core) StartDecode(t *Ticket) { c.startDecode(t) }

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
			c.bar(ch.Rank, ch.Other)
		case UnbarPair:
			c.unbar(ch.Rank, ch.Other)
		}
	}
	c.restructure(now, structure)
	for _, m := range c.ordered {
		for _, t := range m.targets {
			c.recheckTarget(now, t)
		}
	}
	for _, t := range c.pinned {
		c.recheckTarget(now, t)
	}
	c.endLost(now, NoWorkers, ResourceWorker, out)
	c.buryModels()
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
			c.noteHeldUp(now, f)
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
