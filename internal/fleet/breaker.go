package fleet

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
)

// halfOpenProbes is the most requests at once on a half-open rank.
const halfOpenProbes = 3

// Charge is how sure it is that a failure was the engine's fault.
type Charge int

const (
	// Proven is for an engine that could not even be reached, or where another rank served the
	// request that failed here.
	Proven Charge = iota
	// Unproven is a failure of a request that no other rank has served. The request may
	// be at fault, so a breaker opens by such failures only while the other ranks of its role do not
	// have them too.
	Unproven
)

// breaker is the state machine of one rank's circuit breaker. Closed, it counts
// failures; at the threshold it opens; after TimeoutDuration it is half-open and lets a
// few requests try; then it closes, or opens again at the first proven failure.
// With its options it is ready for use.
//
// A success takes one failure back. So a rank that fails everything opens after
// the threshold, however much it served well before, and one that fails a few in
// a hundred never does, however many requests it has.
//
// Whether it may open at all is not its own business: see Fleet.trip.
type breaker struct {
	// immutable
	opts *config.CircuitBreaker

	// marked is set unless it is closed and counts no failure: the ordinary success
	// reads nothing else.
	marked atomic.Bool
	// good is the moment of the last success, since any rank of the fleet failed.
	good atomic.Int64
	// bad is the moment of the last failure that was counted, whatever came after it.
	bad atomic.Int64

	mu sync.Mutex
	// guarded by mu
	state     admission.Breaker
	failures  []failure         // those that count, oldest first, as many as the threshold
	since     admission.Instant // when the present run of failures began
	closed    admission.Instant // when it closed last, or the rank came
	successes int               // while half-open
	until     admission.Instant // end of being open
	alone     bool              // half-open as the last candidate: one probe at a time
	tripped   int               // failures that counted when the threshold was last reached
}

// failure is one that counts.
type failure struct {
	at     admission.Instant
	charge Charge
	key    uint64 // what binds its request to others, 0 for nothing
}

// success records a successful request, and returns whether the state changed.
func (b *breaker) success(now func() admission.Instant) bool {
	if !b.marked.Load() {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.state {
	case admission.BreakerClosed:
		if n := len(b.failures); n > 0 {
			b.failures = append(b.failures[:0], b.failures[1:]...)
			b.marked.Store(n > 1)
		}
	case admission.BreakerHalfOpen:
		if b.successes++; b.successes >= b.opts.SuccessThreshold {
			b.set(admission.BreakerClosed)
			b.closed = now()
			return true
		}
	}
	return false
}

// failure counts a failed request, and returns whether the threshold is reached.
// Unproven failures of requests with the same key, which routing may all send here,
// count once.
func (b *breaker) failure(now admission.Instant, c Charge, key uint64) (trips bool) {
	if b.opts.Disabled {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == admission.BreakerOpen {
		return false // a request from before it opened
	}
	if c == Unproven && key != 0 && slices.ContainsFunc(b.failures, func(f failure) bool { return f.key == key && now.Sub(f.at) < b.opts.WindowDuration }) {
		return false
	}
	b.marked.Store(true)
	b.bad.Store(int64(now))
	old := 0
	for old < len(b.failures) && (now.Sub(b.failures[old].at) >= b.opts.WindowDuration || len(b.failures)-old >= b.opts.FailureThreshold) {
		old++
	}
	if n := len(b.failures); n == 0 || now.Sub(b.failures[n-1].at) >= b.opts.WindowDuration {
		b.since = now
	}
	b.failures = append(append(b.failures[:0], b.failures[old:]...), failure{now, c, key})
	b.tripped = len(b.failures)
	if b.state == admission.BreakerHalfOpen {
		// A request that fails everywhere must not hold it open.
		return c == Proven || len(b.failures) >= min(b.opts.SuccessThreshold, b.opts.FailureThreshold)
	}
	return len(b.failures) >= b.opts.FailureThreshold
}

// run is the present run of failures: how many of those that count are proven, when
// it began, and the moment of the first that counts.
func (b *breaker) run(now admission.Instant) (proven int, since, first admission.Instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first = now
	for _, f := range b.failures {
		if now.Sub(f.at) < b.opts.WindowDuration {
			first = min(first, f.at)
			if f.charge == Proven {
				proven++
			}
		}
	}
	return proven, b.since, first
}

// open opens it, or makes it half-open at once if it is the last candidate. It
// returns whether the state changed.
func (b *breaker) open(now admission.Instant, last bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.state
	if before == admission.BreakerOpen {
		return false
	}
	if last {
		b.halfOpenAlone()
	} else {
		b.set(admission.BreakerOpen)
		b.until = now.Add(b.opts.TimeoutDuration)
	}
	return b.state != before
}

// elapse makes an open breaker half-open when its time has come. early does not
// wait for it: a check has just shown that the engine works.
func (b *breaker) elapse(now admission.Instant, early bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != admission.BreakerOpen || now < b.until && !early {
		return false
	}
	b.set(admission.BreakerHalfOpen)
	return true
}

// isOver reports whether it is open and its time has come.
func (b *breaker) isOver(now admission.Instant) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state == admission.BreakerOpen && now >= b.until
}

// set requires mu to be held.
func (b *breaker) set(s admission.Breaker) {
	b.state, b.alone = s, false
	b.failures, b.successes = b.failures[:0], 0
	b.marked.Store(s != admission.BreakerClosed)
}

// halfOpenAlone makes it half-open as that of the last candidate. The caller must hold mu.
func (b *breaker) halfOpenAlone() {
	b.set(admission.BreakerHalfOpen)
	b.alone = true
}

// get returns the state and, when open, its end.
func (b *breaker) get() (admission.Breaker, admission.Instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state, b.until
}

// probes is the most requests at once while it is half-open.
func (b *breaker) probes() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.alone {
		return 1
	}
	return halfOpenProbes
}

// tripBreaker opens the breaker of a rank whose failures have reached the threshold,
// with two exceptions. The last candidate of a role stays a candidate, half-open: it
// is better to try it than to refuse all requests. And unproven failures do not open
// a breaker while the other ranks of the role have them too: then the requests are at
// fault, and they would close one rank after another.
func (f *Fleet) tripBreaker(r *Rank, now admission.Instant) {
	f.mu.Lock()
	proven, since, first := r.breaker.run(now)
	others, well := f.peersLocked(r, since, first)
	changed := false
	if others == 0 || well || proven >= f.cfg.CircuitBreaker.FailureThreshold || proven > 0 && r.breaker.halfOpen() {
		changed = r.breaker.open(now, others == 0)
	}
	f.mu.Unlock()
	if changed {
		f.breakerChanged(r, r.whyTripped()...)
	}
}

// openIsOver is called when the time of a rank's open breaker has come. Before a client's
// request is risked as a trial, the worker is checked; see halfOpenLocked. A worker that
// is not checked gets the trial at once.
func (f *Fleet) openIsOver(r *Rank, now admission.Instant) {
	f.mu.Lock()
	w := r.worker
	checked := !f.cfg.Health.Disabled && !w.draining && !w.removed && !f.closed
	if checked {
		f.sched.advance(w.event, now)
	}
	f.mu.Unlock()
	if !checked && r.breaker.elapse(now, false) {
		f.breakerChanged(r)
	}
}

// halfOpenLocked makes the open breakers of w half-open whose time has come, after a check
// that did not fail. One that fails leaves them as they are, until the next.
func (f *Fleet) halfOpenLocked(w *Worker, c checkResult, now admission.Instant) (turned []*Rank) {
	if c.health != outcomeOK && c.health != outcomeUnknown && !w.health.forgiven {
		return nil
	}
	for _, r := range w.Ranks() {
		if r.breaker.isOver(now) && r.breaker.elapse(now, false) {
			f.sched.drop(r.event)
			turned = append(turned, r)
		}
	}
	return turned
}

// whyTripped tells for the log why the rank's breaker opened.
func (r *Rank) whyTripped() (attrs []any) {
	b := &r.breaker
	b.mu.Lock()
	attrs = append(attrs, "failures", b.tripped)
	b.mu.Unlock()
	if l := r.lastFailure.Load(); l != nil {
		attrs = append(attrs, "cause", l.detail)
	}
	return attrs
}

// peersLocked counts the other candidates that could do what r does, for the model
// that has the fewest of them, and reports whether at least half of them are well while
// r fails: they were there all the time since its run of failures began, have served
// a request since, and have failed none since the first of its failures that counts.
// A request that fails everywhere is retried on all of them.
func (f *Fleet) peersLocked(r *Rank, since, first admission.Instant) (others int, well bool) {
	models := r.worker.models
	if len(models) == 0 {
		models = []string{""}
	}
	for i, model := range models {
		n, good := 0, 0
		for _, w := range f.workers {
			if w.role != r.worker.role || !w.inGate || !slices.Contains(w.models, model) && len(w.models) > 0 {
				continue
			}
			for _, other := range w.Ranks() {
				if other == r {
					continue
				}
				// Not other.state, which follows a breaker's change later.
				if s := f.gateStateLocked(other); !s.Healthy || s.Draining || s.Breaker == admission.BreakerOpen {
					continue
				}
				n++
				b := &other.breaker
				if b.closedSince() <= since && admission.Instant(b.good.Load()) > since && admission.Instant(b.bad.Load()) < first {
					good++
				}
			}
		}
		if i == 0 || n < others {
			others, well = n, n > 0 && 2*good >= n
		}
	}
	return others, well
}

// closedSince is when it closed last, or the rank came.
func (b *breaker) closedSince() admission.Instant {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed
}

func (b *breaker) halfOpen() bool {
	s, _ := b.get()
	return s == admission.BreakerHalfOpen
}

// halfOpenLastLocked makes open breakers half-open at once where they have become those of
// the last candidates of their role, because the others went.
func (f *Fleet) halfOpenLastLocked(now admission.Instant, changes *[]admission.Change) {
	for _, w := range f.workers {
		if !w.inGate || w.draining || !w.health.healthy || w.notReady != "" || w.drained {
			continue
		}
		for _, r := range w.Ranks() {
			if s, _ := r.breaker.get(); s != admission.BreakerOpen {
				continue
			}
			if others, _ := f.peersLocked(r, now, now); others == 0 && r.breaker.halfOpenLast() {
				f.sched.drop(r.event)
				f.applyStatesLocked(w, changes)
				f.log.Warn("circuit breaker changed state", "rank", r.id, "state", admission.BreakerHalfOpen.String(), "why", "no other rank is left")
			}
		}
	}
}

// halfOpenLast makes an open breaker half-open as that of the last candidate.
func (b *breaker) halfOpenLast() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != admission.BreakerOpen {
		return false
	}
	b.halfOpenAlone()
	return true
}
