package dispatch

import (
	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
)

// runAlone sends the whole request to one rank.
func (x *attempt) runAlone(rank *fleet.Rank) *failure {
	rec := &x.call.Record
	if rank.Worker().Role() == admission.RolePrefill {
		rec.ranks(rank, nil)
	} else {
		rec.ranks(nil, rank)
	}
	b := x.emptyBodies()
	b.plan.RequestID, b.plan.DecodeRank = x.engineID(0), -1
	b.header = x.legHeader(b.header[:0], b.plan.RequestID)
	if !x.call.Passing {
		b.plan.RankHeader, b.plan.DecodeRank = rank.Dialect().RankHeader(), rank.DPRank()
	}
	if b.tokens = x.inTokens(rank); !b.tokens {
		s := &b.splicers[0]
		b.begin(s, x.call.Peeked)
		if !x.call.Passing {
			rank.Dialect().EditWhole(s, engine.Whole{Request: x.call.Peeked, Attempt: x.attempts, Rank: rank})
		}
		b.decode, _ = s.Segments()
	}
	run := &struct {
		leg   liveLeg
		relay relay
	}{}
	run.leg.begin(&x.ctx.legContext, rank, x.watched(fleet.LegWhole))
	defer run.leg.over()
	x.keys.sending(admission.DecodeLeg, rank)
	x.ticket.StartDecode()
	f := x.runAnswer(&run.leg, &run.relay, x.legRequest(b, admission.DecodeLeg), nil, nil)
	x.ticket.EndDecode()
	if f == nil {
		x.keys.keepAnswer()
	}
	x.keys.over(admission.DecodeLeg)
	x.serving().noteRoute(rank, f)
	x.verdicts.report(rank, f)
	return f
}
