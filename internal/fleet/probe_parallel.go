package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/config"
)

// checkParams is what a check needs to know of the worker.
type checkParams struct {
	// inService: it is given work, so that every second counts in which it does not
	// answer.
	inService bool
	// failing: its last checks failed.
	failing bool
	// infrequent: it has no requests and is looked at less often for the sake of its many
	// neighbours. A good check then must not cost a second connection.
	infrequent bool
	// deadAfter is the number of failed probes that make it dead.
	deadAfter int
	// onFailure, unless nil, is called on a failure while the check still runs.
	onFailure func(why string)
}

// probeResult is the result of one probe.
type probeResult struct {
	outcome      outcome
	noConnection bool // no connection was established
	timedOut     bool // no answer in time
	// reason and misconfigured are those of a checkResult.
	reason, misconfigured string
}

const (
	// maxHeadStart bounds how long the health route is waited for before the other
	// probe is sent as well.
	maxHeadStart = 500 * time.Millisecond
	headStartOf  = 10 // in parts of the interval
)

// probeInParallel sends the health probe and, when that has no answer at once, the
// liveness probe beside it: a route that needs no scheduler. That probe is repeated
// each fraction of the interval, without waiting for the timeouts of those before,
// until so many have failed that the worker is dead. So a frozen process is detected
// within about the timeout plus the interval, and one that answers a single probe is
// not dead.
func probeInParallel(ctx context.Context, o *config.Health, l checkParams, health, alive func(context.Context) probeResult) checkResult {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	ask := func(to chan<- probeResult, f func(context.Context) probeResult) { wg.Go(func() { to <- f(ctx) }) }

	most := max(l.deadAfter, 1)
	healths, proofs := make(chan probeResult, 1), make(chan probeResult, most)
	ask(healths, health)
	unit := min(o.Interval, o.Timeout)
	start := min(unit/headStartOf, maxHeadStart)
	switch {
	case l.failing:
		start = 0
	case l.infrequent:
		start = unit / 2
	}
	timer := time.NewTimer(start)
	defer timer.Stop()
	var h *probeResult
	life := outcomeUnknown // of the first probe that settles it
	settled, more := false, true
	sent, failed := 0, 0
	why := ""
	for {
		var failure string
		select {
		case r := <-healths:
			h = &r
			switch {
			case r.outcome == outcomeOK, r.outcome == outcomeDenied:
				return checkResult{health: r.outcome, alive: outcomeOK, reason: r.reason, misconfigured: r.misconfigured}
			case r.outcome == outcomeUnknown:
				return checkResult{reason: r.reason}
			case r.noConnection: // the other probe would fare no better
				return checkResult{health: outcomeUnreachable, alive: outcomeUnreachable, failedProbes: max(failed, 1), reason: r.reason, misconfigured: r.misconfigured}
			}
			failure = r.reason
			if sent == 0 {
				timer.Reset(0)
			}
		case <-timer.C:
			if more && !settled && sent < most {
				sent++
				ask(proofs, alive)
				timer.Reset(unit / time.Duration(o.FailureThreshold))
			}
		case r := <-proofs:
			switch r.outcome {
			case outcomeBusy, outcomeUnreachable:
				failed++
				more = more && r.timedOut
				failure, why = r.reason, r.reason
				if !settled {
					life = r.outcome
				}
			default:
				settled, life = true, r.outcome
			}
		}
		switch {
		case h == nil:
		case settled:
			if life == outcomeDenied {
				life = outcomeOK
			}
			return checkResult{health: h.outcome, alive: life, reason: h.reason, misconfigured: h.misconfigured}
		case sent > 0 && failed == sent && (sent == most || !more):
			return checkResult{health: outcomeUnreachable, alive: life, failedProbes: failed, reason: joinReasons(h.reason, why), misconfigured: h.misconfigured}
		}
		if failure != "" && !settled && l.onFailure != nil {
			l.onFailure(failure)
		}
	}
}
