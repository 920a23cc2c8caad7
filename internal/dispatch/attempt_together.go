package dispatch

import (
	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
)

// runPair sends both legs at once, as engines that meet by a room want it, and
// relays decode. When it returns, both legs are over, except that after success
// prefill may have Options.PrefillGrace left.
func (x *attempt) runPair(b *pairBodies) *failure {
	t := &x.ticket
	pr, dr := t.Prefill.Data().(*fleet.Rank), t.Decode.Data().(*fleet.Rank)
	rec := &x.call.Record
	rec.ranks(pr, dr)

	b.buildBoth(nil)
	legs := &pairLegs{bodies: b}
	prefill, decode := &legs.prefill, &legs.decode
	prefill.cached.leg = &prefill.done
	pctx, dctx := &legs.prefillCtx, &decode.ctx
	pctx.follow(&x.ctx.legContext)
	dctx.follow(&x.ctx.legContext)
	defer dctx.unfollow()
	pr.Watch(&legs.prefillDead, pctx)
	dr.Watch(&decode.dead, dctx)
	defer decode.dead.Stop()

	x.retain()
	x.d.running.Add(1)
	go x.runPrefillLeg(pr, legs)

	t.StartDecode()
	f := x.runAnswer(decode, dr, x.legRequest(legs.bodies, admission.DecodeLeg), legs)
	legs.decodeOver.close()
	t.EndDecode()

	if f != nil {
		return x.pairFailed(legs, pr, dr, f)
	}
	x.verdicts.report(dr, nil)
	x.reportPair(pr, dr, nil)
	pctx.unfollow()
	if x.letPrefillFinish(&prefill.done, pctx, &legs.grace) {
		x.call.Record.Prefill = prefill.took
	}
	return nil
}

// pairLegs are the two legs of one attempt.
type pairLegs struct {
	bodies *pairBodies

	prefill     prefillLeg
	prefillCtx  legContext
	prefillDead fleet.Watch
	grace       deadline // of the prefill leg, once decode is over

	decode answerLeg
	// decodeOver is closed once the decode leg's own outcome is known.
	decodeOver latch
}

// pairFailed ends a pair whose decode leg failed with f. It returns what the pair
// failed with.
func (x *attempt) pairFailed(legs *pairLegs, pr, dr *fleet.Rank, f *failure) *failure {
	prefill := &legs.prefill
	if f.secondary {
		<-prefill.done.wait()
	} else if f.transfer && !x.out.begun {
		waitFor(&prefill.done, x.d.opts.VerdictWait)
	}
	if f.reason == reasonUpstreamTime && !x.out.begun && !prefill.done.isClosed() {
		f.unproven = true
	}
	legs.prefillCtx.end(errAttemptOver)
	legs.prefillCtx.unfollow()
	<-prefill.done.wait()
	x.verdicts.report(dr, f)
	if pf := prefill.f; pf != nil && (f.secondary || f.transfer && !f.reported && pf.own()) {
		f = pf
	}
	x.reportPair(pr, dr, f)
	return f
}

// runPrefillLeg runs the prefill leg on a goroutine of its own.
func (x *attempt) runPrefillLeg(pr *fleet.Rank, legs *pairLegs) {
	defer x.d.running.Done()
	defer x.release()
	f := x.guarded(admission.PrefillLeg, func() *failure {
		return x.runPrefill(&legs.prefillCtx, pr, x.legRequest(legs.bodies, admission.PrefillLeg), &legs.prefill)
	})
	legs.prefillDead.Stop()
	x.ticket.EndPrefill()
	x.verdicts.report(pr, f)
	legs.bodies.plan.Legs.Release()
	legs.prefill.f = f
	if f != nil && !f.secondary {
		if f.transfer {
			waitFor(&legs.decodeOver, x.d.opts.VerdictWait)
		}
		legs.decode.ctx.end(errPeerFailed)
	}
	legs.prefill.done.close()
	x.d.graces.remove(&legs.grace)
}
