package dispatch

import (
	"net/http"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokens"
	"github.com/sluice-router/sluice/internal/upstream"
)

// relay is the answering leg's body on its way to the client.
type relay struct {
	x    *exchange
	out  *clientWriter
	resp *upstream.Response
	rank *fleet.Rank
	leg  admission.Leg
	sse  bool
	// frees: the body may be given up once the answer has begun.
	frees  bool
	scan   openai.EventScanner
	output tokens.OutputCounter
	cached cachedEdit
	// tokenEvents are the events with tokens so far; lastToken is when the last came,
	// from the request's arrival; newToken: it is still to be read off the clock.
	tokenEvents int
	newToken    bool
	lastToken   time.Duration
}

// answerLeg is the leg that answers the client, run by the handler.
type answerLeg struct {
	ctx   legContext
	dead  fleet.Watch
	relay relay
	// cached is what the prefill leg before told; nil: there was none.
	cached *prefillCached
}

// runAnswer sends the leg that answers the client and relays its answer. pair is
// nil unless a prefill leg runs beside.
func (x *exchange) runAnswer(leg *answerLeg, rank *fleet.Rank, req *upstream.Request, pair *pairLegs) *failure {
	x.out.startKeepAlive()
	defer x.out.stopKeepAlive()
	r, ctx := &leg.relay, &leg.ctx
	if f := x.openAnswer(r, ctx, rank, req); f != nil {
		return f
	}
	defer r.resp.Body.Close()
	defer r.count()
	r.frees = true
	if pair != nil {
		r.takesCached(&pair.prefill.cached)
	} else if leg.cached != nil {
		r.takesCached(leg.cached)
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

// midway marks a failure in the middle of an answer.
func (r *relay) midway(f *failure) *failure {
	if f != nil && r.out.begun {
		f.gaveUp = true
	}
	return f
}

// count records the tokens that a stream told of and their pace, however it ended.
func (r *relay) count() {
	if r.scan.HasUsage {
		r.x.call.Record.Usage = r.scan.Usage
	}
	if r.tokenEvents > 0 {
		r.x.call.Record.TPOT = r.pace()
	}
}

// aborted ends a stream at the event in which the engine gives the request up: what
// came before it is passed if some of the answer was; else another attempt may follow.
func (r *relay) aborted(before []byte) *failure {
	f := r.x.abortFailure(r.leg, r.rank, r.scan.Abort)
	if r.out.begun && len(before) > 0 {
		if gone := r.out.write(before, r.scan.AtBoundary()); gone != nil {
			return gone
		}
	}
	return f
}

// openAnswer sends the leg and returns when the head of a usable answer is in,
// with r ready to relay it.
func (x *exchange) openAnswer(r *relay, ctx *legContext, rank *fleet.Rank, req *upstream.Request) *failure {
	resp, err := rank.Dialect().Call(ctx, rank.Endpoint(), req)
	if err != nil {
		return x.legFailure(ctx, admission.DecodeLeg, rank, err)
	}
	// Field by field: made as a whole it would lie on the stack first.
	*r = relay{}
	r.x, r.out, r.resp, r.rank, r.leg = x, &x.out, resp, rank, admission.DecodeLeg
	r.output = x.counter(rank)
	f := r.check(ctx)
	if f != nil {
		_ = resp.Body.Close()
	}
	return f
}

// check refuses an answer by its head.
func (r *relay) check(ctx *legContext) *failure {
	if passed := r.x.call.Passing && r.resp.Status >= 200 && r.resp.Status < 300; passed {
		r.out.status = r.resp.Status
	} else if r.resp.Status != http.StatusOK {
		return r.x.statusFailure(ctx, r.leg, r.rank, r.resp)
	}
	r.rank.NoteProgress()
	contentType := r.resp.Get("Content-Type")
	r.sse = isEventStream(contentType)
	return r.wrongForm(contentType)
}

// wantsLogprobs tells whether the client's answer needs the prefill's too.
func (x *exchange) wantsLogprobs() bool {
	return x.call.Route == openai.RouteGenerate && x.call.Peeked.ReturnLogprob
}

// wrongForm refuses an event stream where JSON was asked and the reverse: the
// client would read neither. Lines of JSON and forms unknown here pass.
func (r *relay) wrongForm(contentType string) *failure {
	if r.x.call.Passing {
		return nil
	}
	asked := r.x.call.Peeked.Stream
	switch {
	case r.sse && !asked:
		return r.bad("it sent an event stream where one JSON answer was asked for", nil)
	case asked && isJSON(contentType):
		return r.bad("it sent one JSON answer where an event stream was asked for", nil)
	case asked && !r.sse && (!isLines(contentType) || r.out.hasCommitted()):
		// Passed on, it would end without an end marker and look whole.
		return r.bad(notAStream, nil)
	}
	return nil
}

// bad is an answer that is none.
func (r *relay) bad(what string, err error) *failure {
	return &failure{leg: r.leg, rank: r.rank, reason: reasonUpstream, err: err,
		local: openai.UpstreamFailed(r.x.legName(r.leg), what, err)}
}

// overLimit is an answer that passed a bound of the router's own: nobody is at fault,
// and another attempt would end in the same way.
func (r *relay) overLimit(what string) *failure {
	return limitFailure(r.leg, r.rank, what)
}

// broken is the failure of an answer that broke off with err.
func (r *relay) broken(ctx *legContext, err error) *failure {
	f := r.x.legFailure(ctx, r.leg, r.rank, err)
	if r.out.begun && f.reason == reasonUpstream {
		f.reason = reasonBrokenOff
	}
	return f
}

// tokens takes note of the output that has come of an event stream.
func (r *relay) tokens() {
	if r.scan.TokenEvents > r.tokenEvents {
		r.tokenEvents = r.scan.TokenEvents
		r.firstToken()
		r.newToken = true
	}
	if r.newToken && r.resp.Body.Buffered() == 0 {
		r.dateToken() // what came at once has one time
	}
	if r.scan.DataEvents > 0 {
		r.grow()
	}
}

func (r *relay) dateToken() {
	r.newToken, r.lastToken = false, time.Since(r.x.call.Arrived)
}

// pace is the time per output token of a stream, of each sequence in it; 0 if it had
// less than two tokens.
func (r *relay) pace() time.Duration {
	tokens := int64(r.tokenEvents)
	if r.scan.HasUsage {
		tokens = max(tokens, r.scan.Usage.CompletionTokens)
	}
	tokens /= int64(max(r.x.ticket.Legs, 1))
	if r.tokenEvents < 2 || tokens < 2 {
		return 0
	}
	if r.newToken {
		r.dateToken()
	}
	return max(r.lastToken-r.x.call.Record.TTFT, 1) / time.Duration(tokens-1)
}

// firstToken is called when output of the model has come, and when a whole answer has.
func (r *relay) firstToken() {
	if rec := &r.x.call.Record; rec.TTFT == 0 {
		rec.TTFT = time.Since(r.x.call.Arrived)
		r.x.ticket.FirstToken() // what the prompt booked on its prefill rank is done
	}
}

// begin sends the client its status. It refuses an answer that is no event stream
// where a comment has begun one meanwhile: that may come between the head of the
// answer, which wrongForm saw, and its first byte.
func (r *relay) begin(length int) *failure {
	var scan *openai.EventScanner
	if r.sse && !r.x.translates() { // what is written there are whole events
		scan = &r.scan
	}
	if !r.out.begin(r.resp, length, r.sse, scan) {
		return r.bad(notAStream, nil)
	}
	r.x.call.Record.Status = r.out.status
	if r.frees && r.resp.Body.RequestSent() {
		r.x.freeBody()
	}
	return nil
}

const notAStream = "it sent something else where an event stream was asked for"

// pass hands a piece on, and flushes when everything that has arrived is passed.
func (r *relay) pass(b []byte) *failure { return r.passTo(b, r.scan.AtBoundary()) }

// passTo is pass for bytes that end between two events or not, as boundary tells.
func (r *relay) passTo(b []byte, boundary bool) *failure {
	if f := r.out.write(b, boundary); f != nil {
		return f
	}
	if body := r.resp.Body; body.Buffered() == 0 && !body.Done() {
		return r.out.flush()
	}
	return nil
}
