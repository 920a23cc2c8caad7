package dispatch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

// relay is the answering leg's body on its way to the client.
type relay struct {
	x    *exchange
	rc   *http.ResponseController
	resp *upstream.Response
	rank *fleet.Rank
	sse  bool
	scan openai.EventScanner

	writeBy time.Time // the client's write deadline in force
}

// runAnswer sends the leg that answers the client and relays its answer. legs is
// nil for an aggregated request.
func (x *exchange) runAnswer(ctx context.Context, leg admission.Leg, rank *fleet.Rank, req upstream.Request, legs *pairLegs) *failure {
	resp, err := rank.Endpoint().Do(ctx, &req)
	if err != nil {
		return x.legFailure(ctx, leg, rank, err)
	}
	defer resp.Body.Close()
	if resp.Status != http.StatusOK {
		return x.statusFailure(ctx, leg, rank, resp)
	}
	rank.NoteProgress()
	x.out = relay{x: x, rc: http.NewResponseController(x.w), resp: resp, rank: rank}
	r := &x.out
	contentType := resp.Get("Content-Type")
	r.sse = isEventStream(contentType)
	if f := r.wrongForm(leg, contentType); f != nil {
		return f
	}
	merge := legs != nil && x.call.Route == openai.RouteGenerate && x.call.Peeked.ReturnLogprob
	switch {
	case merge:
		return r.merged(ctx, leg, legs)
	case r.sse:
		return r.stream(ctx, leg)
	}
	return r.plain(ctx, leg)
}

// wrongForm refuses an event stream where JSON was asked and the reverse: the
// client would read neither. Lines of JSON and forms unknown here pass.
func (r *relay) wrongForm(leg admission.Leg, contentType string) *failure {
	x := r.x
	asked := x.call.Peeked.Stream
	var got, want string
	switch {
	case r.sse && !asked:
		got, want = "an event stream", "one JSON answer"
	case asked && isJSON(contentType):
		got, want = "one JSON answer", "an event stream"
	default:
		return nil
	}
	return &failure{leg: leg, rank: r.rank, reason: reasonUpstream,
		local: openai.UpstreamFailed(x.legName(leg), "it sent "+got+" where "+want+" was asked for", nil)}
}

// commit sends the client its status and headers. From here on no attempt can
// follow.
func (r *relay) commit(length int) {
	x := r.x
	if x.committed {
		return
	}
	x.committed = true
	h := x.w.Header()
	copyResponseHeader(h, r.resp)
	if r.sse {
		// Proxies in front must not collect events.
		if h["Cache-Control"] == nil {
			h["Cache-Control"] = []string{"no-cache"}
		}
		if h["X-Accel-Buffering"] == nil {
			h["X-Accel-Buffering"] = []string{"no"}
		}
	}
	if length >= 0 {
		h["Content-Length"] = []string{strconv.Itoa(length)}
	}
	x.call.Record.Status = http.StatusOK
	x.w.WriteHeader(http.StatusOK)
}

// errClientWrite is the failure of a write to the client: it left, or does not
// read.
var errClientWrite = errors.New("cannot write to the client")

func (r *relay) write(b []byte) *failure {
	if limit := r.x.d.opts.ClientWriteTimeout; limit > 0 {
		// Setting a deadline is not free: one in four quarters of it.
		if now := time.Now(); r.writeBy.Sub(now) < limit-limit/4 {
			r.writeBy = now.Add(limit)
			_ = r.rc.SetWriteDeadline(r.writeBy) // not every writer has one
		}
	}
	n, err := r.x.w.Write(b)
	r.x.call.Record.Bytes += int64(n)
	if err != nil {
		return &failure{gone: true, reason: reasonClientGone, err: errors.Join(errClientWrite, err)}
	}
	return nil
}

func (r *relay) flush() *failure {
	if err := r.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return &failure{gone: true, reason: reasonClientGone, err: errors.Join(errClientWrite, err)}
	}
	return nil
}

func (r *relay) firstToken() {
	if rec := &r.x.call.Record; rec.TTFT == 0 {
		rec.TTFT = time.Since(r.x.call.Arrived)
	}
}

// stream relays an event stream as it comes: pieces as they lie in the
// connection's buffer, a flush whenever what has arrived has been passed on.
// Nothing is sent before the first event is there, so that a failure before it
// still gets a status of its own.
func (r *relay) stream(ctx context.Context, leg admission.Leg) *failure {
	x, body := r.x, r.resp.Body
	var held []byte // the first piece, while it is no whole event yet
	for {
		piece, err := body.Next()
		if err != nil {
			return r.streamEnd(ctx, leg, held, err)
		}
		r.rank.NoteProgress()
		r.scan.Feed(piece)
		if r.scan.DataEvents > 0 {
			r.firstToken()
		}
		if !x.committed {
			if f := r.beforeFirst(leg); f != nil {
				return f
			}
			if r.scan.Events == 0 && r.scan.Comments == 0 && len(held)+len(piece) < maxHeld {
				held = append(held, piece...)
				continue
			}
			r.commit(-1)
			if len(held) > 0 {
				if f := r.write(held); f != nil {
					return f
				}
				held = nil
			}
		}
		if f := r.write(piece); f != nil {
			return f
		}
		if body.Buffered() == 0 && !body.Done() {
			if f := r.flush(); f != nil {
				return f
			}
		}
	}
}

// maxHeld bounds what is held back of a first event that comes in pieces.
const maxHeld = 64 << 10

// beforeFirst looks at what has come before the client was sent anything. An
// error event that reports a broken hand-off is the pair's failure; any other is
// the engine's answer and passes as it is.
func (r *relay) beforeFirst(leg admission.Leg) *failure {
	if r.scan.Errors == 0 || !r.x.pair {
		return nil
	}
	status := engine.EventErrorStatus(r.scan.LastError)
	if !engine.SGLangTransferFailure(status, r.scan.LastError) {
		return nil
	}
	return r.x.eventFailure(leg, r.rank, r.scan.LastError)
}

// streamEnd judges how a stream ended.
func (r *relay) streamEnd(ctx context.Context, leg admission.Leg, held []byte, err error) *failure {
	x := r.x
	if err != io.EOF {
		f := x.legFailure(ctx, leg, r.rank, err)
		if x.committed && f.local != nil && f.reason == reasonUpstream {
			f.reason = reasonBrokenOff
		}
		return f
	}
	if !x.committed {
		if len(held) == 0 {
			return &failure{leg: leg, rank: r.rank, reason: reasonBrokenOff,
				local: openai.UpstreamFailed(x.legName(leg), "its event stream ended before the first event", nil)}
		}
		r.commit(-1)
		if f := r.write(held); f != nil {
			return f
		}
	}
	x.call.Record.Usage = r.scan.Usage
	switch {
	case r.scan.Errors > 0:
		// The engine's own error event has passed on; the stream is whole, the
		// request failed.
		return r.toldFailure(leg)
	case !r.scan.AtBoundary() || !r.scan.Finished:
		return &failure{leg: leg, rank: r.rank, reason: reasonBrokenOff,
			local: openai.UpstreamFailed(x.legName(leg), "its event stream ended without its end marker", nil)}
	}
	return nil
}

// toldFailure is a failure that the client knows of already, in the engine's own
// words: nothing is left to say or to break off.
func (r *relay) toldFailure(leg admission.Leg) *failure {
	f := r.x.eventFailure(leg, r.rank, r.scan.LastError)
	f.told = true
	return f
}

// errorEvent ends a broken event stream with an error event of our own.
func (r *relay) errorEvent(e *openai.Error) {
	b := r.scan.AppendClose(nil)
	b = e.AppendEvent(b, r.x.call.Route.Shape())
	if r.write(b) == nil {
		_ = r.flush() // the connection is cut next in any case
	}
}

// plain relays an answer that is no event stream. Up to a bound it is collected
// first, so that one that breaks off is told as an error and can be tried
// elsewhere.
func (r *relay) plain(ctx context.Context, leg admission.Leg) *failure {
	x, body := r.x, r.resp.Body
	bound := x.d.opts.MaxBufferedAnswer
	if x.call.Peeked.Stream {
		bound = 0 // lines of some other form: each as it comes
	}
	var held []byte
	if n := r.resp.ContentLength; n > 0 && n <= int64(bound) {
		held = make([]byte, 0, n)
	}
	for {
		piece, err := body.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return x.legFailure(ctx, leg, r.rank, err)
		}
		r.rank.NoteProgress()
		if !x.committed && len(held)+len(piece) <= bound {
			held = append(held, piece...)
			continue
		}
		if !x.committed {
			r.firstToken()
			r.commit(int(r.resp.ContentLength))
			if f := r.write(held); f != nil {
				return f
			}
			held = nil
		}
		if f := r.write(piece); f != nil {
			return f
		}
		if body.Buffered() == 0 && !body.Done() {
			if f := r.flush(); f != nil {
				return f
			}
		}
	}
	if x.committed {
		return nil
	}
	return r.whole(held)
}

// whole sends a collected answer.
func (r *relay) whole(b []byte) *failure {
	r.firstToken()
	if u, ok := openai.ReadUsage(b); ok {
		r.x.call.Record.Usage = u
	}
	r.commit(len(b))
	return r.write(b)
}

// merged joins the prefill leg's prompt logprobs into the decode leg's answer.
// This is the one answer that waits for prefill.
func (r *relay) merged(ctx context.Context, leg admission.Leg, legs *pairLegs) *failure {
	x := r.x
	select {
	case <-legs.prefill.done:
	case <-ctx.Done():
		return x.legFailure(ctx, leg, r.rank, ctx.Err())
	}
	if legs.prefill.f != nil {
		return &failure{leg: leg, rank: r.rank, echo: true}
	}
	m, err := openai.NewLogprobMerger(legs.prefill.body)
	if err != nil {
		return &failure{leg: admission.PrefillLeg, rank: x.ticket.Prefill.Data().(*fleet.Rank), reason: reasonUpstream, err: err,
			local: openai.UpstreamFailed("prefill", "its answer has no logprobs that can be merged", err)}
	}
	if !r.sse {
		b, err := collect(r.resp.Body, x.d.opts.MaxLogprobBody)
		if err != nil {
			if errors.Is(err, errTooLarge) {
				return r.mergeFailure(leg, err)
			}
			return x.legFailure(ctx, leg, r.rank, err)
		}
		segments, size, err := m.Merge(b)
		if err != nil {
			return r.mergeFailure(leg, err)
		}
		merged := make([]byte, 0, size)
		for _, s := range segments {
			merged = append(merged, s...)
		}
		return r.whole(merged)
	}
	return r.mergedStream(ctx, leg, m)
}

func (r *relay) mergeFailure(leg admission.Leg, err error) *failure {
	return &failure{leg: leg, rank: r.rank, reason: reasonUpstream, err: err,
		local: openai.UpstreamFailed("decode", "its answer cannot be merged with the prefill's logprobs", err)}
}

// mergedStream changes each event on its way, however it is cut into pieces.
func (r *relay) mergedStream(ctx context.Context, leg admission.Leg, m *openai.LogprobMerger) *failure {
	x, body := r.x, r.resp.Body
	stream := m.Stream(x.d.opts.MaxLogprobBody)
	var out []byte
	add := func(b []byte) { out = append(out, b...) }
	for {
		piece, err := body.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return x.legFailure(ctx, leg, r.rank, err)
		}
		r.rank.NoteProgress()
		r.scan.Feed(piece)
		out = out[:0]
		if err := stream.Feed(piece, add); err != nil {
			return r.mergeFailure(leg, err)
		}
		if len(out) == 0 {
			continue
		}
		if !x.committed {
			if f := r.beforeFirst(leg); f != nil {
				return f
			}
			r.firstToken()
			r.commit(-1)
		}
		if f := r.write(out); f != nil {
			return f
		}
		if body.Buffered() == 0 && !body.Done() {
			if f := r.flush(); f != nil {
				return f
			}
		}
	}
	out = out[:0]
	if stream.Close(add); len(out) > 0 {
		r.commit(-1)
		if f := r.write(out); f != nil {
			return f
		}
	}
	return r.streamEnd(ctx, leg, nil, io.EOF)
}
