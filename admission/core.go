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
}

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

	scratchP, scratchD bitmap
	viewP, viewD       View

	waiting     int
	waitingBy   [numShapes]int
	lost        []*Ticket // scratch of Apply
	deadlines   deadlineHeap
	seq         uint64
	total       rateMeter
	arriving    *Ticket
	noArrivals  bool
	noWaits     bool
	nextRecheck Instant

	// counters
	missed    uint64
	closedFor [numResources]time.Duration
}

// NewCore makes a core without ranks.
func NewCore(o Options) *Core {
	if o.NewPolicy == nil {
		o.NewPolicy = func(string, Role) Policy { return firstFit{} }
	}
	c := &Core{
		limits: o.Limits, newPolicy: o.NewPolicy, healthInt: o.HealthInterval,
		models: map[string]*model{}, pinned: map[targetKey]*Target{}, named: map[string][]*Rank{},
		nextRecheck: never,
	}
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
		t.Target = c.model(m.name).targets[t.Target.shape]
		c.restructure(now, false)
	}
	f := t.Target.model.family
	pair := c.hasPair(t.Target)
	if !pair && c.limits.NoWorkerWait <= 0 {
		c.refuse(now, t, NoWorkers, ResourceWorker, 0, out)
		return
	}
	lack := ResourceOrder
	// Only a retry can be older than the head. It is looked at before the
	// bounds, which are for those who have to wait.
	if h := f.queue.head(); h == nil || t.before(h) {
		if lack = c.choose(t); lack == ResourceNone {
			c.grant(now, t, f, out)
			return
		}
	}
	switch {
	case c.noWaits:
		c.refuse(now, t, Draining, ResourceNone, 0, out)
		return
	case t.Retry && (c.limits.QueueSize <= 0 || c.timeLeft(t) <= 0):
		c.refuse(now, t, RetryRefused, lack, 0, out)
		return
	case !t.Retry && c.waiting >= c.limits.QueueSize:
		if !pair && c.limits.QueueSize <= 0 {
			c.refuse(now, t, NoWorkers, ResourceWorker, 0, out)
		} else {
			c.refuse(now, t, QueueFull, c.lack(f, lack), int64(c.limits.QueueSize), out)
		}
		return
	case c.timeLeft(t) <= 0:
		c.refuse(now, t, QueueTimeout, c.lack(f, lack), int64(c.limits.QueueTimeout), out)
		return
	case t.Deadline != 0 && t.Deadline <= now:
		c.refuse(now, t, DeadlineExceeded, c.lack(f, lack), t.patience(), out)
		return
	}
	c.enqueue(now, t, f, pair)
	if f.queue.head() == t {
		c.drain(now, f, out)
	}
}

// lack names what the head of a queue waits for, for one who waits behind it.
func (c *Core) lack(f *family, own Resource) Resource {
	if own == ResourceOrder && f.closed.by != ResourceNone {
		return f.closed.by
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

func (c *Core) enqueue(now Instant, t *Ticket, f *family, pair bool) {
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
	t.family = f
	f.queue.push(t)
	c.deadlines.push(t)
	t.Target.waiters.add(t)
	t.Target.paired = pair
	c.waitingBy[t.Target.shape]++
	if c.waiting++; c.waiting == 1 {
		c.nextRecheck = now.Add(recheckEvery)
	}
}

func (t *Ticket) setWake() {
	t.wakeAt = min(t.limitAt, t.lostAt)
	if t.Deadline != 0 {
		t.wakeAt = min(t.wakeAt, t.Deadline)
	}
}

// dequeue takes a waiter out of every list. The caller decides it.
func (c *Core) dequeue(now Instant, t *Ticket) {
	t.family.queue.remove(t)
	c.deadlines.remove(t)
	t.Target.waiters.remove(t)
	t.waited += now.Sub(t.queuedAt)
	t.state = stateIdle
	t.family = nil
	c.waitingBy[t.Target.shape]--
	if c.waiting--; c.waiting == 0 {
		c.nextRecheck = never
	}
}

// grant books what choose chose. The order matters: prefill before decode, so
// that a rejected candidate never inflates decode load.
func (c *Core) grant(now Instant, t *Ticket, f *family, out *[]*Ticket) {
	c.book(t)
	m := t.Target.model
	if t.Prefill != nil {
		m.pools[RolePrefill].policy.Booked(t.Prefill.index, t.Hints[PrefillLeg])
		m.pools[RoleDecode].policy.Booked(t.Decode.index, t.Hints[DecodeLeg])
	} else {
		m.pools[RoleRegular].policy.Booked(t.Decode.index, t.Hints[DecodeLeg])
	}
	f.rate.add(now)
	c.total.add(now)
	c.decide(t, stateGranted, out)
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
	depth, rate := c.waiting, &c.total
	f := t.Target.model.family
	if why != QueueFull {
		depth, rate = f.queue.len(), &f.rate
	}
	t.refusal = Refusal{
		Reason: why, Resource: lack, Limit: limit, Depth: depth, Waited: t.waited,
		RetryAfter: c.retryAfter(now, why, depth, rate, f),
	}
	c.decide(t, stateRefused, out)
}

// retryAfter is when the queue, at the pace it had over the last half minute,
// will have served those who wait and one more.
func (c *Core) retryAfter(now Instant, why Reason, depth int, rate *rateMeter, f *family) time.Duration {
	secs := 5.0
	switch why {
	case NoWorkers:
		secs = c.healthInt.Seconds()
	case Draining:
		secs = 1
	default:
		if r := rate.perSecond(now, c.start); r > 0 {
			secs = float64(depth+1) / r
		} else if h := f.queue.head(); h != nil && h.wakeAt != never {
			secs = h.wakeAt.Sub(now).Seconds()
		} else if end := c.deadlines.next(); why == QueueFull && end != never {
			secs = end.Sub(now).Seconds() // waiters of other families fill the queue
		}
	}
	return time.Duration(min(max(math.Ceil(secs), 1), 60)) * time.Second
}

// drain grants from the head of a family's queue while there is room.
func (c *Core) drain(now Instant, f *family, out *[]*Ticket) int {
	granted := 0
	for {
		t := f.queue.head()
		if t == nil {
			f.closed.set(ResourceNone, now)
			return granted
		}
		if lack := c.choose(t); lack != ResourceNone {
			f.closed.set(lack, now)
			return granted
		}
		c.dequeue(now, t)
		c.grant(now, t, f, out)
		granted++
	}
}

// drainAfter drains the queue that an ended hold of t may have opened. Its
// ranks, as far as they are still registered, serve its model, and so belong to
// the family of it.
func (c *Core) drainAfter(now Instant, t *Ticket, out *[]*Ticket) {
	if c.waiting == 0 {
		return
	}
	if f := t.Target.model.family; f.queue.len() > 0 {
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
	head := f.queue.head() == t
	c.dequeue(now, t)
	if head {
		c.drain(now, f, out)
	}
	return true
}

// StartDecode turns the decode booking from pending to active.
func (c *Core) StartDecode(t *Ticket) { c.startDecode(t) }

// EndPrefill ends the prefill slot and the prefill load of a ticket. Repeated
// calls do nothing.
func (c *Core) EndPrefill(now Instant, t *Ticket, out *[]*Ticket) {
	if c.endPrefill(t) {
		c.drainAfter(now, t, out)
	}
}

// EndDecode ends the decode holds of a ticket, or all of an aggregated one's.
// Repeated calls do nothing.
func (c *Core) EndDecode(now Instant, t *Ticket, out *[]*Ticket) {
	if c.endDecode(t) {
		c.drainAfter(now, t, out)
	}
}

// Release ends every hold of a ticket. Repeated calls do nothing.
func (c *Core) Release(now Instant, t *Ticket, out *[]*Ticket) {
	p, d := c.endPrefill(t), c.endDecode(t)
	if t.state == stateGranted {
		t.state = stateIdle
	}
	if p || d {
		c.drainAfter(now, t, out)
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
	c.buryModels(now)
	for _, f := range c.families {
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
		if f.queue.len() > 0 {
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
		head := f.queue.head() == t
		lack := c.lack(f, ResourceOrder)
		before := t.waited
		c.dequeue(now, t)
		switch t.wakeAt { // what ends first names the reason
		case t.lostAt:
			c.refuse(now, t, NoWorkers, ResourceWorker, 0, out)
		case t.Deadline:
			c.refuse(now, t, DeadlineExceeded, lack, t.patience(), out)
		default:
			c.refuse(now, t, QueueTimeout, lack, int64(t.limitAt.Sub(t.queuedAt)+before), out)
		}
		if head {
			c.drain(now, f, out)
		}
	}
}

// SetLimits changes the bounds. Waiters keep their place and their end; a
// lowered slot limit closes the gate until holds are under it.
func (c *Core) SetLimits(now Instant, l Limits, out *[]*Ticket) {
	c.limits = l
	for _, r := range c.ranks {
		if r != nil {
			c.refresh(r, 0)
		}
	}
	for _, f := range c.families {
		if f.queue.len() > 0 {
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
		for t := f.queue.head(); t != nil; t = f.queue.head() {
			c.dequeue(now, t)
			c.refuse(now, t, Draining, ResourceNone, 0, out)
		}
		f.closed.set(ResourceNone, now)
	}
}
