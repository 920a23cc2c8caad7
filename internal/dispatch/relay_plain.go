package dispatch

import (
	"errors"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
)

// plain relays one JSON answer. Up to a bound it is collected first, so that an answer
// that breaks off can be retried, or sent as an error.
func (r *relay) plain(ctx *legContext) *failure {
	p := plainRelay{r: r, ctx: ctx, counted: collected{x: r.x}}
	return r.read(p.take, p.end)
}

// plainRelay is one JSON answer on its way.
type plainRelay struct {
	r       *relay
	ctx     *legContext
	held    []byte                // what is collected
	counted collected             // its memory
	look    *openai.AnswerScanner // once the answer is too large to be collected
}

func (p *plainRelay) take(piece []byte) (done bool, f *failure) {
	r, bound, length := p.r, p.r.x.d.opts.MaxBufferedAnswer, p.r.resp.ContentLength
	if len(p.held) == 0 && int64(len(piece)) == length && len(piece) <= bound {
		return true, r.whole(piece) // straight from the connection's buffer
	}
	if !r.x.out.begun && len(p.held)+len(piece) <= bound && p.counted.hold(len(p.held)+len(piece)) {
		if p.held == nil && length <= int64(bound) && p.counted.hold(int(length)) {
			p.held = make([]byte, 0, max(length, 0))
		}
		p.held = append(p.held, piece...)
		return false, nil
	}
	if p.look == nil {
		p.look = new(openai.AnswerScanner)
		p.look.Feed(p.held)
	}
	if p.look.Feed(piece); p.look.Aborted && r.x.call.Route != openai.RouteStoredResponse {
		return false, r.x.abortFailure(admission.DecodeLeg, r.rank, p.look.Abort)
	}
	if !r.x.out.begun {
		r.progress.firstToken()
		if f := r.begin(int(length)); f != nil {
			return false, f
		}
		if f := r.x.out.write(p.held, false); f != nil {
			return false, f
		}
		p.held = nil
	}
	return false, r.pass(piece)
}

func (p *plainRelay) end(err error) *failure {
	r := p.r
	if err != nil {
		return r.broken(p.ctx, err)
	}
	if !r.x.out.begun {
		return r.whole(p.held)
	}
	if p.look.HasUsage {
		r.x.call.Record.Usage = p.look.Usage
	}
	if r.resp.ContentLength < 0 && r.resp.Get("Content-Encoding") == "" && !r.x.call.Passing && !p.look.Closed() {
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
		// Its length was not told, so that an answer that breaks off looks complete.
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
	if r.x.keys.keepsAnswer(r.x) {
		r.x.keys.answer.Whole(b)
	}
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
	r.rank.NoteAdvance()
	return b, nil
}
