package admission

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Clock is the gate's time. Package admission reads no clock of its own.
type Clock interface {
	// Now returns the present instant.
	Now() Instant
	// AfterFunc calls f in its own goroutine once d has passed. The returned
	// function stops it; it need not wait for a call that has begun.
	AfterFunc(d time.Duration, f func()) (stop func() bool)
}

// SystemClock is the process's monotonic clock. Make one with NewSystemClock.
type SystemClock struct{ origin time.Time }

// NewSystemClock returns a clock that starts now.
func NewSystemClock() *SystemClock { return &SystemClock{origin: time.Now()} }

// Now returns the time since the clock was made.
func (c *SystemClock) Now() Instant { return Instant(time.Since(c.origin)) }

// AfterFunc is time.AfterFunc.
func (c *SystemClock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	return time.AfterFunc(d, f).Stop
}

// Outcome is how an Acquire ended, for observers.
type Outcome uint8

// The outcomes.
const (
	Granted Outcome = iota
	Refused
	Canceled
)

// Observer is told of each Acquire once it is over, outside the lock. wait is
// the time this Acquire queued.
type Observer interface {
	Acquired(t *Ticket, o Outcome, wait time.Duration)
}

// Gate parks requests until the core grants or refuses them. All methods are
// safe for concurrent use.
type Gate struct {
	// immutable
	clock    Clock
	observer Observer
	remote   *remoteGate // nil: the core decides

	mu sync.Mutex
	// guarded by mu
	core    *Core
	last    Instant // the latest step's; the core's time never runs back
	armedAt Instant // when the timer fires; never: it is not armed
	stop    func() bool
	closed  bool
	spare   []*Ticket // a decision buffer that is not lent

	// free holds the targets without pins, for Resolve without the lock. It
	// is replaced, never changed.
	free atomic.Pointer[map[freeKey]*Target]
}

type freeKey struct {
	model string
	shape Shape
}

// NewGate makes a gate without ranks. observer may be nil.
func NewGate(o Options, clock Clock, observer Observer) *Gate {
	g := &Gate{clock: clock, observer: observer, core: NewCore(o), armedAt: never}
	g.core.tick(clock.Now())
	g.publish()
	return g
}

// enter takes the lock and lends the decision buffer. The clock is read before
// the lock, so that waiting for the lock costs a request no place; a step that
// was overtaken then happens at the instant of the one that passed it.
func (g *Gate) enter() (now Instant, out []*Ticket) {
	now = g.clock.Now()
	g.mu.Lock()
	g.last = max(g.last, now)
	out, g.spare = g.spare, nil
	return g.last, out
}

// step runs f under the lock with a lent decision buffer and hands the
// decisions out afterwards.
func (g *Gate) step(f func(now Instant, out *[]*Ticket)) {
	now, out := g.enter()
	f(now, &out)
	g.arm(now)
	g.unlockAndDeliver(out)
}

// unlockAndDeliver wakes the decided callers after unlocking, and before those that are to
// renew their hints: of these none can be decided, and used for something else, meanwhile.
func (g *Gate) unlockAndDeliver(out []*Ticket) {
	if len(g.core.asked) > 0 {
		asked := g.core.Asked()
		for _, t := range asked {
			select {
			case t.ask <- struct{}{}:
			default: // it was asked before
			}
		}
		clear(asked)
	}
	if len(out) == 0 {
		g.spare = out
		g.mu.Unlock()
		return
	}
	g.mu.Unlock()
	for i, t := range out {
		t.wake <- struct{}{} // has room for the one answer
		out[i] = nil
	}
	g.mu.Lock()
	if g.spare == nil {
		g.spare = out[:0]
	}
	g.mu.Unlock()
}

// arm makes the timer fire in time for the next deadline. A timer that fires
// early is harmless, so it is only ever moved forward.
func (g *Gate) arm(now Instant) {
	next := g.core.NextDeadline()
	if next >= g.armedAt || g.closed {
		return
	}
	if g.stop != nil {
		g.stop()
	}
	g.armedAt = next
	g.stop = g.clock.AfterFunc(max(next.Sub(now), 0), g.advance)
}

func (g *Gate) advance() {
	g.step(func(now Instant, out *[]*Ticket) {
		if g.stop != nil {
			g.stop() // another timer, armed while this call waited for the lock
		}
		g.armedAt, g.stop = never, nil
		g.core.Advance(now, out)
	})
}

// Close stops the timer. Nobody may wait any more.
func (g *Gate) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.stop != nil {
		g.stop()
		g.stop = nil
	}
}

// Resolve finds what a request may be placed on. It returns nil when no
// registered rank serves the model. A target that says more than model and shape
// belongs to one ticket, whose Close gives it back.
func (g *Gate) Resolve(s TargetSpec) *Target {
	if s.free() {
		free := *g.free.Load()
		if t := free[freeKey{s.Model, s.Shape}]; t != nil {
			return t
		}
		return free[freeKey{"", s.Shape}]
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.core.Resolve(s)
	if t != nil && t.gate == nil { // not again: others read it without the lock
		t.gate = g
	}
	return t
}

// Matches tells whether a pin names any registered rank of the role.
func (g *Gate) Matches(pin string, role Role) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.core.named[pin] {
		if r.role == role {
			return true
		}
	}
	return false
}

// publish renews the map that Resolve reads. It needs the lock, or that nobody
// else has the gate yet.
func (g *Gate) publish() {
	free := make(map[freeKey]*Target, 2*len(g.core.models))
	for name, m := range g.core.models {
		if m.ranks == 0 {
			continue
		}
		for s, t := range m.targets {
			free[freeKey{name, Shape(s)}] = t
		}
	}
	g.free.Store(&free)
}

// Acquire waits until t is granted its ranks and returns nil; or returns a
// *Refusal, or ctx's error when the caller gave up. After
// an error t holds nothing.
func (g *Gate) Acquire(ctx context.Context, t *Ticket) error {
	if g.remote != nil {
		return g.remote.acquire(ctx, t)
	}
	now, out := g.enter()
	t.gate = g
	g.core.Arrive(now, t, &out)
	state := t.state
	if state == stateQueued && t.wake == nil {
		t.wake = make(chan struct{}, 1)
		if t.Matcher != nil {
			t.ask = make(chan struct{}, 1)
		}
	}
	g.arm(now)
	g.unlockAndDeliver(out)

	if state != stateQueued {
		return g.acquired(t, state, 0)
	}
	for {
		select {
		case <-t.wake:
			return g.acquired(t, t.state, g.clock.Now().Sub(now))
		case <-t.ask:
			rematch(g, t)
		case <-ctx.Done():
			if !g.cancel(t) {
				// The race is lost: the gate decided first and its answer is on
				// the way. What it granted is given back at once.
				<-t.wake
				t.Release()
			}
			g.observe(t, Canceled, g.clock.Now().Sub(now))
			return context.Cause(ctx)
		}
	}
}

// rematch has the hints of t renewed, which mostly waits still.
func rematch(g *Gate, t *Ticket) {
	g.mu.Lock()
	waits := t.state == stateQueued
	t.matched = t.Target
	hints := t.Hints
	g.mu.Unlock()
	if waits && t.Matcher.Match(t, &hints) {
		g.step(func(now Instant, out *[]*Ticket) { g.core.Refresh(now, t, &hints, out) })
	}
}

func (g *Gate) acquired(t *Ticket, s ticketState, wait time.Duration) error {
	if s == stateGranted {
		g.observe(t, Granted, wait)
		return nil
	}
	g.observe(t, Refused, wait)
	return t.refusal
}

func (g *Gate) observe(t *Ticket, o Outcome, wait time.Duration) {
	if g.observer != nil {
		g.observer.Acquired(t, o, wait)
	}
}

func (g *Gate) cancel(t *Ticket) bool {
	var waiting bool
	g.step(func(now Instant, out *[]*Ticket) { waiting = g.core.Cancel(now, t, out) })
	return waiting
}

// StartDecode tells that the decode leg was sent.
func (t *Ticket) StartDecode() {
	g := t.gate
	if g == nil {
		return
	}
	if g.remote != nil {
		g.remote.startDecode(t)
		return
	}
	g.mu.Lock()
	g.core.StartDecode(t)
	g.mu.Unlock()
}

// EndPrefill gives the prefill slot back: the last prefill leg is over. It may
// be called any number of times.
func (t *Ticket) EndPrefill() {
	g := t.gate
	if g == nil {
		return
	}
	if g.remote != nil {
		g.remote.endPrefill(t)
		return
	}
	now, out := g.enter()
	g.core.EndPrefill(now, t, &out)
	g.unlockAndDeliver(out)
}

// EndDecode gives the decode booking back: the leg that answers the client is
// over. It may be called any number of times.
func (t *Ticket) EndDecode() {
	g := t.gate
	if g == nil {
		return
	}
	if g.remote != nil {
		g.remote.endDecode(t)
		return
	}
	now, out := g.enter()
	g.core.EndDecode(now, t, &out)
	g.unlockAndDeliver(out)
}

// Release gives back whatever the ticket still holds. It may be called any
// number of times.
func (t *Ticket) Release() {
	g := t.gate
	if g == nil {
		return
	}
	if g.remote != nil {
		g.remote.release(t)
		return
	}
	now, out := g.enter()
	g.core.Release(now, t, &out)
	g.unlockAndDeliver(out)
}

// Close gives back the ticket's holds and its pinned target, whether or not it
// ever was at the gate. The ticket is not used any more; repeated calls do
// nothing.
func (t *Ticket) Close() {
	t.Release()
	if t.ended {
		return
	}
	t.ended = true
	if t.gate != nil && t.gate.remote != nil {
		t.gate.remote.forget(t)
	}
	for _, target := range [...]*Target{t.Target, t.Instead} {
		if target != nil && target.gate != nil {
			g := target.gate
			g.mu.Lock()
			g.core.unref(target)
			g.mu.Unlock()
		}
	}
}

// FirstToken tells that the first output token came: the prefill tokens of the
// ticket end. It may be called any number of times.
func (t *Ticket) FirstToken() {
	g := t.gate
	if g == nil {
		return
	}
	if g.remote != nil {
		g.remote.firstToken(t)
		return
	}
	now, out := g.enter()
	g.core.FirstToken(now, t, &out)
	g.unlockAndDeliver(out)
}

// Grow adds KV blocks of output to what the ticket holds on its decode rank,
// beyond what ReserveTokens gave it in advance.
func (t *Ticket) Grow(blocks int64) {
	g := t.gate
	if g == nil {
		return
	}
	if g.remote != nil {
		g.remote.grow(t, blocks)
		return
	}
	now, out := g.enter()
	g.core.Grow(now, t, blocks, &out)
	g.unlockAndDeliver(out)
}

// MoveDecode moves the decode booking to another rank, which it leaves in
// t.Decode, without waiting; see [Core.MoveDecode]. False: there is none, the
// request has to go back to prefill.
func (t *Ticket) MoveDecode(exclude ...*Rank) bool {
	g := t.gate
	if g == nil {
		return false
	}
	if g.remote != nil {
		return g.remote.moveDecode(t, exclude)
	}
	now, out := g.enter()
	moved := g.core.MoveDecode(now, t, exclude, &out)
	g.unlockAndDeliver(out)
	return moved
}

// Apply makes fleet changes take effect together; see [Core.Apply].
func (g *Gate) Apply(changes ...Change) {
	if g.remote != nil {
		g.remote.apply(changes)
		return
	}
	g.step(func(now Instant, out *[]*Ticket) {
		g.core.Apply(now, changes, out)
		if !onlyReports(changes) {
			g.publish()
		}
	})
}

// UsesReports tells whether anything is decided by what engines report of ranks of the role.
func (g *Gate) UsesReports(role Role) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.needsBlocks && role != RolePrefill || g.core.limits.OverloadWaiting > 0 || g.core.limits.OverloadUsage > 0
}

// SetLimits changes the bounds; see [Core.SetLimits].
func (g *Gate) SetLimits(l Limits) {
	configured(g, StepSetLimits, func(now Instant, out *[]*Ticket) { g.core.SetLimits(now, l, out) })
}

// SetClasses changes the policy classes, whole; see [Core.SetClasses]. Nil is
// the one synthetic class.
func (g *Gate) SetClasses(cs *Classes) {
	configured(g, StepSetClasses, func(now Instant, out *[]*Ticket) { g.core.SetClasses(now, cs, out) })
}

// Reload puts settings in force, in one step; see [Core.Reload].
func (g *Gate) Reload(s Settings) {
	configured(g, StepReload, func(now Instant, out *[]*Ticket) { g.core.Reload(now, s, out) })
}

// SetRejectThresholds changes the router-wide reject thresholds.
func (g *Gate) SetRejectThresholds(h RejectThresholds) {
	configured(g, StepSetReject, func(now Instant, out *[]*Ticket) { g.core.SetRejectThresholds(now, h, out) })
}

// RejectThresholds returns those in force.
func (g *Gate) RejectThresholds() RejectThresholds {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.reject
}

// Classes returns the names of the classes in force.
func (g *Gate) Classes() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.Classes()
}

// NeedsCapacity tells whether a class goes by a capacity of ranks of the role, so that
// it matters when that is not known.
func (g *Gate) NeedsCapacity(role Role) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.needsTokens && role != RoleDecode || g.core.needsBlocks && role != RolePrefill
}

// PoolLoad returns what the ranks of a pool hold together; the zero value when
// no rank serves the model.
func (g *Gate) PoolLoad(model string, role Role) PoolLoad {
	if g.remote != nil {
		if l, known := g.remote.PoolLoad(model, role); known {
			return l
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if m := g.core.models[model]; m != nil {
		return m.pools[role].loads()
	}
	return PoolLoad{}
}

// NoWorkerWait is how long a request may wait while no worker could serve it.
// stopping: arrivals are refused, so that it may not wait at all.
func (g *Gate) NoWorkerWait() (wait time.Duration, stopping bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.core.limits.NoWorkerWait, g.core.noArrivals || g.core.noWaits
}

// StopArrivals refuses new requests from now on; see [Core.StopArrivals].
func (g *Gate) StopArrivals() {
	g.mu.Lock()
	g.core.StopArrivals()
	g.mu.Unlock()
	if g.remote != nil {
		g.remote.StopArrivals()
	}
}

// DrainWithin refuses those who cannot start within d; see [Core.DrainWithin]. It
// returns how many waiters that were.
func (g *Gate) DrainWithin(d time.Duration) (refused int) {
	if g.remote != nil {
		return g.remote.DrainWithin(d)
	}
	g.step(func(now Instant, out *[]*Ticket) {
		g.core.DrainWithin(now, d, out)
		for _, t := range *out {
			if t.state == stateRefused {
				refused++
			}
		}
	})
	return refused
}

// RefuseWaiters ends every wait; see [Core.RefuseWaiters].
func (g *Gate) RefuseWaiters() {
	g.step(g.core.RefuseWaiters)
	if g.remote != nil {
		g.remote.RefuseWaiters()
	}
}
