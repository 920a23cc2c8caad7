package dispatch

import (
	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/tokens"
	"github.com/sluice-router/sluice/internal/upstream"
)

// runAnswer sends the leg that answers the client and relays its answer. pair is
// nil unless a prefill leg runs beside.
func (x *attempt) runAnswer(leg *answerLeg, rank *fleet.Rank, req *upstream.Request, pair *pairLegs) *failure {
	x.out.startKeepAlive()
	defer x.out.stopKeepAlive()
	r, ctx := &leg.relay, &leg.ctx
	if f := x.openAnswer(r, ctx, rank, req); f != nil {
		return f
	}
	defer r.resp.Body.Close()
	defer r.progress.record(&r.scan)
	r.frees = true
	if pair != nil {
		r.cached.take(x.request, &pair.prefill.cached)
	} else if leg.cached != nil {
		r.cached.take(x.request, leg.cached)
	}
	var f *failure
	switch {
	case x.call.Passing:
		f = r.passed(ctx)
	case x.translates():
		f = r.translated(ctx)
	case pair != nil && x.wantsLogprobs():
		f = r.merged(ctx, &pair.prefill)
	case r.sse:
		f = r.stream(ctx)
	case x.call.Peeked.Stream:
		f = r.lines(ctx)
	default:
		f = r.plain(ctx)
	}
	return r.midway(f)
}

// openAnswer sends the leg and returns when the head of a usable answer is in,
// with r ready to relay it.
func (x *attempt) openAnswer(r *relay, ctx *legContext, rank *fleet.Rank, req *upstream.Request) *failure {
	resp, err := rank.Dialect().Call(ctx, rank.Endpoint(), req)
	if err != nil {
		return x.legFailure(ctx, admission.DecodeLeg, rank, err)
	}
	// Field by field: made as a whole it would lie on the stack first.
	*r = relay{}
	r.x, r.out, r.resp, r.rank, r.leg = x.request, &x.out, resp, rank, admission.DecodeLeg
	r.progress = progress{x: x.request, output: x.counter(rank)}
	f := r.check(ctx)
	if f != nil {
		_ = resp.Body.Close()
	}
	return f
}

// answerLeg is the leg that answers the client, run by the handler.
type answerLeg struct {
	ctx   legContext
	dead  fleet.Watch
	relay relay
	// cached is what the prefill leg before told; nil: there was none.
	cached *prefillCached
}

// counter follows the growth of the answer of this attempt, in KV blocks of the
// rank that decodes it.
func (x *attempt) counter(rank *fleet.Rank) tokens.OutputCounter {
	if !x.d.cfg.Admission.TrackOutputBlocks && (!x.d.reservesAuto() || x.call.Passing) {
		return tokens.OutputCounter{}
	}
	t := &x.ticket
	return tokens.NewOutputCounter(tokens.OutputPlan{
		PromptTokens: t.PromptTokens, ReserveTokens: t.ReserveTokens, Legs: t.Legs,
		BlockSize: rank.Capacity().BlockSize, Expected: x.expected,
	})
}
