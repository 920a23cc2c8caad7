package dispatch

import (
	"errors"
	"io"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/translate"
)

// translated relays the answer of a chat request as the client's API has it.
func (r *relay) translated(ctx *legContext) *failure {
	if !r.sse {
		return r.translatedWhole(ctx)
	}
	t := r.x.plan.translated
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
		if !r.x.out.begun {
			if f := r.beforeFirst(); f != nil {
				return f
			}
		}
		if r.scan.Aborted {
			if r.x.out.begun && len(out) > 0 {
				if f := r.x.out.write(out, true); f != nil {
					return f
				}
			}
			return r.x.abortFailure(admission.DecodeLeg, r.rank, r.scan.Abort)
		}
		r.progress.note(&r.scan, r.resp.Body)
		if len(out) > 0 && (err == nil || r.x.out.begun) {
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
			if f := r.x.out.echo(); f != nil {
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
		return x.abortFailure(admission.DecodeLeg, r.rank, a)
	}
	answer, err := x.plan.translated.exchange.Answer(r.cached.whole(b), r.x.estimate)
	if err != nil {
		return r.untranslated(err)
	}
	r.progress.firstToken()
	if f := r.begin(len(answer)); f != nil {
		return f
	}
	return r.x.out.write(answer, false)
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
	f := &failure{leg: admission.DecodeLeg, rank: r.rank, reason: reasonEngineError, status: told.Status, contentType: typeJSON,
		body: told.AsError().AppendJSON(nil, openai.ShapeOpenAI)}
	f.transfer = r.x.plan.pair && r.rank.Dialect().TransferFailure(f.status, f.body)
	if !r.x.out.begun {
		return f
	}
	r.x.plan.translated.stream.Fail(told.AsError(), func(b []byte) {
		f.reported = r.x.out.write(b, true) == nil
	})
	return f
}
