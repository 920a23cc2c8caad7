package dispatch

import (
	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/tokens"
)

// runAnswer sends the call of a leg that answers the client and relays its answer with r.
// prefill is the prefill leg that runs at the same time, cached the count of cached tokens
// of a prefill leg; both may be nil.
func (x *attempt) runAnswer(l *liveLeg, r *relay, req *engine.Request, prefill *prefillLeg, cached *prefillCached) *failure {
	x.out.startKeepAlive()
	defer x.out.stopKeepAlive()
	ctx := &l.ctx
	if f := x.openAnswer(l, r, req); f != nil {
		return f
	}
	defer r.resp.Body.Close()
	defer r.progress.record(&r.scan)
	r.frees = true
	if cached != nil {
		r.cached.take(x.request, cached)
	}
	var f *failure
	switch {
	case x.call.Passing:
		f = r.passed(ctx)
	case x.translates:
		f = r.translated(ctx)
	case prefill != nil && x.wantsLogprobs():
		f = r.merged(ctx, prefill)
	case r.sse:
		f = r.events(ctx, asItIs{r})
	case x.call.Peeked.Stream:
		f = r.lines(ctx)
	default:
		f = r.plain(ctx)
	}
	return r.midway(f)
}

// openAnswer sends the leg and returns when the head of a usable answer has come, with r
// ready to relay it.
func (x *attempt) openAnswer(l *liveLeg, r *relay, req *engine.Request) *failure {
	ctx, rank := &l.ctx, l.rank
	resp, err := rank.Dialect().Call(ctx, rank.Endpoint(), req)
	if err != nil {
		return x.legFailure(ctx, admission.DecodeLeg, rank, err)
	}
	// Field by field: a composite literal would be built on the stack first.
	*r = relay{}
	r.x, r.resp, r.rank, r.watch = x.request, resp, rank, &l.watch
	r.progress = answerProgress{x: x.request, output: x.counter(rank)}
	f := r.check(ctx)
	if f != nil {
		_ = resp.Body.Close()
	}
	return f
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
