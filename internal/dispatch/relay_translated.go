package dispatch

import (
	"errors"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/translate"
)

// translated relays the answer of a chat request in the form of the client's API.
func (r *relay) translated(ctx *legContext) *failure {
	if !r.sse {
		return r.translatedWhole(ctx)
	}
	t := r.x.plan.translated
	t.stream = t.api.Stream(r.x.estimate)
	return r.events(ctx, &translatedEvents{r: r, stream: t.stream})
}

// translatedEvents turns the events of a chat into those of the client's API.
type translatedEvents struct {
	r      *relay
	stream translate.Stream
	out    []byte
}

func (t *translatedEvents) add(b []byte) { t.out = append(t.out, b...) }

func (t *translatedEvents) feed(piece []byte) ([]byte, error) {
	t.out = t.out[:0]
	err := t.stream.Feed(piece, t.add)
	return t.out, err
}

func (t *translatedEvents) end() ([]byte, error) {
	t.out = t.out[:0]
	err := t.stream.End(t.add)
	return t.out, err
}

func (t *translatedEvents) failed(err error) *failure { return t.r.untranslated(err) }
func (*translatedEvents) remakes() bool               { return true }
func (t *translatedEvents) held() int                 { return t.stream.Held() }

// translatedWhole is translated for one JSON answer.
func (r *relay) translatedWhole(ctx *legContext) *failure {
	x := r.x
	b, f := r.collectAnswer(ctx)
	if f != nil {
		return f
	}
	if u, ok := openai.ReadUsage(b); ok {
		x.call.Record.Usage = u
	}
	if a, given := openai.ReadAbort(b); given {
		return x.abortFailure(admission.DecodeLeg, r.rank, a)
	}
	answer, err := x.plan.translated.api.Answer(r.cached.whole(b), r.x.estimate)
	if err != nil {
		return r.untranslated(err)
	}
	r.progress.firstToken()
	if f := r.begin(len(answer)); f != nil {
		return f
	}
	return r.x.out.write(answer, false)
}

// untranslated is the failure of an answer that reports an error or is malformed. In a
// stream that has begun, the engine's error is sent in the form of the client's API, which
// ends the stream.
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
