package dispatch

import (
	"errors"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

// runInSequence runs prefill first and passes its kv_transfer_params to decode, as vLLM
// needs it with connectors whose blocks are fetched. The prefill slot is released with
// the prefill's answer; the decode rank was booked together with it.
func (x *attempt) runInSequence(b *legBodies) *failure {
	t := &x.ticket
	pr, dr := t.Prefill.Data().(*fleet.Rank), t.Decode.Data().(*fleet.Rank)
	x.call.Record.ranks(pr, dr)
	legs := &legSequence{bodies: b}
	defer legs.prefill.ctx.unfollow()
	defer legs.decode.ctx.unfollow()
	x.out.startKeepAlive()
	defer x.out.stopKeepAlive()

	params, f := x.prefillFirst(pr, legs)
	t.EndPrefill()
	b.plan.Legs.Release()
	if f != nil {
		return f
	}
	f = x.decodeAfter(legs, params)
	if f == nil || !x.mayMove(f, legs, params) {
		return f
	}
	// The engine never saw the request, and the blocks are still there: another
	// decode rank may have them.
	legs.moved = true
	if !t.MoveDecode(t.Decode) {
		return f
	}
	x.noteFailed(f)
	return x.decodeAfter(legs, params)
}

// prefillFirst runs the prefill leg and returns its kv_transfer_params; with nil params
// decode computes the prompt itself.
func (x *attempt) prefillFirst(pr *fleet.Rank, legs *legSequence) (params []byte, f *failure) {
	connector, b := pr.Connector(), legs.bodies
	switch {
	case b.plan.Shape == engine.PrefillFirst:
	case b.plan.Why == engine.AloneSamples:
		// Decode computes the prompts itself.
		x.d.metrics.handOff(connector, handOffSamples)
		return nil, nil
	default:
		return nil, x.withoutHandOff(pr, connector, engine.ErrNoHandOff)
	}
	b.buildPrefill(nil)
	legs.prefill.begin(&x.ctx.legContext, pr, x.watched(fleet.LegPrefill))
	x.revocable(&legs.prefill)
	defer legs.prefill.unwatch()

	x.keys.sending(admission.PrefillLeg, pr)
	answer, f := x.prefillAnswer(pr, legs)
	x.keys.over(admission.PrefillLeg)
	x.verdicts.report(pr, f)
	if f != nil && b.plan.Legs.Dispensable(f.status) {
		x.noteFailed(f)
		x.d.metrics.handOff(connector, handOffRecompute)
		return nil, nil
	}
	if f != nil {
		return nil, f
	}
	u, _ := openai.ReadUsage(answer)
	params, err := b.plan.Legs.HandOff(answer)
	switch {
	case err == nil:
		if params != nil {
			x.d.metrics.handOff(connector, handOffDone)
		}
		legs.cached.tell(u)
		legs.cached.addTo(&x.cachedTold, pr.TellsCached())
		return params, nil
	case errors.Is(err, engine.ErrBadHandOff):
		x.d.metrics.handOff(connector, handOffBad)
		return nil, &failure{leg: admission.PrefillLeg, rank: pr, err: err, reason: reasonUpstream,
			local: openai.UpstreamFailed("prefill", "what it hands over to decode cannot be used", err)}
	}
	// What some sequences of the request have is used.
	return params, x.withoutHandOff(pr, connector, err)
}

// withoutHandOff lets decode compute the prompt, or ends the request, by option.
func (x *attempt) withoutHandOff(pr *fleet.Rank, connector string, err error) *failure {
	if x.d.cfg.Fleet.KVHandOffMissing != "fail" {
		x.d.metrics.handOff(connector, handOffRecompute)
		return nil
	}
	x.d.metrics.handOff(connector, handOffMissing)
	return &failure{leg: admission.PrefillLeg, rank: pr, err: err, reason: reasonUpstream,
		local: openai.UpstreamFailed("prefill", "it hands nothing over to decode (--kv-handoff-missing)", err)}
}

func (x *attempt) prefillAnswer(pr *fleet.Rank, legs *legSequence) ([]byte, *failure) {
	start := time.Now()
	req := x.legRequest(legs.bodies, admission.PrefillLeg)
	resp, err := pr.Dialect().Call(&legs.prefill.ctx, pr.Endpoint(), req)
	if err != nil {
		return nil, x.legFailure(&legs.prefill.ctx, admission.PrefillLeg, pr, err)
	}
	defer resp.Body.Close()
	if resp.Status != 200 {
		return nil, x.statusFailure(&legs.prefill.ctx, admission.PrefillLeg, pr, resp)
	}
	pr.NoteProgress() // it may be its front alone
	x.keys.accepted(admission.PrefillLeg)
	bad := func(what string, err error) *failure {
		return &failure{leg: admission.PrefillLeg, rank: pr, err: err, reason: reasonUpstream, local: openai.UpstreamFailed("prefill", what, err)}
	}
	// The engine's lease of what it hands over runs from here at the latest, however
	// slowly the rest of its answer comes. What is wrong with the body is seen next.
	_ = resp.Body.WaitReadable()
	legs.answered = time.Now()
	answer, err := x.collect(resp.Body, x.d.opts.MaxLogprobBody)
	switch {
	case err == errNoRoom:
		return nil, x.noRoom()
	case errors.Is(err, errTooLarge):
		return nil, limitFailure(admission.PrefillLeg, pr, "the prefill's answer is larger than "+itoa(x.d.opts.MaxLogprobBody)+" bytes")
	case err != nil:
		return nil, x.legFailure(&legs.prefill.ctx, admission.PrefillLeg, pr, err)
	}
	if resp.ContentLength < 0 && !openai.WholeJSON(answer) {
		return nil, bad("its answer is no JSON, or broke off", nil)
	}
	if a, given := openai.ReadAbort(answer); given {
		return nil, x.abortFailure(admission.PrefillLeg, pr, a)
	}
	if f := x.toldError(admission.PrefillLeg, pr, answer); f != nil {
		return nil, f
	}
	pr.NoteAdvance()
	legs.prefill.watch.Begun()
	x.call.Record.Prefill = time.Since(start)
	x.d.metrics.prefillLeg(pr, x.call.Record.Prefill)
	return answer, nil
}

// decodeAfter sends the client's own body with the params to the decode rank the
// ticket has now, and relays its answer.
func (x *attempt) decodeAfter(legs *legSequence, params []byte) *failure {
	t := &x.ticket
	dr := t.Decode.Data().(*fleet.Rank)
	if dr.Lost() && t.MoveDecode() { // lost while prefill ran
		dr = t.Decode.Data().(*fleet.Rank)
	}
	x.call.Record.DecodeRank, x.call.Record.DecodeName = dr.ID(), dr.Name()
	if params != nil && time.Since(legs.answered) > x.d.cfg.Fleet.KVHandOffMaxAge {
		x.d.metrics.handOff(t.Prefill.Data().(*fleet.Rank).Connector(), handOffStale)
		return &failure{leg: admission.DecodeLeg, rank: dr, workerDead: true, reason: reasonTransfer,
			local: openai.UpstreamFailed("decode", "what prefill handed over became too old before decode could start", nil)}
	}
	legs.bodies.buildDecode(nil, params)
	kind := fleet.LegDecode
	if params == nil {
		kind = fleet.LegWhole // it computes the prompt itself
	}
	legs.decode.begin(&x.ctx.legContext, dr, x.watched(kind))
	defer legs.decode.unwatch()
	handedOver := params != nil
	if handedOver && x.estimate > 2*max(dr.Capacity().BlockSize, 16) { // surely a whole block
		dr.NoteHandOff()
	}
	x.sendingDecode(dr)
	t.StartDecode()
	f := x.runAnswer(&legs.decode, &legs.relay, x.legRequest(legs.bodies, admission.DecodeLeg), nil, &legs.cached)
	if f != nil && params != nil && dr.Dialect().HandOffLost(f.status) && !x.out.begun {
		f.transfer, f.reason = true, reasonTransfer
	}
	if params != nil {
		x.verdicts.reportLink(t.Prefill.Data().(*fleet.Rank), dr, f)
	}
	if f == nil {
		x.keys.keepAnswer()
	}
	x.keys.over(admission.DecodeLeg)
	if f != nil && x.mayMove(f, legs, params) {
		x.verdicts.report(dr, f)
		return f // the holds stay for the move
	}
	t.EndDecode()
	x.verdicts.report(dr, f)
	return f
}

// mayMove tells whether another decode rank can fetch the KV: the first one has not got
// the request.
func (x *attempt) mayMove(f *failure, legs *legSequence, params []byte) bool {
	var ue *upstream.Error
	return !x.out.begun && f.rank != nil && !legs.moved && params != nil &&
		asUpstream(f.err, &ue) && !ue.Sent && upstream.EngineFault(f.err) &&
		time.Since(legs.answered) <= x.d.cfg.Fleet.KVHandOffMaxAge && legs.decode.ctx.ended() == nil
}

// The outcomes of hand-offs, as metric labels.
const (
	handOffDone      = "handed_over"
	handOffRecompute = "recomputed"
	handOffMissing   = "missing"
	handOffBad       = "unusable"
	handOffStale     = "stale"
	handOffSamples   = "samples"
)

// legSequence is one attempt whose two legs run one after the other.
type legSequence struct {
	bodies          *legBodies
	prefill, decode liveLeg
	relay           relay     // of decode's answer
	answered        time.Time // when prefill began to answer
	moved           bool      // decode was moved once
	cached          prefillCached
}
