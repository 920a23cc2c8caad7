package fleet

import (
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
)

// answer is what became of one request of a check.
type answer uint8

const (
	// answerNone: nothing can be said: the router lacked something, or the
	// worker was removed meanwhile.
	answerNone answer = iota
	// answerOK: it answered, or has no such route and said so.
	answerOK
	// answerBusy: no answer in time, or one that says "not now".
	answerBusy
	// answerDenied: it refuses the key.
	answerDenied
	// answerGone: no connection, or it broke.
	answerGone
)

// checkup is the outcome of one check of a worker.
type checkup struct {
	health answer // of the health route
	// alive is of the probe that needs no scheduler; answerNone when it was not
	// needed.
	alive answer
	// proofs is how many of those probes failed, 0 for one.
	proofs int
	// why tells what failed, for people.
	why string
	// trouble tells what is wrong with the way in which the worker is registered:
	// its key, its certificate.
	trouble string
}

// vitals are what checks so far say about a worker. Not safe for concurrent
// use; a pure state machine.
type vitals struct {
	seen    bool // it was healthy once
	healthy bool
	dead    bool

	fails     int // counted failures in a row
	goods     int // successes in a row
	deadFails int // failures in a row of the probe that needs no scheduler
	tries     int // looks in a row that left it not healthy
	excused   bool
	lastSign  admission.Instant // of progress or health
	why       string            // of the last failure, empty when all is well
	trouble   string            // of the last check, as in checkup

	// doubted: it failed its last check, or fails the one that runs, and that is
	// not explained by work that goes on. since and doubtWhy are of the first
	// failure. Only for workers that were seen.
	doubted  bool
	since    admission.Instant
	doubtWhy string
}

// signs are what else is known of a worker when a check is judged.
type signs struct {
	// progress: bytes came from it since the last check was over.
	progress bool
	// during: they came since this check began. Only that proves that it lives
	// where the check waited for several probes.
	during bool
	// requests: some are on it.
	requests bool
}

// judge takes a check into account.
func (v *vitals) judge(now admission.Instant, c checkup, s signs, o *config.Health) {
	if c.health == answerNone {
		return
	}
	v.why, v.trouble = c.why, c.trouble
	v.excused = false
	if s.progress || c.health == answerOK {
		v.lastSign = now
	}
	if v.seen {
		switch {
		case s.during, s.progress && c.proofs < 2, c.alive == answerOK || c.alive == answerDenied || c.health == answerOK:
			v.deadFails = 0
		case c.alive != answerNone:
			v.deadFails += max(c.proofs, 1)
		}
	}
	switch c.health {
	case answerOK:
		v.fails = 0
		v.goods++
		switch {
		case !v.seen, !v.healthy && v.goods >= o.SuccessThreshold:
			v.seen, v.healthy, v.dead = true, true, false
		}
	case answerBusy:
		v.goods = 0
		switch {
		case v.healthy && s.progress:
			v.excused = true
			v.fails = 0
		case v.healthy && s.requests && c.alive == answerOK && now.Sub(v.lastSign) < o.BusyGrace:
			v.excused = true
		default:
			v.fails++
		}
	default:
		v.goods = 0
		v.fails++
	}
	if v.fails >= o.FailureThreshold {
		v.healthy = false
	}
	if v.deadFails >= o.FailureThreshold {
		v.healthy, v.dead = false, true
	}
	if v.healthy {
		v.tries = 0
	} else {
		v.tries++
	}
	if c.health == answerOK || v.excused && s.progress {
		v.doubted = false
	} else {
		v.doubt(now, c.why)
	}
}

// doubt takes a failure into account of which it is not yet known what it means.
func (v *vitals) doubt(now admission.Instant, why string) {
	if v.seen && !v.doubted {
		v.doubted, v.since, v.doubtWhy = true, now, why
	}
}

// suspect tells whether the last checks leave a doubt whether it answers.
func (v *vitals) suspect() bool { return v.fails > 0 || v.deadFails > 0 || v.tries > 0 }

// next is the pause before the next check.
func (v *vitals) next(o *config.Health) time.Duration {
	switch {
	case v.healthy && !v.suspect():
		return o.Interval
	case v.healthy:
		// Be sure within one more interval, not three.
		return o.Interval / time.Duration(o.FailureThreshold)
	case v.goods > 0:
		return min(firstRetry, o.Interval)
	}
	return min(firstRetry<<min(max(v.tries-1, 0), 16), o.Interval)
}
