package dispatch

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
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
	if x.plan.answersHere {
		x.answerHere()
		return
	}
	x.d.budget.earn()
	x.out.init(&x.request)
	var last *failure
	for {
		if f := x.takePlace(last); f != nil {
			x.answer(f)
			return
		}
		f := x.runAttempt()
		if f == nil {
			x.learn()
			x.finish(reasonOK, nil)
			return
		}
		x.noteFailed(f)
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

// takePlace waits at the gate for ranks, or chooses one for a request that needs no
// admission. last is how the attempt before failed, nil for the first. What it returns is
// final.
func (x *exchange) takePlace(last *failure) *failure {
	if u := x.plan.ungated; u != nil {
		if f := x.attempt.takeFiles(); f != nil {
			return f
		}
		var f *failure
		if u.chosen, f = x.serving().choose(); f != nil {
			if last != nil {
				return last
			}
			return f
		}
		x.setWorkerHeader(u.chosen.Data().(*fleet.Rank))
	} else {
		if err := x.d.gate.Acquire(&x.ctx, &x.ticket); err != nil {
			f := x.refusalFailure(err)
			if last != nil && f.local != nil && f.reason != reasonTimeout {
				// A retry that may not wait, or finds nobody: the client is owed
				// what the engine said.
				f = last
			}
			x.noteWait(err)
			x.setQueueHeader()
			return f
		}
		x.setPlaceHeaders()
		x.noteWait(nil)
		x.began = time.Since(x.call.Arrived)
	}
	x.attempts++
	x.call.Record.Attempts = x.attempts
	return nil
}

// runAttempt runs one attempt on what takePlace got, which is given back if it fails.
func (x *exchange) runAttempt() *failure {
	u := x.plan.ungated
	x.cachedTold = 0
	if u == nil {
		f := x.attempt.run()
		if f != nil {
			x.ticket.Release()
		}
		return f
	}
	defer x.d.gate.EndPass(u.chosen)
	rank := u.chosen.Data().(*fleet.Rank)
	if f := x.attempt.tokensFor(rank.Dialect()); f != nil {
		return f
	}
	f := x.attempt.runAlone(rank)
	if f != nil {
		u.tried = append(u.tried, u.chosen)
	}
	return f
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

// setQueueHeader puts the time at the gate into the answer's header: whole
// milliseconds, over all waits.
func (x *exchange) setQueueHeader() {
	if !x.out.committed {
		x.setHeader(HeaderQueueMS, strconv.FormatInt(x.ticket.Waited().Milliseconds(), 10))
	}
}

// setPlaceHeaders puts the granted ranks there too: those of the last attempt when the
// status is sent. It is called by the handler while no keep-alive can be written.
func (x *exchange) setPlaceHeaders() {
	x.setQueueHeader()
	if x.out.committed {
		return
	}
	if r := x.ticket.Prefill; r != nil {
		x.setHeader(HeaderPrefillWorker, r.Data().(*fleet.Rank).Name())
	}
	x.setDecodeHeader()
}

// setWorkerHeader names the worker in the answer's header, as setPlaceHeaders does.
func (x *exchange) setWorkerHeader(rank *fleet.Rank) {
	name := HeaderDecodeWorker
	if rank.Worker().Role() == admission.RolePrefill {
		name = HeaderPrefillWorker
	}
	delete(x.w.Header(), HeaderDecodeWorker)
	delete(x.w.Header(), HeaderPrefillWorker)
	x.setHeader(name, rank.Name())
}

// retryable tells whether another attempt may help after f, and whether it may
// start without a pause. A request that fails everywhere must not be carried to
// everyone, and a client's own fault is the same everywhere.
func (x *exchange) retryable(f *failure) (again, atOnce bool) {
	rule := blames[f.blame()].again
	if rule == againByRoute {
		return x.serving().routeElsewhere(f), true
	}
	if rule == againNever || x.out.begun || x.attempts > x.d.maxRetries() {
		return false, false
	}
	switch rule {
	case againAtOnce:
		return true, true
	case againElsewhere:
		// The gate grants a rank again that was left out if there is no other.
		return !slices.ContainsFunc(x.ticket.Exclude[f.leg], func(r *admission.Rank) bool { return r.Data() == f.rank }), true
	}
	if rule == againOnce && f.status == http.StatusInternalServerError {
		if x.retried500 {
			return false, false
		}
		x.retried500 = true
	}
	return x.d.budget.take(), false
}

// prepareRetry excludes who failed, in its role only; both after a hand-off that
// broke without either owning it.
func (x *exchange) prepareRetry(f *failure) {
	if x.plan.ungated != nil {
		return // it has its own list of those that were tried
	}
	t := &x.ticket
	t.Retry = true
	x.keys.again(t)
	switch {
	case f.transfer && t.Prefill != nil:
		t.Exclude.Add(admission.PrefillLeg, t.Prefill)
		t.Exclude.Add(admission.DecodeLeg, t.Decode)
	case f.leg == admission.PrefillLeg:
		t.Exclude.Add(admission.PrefillLeg, t.Prefill)
	default:
		t.Exclude.Add(admission.DecodeLeg, t.Decode)
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

func (x *exchange) finish(reason string, f *failure) {
	rec := &x.call.Record
	rec.Reason = reason
	if f != nil {
		rec.Err = f
		rec.Reason, rec.Code = f.word()
	}
	if rec.Reason == reasonTransfer && f.status != 0 && x.verdicts.requestFailed() {
		rec.Reason = reasonEngineStatus // it was the same error everywhere, and no broken hand-off
	}
	x.verdicts.settle(f)
	x.noteCache()
	x.d.metrics.observe(x.call, time.Since(x.call.Arrived))
	if rec.TTFT > 0 {
		for _, r := range [...]*admission.Rank{x.ticket.Prefill, x.ticket.Decode} {
			if r != nil {
				r.Data().(*fleet.Rank).NoteFirstToken(rec.TTFT - x.began)
			}
		}
	}
}
