package dispatch

import (
	"errors"
	"net/http"
	"sync"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
)

// sampleMerge makes one answer from the answers of several pairs, one for each sample.
type sampleMerge struct {
	t       *pairsTogether
	failure firstFailure // of the decode legs
	answers [][]byte     // of those that are not streamed, by pair

	mu sync.Mutex // held while an answer's piece is merged
	// guarded by mu
	merger *openai.StreamMerger
	relay  relay // what the client is sent, as one stream
}

func newSamples(t *pairsTogether, copies int) *sampleMerge {
	x := t.x
	dr := x.ticket.Decode.Data().(*fleet.Rank)
	return &sampleMerge{t: t, answers: make([][]byte, copies), merger: x.plan.fan.Stream(0), relay: relay{
		x: x.request, rank: dr, watch: &t.decode.watch, sse: x.call.Peeked.Stream,
		progress: answerProgress{x: x.request, output: x.counter(dr)},
	}}
}

// run runs all decode legs. The first failure ends them all; the report of a broken
// hand-off does so after a short wait, in which another leg may report the cause.
func (r *sampleMerge) run() *failure {
	x := r.t.x
	x.out.startKeepAlive()
	var legs sync.WaitGroup
	for k := range r.t.pairs {
		legs.Go(func() { r.runOne(k) })
	}
	legs.Wait()
	x.out.stopKeepAlive()
	r.relay.progress.record(&r.relay.scan)
	return r.failure.get()
}

// runOne runs one decode leg.
func (r *sampleMerge) runOne(k int) {
	t := r.t
	f := t.x.guarded(admission.DecodeLeg, func() *failure { return r.decode(k) })
	r.failure.note(f)
	if f == nil || f.secondary {
		return
	}
	if f.transfer && !r.begun() {
		waitFor(&t.prefillOver, t.x.d.opts.VerdictWait)
	}
	t.decode.ctx.end(errPeerFailed)
}

func (r *sampleMerge) begun() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.relay.x.out.begun
}

// decode runs one pair's answering leg into the common answer.
func (r *sampleMerge) decode(k int) *failure {
	x, p, l := r.t.x, &r.t.pairs[k], &r.t.decode
	one := &p.relay
	if f := x.openAnswer(l, one, x.legRequest(p.bodies, admission.DecodeLeg)); f != nil {
		return f
	}
	defer one.resp.Body.Close()
	one.cached.take(x.request, &p.prefill.cached)
	if !x.call.Peeked.Stream {
		b, f := one.collectAnswer(&l.ctx)
		if f == nil {
			r.answers[k] = one.cached.whole(b)
		}
		return f
	}
	return one.read(
		func(piece []byte) (bool, *failure) { return false, r.feed(k, piece) },
		func(err error) *failure { return r.endOf(k, err) })
}

// feed merges a piece of a copy's stream and passes on the whole events.
func (r *sampleMerge) feed(k int, piece []byte) (f *failure) {
	r.mu.Lock()
	defer r.mu.Unlock()
	one := &r.t.pairs[k].relay
	r.relay.resp = one.resp
	piece = one.cached.spliceAll(piece)
	var merged []byte
	err := r.merger.Feed(k, piece, func(b []byte) { merged = b })
	if len(merged) > 0 && (err == nil || r.relay.x.out.begun) {
		f = r.passMerged(merged)
	}
	if f == nil && err != nil {
		f = r.mergeFailure(err)
	}
	return r.relay.midway(f)
}

// passMerged passes on whole events.
func (r *sampleMerge) passMerged(b []byte) *failure {
	if r.relay.scan.Feed(b); r.relay.scan.Aborted {
		return r.relay.aborted(b[:r.relay.scan.AbortAt])
	}
	r.relay.progress.note(&r.relay.scan, r.relay.resp.Body)
	return r.relay.passEvents(nil, b, false)
}

// endOf finds out how a copy's stream ended.
func (r *sampleMerge) endOf(k int, err error) *failure {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		return r.t.pairs[k].relay.broken(&r.t.decode.ctx, err)
	}
	if err := r.merger.End(k); err != nil {
		f := r.mergeFailure(err)
		if !f.ours {
			f.reason = reasonBrokenOff
		}
		return f
	}
	return nil
}

// finish answers the client once the answers of all copies are complete.
func (r *sampleMerge) finish() *failure {
	x := r.t.x
	if x.call.Peeked.Stream {
		return nil
	}
	segments, size, err := x.plan.fan.Merge(r.answers)
	if err != nil {
		return r.mergeFailure(err)
	}
	whole := make([]byte, 0, size)
	for _, s := range segments {
		whole = append(whole, s...)
	}
	x.setHeader("Content-Type", typeJSON)
	return r.relay.whole(whole)
}

// mergeFailure is the failure if the copies' answers cannot be merged, mostly because an
// engine reported an error in one of them.
func (r *sampleMerge) mergeFailure(err error) *failure {
	var e *openai.FanError
	if errors.As(err, &e) && e.Limit {
		return r.relay.overLimit("the answer of one of the samples cannot be merged: " + e.Reason)
	}
	if e == nil || !e.FromEngine {
		return r.relay.bad("the answers of its samples cannot be merged", err)
	}
	if e.Status == 0 {
		e.Status = http.StatusInternalServerError
	}
	return r.relay.x.eventFailure(admission.DecodeLeg, r.relay.rank, e.Data)
}
