package dispatch

import (
	"bytes"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokens"
	"github.com/sluice-router/sluice/internal/translate"
)

// exchange is one client request on its way through dispatch.
type exchange struct {
	// immutable
	d    *Dispatcher
	call *Call
	pair bool
	w    http.ResponseWriter

	ctx requestContext

	// owned by the handler's goroutine
	ticket     admission.Ticket
	fan        openai.Fan
	fanFault   *failure // why SGLang cannot serve the request; other engines may
	translated *translation
	// response is what a stream of the Responses API that passes as it is began with.
	response   *translate.BegunResponse
	beside     *besideGate // set for requests that need no admission
	pool       string      // of the gate: the model asked for
	prompt     tokens.Prompt
	estimate   int64         // of the prompt's tokens, without copies
	began      time.Duration // from the arrival to the start of the last attempt
	expected   int64         // the most output tokens of a leg, where growth is tracked
	output     int64         // tokens of the answer so far, where it is followed
	attempts   int
	files      int // that are counted for its legs, until nobody has a share of it
	wanted     wanted
	retried500 bool
	verdicts   verdicts
	// handedOver: decode goes by KV cache that prefill handed over, so that its
	// failure may be that of the way between.
	handedOver bool
	// bodyFreed: the handler has let go of the body.
	bodyFreed bool
	// abort: the answer has begun and cannot be finished.
	abort bool
	out   clientWriter
	// values are those of the answer's header; like that, guarded by out.mu while
	// keep-alives may be written.
	values headerValues

	// refs counts who may still use the ticket, bodyRefs who may still send the
	// body: the handler and, if there is one, a prefill leg.
	refs, bodyRefs atomic.Int32
	// answers is the memory of answers that is counted, in bytes.
	answers atomic.Int64
	// bodies are those of all attempts so far: a list that grows in the handler
	// and is given back by the last who lets go of the body.
	bodies *pairBodies
}

// hold takes a share of the request for a prefill leg.
func (x *exchange) hold() {
	x.refs.Add(1)
	x.bodyRefs.Add(1)
}

// unhold gives the prefill leg's share back.
func (x *exchange) unhold() {
	x.unrefBody()
	x.unref()
}

// leave gives the handler's share back.
func (x *exchange) leave() {
	x.ctx.stop()
	x.freeBody()
	x.unref()
}

// unref lets go of the ticket; the last one closes it.
func (x *exchange) unref() {
	if x.refs.Add(-1) == 0 {
		if x.files > 0 {
			x.call.Files.GiveFiles(x.files)
		}
		if n := x.answers.Load(); n > 0 {
			x.call.Memory.ReleaseMemory(int(n))
		}
		x.ticket.Close()
	}
}

func (x *exchange) unrefBody() {
	if x.bodyRefs.Add(-1) > 0 {
		return
	}
	x.freeBodies()
	x.freeTranslation()
	if x.call.Free != nil {
		x.call.Free()
	}
}

// freeBody lets go of the body, so that a long answer does not hold the prompt.
// The handler calls it as soon as no attempt can follow; after that it must not
// look at Call.Peeked.
func (x *exchange) freeBody() {
	if !x.bodyFreed {
		x.bodyFreed = true
		x.unrefBody()
	}
}

// run places the request and makes attempts until one has answered the client or
// none may follow.
func (x *exchange) run() {
	if f := x.placeOrWait(); f != nil {
		x.answer(f)
		return
	}
	x.d.budget.earn()
	x.out.init(x)
	if x.beside != nil {
		x.runBeside()
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
			x.tellQueued()
			x.answer(f)
			return
		}
		x.tellPlace()
		x.attempts++
		x.call.Record.Attempts = x.attempts
		x.noteWait(nil)
		x.began = time.Since(x.call.Arrived)
		f := x.attempt()
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

// takeFiles counts the connections of an attempt before they are opened. What an
// earlier attempt has counted is counted still.
func (x *exchange) takeFiles() *failure {
	n := 1
	if x.pair {
		n = 2 * max(x.fan.Copies, 1)
	}
	if x.call.Files == nil || n <= x.files {
		return nil
	}
	if !x.call.Files.TakeFiles(n - x.files) {
		x.setHeader("Connection", "close") // it has a file too
		return &failure{reason: reasonTooManyFiles, local: outOfFiles(nil)}
	}
	x.files = n
	return nil
}

// attempt runs the legs in the shape that the granted ranks' engines want.
func (x *exchange) attempt() *failure {
	if f := x.takeFiles(); f != nil {
		return f
	}
	if !x.pair || x.bypasses() {
		x.passUntranslated()
		return x.runAggregated()
	}
	dialect := x.ticket.Prefill.Data().(*fleet.Rank).Dialect()
	if dialect.Native(x.call.Route) {
		x.passUntranslated()
	} else if f := x.translate(); f != nil {
		return f
	}
	if dialect.FansOut() {
		if x.fanFault != nil {
			return x.fanFault
		}
		if x.fan.Copies > 1 {
			return x.runFan()
		}
	}
	b, f := x.planLegs(0)
	if f != nil {
		return f
	}
	if b.plan.Shape == engine.Together {
		return x.runPair(b)
	}
	return x.runSequential(b)
}

// answer tells the client what went wrong: by status and body if nothing was
// sent yet, else within the stream, so that a broken answer is seen to be
// broken.
func (x *exchange) answer(f *failure) {
	f = x.inShape(f)
	rec := &x.call.Record
	switch {
	case f.told:
	case x.out.committed:
		rec.Status = x.out.status // a comment may have begun it
		x.breakOff(f)
	case f.gone:
		// One that only closed its side would read an answer of nothing, with
		// status 200.
		x.abort = true
		rec.Status = StatusClientGone
	case f.local != nil:
		rec.Status = f.local.Status
		_ = f.local.WriteResponse(x.w, x.call.Route.Shape()) // a client that left now is answered all the same
	default:
		rec.Status = f.status
		if f.contentType != "" {
			x.setHeader("Content-Type", f.contentType)
		}
		if f.retryAfter != "" {
			x.setHeader("Retry-After", f.retryAfter)
		}
		x.setHeader("Content-Length", itoa(len(f.body)))
		x.w.WriteHeader(f.status)
		_, _ = x.w.Write(f.body) // a client that left now is answered all the same
	}
	x.finish(f.reason, f)
}

// breakOff ends an answer that has begun: with an error event where the form of the
// answer has one, and without an end marker. The connection is cut, unless that event
// ends a stream of the API: SDKs would raise the cut and not the failure.
func (x *exchange) breakOff(f *failure) {
	x.abort = true
	if f.gone || !x.out.sse {
		return
	}
	told := x.tellBroken(f)
	ends := x.call.Route == openai.RouteMessages || x.call.Route == openai.RouteResponses
	x.abort = !told || !ends
}

// tellBroken ends a stream with an event that tells of f, and tells whether the client
// was sent it.
func (x *exchange) tellBroken(f *failure) bool {
	if f.status != 0 && isObject(f.body) && x.call.Route != openai.RouteResponses {
		return x.out.errorEvent(f.body) // in the engine's own words
	}
	e := f.local
	switch {
	case e != nil:
	case f.status != 0:
		e = engineError(f)
	default:
		e = openai.UpstreamFailed(x.legName(f.leg), "it failed while the answer was under way", f.err)
	}
	if x.call.Route == openai.RouteResponses {
		return x.out.lastEvent(x.failedResponse(e))
	}
	return x.out.errorEvent(e.AppendJSON(nil, x.call.Route.Shape()))
}

// isObject tells whether b can stand as the data of one event.
func isObject(b []byte) bool {
	b = bytes.TrimSpace(b)
	return len(b) > 1 && b[0] == '{' && b[len(b)-1] == '}' && !bytes.ContainsAny(b, "\r\n")
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
	x.settle(f)
	x.d.metrics.observe(x.call, time.Since(x.call.Arrived))
	if rec.TTFT > 0 {
		for _, r := range [...]*admission.Rank{x.ticket.Prefill, x.ticket.Decode} {
			if r != nil {
				r.Data().(*fleet.Rank).NoteFirstToken(rec.TTFT - x.began)
			}
		}
	}
}
