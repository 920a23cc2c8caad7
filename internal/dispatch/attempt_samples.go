package dispatch

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

// runFan sends all copies at once. When it returns, all legs are over, except
// that after success prefill legs may have Options.PrefillGrace left.
func (x *attempt) runFan() *failure {
	t := &x.ticket
	n := x.plan.fan.Copies
	r := &fanRun{
		x: x, pr: t.Prefill.Data().(*fleet.Rank), dr: t.Decode.Data().(*fleet.Rank),
		copies: make([]fanCopy, n), outcomes: make(chan fanOutcome, 2*n),
		merger: x.plan.fan.Stream(0),
	}
	x.call.Record.ranks(r.pr, r.dr)
	r.relay = relay{x: x.request, out: &x.out, rank: r.dr, leg: admission.DecodeLeg, sse: x.call.Peeked.Stream, progress: progress{x: x.request, output: x.counter(r.dr)}}
	for k := range r.copies {
		b, f := x.planLegs(k)
		if f != nil {
			for i := range k {
				r.copies[i].bodies.plan.Legs.Release()
			}
			return f
		}
		b.buildBoth(func(s *openai.Splicer) { x.plan.fan.Edit(s, k) })
		r.copies[k].bodies = b
	}

	pctx, dctx := &r.prefillCtx, &r.decodeCtx
	pctx.follow(&x.ctx.legContext)
	dctx.follow(&x.ctx.legContext)
	defer dctx.unfollow()
	r.pr.Watch(&r.prefillDead, pctx)
	r.dr.Watch(&r.decodeDead, dctx)
	defer r.decodeDead.Stop()

	x.retain()
	x.d.running.Add(1)
	var prefills sync.WaitGroup
	for k := range r.copies {
		prefills.Go(func() { r.runPrefill(pctx, k) })
	}
	go func() {
		defer x.d.running.Done()
		defer x.release()
		prefills.Wait()
		r.prefillDead.Stop()
		t.EndPrefill()
		for k := range r.copies {
			r.copies[k].bodies.plan.Legs.Release()
		}
		r.prefillOver.close()
		x.d.graces.remove(&r.grace)
	}()

	t.StartDecode()
	x.out.startKeepAlive()
	var decodes sync.WaitGroup
	for k := range r.copies {
		decodes.Go(func() { r.runDecode(dctx, k) })
	}
	f := r.collect(func() { pctx.end(errAttemptOver); dctx.end(errPeerFailed) })
	decodes.Wait()
	x.out.stopKeepAlive()
	t.EndDecode()
	r.relay.progress.record(&r.relay.scan)
	if f == nil {
		f = r.finish()
	}
	if f != nil {
		pctx.end(errAttemptOver)
		pctx.unfollow()
		<-r.prefillOver.wait()
		x.reportPair(r.pr, r.dr, f)
		return f
	}
	x.reportPair(r.pr, r.dr, nil)
	pctx.unfollow()
	x.letPrefillFinish(&r.prefillOver, pctx, &r.grace)
	return nil
}

// fanRun is one attempt of a request for n samples: n calls, each a pair of legs
// with rooms of its own, all on the same two ranks and under the one prefill
// slot, and their answers made into one.
type fanRun struct {
	x      *attempt
	pr, dr *fleet.Rank
	copies []fanCopy

	prefillCtx, decodeCtx   legContext
	prefillDead, decodeDead fleet.Watch

	prefillOver latch    // closed when the last prefill leg is over
	grace       deadline // of the prefill legs, once decode is over
	// outcomes has each leg's as it ends, nil for a good one.
	outcomes chan fanOutcome

	mu sync.Mutex // the answers meet here
	// guarded by mu
	merger *openai.StreamMerger
	relay  relay // what the client is sent, as one stream
}

type fanCopy struct {
	bodies  *pairBodies
	prefill prefillLeg
	relay   relay  // of its own answer, before that is merged
	answer  []byte // of a call that is not streamed
}

type fanOutcome struct {
	leg admission.Leg
	f   *failure
}

func (r *fanRun) runPrefill(ctx *legContext, k int) {
	c := &r.copies[k]
	f := r.x.guarded(admission.PrefillLeg, func() *failure {
		return r.x.runPrefill(ctx, r.pr, r.x.legRequest(c.bodies, admission.PrefillLeg), &c.prefill)
	})
	r.report(k, r.pr, f)
	r.outcomes <- fanOutcome{admission.PrefillLeg, f}
}

func (r *fanRun) runDecode(ctx *legContext, k int) {
	c := &r.copies[k]
	f := r.x.guarded(admission.DecodeLeg, func() *failure {
		return r.decode(ctx, k, r.x.legRequest(c.bodies, admission.DecodeLeg))
	})
	r.report(k, r.dr, f)
	r.outcomes <- fanOutcome{admission.DecodeLeg, f}
}

// report tells the rank's breaker how a leg ended: for all copies once, because
// they are one request, which must neither open a breaker alone nor close it.
func (r *fanRun) report(k int, rank *fleet.Rank, f *failure) {
	if f != nil || k == 0 {
		r.x.verdicts.report(rank, f)
	}
}

// collect waits until every decode leg is over, and ends all legs at the first
// failure. Of the failures it returns the first that is a leg's own; the report
// of a broken hand-off waits a moment for one.
func (r *fanRun) collect(endAll func()) *failure {
	var found *failure
	var verdict <-chan time.Time // set while the report of a broken hand-off waits
	ended := false
	end := func() {
		verdict = nil
		if !ended {
			ended = true
			endAll()
		}
	}
	for left := len(r.copies); left > 0 || verdict != nil; {
		select {
		case o := <-r.outcomes:
			if o.leg == admission.DecodeLeg {
				left--
			}
			switch {
			case o.f == nil || o.f.secondary:
			case found == nil && o.f.transfer && !r.begun():
				found = o.f
				t := time.NewTimer(r.x.d.opts.VerdictWait)
				defer t.Stop()
				verdict = t.C
			case found == nil, found.transfer && o.f.own():
				found = o.f
				end()
			}
		case <-verdict:
			end()
		}
	}
	return found
}

func (r *fanRun) begun() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.x.out.begun
}

// decode runs one copy's answering leg into the common answer.
func (r *fanRun) decode(ctx *legContext, k int, req *upstream.Request) *failure {
	one := &r.copies[k].relay
	if f := r.x.openAnswer(one, ctx, r.dr, req); f != nil {
		return f
	}
	defer one.resp.Body.Close()
	one.cached.take(r.x.request, &r.copies[k].prefill.cached)
	if !r.x.call.Peeked.Stream {
		b, err := r.x.collect(one.resp.Body, r.x.d.opts.MaxLogprobBody)
		switch {
		case err == errNoRoom:
			return r.x.noRoom()
		case errors.Is(err, errTooLarge):
			return one.overLimit("the engine's answer is larger than " + itoa(r.x.d.opts.MaxLogprobBody) + " bytes")
		case err != nil:
			return one.broken(ctx, err)
		}
		r.copies[k].answer = one.cached.whole(b)
		return nil
	}
	for {
		piece, err := one.resp.Body.Next()
		if err == io.EOF {
			return r.endOf(k)
		}
		if err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			return one.broken(ctx, err)
		}
		r.dr.NoteProgress()
		if f := r.feed(k, piece, one.resp); f != nil {
			return f
		}
	}
}

// feed merges a piece of a copy's stream and passes on what is whole.
func (r *fanRun) feed(k int, piece []byte, resp *upstream.Response) (f *failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.relay.resp = resp
	one := &r.copies[k].relay
	piece = one.cached.spliceAll(piece)
	var merged []byte
	err := r.merger.Feed(k, piece, func(b []byte) { merged = b })
	if len(merged) > 0 && (err == nil || r.relay.out.begun) {
		f = r.passMerged(merged)
	}
	if f == nil && err != nil {
		f = r.mergeFailure(err)
	}
	return r.relay.midway(f)
}

// passMerged passes on whole events.
func (r *fanRun) passMerged(b []byte) *failure {
	if r.relay.scan.Feed(b); r.relay.scan.Aborted {
		return r.relay.aborted(b[:r.relay.scan.AbortAt])
	}
	r.relay.progress.note(&r.relay.scan, r.relay.resp.Body)
	b = r.relay.first(b)
	if f := r.relay.begin(-1); f != nil {
		return f
	}
	return r.relay.pass(b)
}

func (r *fanRun) endOf(k int) *failure {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.merger.End(k); err != nil {
		f := r.mergeFailure(err)
		if !f.ours {
			f.reason = reasonBrokenOff
		}
		return f
	}
	return nil
}

// finish answers the client once all copies are whole.
func (r *fanRun) finish() *failure {
	if r.x.call.Peeked.Stream {
		return nil
	}
	answers := make([][]byte, len(r.copies))
	for k := range r.copies {
		answers[k] = r.copies[k].answer
	}
	segments, size, err := r.x.plan.fan.Merge(answers)
	if err != nil {
		return r.mergeFailure(err)
	}
	whole := make([]byte, 0, size)
	for _, s := range segments {
		whole = append(whole, s...)
	}
	r.x.setHeader("Content-Type", typeJSON)
	return r.relay.whole(whole)
}

// mergeFailure is why the copies' answers are not one: mostly an error that an
// engine told in one of them.
func (r *fanRun) mergeFailure(err error) *failure {
	var e *openai.FanError
	if errors.As(err, &e) && e.Limit {
		return r.relay.overLimit("the answer of one of the samples cannot be merged: " + e.Reason)
	}
	if e == nil || !e.Told {
		return r.relay.bad("the answers of its samples cannot be merged", err)
	}
	if e.Status == 0 {
		e.Status = http.StatusInternalServerError
	}
	return r.x.eventFailure(admission.DecodeLeg, r.dr, e.Data)
}
