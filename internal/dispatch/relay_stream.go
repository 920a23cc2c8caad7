package dispatch

import (
	"bytes"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/translate"
)

// take feeds a piece of an event stream to the scanner. It returns the part to pass on,
// with the prefill's count of cached tokens: up to the event in which the engine aborts
// the request, or to the end of the engine's error event.
func (r *relay) take(piece []byte) []byte {
	told, within := r.scan.UsageEvents, !r.scan.AtBoundary()
	r.scan.Feed(piece)
	switch {
	case r.scan.Aborted:
		piece = piece[:r.scan.AbortAt]
	case r.scan.Errors > 0:
		piece = piece[:r.scan.ErrorEnd]
	}
	return r.cached.splice(piece, &r.scan, told, within)
}

// reportedByEngine ends a stream after the engine's own error event, which the client
// has: the router adds neither an error nor an end marker.
func (r *relay) reportedByEngine() *failure {
	f := r.x.eventFailure(admission.DecodeLeg, r.rank, r.scan.LastError)
	f.reported = true
	return f
}

// followData has the data of events read where that is needed: for the beginning of a
// response, unless its events are remade, and for the text of the answer.
func (r *relay) followData(remade bool) {
	first := r.x.call.Route == openai.RouteResponses && !remade
	text := r.x.keys.keepsAnswer(r.x)
	if first {
		r.x.response = nil // that of an earlier attempt
		r.scan.OnData = func(data []byte) {
			r.x.response = translate.ReadBegunResponse(data)
			if r.scan.OnData = nil; text {
				r.scan.OnData = r.x.keys.answerEvent
				r.x.keys.answer.Event(data)
			}
		}
	} else if text {
		r.scan.OnData = r.x.keys.answerEvent
	}
}

// awaitsFirst tells whether nothing has come yet that can be passed on: an event, or a
// comment unless the client asked for extensions, which need an event.
func (r *relay) awaitsFirst() bool {
	if r.x.extensions.any() {
		return r.scan.DataEvents == 0 && r.scan.Errors == 0
	}
	return r.scan.Events == 0 && r.scan.Comments == 0
}

// maxHeld bounds what is held back until the first event is complete, in bytes.
const maxHeld = 64 << 10

// onlyOpening tells whether only events have come with which a stream begins: the role of
// a chat's choices without content, message_start, or response.created. Engines send them
// before the model has run, so they do not show that there will be an answer, and are held
// back until the next event.
func (r *relay) onlyOpening(held, piece []byte) bool {
	switch r.x.call.Route {
	case openai.RouteMessages, openai.RouteResponses:
		// Without keep-alives of the router, the engine's pings are the only ones.
		pings := r.x.out.keepAlive <= 0 && bytes.Contains(piece, pingField)
		return r.scan.Openings > 0 && r.scan.Events == r.scan.Openings && !pings
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

var roleField, pingField = []byte(`"role":"assistant"`), []byte("event: ping")

// beforeFirst checks what came before the client was sent anything. An error event then
// is the same as an answer with that error's status.
func (r *relay) beforeFirst() *failure {
	if r.scan.Errors == 0 {
		return nil
	}
	return r.x.eventFailure(admission.DecodeLeg, r.rank, r.scan.LastError)
}

// streamEnd finds out how a stream ended whose connection did not fail.
func (r *relay) streamEnd(held []byte) *failure {
	if r.x.out.begun && len(held) > 0 {
		if f := r.x.out.write(held, false); f != nil {
			return f
		}
	}
	if missing := r.scan.Close(nil); len(missing) > 0 {
		if r.x.out.begun {
			if f := r.x.out.write(missing, true); f != nil {
				return f
			}
		} else {
			held = append(held, missing...)
		}
	}
	if !r.x.out.begun {
		if len(held) == 0 || r.scan.Errors == 0 && !(r.scan.Finished && r.scan.AtBoundary()) {
			f := r.bad("its event stream ended before the first content", nil)
			f.reason = reasonBrokenOff
			return f
		}
		if f := r.begin(-1); f != nil {
			return f
		}
		if f := r.x.out.write(held, r.scan.AtBoundary()); f != nil {
			return f
		}
	}
	switch {
	case r.scan.Errors > 0:
		return r.reportedByEngine()
	case !r.scan.AtBoundary() || !r.scan.Finished:
		f := r.bad("its event stream ended without its end marker", nil)
		f.reason = reasonBrokenOff
		return f
	}
	return nil
}
