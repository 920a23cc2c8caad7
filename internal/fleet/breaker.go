package fleet

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// BreakerOptions set the circuit breaker of each rank.
type BreakerOptions struct {
	Disabled bool
	// FailureThreshold is the number of failures within Window that open it.
	// Zero: 10.
	FailureThreshold int
	// SuccessThreshold is the number of successes that close it when it is
	// half-open. Zero: 3.
	SuccessThreshold int
	// OpenFor is how long it stays open. Zero: 60 s.
	OpenFor time.Duration
	// Window is how long a failure counts. Zero: 120 s.
	Window time.Duration
	// Probes is the most requests at once on a half-open rank. Zero: 3.
	Probes int
}

func (o *BreakerOptions) setDefaults() {
	setDefault(&o.FailureThreshold, 10)
	setDefault(&o.SuccessThreshold, 3)
	setDefault(&o.OpenFor, time.Minute)
	setDefault(&o.Window, 2*time.Minute)
	setDefault(&o.Probes, 3)
}

// breaker is the state machine of one rank's circuit breaker. Closed, it counts
// failures; at the threshold it opens; after OpenFor it is half-open and lets a
// few requests try; then it closes, or opens again at the first failure. With its
// options it is ready for use.
//
// A success takes one failure back. So a rank that fails everything opens after
// the threshold, however much it served well before, and one that fails a few in
// a hundred never does, however many requests it has.
type breaker struct {
	// immutable
	opts *BreakerOptions

	// marked is set unless it is closed and counts no failure: the ordinary success
	// looks at nothing else.
	marked atomic.Bool

	mu sync.Mutex
	// guarded by mu
	state     admission.Breaker
	failures  []admission.Instant // those that count, oldest first
	successes int                 // while half-open
	until     admission.Instant   // end of being open
}

// success and failure tell how a request ended, and return whether the state
// changed.
func (b *breaker) success() bool {
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
			return true
		}
	}
	return false
}

func (b *breaker) failure(now admission.Instant) bool {
	if b.opts.Disabled {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch b.state {
	case admission.BreakerClosed:
		b.marked.Store(true)
		old := 0
		for old < len(b.failures) && now.Sub(b.failures[old]) >= b.opts.Window {
			old++
		}
		b.failures = append(b.failures[:0], b.failures[old:]...)
		if b.failures = append(b.failures, now); len(b.failures) < b.opts.FailureThreshold {
			return false
		}
	case admission.BreakerOpen:
		return false // a request from before it opened
	}
	b.set(admission.BreakerOpen)
	b.until = now.Add(b.opts.OpenFor)
	return true
}

// elapse makes an open breaker half-open when its time has come. early does not
// wait for it: there is news that the engine is well.
func (b *breaker) elapse(now admission.Instant, early bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != admission.BreakerOpen || now < b.until && !early {
		return false
	}
	b.set(admission.BreakerHalfOpen)
	return true
}

// set needs mu.
func (b *breaker) set(s admission.Breaker) {
	b.state = s
	b.failures, b.successes = b.failures[:0], 0
	b.marked.Store(s != admission.BreakerClosed)
}

// get returns the state and, when open, its end.
func (b *breaker) get() (admission.Breaker, admission.Instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state, b.until
}
