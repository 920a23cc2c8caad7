package dispatch

import (
	"bytes"
	"io"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
)

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
			if piece = r.take(piece); r.scan.Aborted {
				return r.aborted(piece)
			}
			if !r.x.out.begun {
				if f := r.beforeFirst(); f != nil {
					return f
				}
				if r.awaitsFirst() && len(held)+len(piece) < maxHeld {
					held = append(held, piece...)
					continue
				}
			}
		case isLines(r.resp.Get("Content-Type")):
			if last = append(last, piece...); len(last) > 2*maxTail {
				last = append(last[:0], last[len(last)-maxTail:]...)
			}
			if !r.x.out.begun {
				if held = append(held, piece...); bytes.IndexByte(piece, '\n') < 0 && len(held) < maxHeld {
					continue
				}
				if f := r.lineFailure(held); f != nil {
					return f
				}
				piece, held = held, nil
			}
		}
		r.progress.firstToken()
		if f := r.begin(-1); f != nil {
			return f
		}
		if len(held) > 0 {
			if f := r.x.out.write(held, false); f != nil {
				return f
			}
			held = nil
		}
		if f := r.pass(piece); f != nil {
			return f
		}
		if r.scan.Errors > 0 {
			return r.told()
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
		if f := r.x.out.write(held, r.scan.AtBoundary()); f != nil {
			return f
		}
	}
	if !r.x.out.begun {
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
		return r.x.abortFailure(admission.DecodeLeg, r.rank, a)
	}
	return r.x.toldError(admission.DecodeLeg, r.rank, line)
}

// maxTail is how much is kept of the end of a stream of lines, to see how it ended.
const maxTail = 4 << 10
