package dispatch

import (
	"io"
	"sync"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/openai"
)

// runPrefill sends the prefill leg and drains its answer. An error in it, in
// whatever form, is the leg's failure.
func (x *attempt) runPrefill(l *liveLeg, req *engine.Request, leg *prefillLeg) *failure {
	start, ctx, rank := time.Now(), &l.ctx, l.rank
	resp, err := rank.Dialect().Call(ctx, rank.Endpoint(), req)
	if err != nil {
		return x.legFailure(ctx, admission.PrefillLeg, rank, err)
	}
	defer resp.Body.Close()
	if resp.Status != 200 {
		return x.statusFailure(ctx, admission.PrefillLeg, rank, resp)
	}
	rank.NoteProgress() // it may be its front alone
	x.keys.accepted(admission.PrefillLeg)
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
	keptHeld := collected{x: x.request}
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
	rank.NoteAdvance()
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
	if f := x.toldError(admission.PrefillLeg, rank, look.Excerpt()); f != nil {
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
	l.watch.Begun()
	leg.took = time.Since(start)
	x.d.metrics.prefillLeg(rank, leg.took)
	return nil
}

// answerScanners are scanners for prefill legs, whose answers are not relayed.
var answerScanners = sync.Pool{New: func() any { return new(openai.AnswerScanner) }}

// unknownCounts are the counts of n prompts, none of which is known yet.
func unknownCounts(n int) []int64 {
	counts := make([]int64, n)
	for i := range counts {
		counts[i] = -1
	}
	return counts
}

// noteCached records the cached tokens of an event at its index in the list.
func noteCached(counts []int64, data []byte) {
	i, ok := openai.ListIndex(data)
	if u, has := openai.ReadUsage(data); ok && has && i < len(counts) && u.CachedTokens >= 0 {
		counts[i] = u.CachedTokens
	}
}
