package dispatch

import (
	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
)

// runUngated runs a request that the gate does not see.
func (x *exchange) runUngated() {
	if f := x.attempt.takeFiles(); f != nil {
		x.answer(f)
		return
	}
	var last *failure
	for {
		chosen, f := x.serving().choose()
		if f != nil {
			if last != nil {
				f = last
			}
			x.answer(f)
			return
		}
		x.attempts++
		x.call.Record.Attempts = x.attempts
		rank := chosen.Data().(*fleet.Rank)
		x.setWorkerHeader(rank)
		f = x.passTo(chosen, rank)
		if f == nil {
			x.finish(reasonOK, nil)
			return
		}
		x.plan.ungated.tried = append(x.plan.ungated.tried, chosen)
		again, atOnce := x.retryable(f)
		if !again {
			x.answer(f)
			return
		}
		x.d.metrics.retry(f.reason)
		if !atOnce && !pause(&x.ctx, backoff(&x.d.cfg.Retry, x.attempts)) {
			x.answer(x.clientEnd(x.ctx.ended()))
			return
		}
		last = f
	}
}

// passTo sends the request to the rank that was chosen.
func (x *exchange) passTo(chosen *admission.Rank, rank *fleet.Rank) *failure {
	defer x.d.gate.EndPass(chosen)
	return x.attempt.runAlone(rank)
}
