package dispatch

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokens"
	"github.com/sluice-router/sluice/internal/translate"
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
	dead  fleet.Watcher
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
	resp, err := rank.Endpoint().Do(ctx, req)
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

// stream relays an event stream as it comes: pieces as they lie in the
// connection's buffer, a flush whenever what has arrived has been passed on.
// Nothing is sent before the first event is there, so that a failure before it
// still gets a status of its own.
func (r *relay) stream(ctx *legContext) *failure {
	if r.x.call.Route == openai.RouteResponses {
		r.x.response = nil // that of an earlier attempt
		r.scan.OnData = r.noteResponse
	}
	var held []byte // what has come, while it is no whole event yet
	for {
		piece, err := r.resp.Body.Next()
		if err == io.EOF {
			return r.streamEnd(append(held, r.restWithCached()...))
		}
		if err != nil {
			if r.out.begun && r.scan.Done && r.scan.AtBoundary() && r.scan.Errors == 0 {
				// The client has its end marker: the stream is whole for it, whatever
				// became of the connection behind.
				return r.streamEnd(nil)
			}
			return r.broken(ctx, err)
		}
		r.rank.NoteProgress()
		told, within := r.scan.UsageEvents, !r.scan.AtBoundary()
		if r.scan.Feed(piece); r.scan.Aborted {
			return r.aborted(r.withCached(piece[:r.scan.AbortAt], told, within))
		}
		failed := r.scan.Errors > 0 && r.out.begun
		if failed {
			piece = piece[:r.scan.ErrorEnd]
		}
		piece = r.withCached(piece, told, within)
		if !r.out.begun {
			if f := r.beforeFirst(); f != nil {
				return f
			}
			if (r.awaitsFirst() || r.onlyOpening(held, piece)) && len(held)+len(piece) < maxHeld {
				held = append(held, piece...)
				r.out.owe()
				continue
			}
		}
		r.tokens()
		if !r.out.begun {
			if r.x.wanted.any() {
				piece, held = r.first(append(held, piece...)), nil
			}
			if f := r.begin(-1); f != nil {
				return f
			}
			if len(held) > 0 {
				if f := r.out.write(held, false); f != nil {
					return f
				}
				held = nil
			}
		}
		if f := r.pass(piece); f != nil {
			return f
		}
		if failed {
			return r.told()
		}
	}
}

// told is the end of a stream that has begun behind the engine's own error event: nothing
// is left to say or to break off, and no end marker follows.
func (r *relay) told() *failure {
	f := r.x.eventFailure(r.leg, r.rank, r.scan.LastError)
	f.told = true
	return f
}

// noteResponse keeps what the first event tells of the response that it begins.
func (r *relay) noteResponse(data []byte) {
	r.x.response = translate.ReadBegunResponse(data)
	r.scan.OnData = nil
}

// awaitsFirst tells whether nothing has come yet that can be passed on: an event,
// or a comment where none is needed to tell the client more.
func (r *relay) awaitsFirst() bool {
	if r.x.wanted.any() {
		return r.scan.DataEvents == 0 && r.scan.Errors == 0
	}
	return r.scan.Events == 0 && r.scan.Comments == 0
}

// maxHeld bounds what is held back of a first event that comes in pieces.
const maxHeld = 64 << 10

// onlyOpening tells whether all that has come are events with which a stream begins:
// the role of a chat's choices, and no content; message_start; response.created. Engines
// send them before the model has run, so they are no sign that there will be an answer:
// they wait for the next event.
func (r *relay) onlyOpening(held, piece []byte) bool {
	switch r.x.call.Route {
	case openai.RouteMessages, openai.RouteResponses:
		return r.scan.Openings > 0 && r.scan.Events == r.scan.Openings
	case openai.RouteChatCompletions:
		events, samples := r.scan.Events, 1
		if p := r.x.call.Peeked; p != nil {
			samples = max(samples, p.N)
		}
		return events > 0 && events <= samples && events == r.scan.DataEvents && r.scan.TokenEvents == 0 && r.scan.AtBoundary() &&
			bytes.Count(held, roleField)+bytes.Count(piece, roleField) == events
	}
	return false
}

var roleField = []byte(`"role":"assistant"`)

// beforeFirst looks at what has come before the client was sent anything. An error
// event then is the same as an answer with that error's status.
func (r *relay) beforeFirst() *failure {
	if r.scan.Errors == 0 {
		return nil
	}
	return r.x.eventFailure(r.leg, r.rank, r.scan.LastError)
}

// streamEnd judges a stream that ended without a fault of the connection.
func (r *relay) streamEnd(held []byte) *failure {
	if r.out.begun && len(held) > 0 {
		if f := r.out.write(held, false); f != nil {
			return f
		}
	}
	if missing := r.scan.Close(nil); len(missing) > 0 {
		if r.out.begun {
			if f := r.out.write(missing, true); f != nil {
				return f
			}
		} else {
			held = append(held, missing...)
		}
	}
	if !r.out.begun {
		if len(held) == 0 || r.scan.Errors == 0 && !(r.scan.Finished && r.scan.AtBoundary()) {
			f := r.bad("its event stream ended before the first content", nil)
			f.reason = reasonBrokenOff
			return f
		}
		if f := r.begin(-1); f != nil {
			return f
		}
		if f := r.out.write(held, r.scan.AtBoundary()); f != nil {
			return f
		}
	}
	switch {
	case r.scan.Errors > 0:
		return r.told()
	case !r.scan.AtBoundary() || !r.scan.Finished:
		f := r.bad("its event stream ended without its end marker", nil)
		f.reason = reasonBrokenOff
		return f
	}
	return nil
}

// lines relays a stream of some other form: each piece as it comes, but for the first
// event or line, which may tell that there will be no answer.
func (r *relay) lines(ctx *legContext) *failure {
	var held, last []byte                                  // last is the end of a stream of lines
	stored := r.x.call.Route == openai.RouteStoredResponse // of which a failure is a good answer
	for {
		piece, err := r.resp.Body.Next()
		if err == io.EOF {
			return r.linesEnd(held, last)
		}
		if err != nil {
			return r.broken(ctx, err)
		}
		r.rank.NoteProgress()
		switch {
		case stored:
		case r.sse:
			if r.scan.Feed(piece); r.scan.Aborted {
				return r.aborted(piece[:r.scan.AbortAt])
			}
			if !r.out.begun {
				if f := r.beforeFirst(); f != nil {
					return f
				}
				if r.awaitsFirst() && len(held)+len(piece) < maxHeld {
					held = append(held, piece...)
					continue
				}
			} else if r.scan.Errors > 0 {
				if f := r.pass(piece[:r.scan.ErrorEnd]); f != nil {
					return f
				}
				return r.told()
			}
		case isLines(r.resp.Get("Content-Type")):
			if last = append(last, piece...); len(last) > 2*maxTail {
				last = append(last[:0], last[len(last)-maxTail:]...)
			}
			if !r.out.begun {
				if held = append(held, piece...); bytes.IndexByte(piece, '\n') < 0 && len(held) < maxHeld {
					continue
				}
				if f := r.lineFailure(held); f != nil {
					return f
				}
				piece, held = held, nil
			}
		}
		r.firstToken()
		if f := r.begin(-1); f != nil {
			return f
		}
		if len(held) > 0 {
			if f := r.out.write(held, false); f != nil {
				return f
			}
			held = nil
		}
		if f := r.pass(piece); f != nil {
			return f
		}
	}
}

// linesEnd judges such a stream at its end. held is what was not sent, last the end of
// a stream of lines.
func (r *relay) linesEnd(held, last []byte) *failure {
	if len(held) > 0 {
		if f := r.lineFailure(held); f != nil {
			return f
		}
		if f := r.begin(-1); f != nil {
			return f
		}
		if f := r.out.write(held, r.scan.AtBoundary()); f != nil {
			return f
		}
	}
	if !r.out.begun {
		return r.bad("its answer is empty", nil)
	}
	if r.scan.Errors > 0 {
		return r.told()
	}
	last = bytes.TrimRight(last, "\r\n")
	return r.lineFailure(last[bytes.LastIndexByte(last, '\n')+1:])
}

// lineFailure is the failure that the first of these lines tells of, if it does.
func (r *relay) lineFailure(lines []byte) *failure {
	if r.sse {
		return nil
	}
	line, _, _ := bytes.Cut(bytes.TrimLeft(lines, "\r\n"), []byte{'\n'})
	if a, given := openai.ReadAbort(line); given {
		return r.x.abortFailure(r.leg, r.rank, a)
	}
	return r.x.toldError(r.leg, r.rank, line)
}

// plain relays one JSON answer. Up to a bound it is collected first, so that one
// that breaks off is told as an error and can be tried elsewhere.
func (r *relay) plain(ctx *legContext) *failure {
	bound := r.x.d.opts.MaxBufferedAnswer
	var held []byte
	var look *openai.AnswerScanner // once the answer is too large to be collected
	counted := collected{x: r.x}
	for {
		piece, err := r.resp.Body.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return r.broken(ctx, err)
		}
		r.rank.NoteProgress()
		if len(held) == 0 && int64(len(piece)) == r.resp.ContentLength && len(piece) <= bound {
			return r.whole(piece) // as it lies in the connection's buffer
		}
		if !r.out.begun && len(held)+len(piece) <= bound && counted.hold(len(held)+len(piece)) {
			if held == nil && r.resp.ContentLength <= int64(bound) && counted.hold(int(r.resp.ContentLength)) {
				held = make([]byte, 0, max(r.resp.ContentLength, 0))
			}
			held = append(held, piece...)
			continue
		}
		if look == nil {
			look = new(openai.AnswerScanner)
			look.Feed(held)
		}
		if look.Feed(piece); look.Aborted && r.x.call.Route != openai.RouteStoredResponse {
			return r.x.abortFailure(r.leg, r.rank, look.Abort)
		}
		if !r.out.begun {
			r.firstToken()
			if f := r.begin(int(r.resp.ContentLength)); f != nil {
				return f
			}
			if f := r.out.write(held, false); f != nil {
				return f
			}
			held = nil
		}
		if f := r.pass(piece); f != nil {
			return f
		}
	}
	if !r.out.begun {
		return r.whole(held)
	}
	if look.HasUsage {
		r.x.call.Record.Usage = look.Usage
	}
	if r.resp.ContentLength < 0 && r.resp.Get("Content-Encoding") == "" && !r.x.call.Passing && !look.Closed() {
		f := r.bad("its answer broke off", nil)
		f.reason = reasonBrokenOff
		return f
	}
	return nil
}

// maxTail is how much is kept of the end of a stream of lines, to see how it ended.
const maxTail = 4 << 10

// whole sends a collected answer.
func (r *relay) whole(b []byte) *failure {
	asJSON := r.resp != nil && (isJSON(r.resp.Get("Content-Type")) || !r.x.call.Passing && startsJSON(b))
	if r.resp != nil && r.resp.ContentLength < 0 && asJSON && r.resp.Get("Content-Encoding") == "" && !openai.WholeJSON(b) {
		// Nothing told its length, so that one that just stopped looks like an end.
		f := r.bad("its answer is no JSON, or broke off", nil)
		f.reason = reasonBrokenOff
		return f
	}
	if u, ok := openai.ReadUsage(b); ok {
		r.x.call.Record.Usage = u
	}
	if r.x.call.Route != openai.RouteStoredResponse { // of which a failure is a good answer
		if a, given := openai.ReadAbort(b); given {
			return r.x.abortFailure(r.leg, r.rank, a)
		}
		if !r.x.call.Passing && !startsJSON(b) && r.resp.Get("Content-Encoding") == "" {
			return r.bad("its answer is no JSON", nil)
		}
		if r.x.call.Route != openai.RouteResponses {
			if f := r.x.toldError(r.leg, r.rank, b); f != nil {
				return f
			}
		}
	}
	r.firstToken()
	b = r.wholeWithCached(b)
	if r.x.wanted.any() {
		b = r.x.withFacts(b)
	}
	if f := r.begin(len(b)); f != nil {
		return f
	}
	return r.out.write(b, false)
}

// merged joins the prefill leg's prompt logprobs into the decode leg's answer.
// This is the one answer that waits for prefill.
func (r *relay) merged(ctx *legContext, prefill *prefillLeg) *failure {
	if f := r.awaitPrefill(ctx, prefill); f != nil {
		return f
	}
	m := prefill.logprobs
	if r.sse {
		return r.mergedStream(ctx, m)
	}
	b, f := r.collectAnswer(ctx)
	if f != nil {
		return f
	}
	segments, size, err := m.Merge(b)
	if err != nil {
		return r.bad(unmergeable, err)
	}
	whole := make([]byte, 0, size)
	for _, s := range segments {
		whole = append(whole, s...)
	}
	return r.whole(whole)
}

// awaitPrefill waits for the end of the prefill leg, and for a decode leg that
// breaks meanwhile: prefill would wait for it in vain.
func (r *relay) awaitPrefill(ctx *legContext, prefill *prefillLeg) *failure {
	readable := make(chan error, 1)
	go func() {
		err := errPanicked
		defer func() {
			if p := recover(); p != nil {
				r.x.logPanic("the wait for decode", p)
			}
			readable <- err
		}()
		err = r.resp.Body.WaitReadable()
	}()
	var err error
	select {
	case <-prefill.done.wait():
		// A prefill that failed has ended ctx, and with it this wait.
		err = <-readable
	case err = <-readable:
		if err == nil || err == io.EOF {
			select {
			case <-prefill.done.wait():
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
	}
	if err != nil && err != io.EOF {
		return r.broken(ctx, err)
	}
	if prefill.f != nil {
		return &failure{leg: r.leg, rank: r.rank, echo: true}
	}
	return nil
}

// collectAnswer collects an answer that is changed before it is passed on.
func (r *relay) collectAnswer(ctx *legContext) ([]byte, *failure) {
	limit := r.x.d.opts.MaxLogprobBody
	b, err := r.x.collect(r.resp.Body, limit)
	switch {
	case errors.Is(err, errTooLarge):
		return nil, r.overLimit("the engine's answer is larger than " + itoa(limit) + " bytes")
	case err == errNoRoom:
		return nil, r.x.noRoom()
	case err != nil:
		return nil, r.broken(ctx, err)
	}
	return b, nil
}

const unmergeable = "its answer cannot be merged with the prefill's logprobs"

// mergedStream changes each event on its way, however it is cut into pieces.
func (r *relay) mergedStream(ctx *legContext, m *openai.LogprobMerger) *failure {
	stream := m.Stream(r.x.d.opts.MaxLogprobBody)
	var out []byte
	add := func(b []byte) { out = append(out, b...) }
	for {
		piece, err := r.resp.Body.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return r.broken(ctx, err)
		}
		r.rank.NoteProgress()
		before, told, within := piece, r.scan.UsageEvents, !r.scan.AtBoundary()
		if r.scan.Feed(piece); r.scan.Aborted {
			before = piece[:r.scan.AbortAt]
		} else if r.scan.Errors > 0 {
			before = piece[:r.scan.ErrorEnd]
		}
		before = r.withCached(before, told, within)
		out = out[:0]
		if err := stream.Feed(before, add); errors.Is(err, openai.ErrLimit) {
			return r.overLimit("an event of the engine's stream is larger than " + itoa(r.x.d.opts.MaxLogprobBody) + " bytes")
		} else if err != nil {
			return r.bad(unmergeable, err)
		}
		if !r.out.begun {
			if f := r.beforeFirst(); f != nil {
				return f
			}
		}
		if r.scan.Aborted {
			return r.aborted(out)
		}
		if len(out) == 0 {
			continue
		}
		r.tokens()
		first := r.first(out)
		if f := r.begin(-1); f != nil {
			return f
		}
		if f := r.pass(first); f != nil {
			return f
		}
		if r.scan.Errors > 0 {
			return r.told()
		}
	}
	out = out[:0]
	if err := stream.Feed(r.restWithCached(), add); err != nil {
		return r.bad(unmergeable, err)
	}
	if stream.Close(add); len(out) > 0 {
		if f := r.begin(-1); f != nil {
			return f
		}
		if f := r.out.write(out, false); f != nil {
			return f
		}
	}
	return r.streamEnd(nil)
}
