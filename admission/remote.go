package admission

import (
	"context"
	"sync"
	"time"
)

// Remote decides about the requests of a gate in place of the gate's own core; see
// [Gate.SetRemote]. What it is told are values: tickets have numbers, which the gate gives
// out, and an attempt that rises with each Acquire, so that what comes late or twice can be
// told from what counts. Ranks are named by their ids.
//
// All methods are called without the gate's lock and may be called at the same time; those
// about one attempt of a ticket come after its Arrive was called, and what came before may
// be on the way still. None may call the methods of the gate that make it call a Remote. They
// may call Decide, Ask and Revoke, which take only the gate's own lock and may therefore
// also be called with locks of the Remote held.
type Remote interface {
	// Arrive hands over a ticket that wants to start, for the first time or once more. It
	// does not wait: [Gate.Decide] tells the decision, before or after Arrive returns. The
	// request belongs to the Remote; its instants are those of the gate's clock.
	Arrive(number uint64, attempt uint32, r *Request)
	// Step tells what became of a ticket. Each is told once for an attempt, but for
	// StepGrow. StepCancel: the caller has given up, and a decision that is under way will
	// not be taken. StepStartDecode, StepFirstToken, StepGrow (amount: the KV blocks of
	// output so far, in all), StepEndPrefill, StepEndDecode, StepRelease: of what was granted.
	// StepForget: the ticket will not come again.
	Step(number uint64, attempt uint32, op StepOp, amount int64)
	// Move asks for another decode rank for a granted ticket, and not one of exclude. It
	// answers within a fraction of a second; false: there is none, or nobody answered.
	Move(number uint64, attempt uint32, exclude []string) (decode string, ok bool)
	// Refresh hands in renewed hints of a waiting ticket.
	Refresh(number uint64, attempt uint32, hints *[2]RequestHint)
	// Observe tells what happened to the ranks of this gate, in order.
	Observe(changes []FleetChange)
	// Configure tells that settings were put in force here: by StepReload, StepSetLimits,
	// StepSetClasses or StepSetReject. s is all of them.
	Configure(op StepOp, s Settings)
	// StopArrivals, DrainWithin and RefuseWaiters are what they are of a gate, for its own
	// tickets. Those that are refused are told by [Gate.Decide].
	StopArrivals()
	DrainWithin(d time.Duration) (refused int)
	RefuseWaiters()
	// Stats is what gauges show: the whole, if it is known here first of all, else nil, and
	// they show zero. Snapshot is the whole as far as it is known here, nil: not at all.
	Stats() *Stats
	Snapshot() *Stats
	// PoolLoad is what all gates together have booked in a pool; false: it is not known.
	PoolLoad(model string, role Role) (PoolLoad, bool)
}

// RemoteDecision is what a [Remote] decided about a ticket.
type RemoteDecision struct {
	Granted bool
	// Prefill and Decode are the ids of the granted ranks; Prefill is empty for a request
	// that needs one rank.
	Prefill, Decode string
	// Refusal is why it was not granted.
	Refusal *Refusal
	Class   string
	Queued  bool          // it had to wait for room
	Waited  time.Duration // in all, over all waits
	Lacked  Resource
	Choice  Choice
}

// remoteGate is the part of a gate whose requests a Remote decides about.
type remoteGate struct {
	Remote
	gate *Gate

	// telling keeps what is told of ranks and settings in order. Lock order: telling, then
	// Gate.mu.
	telling sync.Mutex

	// guarded by the gate's lock
	tickets map[uint64]*Ticket // those that wait, or have something
	number  uint64             // the last that was given out
	waiting int
	classes map[string]*class // of decisions, by name
}

// extraTicket is what a ticket has beside, if a Remote decides about it or a [Port] drives it.
type extraTicket struct {
	number  uint64
	attempt uint32
	grown   int64 // blocks of output booked for the present grant

	// of a port
	origin uint64
	home   *portTicket // whose memory may be used again; nil once it has waited: queues may still mention it

	// of a gate with a Remote
	first    bool // its first token was told
	again    bool // what it was granted is of no use here: it comes again
	revoked  bool
	onRevoke func()
	unusable [numLegs][]RankRef // ranks granted in this Acquire that are not registered here
}

// maxUnusable is how often one Acquire comes again because a granted rank is not registered
// here.
const maxUnusable = 8

// SetRemote has r decide about all requests from now on. It is called once, before the gate
// is used. The gate's core keeps the ranks, and books on them what this gate's own
// requests hold; it keeps no queues.
func (g *Gate) SetRemote(r Remote) {
	g.mu.Lock()
	g.remote = &remoteGate{Remote: r, gate: g, tickets: map[uint64]*Ticket{}, classes: map[string]*class{}}
	var ranks []FleetChange
	for _, x := range g.core.ranks {
		if x != nil {
			spec := specOf(x)
			ranks = append(ranks, FleetChange{Op: AddRank, Rank: x.ref(), Add: &spec})
		}
	}
	s := settingsOf(g.core)
	g.mu.Unlock()
	if len(ranks) > 0 {
		r.Observe(ranks)
	}
	r.Configure(StepReload, s)
}

// settingsOf returns those in force.
func settingsOf(c *Core) Settings {
	return Settings{Limits: c.limits, Classes: c.classes, Reject: c.reject}
}

// acquire is [Gate.Acquire].
func (rg *remoteGate) acquire(ctx context.Context, t *Ticket) error {
	begun := rg.gate.clock.Now()
	for range maxUnusable {
		number, attempt, r := rg.arriving(t, begun)
		rg.Arrive(number, attempt, r)
		if err, again := rg.await(ctx, t, begun); !again {
			return err
		}
	}
	// One rank after the other is granted that is not registered here.
	t.state = stateRefused
	t.refusal = &Refusal{Reason: NoWorkers, Resource: ResourceWorker, Class: t.ClassName(), Waited: t.waited, RetryAfter: time.Second}
	return rg.gate.acquired(t, stateRefused, rg.gate.clock.Now().Sub(begun))
}

// arriving begins an attempt of t.
func (rg *remoteGate) arriving(t *Ticket, begun Instant) (number uint64, attempt uint32, r *Request) {
	g := rg.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.state == stateQueued || t.holdsPrefill || t.holdsDecode {
		panic("BUG: a ticket arrived that waits or holds something")
	}
	x := t.extra
	if x == nil {
		rg.number++
		x = &extraTicket{number: rg.number}
		t.extra = x
	}
	again := x.again
	if !again {
		x.unusable = [numLegs][]RankRef{}
	}
	x.attempt++
	x.grown, x.first, x.again, x.revoked, x.onRevoke = 0, false, false, false, nil
	t.gate, t.state, t.wasQueue, t.queuedAt = g, stateQueued, false, begun
	t.Prefill, t.Decode = nil, nil
	if t.wake == nil {
		t.wake = make(chan struct{}, 1)
	}
	if t.ask == nil && t.Matcher != nil {
		t.ask = make(chan struct{}, 1)
	}
	rg.tickets[x.number] = t
	rg.waiting++
	request := requestOf(t)
	for l := range numLegs {
		request.Exclude[l] = append(request.Exclude[l], x.unusable[l]...)
	}
	request.Retry = request.Retry || again
	return x.number, x.attempt, &request
}

// await parks the caller until t is decided. again: it was granted a rank that is not
// registered here.
func (rg *remoteGate) await(ctx context.Context, t *Ticket, begun Instant) (err error, again bool) {
	g := rg.gate
	for {
		select {
		case <-t.wake:
			if t.extra.again {
				return nil, true
			}
			wait := time.Duration(0)
			if t.wasQueue {
				wait = g.clock.Now().Sub(begun)
			}
			return g.acquired(t, t.state, wait), false
		case <-t.ask:
			rg.rematch(t)
		case <-ctx.Done():
			wait := g.clock.Now().Sub(begun)
			if !rg.cancel(t, wait) {
				<-t.wake // it was decided first
				t.Release()
			}
			g.observe(t, Canceled, wait)
			return context.Cause(ctx), false
		}
	}
}

// cancel ends the wait of t; false: it was decided before.
func (rg *remoteGate) cancel(t *Ticket, wait time.Duration) bool {
	rg.gate.mu.Lock()
	if t.state != stateQueued {
		rg.gate.mu.Unlock()
		return false
	}
	t.state, t.wasQueue = stateIdle, true
	t.waited += wait
	rg.waits(t, false)
	number, attempt := t.extra.number, t.extra.attempt
	rg.gate.mu.Unlock()
	rg.Step(number, attempt, StepCancel, 0)
	return true
}

// waits forgets a waiter, but keeps the number of one that was granted something. It needs
// the gate's lock.
func (rg *remoteGate) waits(t *Ticket, granted bool) {
	rg.waiting--
	if !granted {
		delete(rg.tickets, t.extra.number)
	}
}

// rematch has the hints of t renewed.
func (rg *remoteGate) rematch(t *Ticket) {
	g := rg.gate
	g.mu.Lock()
	waits := t.state == stateQueued
	t.matched = t.Target
	hints := t.Hints
	g.mu.Unlock()
	if !waits || !t.Matcher.Match(t, &hints) {
		return
	}
	g.mu.Lock()
	if t.state != stateQueued {
		g.mu.Unlock()
		return
	}
	t.Hints = hints
	written := [numLegs]RequestHint{hintOf(&hints[PrefillLeg]), hintOf(&hints[DecodeLeg])}
	number, attempt := t.extra.number, t.extra.attempt
	g.mu.Unlock()
	rg.Refresh(number, attempt, &written)
}

// Decide tells what the Remote decided about an attempt of a ticket, and wakes its caller.
// False: it is not taken, and what was granted has to be given back by the Remote. Either
// the attempt does not wait any more; or a granted rank is not registered here, or cannot
// be used by the request: then the ticket arrives once more, without that rank.
func (g *Gate) Decide(number uint64, attempt uint32, d *RemoteDecision) (taken bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rg := g.remote
	t := rg.tickets[number]
	if t == nil || t.extra.attempt != attempt || t.state != stateQueued {
		return false
	}
	t.waited, t.wasQueue, t.lacked, t.choice = max(d.Waited, 0), d.Queued, d.Lacked, d.Choice
	t.class = rg.class(d.Class)
	switch {
	case !d.Granted:
		t.state, t.refusal = stateRefused, refusalOf(t, d)
	case rg.take(t, d):
		t.state, taken = stateGranted, true
	default:
		t.state, t.extra.again = stateIdle, true
	}
	rg.waits(t, taken)
	t.wake <- struct{}{} // has room for the one answer
	return taken || !d.Granted
}

// refusalOf is why t was refused.
func refusalOf(t *Ticket, d *RemoteDecision) *Refusal {
	if d.Refusal == nil {
		return &Refusal{Reason: GateUnavailable, Class: d.Class, Waited: t.waited, RetryAfter: time.Second}
	}
	if d.Refusal.Reason == RetryRefused && !t.Retry {
		// It came again because of a rank that is not registered here: there is no failure
		// of an attempt that the client could be told.
		r := *d.Refusal
		r.Reason = NoWorkers
		return &r
	}
	return d.Refusal
}

// take books what was granted to t; false: it is of no use.
func (rg *remoteGate) take(t *Ticket, d *RemoteDecision) bool {
	c := rg.gate.core
	target := t.Target
	if (d.Prefill != "") != (target.shape == Disaggregated) && t.Instead != nil {
		target = t.Instead // a bypass that was decided afresh
	}
	decode := registered(&c.rankIndex, d.Decode, target.role(DecodeLeg))
	var prefill *Rank
	if target.shape == Disaggregated {
		if prefill = registered(&c.rankIndex, d.Prefill, RolePrefill); prefill == nil {
			t.extra.unusable[PrefillLeg] = append(t.extra.unusable[PrefillLeg], RankRef{ID: d.Prefill})
			return false
		}
	}
	if decode == nil || (prefill != nil) != (d.Prefill != "") || prefill != nil && !target.pairs(prefill, decode) {
		t.extra.unusable[DecodeLeg] = append(t.extra.unusable[DecodeLeg], RankRef{ID: d.Decode})
		return false
	}
	if target != t.Target {
		t.Target, t.Instead = t.Instead, t.Target
	}
	t.Prefill, t.Decode = prefill, decode
	c.book(t)
	return true
}

// registered returns the rank of that id and role, or nil.
func registered(ix *rankIndex, id string, role Role) *Rank {
	named := ix.named[id]
	for i := len(named) - 1; i >= 0; i-- {
		if r := named[i]; r.id == id && r.role == role {
			return r
		}
	}
	return nil
}

// maxRemoteClasses bounds the classes of decisions that are kept: configured ones, of all
// configurations that were in force.
const maxRemoteClasses = 4 * MaxClasses

// class returns what stands for the class of a decision.
func (rg *remoteGate) class(name string) *class {
	cl := rg.classes[name]
	if cl == nil {
		if len(rg.classes) >= maxRemoteClasses {
			clear(rg.classes)
		}
		cl = &class{Class: Class{Name: name}, prefillThreshold: -1, blockThreshold: -1}
		rg.classes[name] = cl
	}
	return cl
}

// Ask has the hints of waiting tickets renewed, by their own goroutines; they come back by
// Refresh of the Remote.
func (g *Gate) Ask(numbers ...uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range numbers {
		if t := g.remote.tickets[n]; t != nil && t.state == stateQueued && t.ask != nil {
			select {
			case t.ask <- struct{}{}:
			default: // it was asked before
			}
		}
	}
}

// Revoke ends the prefill leg of a granted ticket: what was given to OnRevoke is called,
// once. It must not call back into the Remote.
func (g *Gate) Revoke(number uint64) {
	g.mu.Lock()
	t := g.remote.tickets[number]
	if t == nil || t.state != stateGranted || t.extra.revoked {
		g.mu.Unlock()
		return
	}
	t.extra.revoked = true
	f := t.extra.onRevoke
	g.mu.Unlock()
	if f != nil {
		f()
	}
}

// OnRevoke has f called, at most once, when the gate has to have back what this grant holds
// for prefill, because it cannot hear any more what others are granted: the leg is to be
// cancelled. It is called by another goroutine, or at once. It is forgotten with the next
// Acquire. Gates that decide by themselves never call it.
func (t *Ticket) OnRevoke(f func()) {
	if t.gate == nil || t.gate.remote == nil {
		return
	}
	t.gate.mu.Lock()
	x := t.extra
	now := x.revoked && x.onRevoke == nil
	x.onRevoke = f
	t.gate.mu.Unlock()
	if now {
		f()
	}
}
