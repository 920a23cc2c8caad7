package dispatch

import (
	"bytes"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
)

// lines relays a stream of another form: each piece as it comes, except the first event
// or line, which may be an error in place of an answer.
func (r *relay) lines(ctx *legContext) *failure {
	l := lineRelay{r: r, ctx: ctx}
	switch {
	case r.x.call.Route == openai.RouteStoredResponse: // of which a failure is a good answer
		return r.read(l.pass, l.end)
	case r.sse:
		return r.read(l.takeEvents, l.end)
	case isLines(r.resp.Get("Content-Type")):
		return r.read(l.takeLines, l.end)
	}
	return r.read(l.pass, l.end)
}

// lineRelay is such a stream on its way.
type lineRelay struct {
	r    *relay
	ctx  *legContext
	held []byte // what is held back until the first event or line is complete
	last []byte // the end of a stream of lines
}

// takeEvents takes a piece of an event stream.
func (l *lineRelay) takeEvents(piece []byte) (done bool, f *failure) {
	r := l.r
	if piece = r.take(piece); r.scan.Aborted {
		return false, r.aborted(piece)
	}
	if !r.x.out.begun {
		if f := r.beforeFirst(); f != nil {
			return false, f
		}
		if r.awaitsFirst() && len(l.held)+len(piece) < maxHeld {
			l.held = append(l.held, piece...)
			return false, nil
		}
	}
	return l.pass(piece)
}

// takeLines takes a piece of a stream of lines.
func (l *lineRelay) takeLines(piece []byte) (done bool, f *failure) {
	if l.last = append(l.last, piece...); len(l.last) > 2*maxTail {
		l.last = append(l.last[:0], l.last[len(l.last)-maxTail:]...)
	}
	if !l.r.x.out.begun {
		l.held = append(l.held, piece...)
		if bytes.IndexByte(piece, '\n') < 0 && len(l.held) < maxHeld {
			return false, nil
		}
		if f := l.r.lineFailure(l.held); f != nil {
			return false, f
		}
		piece, l.held = l.held, nil
	}
	return l.pass(piece)
}

// pass passes a piece on, after what was held back before it.
func (l *lineRelay) pass(piece []byte) (done bool, f *failure) {
	r := l.r
	r.progress.firstToken()
	if f := r.begin(-1); f != nil {
		return false, f
	}
	if len(l.held) > 0 {
		if f := r.x.out.write(l.held, false); f != nil {
			return false, f
		}
		l.held = nil
	}
	if f := r.pass(piece); f != nil {
		return false, f
	}
	if r.scan.Errors > 0 {
		return false, r.reportedByEngine()
	}
	return false, nil
}

// end finds out how such a stream ended.
func (l *lineRelay) end(err error) *failure {
	r := l.r
	if err != nil {
		return r.broken(l.ctx, err)
	}
	if len(l.held) > 0 {
		if f := r.lineFailure(l.held); f != nil {
			return f
		}
		if f := r.begin(-1); f != nil {
			return f
		}
		if f := r.x.out.write(l.held, r.scan.AtBoundary()); f != nil {
			return f
		}
	}
	if !r.x.out.begun {
		return r.bad("its answer is empty", nil)
	}
	if r.scan.Errors > 0 {
		return r.reportedByEngine()
	}
	last := bytes.TrimRight(l.last, "\r\n")
	return r.lineFailure(last[bytes.LastIndexByte(last, '\n')+1:])
}

// lineFailure is the failure that the first of these lines reports, nil if it reports none.
func (r *relay) lineFailure(lines []byte) *failure {
	if r.sse {
		return nil
	}
	line, _, _ := bytes.Cut(bytes.TrimLeft(lines, "\r\n"), []byte{'\n'})
	if a, given := openai.ReadAbort(line); given {
		return r.x.abortFailure(admission.DecodeLeg, r.rank, a)
	}
	return r.x.toldError(admission.DecodeLeg, r.rank, line)
}

// maxTail is how much is kept of the end of a stream of lines, to see how it ended.
const maxTail = 4 << 10
