package dispatch

import (
	"bytes"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/translate"
)

// answer tells the client what went wrong: by status and body if nothing was
// sent yet, else within the stream, so that a broken answer is seen to be
// broken.
func (x *exchange) answer(f *failure) {
	f = x.inShape(f)
	rec := &x.call.Record
	switch {
	case f.reported:
	case x.out.committed:
		rec.Status = x.out.status // a comment may have begun it
		x.breakOff(f)
	case f.clientLeft:
		// One that only closed its side would read an answer of nothing, with
		// status 200.
		x.abort = true
		rec.Status = StatusClientGone
	case f.local != nil:
		rec.Status = f.local.Status
		_ = f.local.WriteResponse(x.w, x.call.Route.Shape()) // a client that left now is answered all the same
	default:
		rec.Status = f.status
		if f.contentType != "" {
			x.setHeader("Content-Type", f.contentType)
		}
		if f.retryAfter != "" {
			x.setHeader("Retry-After", f.retryAfter)
		}
		x.setHeader("Content-Length", itoa(len(f.body)))
		x.w.WriteHeader(f.status)
		_, _ = x.w.Write(f.body) // a client that left now is answered all the same
	}
	x.finish(f.reason, f)
}

// breakOff ends an answer that has begun: with an error event where the form of the
// answer has one, and without an end marker. The connection is cut, unless that event
// ends a stream of the API: SDKs would raise the cut and not the failure.
func (x *exchange) breakOff(f *failure) {
	x.abort = true
	if f.clientLeft || !x.out.sse {
		return
	}
	told := x.tellBroken(f)
	ends := x.call.Route == openai.RouteMessages || x.call.Route == openai.RouteResponses
	x.abort = !told || !ends
}

// tellBroken ends a stream with an event that tells of f, and tells whether the client
// was sent it.
func (x *exchange) tellBroken(f *failure) bool {
	if f.status != 0 && isObject(f.body) && x.call.Route != openai.RouteResponses {
		return x.out.errorEvent(f.body) // in the engine's own words
	}
	e := f.local
	switch {
	case e != nil:
	case f.status != 0:
		e = engineError(f)
	default:
		e = openai.UpstreamFailed(x.legName(f.leg), "it failed while the answer was under way", f.err)
	}
	if x.call.Route == openai.RouteResponses {
		return x.out.lastEvent(x.failedResponse(e))
	}
	return x.out.errorEvent(e.AppendJSON(nil, x.call.Route.Shape()))
}

// failedResponse is the event that ends a stream of the Responses API with an
// error.
func (x *exchange) failedResponse(e *openai.Error) (event []byte) {
	if x.out.begun && !x.translates && x.response != nil {
		seq := x.out.scan.Events
		if x.out.scan.Aborted {
			seq-- // that event was not passed
		}
		return x.response.AppendFailed(nil, seq, e)
	}
	s := new(translate.Responses).Stream(0)
	if x.translates && x.plan.translated.stream != nil {
		s = x.plan.translated.stream
	}
	s.Fail(e, func(b []byte) { event = append(event, b...) })
	return event
}

// inShape brings an engine's error into the form of the client's API.
func (x *exchange) inShape(f *failure) *failure {
	if f.status == 0 || f.local != nil || f.reported {
		return f
	}
	if f.status == statusNotFound && routeMissing(f.body) {
		return &failure{leg: f.leg, rank: f.rank, reason: reasonNoRoute, local: openai.RouteNotFound(x.pattern())}
	}
	var as translate.Exchange
	switch {
	case x.translates:
		as = x.plan.translated.api
	case x.call.Route.Shape() == openai.ShapeAnthropic && !anthropicError(f.body):
		as = new(translate.Messages)
	default:
		return f
	}
	c := *f
	c.body, c.contentType = as.AppendError(nil, f.status, f.body), typeJSON
	return &c
}

// isObject tells whether b can stand as the data of one event.
func isObject(b []byte) bool {
	b = bytes.TrimSpace(b)
	return len(b) > 1 && b[0] == '{' && b[len(b)-1] == '}' && !bytes.ContainsAny(b, "\r\n")
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

// anthropicError tells whether an error has the form of the Messages API already.
func anthropicError(body []byte) bool {
	var e struct {
		Type  string
		Error struct{ Type, Message string }
	}
	return bytes.Contains(body, []byte(`"error"`)) && unmarshal(body, &e) && e.Type == "error" && e.Error.Message != ""
}
