package dispatch

import (
	"bytes"
	"io"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/translate"
)

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
			return r.streamEnd(append(held, r.cached.rest()...))
		}
		if err != nil {
			if r.x.out.begun && r.scan.Done && r.scan.AtBoundary() && r.scan.Errors == 0 {
				// The client has its end marker: the stream is whole for it, whatever
				// became of the connection behind.
				return r.streamEnd(nil)
			}
			return r.broken(ctx, err)
		}
		r.rank.NoteProgress()
		if piece = r.take(piece); r.scan.Aborted {
			return r.aborted(piece)
		}
		if !r.x.out.begun {
			if f := r.beforeFirst(); f != nil {
				return f
			}
			if (r.awaitsFirst() || r.onlyOpening(held, piece)) && len(held)+len(piece) < maxHeld {
				held = append(held, piece...)
				r.x.out.owe()
				continue
			}
		}
		r.progress.note(&r.scan, r.resp.Body)
		if !r.x.out.begun {
			if r.x.extensions.any() {
				piece, held = r.first(append(held, piece...)), nil
			}
			if f := r.begin(-1); f != nil {
				return f
			}
			if len(held) > 0 {
				if f := r.x.out.write(held, false); f != nil {
					return f
				}
				held = nil
			}
		}
		if f := r.pass(piece); f != nil {
			return f
		}
		if r.scan.Errors > 0 {
			return r.told()
		}
	}
}

// take lets the scanner see a piece of an event stream. It returns what of it may be
// passed on: what is before the event in which the engine gives the request up, and what
// ends with the engine's own error event, with the prefill's count of cached tokens.
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

// told is the end of a stream that has begun behind the engine's own error event: nothing
// is left to say or to break off, and no end marker follows.
func (r *relay) told() *failure {
	f := r.x.eventFailure(admission.DecodeLeg, r.rank, r.scan.LastError)
	f.reported = true
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
	if r.x.extensions.any() {
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
		// Where there are no signs of life of ours, the engine's pings are the only ones.
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

// beforeFirst looks at what has come before the client was sent anything. An error
// event then is the same as an answer with that error's status.
func (r *relay) beforeFirst() *failure {
	if r.scan.Errors == 0 {
		return nil
	}
	return r.x.eventFailure(admission.DecodeLeg, r.rank, r.scan.LastError)
}

// streamEnd judges a stream that ended without a fault of the connection.
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
		return r.told()
	case !r.scan.AtBoundary() || !r.scan.Finished:
		f := r.bad("its event stream ended without its end marker", nil)
		f.reason = reasonBrokenOff
		return f
	}
	return nil
}
