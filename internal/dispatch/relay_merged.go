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
		return r.mergedStream(ctx, m)
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

// awaitPrefill waits for the end of the prefill leg, and for a decode leg that
// breaks meanwhile: prefill would wait for it in vain.
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

// mergedStream changes each event on its way, however it is cut into pieces.
func (r *relay) mergedStream(ctx *legContext, m *openai.LogprobMerger) *failure {
	stream := m.Stream(r.x.d.opts.MaxLogprobBody)
	var out []byte
	add := func(b []byte) { out = append(out, b...) }
	for {
		piece, err := r.resp.Body.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return r.broken(ctx, err)
		}
		r.rank.NoteProgress()
		piece = r.take(piece)
		out = out[:0]
		if err := stream.Feed(piece, add); errors.Is(err, openai.ErrLimit) {
			return r.overLimit("an event of the engine's stream is larger than " + itoa(r.x.d.opts.MaxLogprobBody) + " bytes")
		} else if err != nil {
			return r.bad(unmergeable, err)
		}
		if !r.x.out.begun {
			if f := r.beforeFirst(); f != nil {
				return f
			}
		}
		if r.scan.Aborted {
			return r.aborted(out)
		}
		if len(out) == 0 {
			continue
		}
		r.progress.note(&r.scan, r.resp.Body)
		first := r.first(out)
		if f := r.begin(-1); f != nil {
			return f
		}
		if f := r.pass(first); f != nil {
			return f
		}
		if r.scan.Errors > 0 {
			return r.told()
		}
	}
	out = out[:0]
	if err := stream.Feed(r.cached.rest(), add); err != nil {
		return r.bad(unmergeable, err)
	}
	if stream.Close(add); len(out) > 0 {
		if f := r.begin(-1); f != nil {
			return f
		}
		if f := r.x.out.write(out, false); f != nil {
			return f
		}
	}
	return r.streamEnd(nil)
}
