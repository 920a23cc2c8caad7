package dispatch

import (
	"errors"
	"io"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
)

// merged joins the prefill leg's prompt logprobs into the decode leg's answer.
// This is the one answer that waits for prefill.
func (r *relay) merged(ctx *legContext, prefill *prefillLeg) *failure {
	if f := r.awaitPrefill(ctx, prefill); f != nil {
		return f
	}
	m := prefill.logprobs
	if r.sse {
		return r.events(ctx, newMergedEvents(r, m))
	}
	b, f := r.collectAnswer(ctx)
	if f != nil {
		return f
	}
	segments, size, err := m.Merge(b)
	if err != nil {
		return r.bad(unmergeable, err)
	}
	whole := make([]byte, 0, size)
	for _, s := range segments {
		whole = append(whole, s...)
	}
	return r.whole(whole)
}

// awaitPrefill waits for the end of the prefill leg, or until the decode leg fails:
// prefill would then wait for decode in vain.
func (r *relay) awaitPrefill(ctx *legContext, prefill *prefillLeg) *failure {
	readable := make(chan error, 1)
	go func() {
		err := errPanicked
		defer func() {
			if p := recover(); p != nil {
				r.x.logPanic("the wait for decode", p)
			}
			readable <- err
		}()
		err = r.resp.Body.WaitReadable()
	}()
	var err error
	select {
	case <-prefill.cached.over.wait():
		// A prefill that failed has ended ctx, and with it this wait.
		err = <-readable
	case err = <-readable:
		if err == nil || err == io.EOF {
			select {
			case <-prefill.cached.over.wait():
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
	}
	if err != nil && err != io.EOF {
		return r.broken(ctx, err)
	}
	if prefill.f != nil {
		return &failure{leg: admission.DecodeLeg, rank: r.rank, secondary: true}
	}
	return nil
}

const unmergeable = "its answer cannot be merged with the prefill's logprobs"

// mergedEvents merges the prefill's logprobs into each event on its way, however it is
// cut into pieces.
type mergedEvents struct {
	r      *relay
	stream *openai.LogprobStream
	out    []byte
}

func newMergedEvents(r *relay, m *openai.LogprobMerger) *mergedEvents {
	return &mergedEvents{r: r, stream: m.Stream(r.x.d.opts.MaxLogprobBody)}
}

func (t *mergedEvents) add(b []byte) { t.out = append(t.out, b...) }

func (t *mergedEvents) feed(piece []byte) ([]byte, error) {
	t.out = t.out[:0]
	err := t.stream.Feed(piece, t.add)
	return t.out, err
}

func (t *mergedEvents) end() ([]byte, error) {
	out, err := t.feed(t.r.cached.rest())
	if err != nil {
		return out, err
	}
	t.stream.Close(t.add)
	return t.out, nil
}

func (t *mergedEvents) failed(err error) *failure {
	if errors.Is(err, openai.ErrLimit) {
		return t.r.overLimit("an event of the engine's stream is larger than " + itoa(t.r.x.d.opts.MaxLogprobBody) + " bytes")
	}
	return t.r.bad(unmergeable, err)
}

func (*mergedEvents) remakes() bool { return false }
func (*mergedEvents) held() int     { return 0 }
