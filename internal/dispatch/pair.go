package dispatch

import (
	"context"
	"io"
	"strconv"
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
	done chan struct{}
	f    *failure
	took time.Duration // of a leg that succeeded
	head [512]byte     // the start of a plain answer, to see an error in it
	// logprobs are set if the leg succeeded and the client's answer needs them.
	logprobs *openai.LogprobMerger
}

// pairLegs are the two legs of one attempt.
type pairLegs struct {
	prefill prefillLeg
	// decodeOver is closed once the decode leg's own outcome is known.
	decodeOver chan struct{}
	bodies     pairBodies
	header     upstream.Header
}

// pairBodies are what the two legs of one call are sent: the client's bytes with
// the fields by which the legs find each other. They are the same segments
// unless the workers are scheduled by data-parallel rank.
type pairBodies struct {
	prefill, decode [][]byte
	rooms           []int64
	one             [1]int64
	splicers        [2]openai.Splicer
}

// build makes the bodies of copy number copy of the request.
func (b *pairBodies) build(x *exchange, pr, dr *fleet.Rank, copy int) {
	p := x.call.Peeked
	b.rooms = b.one[:0]
	for range p.BatchSize {
		b.rooms = append(b.rooms, x.d.rooms.Mint(max(pr.DPRank(), 0), pr.DPSize()))
	}
	host, port, hasPort := pr.Bootstrap()
	at := engine.Bootstrap{Host: host, Port: port, NoPort: !hasPort}
	ranks := engine.DPRanks{Prefill: pr.DPRank(), Decode: dr.DPRank()}
	begin := func(s *openai.Splicer) {
		s.Reset(p)
		x.fan.Edit(s, copy)
		engine.SGLangBootstrap(s, p, at, b.rooms)
	}
	s := &b.splicers[0]
	begin(s)
	if ranks.Same() {
		b.prefill, _ = s.Segments()
		b.decode = b.prefill
		return
	}
	engine.SGLangPrefillRanks(s, ranks)
	b.prefill, _ = s.Segments()
	s = &b.splicers[1]
	begin(s)
	engine.SGLangDecodeRanks(s, ranks)
	b.decode, _ = s.Segments()
}

// free gives the rooms back.
func (b *pairBodies) free(x *exchange) {
	for _, r := range b.rooms {
		x.d.rooms.Free(r)
	}
}

// runPair sends both legs at once, as engines that meet by a room want it, and
// relays decode. When it returns, both legs are over, except that after success
// prefill may have Options.PrefillGrace left.
func (x *exchange) runPair(ctx context.Context) *failure {
	t := &x.ticket
	pr, dr := t.Prefill.Data().(*fleet.Rank), t.Decode.Data().(*fleet.Rank)
	rec := &x.call.Record
	rec.PrefillRank, rec.DecodeRank = pr.ID(), dr.ID()

	legs := &pairLegs{decodeOver: make(chan struct{})}
	legs.prefill.done = make(chan struct{})
	legs.bodies.build(x, pr, dr, 0)
	legs.header = x.legHeader(make(upstream.Header, 0, 16), x.engineID(0))

	// Prefill may outlive the handler, and with it the handler's context.
	pctx, cancelPrefill := context.WithCancelCause(context.WithoutCancel(ctx))
	stopFollowing := context.AfterFunc(ctx, func() { cancelPrefill(context.Cause(ctx)) })
	dctx, cancelDecode := context.WithCancelCause(ctx)
	defer cancelDecode(nil)
	stopDead := x.watchDead(pr, cancelPrefill)
	defer x.watchDead(dr, cancelDecode)()

	x.hold()
	x.d.running.Add(1)
	go func() {
		defer x.d.running.Done()
		defer x.unhold()
		defer legs.bodies.free(x)
		f := x.runPrefill(pctx, pr, x.request(admission.PrefillLeg, legs.bodies.prefill, legs.header), &legs.prefill)
		stopDead()
		x.ticket.EndPrefill()
		report(pr, f)
		legs.prefill.f = f
		if f != nil && !f.echo {
			if f.transfer {
				waitFor(legs.decodeOver, x.d.opts.VerdictWait)
			}
			cancelDecode(errPeerFailed)
		}
		close(legs.prefill.done)
	}()

	t.StartDecode()
	f := x.runAnswer(dctx, admission.DecodeLeg, dr, x.request(admission.DecodeLeg, legs.bodies.decode, legs.header), legs)
	close(legs.decodeOver)
	t.EndDecode()

	if f == nil {
		report(dr, nil)
		stopFollowing()
		if x.letPrefillFinish(legs.prefill.done, cancelPrefill) {
			x.call.Record.Prefill = legs.prefill.took
		}
		return nil
	}
	if f.echo {
		<-legs.prefill.done
	} else if f.transfer && !x.out.begun {
		waitFor(legs.prefill.done, x.d.opts.VerdictWait)
	}
	cancelPrefill(errAttemptOver)
	stopFollowing()
	<-legs.prefill.done
	report(dr, f)
	if pf := legs.prefill.f; pf != nil && (f.echo || f.transfer && pf.own()) {
		return pf
	}
	return f
}

// letPrefillFinish leaves prefill legs that are still open their grace. It tells
// whether they were over already.
func (x *exchange) letPrefillFinish(done <-chan struct{}, cancel context.CancelCauseFunc) bool {
	select {
	case <-done:
		cancel(nil)
		return true
	default:
	}
	timer := time.AfterFunc(x.d.opts.PrefillGrace, func() { cancel(errDecodeOver) })
	x.d.running.Add(1)
	go func() {
		defer x.d.running.Done()
		<-done
		timer.Stop()
		cancel(nil)
	}()
	return false
}

// runPrefill sends the prefill leg and drains its answer. An error in it, in
// whatever form, is the leg's failure.
func (x *exchange) runPrefill(ctx context.Context, rank *fleet.Rank, req upstream.Request, leg *prefillLeg) *failure {
	start := time.Now()
	resp, err := rank.Endpoint().Do(ctx, &req)
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
	var scan openai.EventScanner
	scan.SkipUsage = true
	head := leg.head[:0]
	var kept []byte
	for {
		piece, err := resp.Body.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return x.legFailure(ctx, admission.PrefillLeg, rank, err)
		}
		if sse {
			if scan.Feed(piece); scan.Errors > 0 {
				return x.eventFailure(admission.PrefillLeg, rank, scan.LastError)
			}
		} else {
			head = append(head, piece[:min(len(piece), cap(head)-len(head))]...)
		}
		if keep {
			if len(kept)+len(piece) > x.d.opts.MaxLogprobBody {
				return &failure{leg: admission.PrefillLeg, rank: rank, err: errTooLarge, reason: reasonUpstream,
					local: openai.UpstreamFailed("prefill", "its logprobs are larger than "+itoa(x.d.opts.MaxLogprobBody)+" bytes", nil)}
			}
			kept = append(kept, piece...)
		}
	}
	rank.NoteProgress()
	if _, message, isError := openai.ReadErrorObject(head); isError {
		// Decode would wait for KV that never comes.
		return &failure{leg: admission.PrefillLeg, rank: rank, reason: reasonUpstream,
			local: openai.UpstreamFailed("prefill", "it answered with status 200 and an error: "+message, nil)}
	}
	if keep {
		m, err := openai.NewLogprobMerger(kept)
		if err != nil {
			return &failure{leg: admission.PrefillLeg, rank: rank, reason: reasonUpstream, err: err,
				local: openai.UpstreamFailed("prefill", "its answer has no logprobs that can be merged", err)}
		}
		leg.logprobs = m
	}
	leg.took = time.Since(start)
	x.d.metrics.prefillLeg(leg.took)
	return nil
}

// watchDead takes a leg back when its worker is declared dead.
func (x *exchange) watchDead(rank *fleet.Rank, cancel context.CancelCauseFunc) (stop func()) {
	end := context.AfterFunc(rank.Alive(), func() { cancel(errWorkerDead) })
	return func() { end() }
}

// waitFor waits for c, at most d.
func waitFor(c <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c:
	case <-t.C:
	}
}

// runAggregated sends the only leg of a request that runs whole on one worker.
func (x *exchange) runAggregated(ctx context.Context) *failure {
	rank := x.ticket.Decode.Data().(*fleet.Rank)
	x.call.Record.DecodeRank = rank.ID()
	s := &openai.Splicer{}
	s.Reset(x.call.Peeked)
	if rank.DPRank() >= 0 {
		s.SetInt(openai.FieldRoutedDPRank, int64(rank.DPRank()))
	}
	body, _ := s.Segments()
	lctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer x.watchDead(rank, cancel)()
	header := x.legHeader(make(upstream.Header, 0, 16), x.engineID(0))
	x.ticket.StartDecode()
	f := x.runAnswer(lctx, admission.DecodeLeg, rank, x.request(admission.DecodeLeg, body, header), nil)
	x.ticket.EndDecode()
	report(rank, f)
	return f
}
