package dispatch

import (
	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
)

// runAggregated sends the only leg of a request that runs whole on one worker.
func (x *attempt) runAggregated() *failure {
	return x.runOn(x.ticket.Decode.Data().(*fleet.Rank))
}

// runOn sends the whole request to one rank.
func (x *attempt) runOn(rank *fleet.Rank) *failure {
	rec := &x.call.Record
	if rank.Worker().Role() == admission.RolePrefill {
		rec.ranks(rank, nil)
	} else {
		rec.ranks(nil, rank)
	}
	b := x.emptyBodies()
	b.header = x.legHeader(b.header[:0], x.engineID(0))
	s := &b.splicers[0]
	s.Reset(x.call.Peeked)
	if !x.call.Passing {
		rank.Dialect().EditWhole(s, engine.Whole{Request: x.call.Peeked, Attempt: x.attempts, Rank: rank})
	}
	b.decode, _ = s.Segments()
	leg := &answerLeg{}
	leg.ctx.follow(&x.ctx.legContext)
	defer leg.ctx.unfollow()
	rank.Watch(&leg.dead, &leg.ctx)
	defer leg.dead.Stop()
	x.ticket.StartDecode()
	f := x.runAnswer(leg, rank, x.legRequest(b, admission.DecodeLeg), nil)
	x.ticket.EndDecode()
	x.serving().noteRoute(rank, f)
	x.verdicts.report(rank, f)
	return f
}
