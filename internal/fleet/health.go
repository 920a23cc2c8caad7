package fleet

import (
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
)

// outcome is the outcome of one probe.
type outcome uint8

const (
	// outcomeUnknown: the probe says nothing about the worker: the router lacked
	// something (file descriptors, say), or the worker was removed meanwhile.
	outcomeUnknown outcome = iota
	// outcomeOK: it answered, or has no such route and said so.
	outcomeOK
	// outcomeBusy: no answer in time, or one that says "not now".
	outcomeBusy
	// outcomeDenied: it refuses the key.
	outcomeDenied
	// outcomeUnreachable: no connection, or it broke.
	outcomeUnreachable
)

// checkResult is the outcome of one check of a worker.
type checkResult struct {
	health outcome // of the health route
	// alive is that of the liveness probe, which needs no scheduler; outcomeUnknown
	// when it was not sent.
	alive outcome
	// failedProbes is how many of those probes failed, 0 for one.
	failedProbes int
	// reason says what failed, for the operator.
	reason string
	// misconfigured says what is wrong with the worker's registration: its key, its
	// certificate.
	misconfigured string
}

// healthState are what checks so far say about a worker. Not safe for concurrent
// use; a pure state machine.
type healthState struct {
	everHealthy bool // it was healthy once
	healthy     bool
	dead        bool

	failures      int // counted failures in a row
	successes     int // successes in a row
	deadFailures  int // failures in a row of the probe that needs no scheduler
	attempts      int // checks in a row after which it was not healthy
	forgiven      bool
	lastActivity  admission.Instant // of progress or health
	reason        string            // of the last failure, empty when all is well
	misconfigured string            // of the last check, as in checkResult

	// suspect: it failed its last check, or fails the one that runs, and that is
	// not explained by work that goes on. since and doubtWhy are of the first
	// failure. Only for workers that were seen.
	suspect       bool
	suspectSince  admission.Instant
	suspectReason string
}

// activity is what requests show of a worker, beside its check.
type activity struct {
	// progress: bytes came from it since the last check was over.
	progress bool
	// during: they came since this check began. Where the check waited for several
	// probes only that proves that the worker is alive.
	during bool
	// requests: it has requests in flight.
	requests bool
}

// evaluate takes a check into account.
func (v *healthState) evaluate(now admission.Instant, c checkResult, s activity, o *config.Health) {
	if c.health == outcomeUnknown {
		return
	}
	v.reason, v.misconfigured = c.reason, c.misconfigured
	v.forgiven = false
	if s.progress || c.health == outcomeOK {
		v.lastActivity = now
	}
	if v.everHealthy {
		switch {
		case s.during, s.progress && c.failedProbes < 2, c.alive == outcomeOK || c.alive == outcomeDenied || c.health == outcomeOK:
			v.deadFailures = 0
		case c.alive != outcomeUnknown:
			v.deadFailures += max(c.failedProbes, 1)
		}
	}
	switch c.health {
	case outcomeOK:
		v.failures = 0
		v.successes++
		switch {
		case !v.everHealthy, !v.healthy && v.successes >= o.SuccessThreshold:
			v.everHealthy, v.healthy, v.dead = true, true, false
		}
	case outcomeBusy:
		v.successes = 0
		switch {
		case v.healthy && s.progress:
			v.forgiven = true
			v.failures = 0
		case v.healthy && s.requests && c.alive == outcomeOK && now.Sub(v.lastActivity) < o.BusyGrace:
			v.forgiven = true
		default:
			v.failures++
		}
	default:
		v.successes = 0
		v.failures++
	}
	if v.failures >= o.FailureThreshold {
		v.healthy = false
	}
	if v.deadFailures >= o.FailureThreshold {
		v.healthy, v.dead = false, true
	}
	if v.healthy {
		v.attempts = 0
	} else {
		v.attempts++
	}
	if c.health == outcomeOK || v.forgiven && s.progress {
		v.suspect = false
	} else {
		v.markSuspect(now, c.reason)
	}
}

// markSuspect takes a failure into account of which it is not yet known what it means.
func (v *healthState) markSuspect(now admission.Instant, why string) {
	if v.everHealthy && !v.suspect {
		v.suspect, v.suspectSince, v.suspectReason = true, now, why
	}
}

// failing reports whether the last checks failed, forgiven or not yet counted.
func (v *healthState) failing() bool { return v.failures > 0 || v.deadFailures > 0 || v.attempts > 0 }

// next is the pause before the next check.
func (v *healthState) next(o *config.Health) time.Duration {
	switch {
	case v.healthy && !v.failing():
		return o.Interval
	case v.healthy:
		// Be sure within one more interval, not three.
		return o.Interval / time.Duration(o.FailureThreshold)
	case v.successes > 0:
		return min(firstRetry, o.Interval)
	}
	return min(firstRetry<<min(max(v.attempts-1, 0), 16), o.Interval)
}
