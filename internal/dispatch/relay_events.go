package dispatch

import (
	"io"

	"github.com/sluice-router/sluice/internal/openai"
)

// transform makes the client's event stream of the engine's. What feed and end return is
// valid until the next call.
type transform interface {
	// feed takes a piece that the scanner has seen and returns what may be passed on.
	feed(piece []byte) ([]byte, error)
	// end returns what is left, once the engine's stream is over.
	end() ([]byte, error)
	// failed is the failure for an error of feed or end.
	failed(err error) *failure
	// remakes tells whether the client gets events that the transform has made, whole
	// ones, and the end of the stream with them; else they are the engine's, changed
	// perhaps.
	remakes() bool
	// held is the memory of what was taken and not returned, in bytes. It is asked of
	// one that remakes.
	held() int
}

// events relays an event stream: pieces as they lie in the connection's buffer, a flush
// whenever what has arrived has been passed on. Nothing is sent before the first event
// is there, so that a failure before it still gets a status of its own.
func (r *relay) events(ctx *legContext, t transform) *failure {
	remakes := t.remakes()
	if r.x.call.Route == openai.RouteResponses && !remakes {
		r.x.response = nil // that of an earlier attempt
		r.scan.OnData = r.noteResponse
	}
	var held []byte // what has come, while it is no whole event yet
	kept := collected{x: r.x}
	for {
		piece, err := r.resp.Body.Next()
		end := err == io.EOF
		if err != nil && !end {
			if !remakes && r.wholeForClient() {
				return r.streamEnd(nil)
			}
			return r.broken(ctx, err)
		}
		var out []byte
		heard := r.scan.Events + r.scan.Comments
		if end {
			out, err = t.end()
		} else {
			r.rank.NoteProgress()
			out, err = t.feed(r.take(piece))
		}
		if r.scan.Aborted {
			return r.aborted(out)
		}
		if !r.x.out.begun {
			if f := r.beforeFirst(); f != nil {
				return f
			}
		}
		switch {
		case err != nil:
		case end && !remakes:
			return r.streamEnd(append(held, out...))
		case !r.x.out.begun && !remakes && (r.awaitsFirst() || r.onlyOpening(held, out)) && len(held)+len(out) < maxHeld:
			held = append(held, out...)
			r.x.out.owe()
			continue
		}
		r.progress.note(&r.scan, r.resp.Body)
		if len(held)+len(out) > 0 && (err == nil || r.x.out.begun) {
			if f := r.passEvents(held, out, remakes); f != nil {
				return f
			}
			held = nil
		} else if err == nil && remakes && r.scan.Events+r.scan.Comments > heard {
			// A comment before the answer, thinking that is not told, or what waits for
			// the end of another block.
			if f := r.x.out.echo(); f != nil {
				return f
			}
		}
		switch {
		case err != nil:
			return t.failed(err)
		case !remakes && r.scan.Errors > 0:
			return r.told()
		case end:
			return nil
		case remakes && !kept.hold(t.held()):
			return r.x.noRoom()
		}
	}
}

// passEvents passes on what a transform returned, after what was held back before it.
// remade: they are whole events of the transform's own.
func (r *relay) passEvents(held, out []byte, remade bool) *failure {
	boundary := remade || r.scan.AtBoundary()
	if r.x.out.begun {
		return r.passTo(out, boundary)
	}
	if r.x.extensions.any() && !remade {
		out, held = r.first(append(held, out...)), nil
	}
	if f := r.begin(-1); f != nil {
		return f
	}
	if len(held) > 0 {
		if f := r.x.out.write(held, false); f != nil {
			return f
		}
	}
	return r.passTo(out, boundary)
}

// wholeForClient tells whether the client has the end marker: its stream is whole then,
// whatever became of the connection to the engine.
func (r *relay) wholeForClient() bool {
	return r.x.out.begun && r.scan.Done && r.scan.AtBoundary() && r.scan.Errors == 0
}

// asItIs passes the engine's stream on, with the prefill's count of cached tokens.
type asItIs struct{ r *relay }

func (t asItIs) feed(piece []byte) ([]byte, error) { return piece, nil }
func (t asItIs) end() ([]byte, error)              { return t.r.cached.rest(), nil }
func (t asItIs) failed(err error) *failure         { return t.r.bad("its answer cannot be passed on", err) }
func (asItIs) remakes() bool                       { return false }
func (asItIs) held() int                           { return 0 }
