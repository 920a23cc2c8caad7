package dispatch

import (
	"errors"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
)

// exchange is one client request on its way through dispatch: it is placed, and attempts
// are made until one has answered the client.
type exchange struct {
	request
	attempt attempt
	// retried500: an engine's 500 was tried again, once.
	retried500 bool
	// abort: the answer has begun and cannot be finished.
	abort bool
}

// run places the request and makes attempts until one has answered the client or
// none may follow.
func (x *exchange) run() {
	if f := placeOrWait(&x.request); f != nil {
		x.answer(f)
		return
	}
	x.d.budget.earn()
	x.out.init(&x.request)
	if x.plan.ungated != nil {
		x.runUngated()
		return
	}
	var last *failure
	for {
		if err := x.d.gate.Acquire(&x.ctx, &x.ticket); err != nil {
			f := x.refusalFailure(err)
			if last != nil && f.local != nil && f.reason != reasonTimeout {
				// A retry that may not wait, or finds nobody: the client is owed
				// what the engine said.
				f = last
			}
			x.noteWait(err)
			x.setQueueHeader()
			x.answer(f)
			return
		}
		x.setPlaceHeaders()
		x.attempts++
		x.call.Record.Attempts = x.attempts
		x.noteWait(nil)
		x.began = time.Since(x.call.Arrived)
		f := x.attempt.run()
		if f == nil {
			x.learn()
			x.finish(reasonOK, nil)
			return
		}
		x.ticket.Release()
		again, atOnce := x.retryable(f)
		if !again {
			x.answer(f)
			return
		}
		x.d.metrics.retry(f.reason)
		x.prepareRetry(f)
		if !atOnce && !pause(&x.ctx, backoff(&x.d.cfg.Retry, x.attempts)) {
			x.answer(x.clientEnd(x.ctx.ended()))
			return
		}
		last = f
	}
}

// noteWait records what the gate made of the request; err is a refusal, or nil.
func (x *exchange) noteWait(err error) {
	rec, t := &x.call.Record, &x.ticket
	rec.Queued, rec.Class = t.Waited(), t.ClassName()
	lacked := t.Lacked()
	// Not errors.As: its target would be allocated for every request.
	if r, ok := errors.AsType[*admission.Refusal](err); ok {
		rec.Predicted = r.Estimate
		if r.Resource != admission.ResourceNone {
			lacked = r.Resource
		}
	}
	if lacked != admission.ResourceNone {
		rec.Resource = lacked.String()
	}
}

func (x *exchange) finish(reason string, f *failure) {
	rec := &x.call.Record
	rec.Reason = reason
	if f != nil {
		rec.Err = f
		rec.Reason, rec.Code = f.word()
	}
	x.verdicts.settle(f)
	x.d.metrics.observe(x.call, time.Since(x.call.Arrived))
	if rec.TTFT > 0 {
		for _, r := range [...]*admission.Rank{x.ticket.Prefill, x.ticket.Decode} {
			if r != nil {
				r.Data().(*fleet.Rank).NoteFirstToken(rec.TTFT - x.began)
			}
		}
	}
}

// learn tells the estimators what the engine counted.
func (x *exchange) learn() {
	if x.d.reservesAuto() && !x.call.Passing {
		n := max(x.call.Record.Usage.CompletionTokens, x.output)
		x.d.outputs.Observe(x.ticket.Target.Model(), n/int64(max(x.ticket.Legs, 1)))
	}
	if u := x.call.Record.Usage; u.PromptTokens > 0 && !x.call.Passing {
		x.d.estimator.Observe(x.ticket.Target.Model(), &x.prompt, x.estimate, u)
	}
}
