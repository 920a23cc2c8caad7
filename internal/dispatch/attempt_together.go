package dispatch

import (
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
)

// pairsTogether is one attempt whose legs are sent at once, as engines that pair by a
// bootstrap room need it: one pair of legs, or for a request for several samples one pair
// for each, with rooms of its own. All pairs run on the same two ranks under one prefill
// slot.
type pairsTogether struct {
	x               *attempt
	prefill, decode liveLeg
	pairs           []legPair
	one             [1]legPair   // the memory of pairs if there is one
	samples         *sampleMerge // makes one answer of several; nil for one pair

	// prefillsRun and prefillsOpen count prefill legs: those that run, and those whose
	// outcome is not known yet.
	prefillsRun, prefillsOpen atomic.Int32
	prefillFailure            firstFailure
	// prefillOver is closed when all prefill legs are over, decodeOver once the outcome
	// of decode is known.
	prefillOver, decodeOver latch
	grace                   deadline // of the prefill legs, once decode is over
}

// legPair is one call to each of the two ranks.
type legPair struct {
	bodies  *legBodies
	prefill prefillLeg
	relay   relay // of decode's answer; where there are several, before they are merged
}

// firstFailure keeps the most informative failure of several legs: the first that is a
// leg's own, else the first report of a broken hand-off, else that of a leg that was
// cancelled because of another.
type firstFailure struct{ at atomic.Pointer[failure] }

func (o *firstFailure) note(f *failure) {
	for {
		old := o.at.Load()
		if f == nil || old != nil && f.rankOfBlame() <= old.rankOfBlame() || o.at.CompareAndSwap(old, f) {
			return
		}
	}
}

func (o *firstFailure) get() *failure { return o.at.Load() }

// runTogether sends all legs at once and relays what decode answers. b is the first
// pair's. When it returns, all legs are over, except that after success prefill legs may
// have Options.PrefillGrace left.
func (x *attempt) runTogether(b *legBodies, copies int) *failure {
	t := &pairsTogether{x: x}
	if f := t.plan(b, copies); f != nil {
		return f
	}
	pr, dr := b.pair.Prefill.(*fleet.Rank), b.pair.Decode.(*fleet.Rank)
	x.call.Record.ranks(pr, dr)
	t.prefill.begin(&x.ctx.legContext, pr, x.watched(fleet.LegPrefill))
	x.revocable(&t.prefill)
	decode := x.watched(fleet.LegDecode)
	decode.Waits = true
	t.decode.begin(&x.ctx.legContext, dr, decode)
	defer t.decode.over()

	x.keys.sending(admission.PrefillLeg, pr)
	x.sendingDecode(dr)
	n := int32(len(t.pairs))
	t.prefillsRun.Store(n)
	t.prefillsOpen.Store(n)
	x.retain()
	x.d.running.Add(1)
	for k := range t.pairs {
		go t.runPrefill(k)
	}

	x.ticket.StartDecode()
	var f *failure
	if t.samples == nil {
		p := &t.pairs[0]
		f = x.runAnswer(&t.decode, &p.relay, x.legRequest(p.bodies, admission.DecodeLeg), &p.prefill, &p.prefill.cached)
	} else {
		f = t.samples.run()
	}
	t.decodeOver.close()
	x.ticket.EndDecode()
	if t.samples != nil && f == nil {
		f = t.samples.finish()
	}
	if f != nil {
		f = t.failed(f)
		x.keys.over(admission.PrefillLeg)
		x.keys.over(admission.DecodeLeg)
		return f
	}
	if t.samples == nil {
		x.keys.keepAnswer()
	}
	t.noteCached()
	x.verdicts.report(dr, nil)
	x.verdicts.reportLink(pr, dr, nil)
	t.prefill.ctx.unfollow()
	if t.leavePrefill() {
		for k := range t.pairs {
			x.call.Record.Prefill = max(x.call.Record.Prefill, t.pairs[k].prefill.took)
		}
	}
	return nil
}

// plan plans and edits the bodies of all pairs.
func (t *pairsTogether) plan(b *legBodies, copies int) *failure {
	if t.pairs = t.one[:]; copies > 1 {
		t.pairs = make([]legPair, copies)
		t.samples = newSamples(t, copies)
	}
	for k := range t.pairs {
		if k > 0 {
			var f *failure
			if b, f = t.x.planLegs(k); f != nil {
				for i := range k {
					t.pairs[i].bodies.plan.Legs.Release()
				}
				return f
			}
		}
		t.pairs[k].bodies = b
		if copies == 1 {
			b.buildBoth(nil)
			t.pairs[0].prefill.cached.over = &t.prefillOver
			continue
		}
		b.buildBoth(func(s *openai.Splicer) { t.x.plan.fan.Edit(s, k) })
	}
	return nil
}

// runPrefill runs one prefill leg on a goroutine of its own. The last one to end gives
// back what they share.
func (t *pairsTogether) runPrefill(k int) {
	x, p := t.x, &t.pairs[k]
	f := x.guarded(admission.PrefillLeg, func() *failure {
		return x.runPrefill(&t.prefill, x.legRequest(p.bodies, admission.PrefillLeg), &p.prefill)
	})
	if f != nil && f.transfer && t.decode.lost() {
		f.secondary = true // its engine noticed what the other one did
	}
	p.prefill.f = f
	t.prefillFailure.note(f)
	if t.prefillsRun.Add(-1) == 0 {
		t.prefill.unwatch()
		t.decode.watch.Awaited()
		x.ticket.EndPrefill()
		x.verdicts.report(t.prefill.rank, t.prefillFailure.get())
		for k := range t.pairs {
			t.pairs[k].bodies.plan.Legs.Release()
		}
	}
	if f != nil && !f.secondary {
		if f.transfer {
			waitFor(&t.decodeOver, x.d.opts.VerdictWait)
		}
		t.decode.ctx.end(errPeerFailed)
		t.prefill.ctx.end(errAttemptOver)
	}
	if t.prefillsOpen.Add(-1) == 0 {
		t.prefillOver.close()
		x.d.graces.remove(&t.grace)
		x.release()
		x.d.running.Done()
	}
}

// failed ends an attempt whose decode failed with f. It returns the failure of the
// attempt: if decode only reports that it was cancelled, or that the hand-off broke, a
// prefill leg may have the cause.
func (t *pairsTogether) failed(f *failure) *failure {
	x := t.x
	if f.secondary {
		<-t.prefillOver.wait()
	} else if f.transfer && !x.out.begun {
		waitFor(&t.prefillOver, x.d.opts.VerdictWait)
	}
	if f.reason == reasonUpstreamTime && !x.out.begun && !t.prefillOver.isClosed() {
		f.unproven = true
	}
	t.prefill.ctx.end(errAttemptOver)
	t.prefill.ctx.unfollow()
	<-t.prefillOver.wait()
	told := f
	if pf := t.prefillFailure.get(); pf != nil && (f.secondary || f.transfer && !f.reported && pf.own()) {
		// That the hand-off broke was an echo of it, as an end would have been.
		told = &failure{leg: f.leg, rank: f.rank, secondary: true}
		f = pf
	}
	x.verdicts.report(t.decode.rank, told)
	x.verdicts.reportLink(t.prefill.rank, t.decode.rank, f)
	return f
}

// noteCached notes what the prefill legs told of their caches by now.
func (t *pairsTogether) noteCached() {
	for k := range t.pairs {
		t.pairs[k].prefill.cached.addTo(&t.x.cachedTold, t.prefill.rank.TellsCached())
	}
}

// leavePrefill gives prefill legs that are still open their grace period. It returns
// whether they were over already. The deadline is removed after prefillOver is closed.
func (t *pairsTogether) leavePrefill() bool {
	if t.prefillOver.isClosed() {
		return true
	}
	graces := &t.x.d.graces
	graces.add(&t.grace, &t.prefill.ctx, time.Now().Add(t.x.d.opts.PrefillGrace))
	if t.prefillOver.isClosed() { // perhaps before the deadline was set
		graces.remove(&t.grace)
	}
	return false
}
