package dispatch

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/translate"
)

// pathChat is where translated requests go.
const pathChat = "/v1/chat/completions"

// translation is a request of the Messages or the Responses API as a pair of
// SGLang engines can serve it. Their own routes drop the fields by which the legs
// meet (llm-d/llm-d-router#2006), so that the pair is sent a chat request.
type translation struct {
	exchange translate.Exchange
	// peeked is the chat body. It is given up together with the client's.
	peeked *openai.Peeked
	// active: the attempt is one of SGLang.
	active bool
	// stream is the answer's, once it streams.
	stream translate.Stream
}

// translatable tells whether the route is one that SGLang's pairs are sent as
// chat.
func (x *exchange) translatable() bool {
	return x.call.Route == openai.RouteMessages || x.call.Route == openai.RouteResponses
}

// translates tells whether the present attempt is a translated one.
func (x *exchange) translates() bool { return x.translated != nil && x.translated.active }

// planTranslation makes the chat body.
func (x *exchange) planTranslation() *failure {
	p := x.call.Peeked
	// Before it is made: the copy is about as large as the original.
	if f := x.reserveCopy(len(p.Body)); f != nil {
		return f
	}
	o := translate.Options{ID: plainID(x.call.ID), Created: time.Now().Unix(), RefuseTools: x.d.cfg.Server.UntranslatableTools == "refuse"}
	var (
		body []byte
		ex   translate.Exchange
		err  error
	)
	if x.call.Route == openai.RouteMessages {
		body, ex, err = wrap(translate.MessagesRequest(p.Body, o))
	} else {
		body, ex, err = wrap(translate.ResponsesRequest(p.Body, o))
	}
	if more := cap(body) - len(p.Body); more > 0 {
		if f := x.reserveCopy(more); f != nil {
			return f
		}
	}
	var chat *openai.Peeked
	if err == nil {
		chat, err = openai.Peek(openai.RouteChatCompletions, body, openai.PeekOptions{})
	}
	if err != nil {
		f := &failure{reason: reasonBadRequest}
		if !errors.As(err, &f.local) {
			f.local = openai.Internal(err)
		}
		return f
	}
	x.translated = &translation{exchange: ex, peeked: chat}
	return nil
}

// reserveCopy takes memory for a copy of the body into account.
func (x *exchange) reserveCopy(bytes int) *failure {
	if x.call.Reserve == nil {
		return nil
	}
	if full := x.call.Reserve(bytes); full != nil {
		return &failure{reason: reasonBufferFull, local: full}
	}
	return nil
}

func wrap[E translate.Exchange](body []byte, e E, err error) ([]byte, translate.Exchange, error) {
	return body, e, err
}

// plainID is the request's id if it can be part of others, else a new one.
func plainID(id string) string {
	for _, c := range []byte(id) {
		if c != '-' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return rand.Text()
		}
	}
	return id
}

// translate begins an attempt at engines that are sent chat in the place of the
// client's API.
func (x *exchange) translate() *failure {
	if x.translated == nil {
		// They were not known for such when the request came.
		if f := x.planTranslation(); f != nil {
			return f
		}
	}
	if x.translated != nil {
		x.translated.active = true
		x.note(x.translated.exchange.Note())
	}
	return nil
}

// note tells what of the request was left out, in the answer's header and the access
// log. It must not be called while keep-alives may be written.
func (x *exchange) note(what string) {
	x.call.Record.Note = what
	if what == "" {
		delete(x.w.Header(), HeaderNote)
		return
	}
	x.setHeader(HeaderNote, what)
}

// passUntranslated begins an attempt at engines that speak the client's API.
func (x *exchange) passUntranslated() {
	if x.translates() {
		x.translated.active = false
		x.note("")
	}
}

// freeTranslation gives the chat body up. It is called by the last who lets go of
// the client's body.
func (x *exchange) freeTranslation() {
	if t := x.translated; t != nil && t.peeked != nil {
		t.peeked.Release()
		t.peeked = nil
	}
}

// legPeeked is the body that the legs of the present attempt are sent.
func (x *exchange) legPeeked() *openai.Peeked {
	if x.translates() {
		return x.translated.peeked
	}
	return x.call.Peeked
}

// measured is the body whose prompt is best known.
func (x *exchange) measured() *openai.Peeked {
	if x.translated != nil {
		return x.translated.peeked
	}
	return x.call.Peeked
}

// narrowPair keeps a request from pairs that could not serve it, or refuses it
// where there are no others.
func (x *exchange) narrowPair(spec *admission.TargetSpec) *failure {
	if x.translatable() {
		if f := x.refuseStored(); f != nil {
			return f
		}
	}
	fault := x.fanFault
	takes := func(e engine.Dialect) bool { return !e.FansOut() }
	if native := func(e engine.Dialect) bool { return e.Native(x.call.Route) }; x.d.some(func(e engine.Dialect) bool { return !native(e) }) {
		if f := x.planTranslation(); f != nil {
			if fault == nil {
				takes = native
			} else {
				takes = func(e engine.Dialect) bool { return !e.FansOut() && native(e) }
			}
			fault = f
		}
	}
	if fault == nil {
		return nil
	}
	var able []string
	for _, s := range x.d.fleet.Serving(x.pool) {
		if s.Worker.Role() == admission.RolePrefill && takes(s.Worker.Dialect()) {
			able = append(able, s.Worker.URL())
		}
	}
	if able == nil {
		return fault
	}
	spec.Allowed[admission.PrefillLeg] = able
	return nil
}

// refuseStored refuses what needs an engine to remember an earlier request: the
// next one may go to others, and a prefill leg cannot take part in it.
func (x *exchange) refuseStored() *failure {
	p := x.call.Peeked
	if p.Route != openai.RouteResponses {
		return nil
	}
	bad := func(field openai.Field, why string) *failure {
		return &failure{reason: reasonBadRequest, local: openai.InvalidRequest(field.String(), "%s", why)}
	}
	if kind := p.FieldKind(openai.FieldPreviousResponseID); kind != openai.KindAbsent && kind != openai.KindNull {
		return bad(openai.FieldPreviousResponseID, "previous_response_id is not served here: no response is stored where prefill and decode are apart; send the whole conversation in input")
	}
	if kind := p.FieldKind(openai.FieldBackground); kind != openai.KindAbsent && kind != openai.KindNull && string(p.Raw(openai.FieldBackground)) != "false" {
		return bad(openai.FieldBackground, "background is not served here: no response is stored where prefill and decode are apart")
	}
	return nil
}

// translated relays the answer of a chat request as the client's API has it.
func (r *relay) translated(ctx *legContext) *failure {
	if !r.sse {
		return r.translatedWhole(ctx)
	}
	t := r.x.translated
	t.stream = t.exchange.Stream(r.x.estimate)
	var out []byte
	add := func(b []byte) { out = append(out, b...) }
	kept := collected{x: r.x}
	for {
		out = out[:0]
		piece, err := r.resp.Body.Next()
		if err != nil && err != io.EOF {
			return r.broken(ctx, err)
		}
		end, spoke := err == io.EOF, false
		if end {
			err = t.stream.End(add)
		} else {
			r.rank.NoteProgress()
			heard := r.scan.Events + r.scan.Comments
			piece = r.take(piece)
			spoke = r.scan.Events+r.scan.Comments > heard
			err = t.stream.Feed(piece, add)
		}
		if !r.out.begun {
			if f := r.beforeFirst(); f != nil {
				return f
			}
		}
		if r.scan.Aborted {
			if r.out.begun && len(out) > 0 {
				if f := r.out.write(out, true); f != nil {
					return f
				}
			}
			return r.x.abortFailure(r.leg, r.rank, r.scan.Abort)
		}
		r.tokens()
		if len(out) > 0 && (err == nil || r.out.begun) {
			if f := r.begin(-1); f != nil {
				return f
			}
			if f := r.passTo(out, true); f != nil {
				return f
			}
		}
		if spoke && len(out) == 0 && err == nil {
			// A comment before the answer, thinking that is not told, or what waits for
			// the end of another block.
			if f := r.out.echo(); f != nil {
				return f
			}
		}
		switch {
		case err != nil:
			return r.untranslated(err)
		case end:
			return nil
		case !kept.hold(t.stream.Held()):
			return r.x.noRoom()
		}
	}
}

// translatedWhole is translated for one JSON answer.
func (r *relay) translatedWhole(ctx *legContext) *failure {
	x := r.x
	b, f := r.collectAnswer(ctx)
	if f != nil {
		return f
	}
	r.rank.NoteProgress()
	if u, ok := openai.ReadUsage(b); ok {
		x.call.Record.Usage = u
	}
	if a, given := openai.ReadAbort(b); given {
		return x.abortFailure(r.leg, r.rank, a)
	}
	answer, err := x.translated.exchange.Answer(r.wholeWithCached(b), r.x.estimate)
	if err != nil {
		return r.untranslated(err)
	}
	r.firstToken()
	if f := r.begin(len(answer)); f != nil {
		return f
	}
	return r.out.write(answer, false)
}

// untranslated is an answer that told an error, or was none. In a stream that has
// begun the engine's error is told as the API tells it, and the stream is whole.
func (r *relay) untranslated(err error) *failure {
	var limit *translate.LimitError
	if errors.As(err, &limit) {
		return r.overLimit(limit.Message)
	}
	var told *translate.EngineError
	if !errors.As(err, &told) {
		f := r.bad("its answer cannot be translated", err)
		errors.As(err, &f.local)
		if !r.scan.Finished && r.sse {
			f.reason = reasonBrokenOff
		}
		return f
	}
	f := &failure{leg: r.leg, rank: r.rank, reason: reasonEngineError, status: told.Status, contentType: typeJSON,
		body: told.AsError().AppendJSON(nil, openai.ShapeOpenAI)}
	f.transfer = r.x.pair && r.rank.Dialect().TransferFailure(f.status, f.body)
	if !r.out.begun {
		return f
	}
	r.x.translated.stream.Fail(told.AsError(), func(b []byte) {
		f.told = r.out.write(b, true) == nil
	})
	return f
}

// failedResponse is the event that ends a stream of the Responses API with an
// error.
func (x *exchange) failedResponse(e *openai.Error) (event []byte) {
	if x.out.begun && !x.translates() && x.response != nil {
		seq := x.out.scan.Events
		if x.out.scan.Aborted {
			seq-- // that event was not passed
		}
		return x.response.AppendFailed(nil, seq, e)
	}
	s := new(translate.Responses).Stream(0)
	if x.translates() && x.translated.stream != nil {
		s = x.translated.stream
	}
	s.Fail(e, func(b []byte) { event = append(event, b...) })
	return event
}

// engineError is an engine's own error in sluice's words.
func engineError(f *failure) *openai.Error {
	_, message, _ := openai.ReadErrorObject(f.body)
	if message == "" {
		message = "the engine answered with status " + itoa(f.status)
	}
	e := translate.EngineError{Status: f.status, Message: message}
	return e.AsError()
}

// inShape brings an engine's error into the form of the client's API.
func (x *exchange) inShape(f *failure) *failure {
	if f.status == 0 || f.local != nil || f.told {
		return f
	}
	if f.status == statusNotFound && routeMissing(f.body) {
		return &failure{leg: f.leg, rank: f.rank, reason: reasonNoRoute, local: openai.RouteNotFound(x.pattern())}
	}
	var as translate.Exchange
	switch {
	case x.translates():
		as = x.translated.exchange
	case x.call.Route.Shape() == openai.ShapeAnthropic && !anthropicError(f.body):
		as = new(translate.Messages)
	default:
		return f
	}
	c := *f
	c.body, c.contentType = as.AppendError(nil, f.status, f.body), typeJSON
	return &c
}

// anthropicError tells whether an error has the form of the Messages API already.
func anthropicError(body []byte) bool {
	var e struct {
		Type  string
		Error struct{ Type, Message string }
	}
	return bytes.Contains(body, []byte(`"error"`)) && unmarshal(body, &e) && e.Type == "error" && e.Error.Message != ""
}
