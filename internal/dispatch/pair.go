package dispatch

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

func itoa(n int) string { return strconv.Itoa(n) }

// prefillLeg is the leg that nobody reads, on its own goroutine. Its fields
// are valid once done is closed.
type prefillLeg struct {
	done latch
	f    *failure
	took time.Duration // of a leg that succeeded
	// logprobs are set if the leg succeeded and the client's answer needs them.
	logprobs *openai.LogprobMerger
	// cached may be read before.
	cached prefillCached
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

// pairBodies are what the two legs of one call are sent: the client's bytes with
// the fields by which the legs find each other. They are the same segments
// unless the workers are scheduled by data-parallel rank. They are given back
// with the client's body.
type pairBodies struct {
	prefill, decode [][]byte
	header          upstream.Header
	requests        [2]upstream.Request // by leg
	pair            engine.Pair
	plan            engine.Plan
	splicers        [2]openai.Splicer
	next            *pairBodies // of the same request
}

var pairBodiesPool = sync.Pool{New: func() any { return new(pairBodies) }}

// emptyBodies are for legs whose bodies are made one after the other.
func (x *exchange) emptyBodies() *pairBodies {
	b := pairBodiesPool.Get().(*pairBodies)
	b.next, x.bodies = x.bodies, b
	return b
}

// planLegs plans the legs of copy number k of the request on the granted ranks.
func (x *exchange) planLegs(k int) (*pairBodies, *failure) {
	b, pr := x.emptyBodies(), x.ticket.Prefill.Data().(*fleet.Rank)
	b.pair = engine.Pair{
		Request: x.legPeeked(), RequestID: x.engineID(k), Attempt: x.attempts,
		Prefill: pr, Decode: x.ticket.Decode.Data().(*fleet.Rank), Rooms: x.d.rooms, NewID: newTransferID,
	}
	plan, err := pr.Dialect().Plan(&b.pair)
	if err != nil {
		return nil, &failure{leg: admission.PrefillLeg, rank: pr, reason: reasonUpstream, local: openai.UpstreamFailed("prefill", err.Error(), nil)}
	}
	b.plan = plan
	b.header = x.legHeader(b.header[:0], plan.RequestID)
	return b, nil
}

// buildBoth makes the bodies of both legs of copy number k; edit may be nil.
func (b *pairBodies) buildBoth(edit func(*openai.Splicer)) {
	b.buildPrefill(edit)
	if b.plan.SameBody {
		b.decode = b.prefill
		return
	}
	b.buildDecode(edit, nil)
}

func (b *pairBodies) buildPrefill(edit func(*openai.Splicer)) {
	s := b.splicer(admission.PrefillLeg, edit)
	b.plan.Legs.EditPrefill(s)
	b.prefill, _ = s.Segments()
}

func (b *pairBodies) buildDecode(edit func(*openai.Splicer), handOff []byte) {
	s := b.splicer(admission.DecodeLeg, edit)
	b.plan.Legs.EditDecode(s, handOff)
	b.decode, _ = s.Segments()
}

func (b *pairBodies) splicer(leg admission.Leg, edit func(*openai.Splicer)) *openai.Splicer {
	s := &b.splicers[leg]
	s.Reset(b.pair.Request)
	if edit != nil {
		edit(s)
	}
	return s
}

// freeBodies gives all bodies of the request back. Nobody may send them any more.
func (x *exchange) freeBodies() {
	for b := x.bodies; b != nil; {
		next := b.next
		b.prefill, b.decode, b.next = nil, nil, nil
		b.requests = [2]upstream.Request{}
		b.pair, b.plan = engine.Pair{}, engine.Plan{}
		clear(b.header)
		for i := range b.splicers {
			b.splicers[i].Reset(nil)
		}
		pairBodiesPool.Put(b)
		b = next
	}
	x.bodies = nil
}

// newTransferID is an id that nobody else has. Request ids will not do: clients
// and gateways repeat them.
func newTransferID() string { return fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()) }

// runPair sends both legs at once, as engines that meet by a room want it, and
// relays decode. When it returns, both legs are over, except that after success
// prefill may have Options.PrefillGrace left.
func (x *exchange) runPair(b *pairBodies) *failure {
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

	x.hold()
	x.d.running.Add(1)
	go x.prefillBeside(pr, legs)

	t.StartDecode()
	f := x.runAnswer(decode, dr, x.request(legs.bodies, admission.DecodeLeg), legs)
	legs.decodeOver.close()
	t.EndDecode()

	if f != nil {
		return x.pairFailed(legs, pr, dr, f)
	}
	x.report(dr, nil)
	x.reportPair(pr, dr, nil)
	pctx.unfollow()
	if x.letPrefillFinish(&prefill.done, pctx, &legs.grace) {
		x.call.Record.Prefill = prefill.took
	}
	return nil
}

// pairFailed ends a pair whose decode leg failed with f. It returns what the pair
// failed with.
func (x *exchange) pairFailed(legs *pairLegs, pr, dr *fleet.Rank, f *failure) *failure {
	prefill := &legs.prefill
	if f.echo {
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
	x.report(dr, f)
	if pf := prefill.f; pf != nil && (f.echo || f.transfer && !f.told && pf.own()) {
		f = pf
	}
	x.reportPair(pr, dr, f)
	return f
}

// prefillBeside runs the prefill leg on a goroutine of its own.
func (x *exchange) prefillBeside(pr *fleet.Rank, legs *pairLegs) {
	defer x.d.running.Done()
	defer x.unhold()
	f := x.guarded(admission.PrefillLeg, func() *failure {
		return x.runPrefill(&legs.prefillCtx, pr, x.request(legs.bodies, admission.PrefillLeg), &legs.prefill)
	})
	legs.prefillDead.Stop()
	x.ticket.EndPrefill()
	x.report(pr, f)
	legs.bodies.plan.Legs.Release()
	legs.prefill.f = f
	if f != nil && !f.echo {
		if f.transfer {
			waitFor(&legs.decodeOver, x.d.opts.VerdictWait)
		}
		legs.decode.ctx.end(errPeerFailed)
	}
	legs.prefill.done.close()
	x.d.graces.remove(&legs.grace)
}

// letPrefillFinish leaves prefill legs that are still open their grace. It tells
// whether they were over already. Who closes done removes the deadline after that.
func (x *exchange) letPrefillFinish(done *latch, ctx *legContext, grace *deadline) bool {
	if done.isClosed() {
		return true
	}
	x.d.graces.add(grace, ctx, time.Now().Add(x.d.opts.PrefillGrace))
	if done.isClosed() { // perhaps before the deadline was there to be removed
		x.d.graces.remove(grace)
	}
	return false
}

// runPrefill sends the prefill leg and drains its answer. An error in it, in
// whatever form, is the leg's failure.
func (x *exchange) runPrefill(ctx *legContext, rank *fleet.Rank, req *upstream.Request, leg *prefillLeg) *failure {
	start := time.Now()
	resp, err := rank.Dialect().Call(ctx, rank.Endpoint(), req)
	if err != nil {
		return x.legFailure(ctx, admission.PrefillLeg, rank, err)
	}
	defer resp.Body.Close()
	if resp.Status != 200 {
		return x.statusFailure(ctx, admission.PrefillLeg, rank, resp)
	}
	rank.NoteProgress()
	keep := x.wantsLogprobs()
	sse := isEventStream(resp.Get("Content-Type"))
	prompts := 0 // of a list
	if x.call.Route == openai.RouteGenerate && x.ticket.Legs > 1 {
		prompts = x.ticket.Legs
	}
	var scan openai.EventScanner
	look := answerScanners.Get().(*openai.AnswerScanner)
	defer answerScanners.Put(look)
	look.Reset()
	var kept []byte
	total, limit := 0, x.d.opts.MaxLogprobBody
	keptHeld := collected{x: x}
	if look.MaxEach = prompts; sse && prompts > 0 {
		look.Cached = unknownCounts(prompts)
		scan.OnData = func(data []byte) { noteCached(look.Cached, data) }
	}
	for {
		piece, err := resp.Body.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return x.legFailure(ctx, admission.PrefillLeg, rank, err)
		}
		if total += len(piece); total > limit {
			what := "the prefill's answer is larger than "
			if keep {
				what = "the prefill's answer, which is kept for its logprobs, is larger than "
			}
			return limitFailure(admission.PrefillLeg, rank, what+itoa(limit)+" bytes")
		}
		if sse {
			if scan.Feed(piece); scan.Aborted {
				return x.abortFailure(admission.PrefillLeg, rank, scan.Abort)
			} else if scan.Errors > 0 {
				return x.eventFailure(admission.PrefillLeg, rank, scan.LastError)
			} else if scan.HasUsage {
				leg.cached.tell(scan.Usage)
			}
		} else if look.Feed(piece); look.Aborted {
			// Decode would go on with KV that is not there.
			return x.abortFailure(admission.PrefillLeg, rank, look.Abort)
		}
		if keep {
			if !keptHeld.hold(len(kept) + len(piece)) {
				return x.noRoom()
			}
			kept = append(kept, piece...)
		}
	}
	rank.NoteProgress()
	bad := func(what string) *failure {
		return &failure{leg: admission.PrefillLeg, rank: rank, reason: reasonUpstream, local: openai.UpstreamFailed("prefill", what, nil)}
	}
	// An answer whose length is not told may just stop, and look like an end.
	switch {
	case sse && !(scan.Finished && scan.AtBoundary()):
		return bad("its event stream ended without its end marker")
	case !sse && look.Invalid():
		return bad("its answer is no JSON")
	case !sse && !look.Closed():
		return bad("its answer broke off")
	}
	if f := x.toldError(admission.PrefillLeg, rank, look.Told()); f != nil {
		return f // decode would wait for KV that never comes
	}
	if look.HasUsage {
		leg.cached.tell(look.Usage)
	}
	leg.cached.tellEach(look.Cached)
	if keep {
		m, err := openai.NewLogprobMerger(kept)
		if err != nil {
			return &failure{leg: admission.PrefillLeg, rank: rank, reason: reasonUpstream, err: err,
				local: openai.UpstreamFailed("prefill", "its answer has no logprobs that can be merged", err)}
		}
		leg.logprobs = m
	}
	leg.took = time.Since(start)
	x.d.metrics.prefillLeg(rank, leg.took)
	return nil
}

// answerScanners are for prefill legs, whose answers nobody else reads.
var answerScanners = sync.Pool{New: func() any { return new(openai.AnswerScanner) }}

// waitFor waits for l, at most d.
func waitFor(l *latch, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-l.wait():
	case <-t.C:
	}
}

// runAggregated sends the only leg of a request that runs whole on one worker.
func (x *exchange) runAggregated() *failure {
	return x.runOn(x.ticket.Decode.Data().(*fleet.Rank))
}

// runOn sends the whole request to one rank.
func (x *exchange) runOn(rank *fleet.Rank) *failure {
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
	f := x.runAnswer(leg, rank, x.request(b, admission.DecodeLeg), nil)
	x.ticket.EndDecode()
	x.noteRoute(rank, f)
	x.report(rank, f)
	return f
}

// unknownCounts are counts of n prompts that nobody has told.
func unknownCounts(n int) []int64 {
	counts := make([]int64, n)
	for i := range counts {
		counts[i] = -1
	}
	return counts
}

// noteCached takes note of the cached tokens that an event tells of its place in a list.
func noteCached(counts []int64, data []byte) {
	i, ok := openai.ListIndex(data)
	if u, has := openai.ReadUsage(data); ok && has && i < len(counts) && u.CachedTokens >= 0 {
		counts[i] = u.CachedTokens
	}
}

// startsJSON tells whether b begins like the JSON of an answer.
func startsJSON(b []byte) bool {
	b = bytes.TrimLeft(b, " \t\r\n")
	return len(b) > 0 && (b[0] == '{' || b[0] == '[')
}
