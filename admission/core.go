package admission

import (
	"math"
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
	// Order is how waiters of one class are kept.
	Order QueueOrder
	// Reject are the router-wide reject thresholds.
	Reject RejectThresholds
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
	lost        []*Ticket // scratch of Apply
	deadlines   deadlineHeap
	seq         uint64
	total       rateMeter
	arriving    *Ticket
	noArrivals  bool
	noWaits     bool
	nextRecheck Instant

	// counters
	missed       uint64
	fences       uint64
	fenceMoves   uint64
	unknownClass uint64
	closedFor    [numResources]time.Duration
}

// NewCore makes a core without ranks.
func NewCore(o Options) *Core {
	if o.NewPolicy == nil {
		o.NewPolicy = func(string, Role) Policy { return firstFit{} }
	}
	c := &Core{
		limits: o.Limits, newPolicy: o.NewPolicy, healthInt: o.HealthInterval,
		models: map[string]*model{}, pinned: map[targetKey]*Target{}, named: map[string][]*Rank{},
		nextRecheck: never, order: o.Order, assumedMax: o.AssumedMaxRequests,
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

	c.classify(t)
	if c.noArrivals && !t.Retry {
		c.refuse(now, t, Draining, ResourceNone, 0, out)
		return
	}
	if m := t.Target.model; m.dead {
		// The last rank left after the target was resolved; others may have
		// come since.
		if c.models[m.name] == nil && c.limits.NoWorkerWait <= 0 {
			c.refuse(now, t, NoWorkers, ResourceWorker, 0, out)
			return
		}
		c.revive(now, t)
	}
	f := t.Target.model.family
	pair := c.hasPair(t.Target)
	if !pair && c.limits.NoWorkerWait <= 0 {
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
	case c.noWaits:
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

func (c *Core) enqueue(now Instant, t *Ticket, pair bool) {
	t.state, t.wasQueue = stateQueued, true
	t.queuedAt = now
	t.limitAt, t.lostAt = never, never
	if left := c.timeLeft(t); left != math.MaxInt64 {
		t.limitAt = now.Add(left)
	}
	if !pair {
		t.lostAt = now.Add(c.limits.NoWorkerWait)
	}
	t.setWake()
	t.queuedRaw = min(max(t.PromptTokens, 0), maxAmount)
	t.queuedCached = min(max(t.CachedTokens, 0), t.queuedRaw)
	c.insert(t)
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
	f.rate.add(now)
	m.queues.classes[t.class.index].rate.add(now)
	c.total.add(now)
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
	depth, rate := c.waiting, &c.total
	if why != QueueFull {
		depth, rate = q.n, &q.rate
	}
	t.refusal = &Refusal{
		Reason: why, Resource: lack, Class: t.class.Name, Limit: limit, Depth: depth, Waited: t.waited,
		RetryAfter: c.retryAfter(now, t, why, lack, depth, rate),
	}
	c.decide(t, stateRefused, out)
}

// retryAfter is when the queue, at the pace it had over the last half minute,
// will have served those who wait and one more.
func (c *Core) retryAfter(now Instant, t *Ticket, why Reason, lack Resource, depth int, rate *rateMeter) time.Duration {
	secs := 5.0
	q := t.queue()
	if why == ClassQueueFull && q.class.never {
		depth, rate = 0, c.releases(t, lack)
	}
	switch why {
	case NoWorkers:
		secs = c.healthInt.Seconds()
	case Draining:
		secs = 1
	default:
		if r := rate.perSecond(now, c.start); r > 0 {
			secs = float64(depth+1) / r
		} else if h := q.head(); h != nil && h.wakeAt != never {
			secs = h.wakeAt.Sub(now).Seconds()
		} else if end := c.deadlines.next(); why == QueueFull && end != never {
			secs = end.Sub(now).Seconds() // waiters of other queues fill the router's
		}
	}
	return time.Duration(min(max(math.Ceil(secs), 1), 60)) * time.Second
}

// releases is the pace at which what t lacks comes free.
func (c *Core) releases(t *Ticket, lack Resource) *rateMeter {
	m := t.Target.model
	if t.Target.shape == Disaggregated && lack != ResourceDecode && lack != ResourceDecodeBlocks {
		return &m.pools[RolePrefill].released
	}
	return &m.pools[t.Target.role(DecodeLeg)].released
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
	c.endLost(now, out)
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
		}
	}
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
