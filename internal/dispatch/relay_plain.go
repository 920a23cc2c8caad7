package dispatch

import (
	"errors"
	"io"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
)

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
		if !r.x.out.begun && len(held)+len(piece) <= bound && counted.hold(len(held)+len(piece)) {
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
			return r.x.abortFailure(admission.DecodeLeg, r.rank, look.Abort)
		}
		if !r.x.out.begun {
			r.progress.firstToken()
			if f := r.begin(int(r.resp.ContentLength)); f != nil {
				return f
			}
			if f := r.x.out.write(held, false); f != nil {
				return f
			}
			held = nil
		}
		if f := r.pass(piece); f != nil {
			return f
		}
	}
	if !r.x.out.begun {
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
			return r.x.abortFailure(admission.DecodeLeg, r.rank, a)
		}
		if !r.x.call.Passing && !startsJSON(b) && r.resp.Get("Content-Encoding") == "" {
			return r.bad("its answer is no JSON", nil)
		}
		if f := r.x.toldError(admission.DecodeLeg, r.rank, b); f != nil {
			return f
		}
	}
	r.progress.firstToken()
	b = r.cached.whole(b)
	if r.x.extensions.any() {
		b = r.x.withExtension(b)
	}
	if f := r.begin(len(b)); f != nil {
		return f
	}
	return r.x.out.write(b, false)
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
