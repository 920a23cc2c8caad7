package fleet

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/config"
)

// look is what a check is to know of the worker.
type look struct {
	// working: it is given work, so that every second counts in which it does not
	// answer.
	working bool
	// suspect: its last checks leave a doubt whether it is there at all.
	suspect bool
	// paced: it has no requests and is looked at less often for the sake of its many
	// neighbours. A good check then must not cost a second connection.
	paced bool
	// proofs is the number of failed probes that make it dead.
	proofs int
	// doubt, unless nil, is told of a failure while the check goes on.
	doubt func(why string)
}

// reply is what became of one request of a check.
type reply struct {
	answer answer
	noConn bool // not even a connection came about
	slow   bool // no answer in time
	// why and trouble are those of a checkup.
	why, trouble string
}

const (
	// maxHeadStart bounds how long the health route is waited for before the other
	// probe is sent as well.
	maxHeadStart = 500 * time.Millisecond
	headStartOf  = 10 // in parts of the interval
)

// sideBySide asks for health and, when that does not come at once, for a proof of
// life beside it: a route that needs no scheduler. What does not answer that
// either is asked again each fraction of the interval, without waiting for the
// timeouts before, until so many have failed that it is dead. So a process that is
// frozen is found out within the timeout and about the interval, and one that
// answers a single probe is not dead.
func sideBySide(ctx context.Context, o *config.Health, l look, health, alive func(context.Context) reply) checkup {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	ask := func(to chan<- reply, f func(context.Context) reply) { wg.Go(func() { to <- f(ctx) }) }

	most := max(l.proofs, 1)
	healths, proofs := make(chan reply, 1), make(chan reply, most)
	ask(healths, health)
	unit := min(o.Interval, o.Timeout)
	start := min(unit/headStartOf, maxHeadStart)
	switch {
	case l.suspect:
		start = 0
	case l.paced:
		start = unit / 2
	}
	timer := time.NewTimer(start)
	defer timer.Stop()
	var h *reply
	life := answerNone // of the first probe that settles it
	settled, more := false, true
	sent, failed := 0, 0
	why := ""
	for {
		var failure string
		select {
		case r := <-healths:
			h = &r
			switch {
			case r.answer == answerOK, r.answer == answerDenied:
				return checkup{health: r.answer, alive: answerOK, why: r.why, trouble: r.trouble}
			case r.answer == answerNone:
				return checkup{why: r.why}
			case r.noConn: // the other probe would fare no better
				return checkup{health: answerGone, alive: answerGone, proofs: max(failed, 1), why: r.why, trouble: r.trouble}
			}
			failure = r.why
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
			switch r.answer {
			case answerBusy, answerGone:
				failed++
				more = more && r.slow
				failure, why = r.why, r.why
				if !settled {
					life = r.answer
				}
			default:
				settled, life = true, r.answer
			}
		}
		switch {
		case h == nil:
		case settled:
			if life == answerDenied {
				life = answerOK
			}
			return checkup{health: h.answer, alive: life, why: h.why, trouble: h.trouble}
		case sent > 0 && failed == sent && (sent == most || !more):
			return checkup{health: answerGone, alive: life, proofs: failed, why: h.why + "; " + why, trouble: h.trouble}
		}
		if failure != "" && !settled && l.doubt != nil {
			l.doubt(failure)
		}
	}
}
