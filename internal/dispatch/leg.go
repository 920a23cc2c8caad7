package dispatch

import (
	"errors"
	"io"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/translate"
	"github.com/sluice-router/sluice/internal/upstream"
)

func asUpstream(err error, to **upstream.Error) bool { return errors.As(err, to) }

// engineID is the request id an engine sees: the client's id on the first
// attempt, then one of its own for each, and for each copy. Engines match ids by
// prefix, so the marks come first.
func (x *exchange) engineID(k int) string {
	id := x.call.ID
	if k > 0 {
		id = "s" + itoa(k) + "-" + id
	}
	return engine.AttemptID(id, x.attempts)
}

// request is what a leg sends. It lies in b.
func (x *exchange) request(b *pairBodies, leg admission.Leg) *upstream.Request {
	r := &b.requests[leg]
	r.Method, r.Path, r.Header, r.Body = x.method(), x.path(), b.header, b.decode
	r.Limits = x.d.legLimits
	if leg == admission.PrefillLeg {
		r.Body = b.prefill
		// A prefill that streams sends its head at once and then computes; one
		// that waits for a decode rank must not be the one to be blamed for it.
		r.Limits.Header, r.Limits.FirstByte, r.Limits.StreamIdle = 0, 0, 0
	}
	return r
}

// statusFailure reads an engine's error answer. What its status says counts however
// the rest of it comes: one whose body breaks off, or is larger than the router takes,
// is passed on cut.
func (x *exchange) statusFailure(ctx *legContext, leg admission.Leg, rank *fleet.Rank, resp *upstream.Response) *failure {
	if resp.Status == statusNotFound && rank != nil {
		rank.CheckSoon() // it may not serve any more what it was sent
	}
	limit := x.d.opts.MaxErrorBody
	body, err := x.collect(resp.Body, limit)
	if err == errNoRoom {
		return x.noRoom()
	}
	if err != nil && ctx.ended() != nil {
		return x.legFailure(ctx, leg, rank, err)
	}
	if resp.Status < 400 {
		return &failure{leg: leg, rank: rank, reason: reasonUpstream,
			local: openai.UpstreamFailed(x.legName(leg), "it answered with the unexpected status "+itoa(resp.Status), nil)}
	}
	f := &failure{
		leg: leg, rank: rank, status: resp.Status, body: body,
		contentType: resp.Get("Content-Type"), retryAfter: resp.Get("Retry-After"),
		reason:   reasonEngineStatus,
		transfer: x.pair && rank.Dialect().TransferFailure(resp.Status, body),
	}
	if err != nil {
		why := "it broke off"
		if errors.Is(err, errTooLarge) {
			why = "it is larger than the " + itoa(limit) + " bytes that the router takes"
			f.ours = true
		}
		f.err = err
		f.body, f.contentType = openai.CutError(resp.Status, body, why), typeJSON
	}
	return f
}

var errTooLarge = errors.New("larger than allowed")

// collect reads a body to its end, at most limit bytes. It closes the body when
// there is more, or when there is no memory for it: errNoRoom.
func (x *exchange) collect(b upstream.Body, limit int) ([]byte, error) {
	var out []byte
	held := collected{x: x}
	for {
		piece, err := b.Next()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return out, err
		}
		if len(out)+len(piece) > limit {
			_ = b.Close()
			return out, errTooLarge
		}
		if !held.hold(len(out) + len(piece)) {
			_ = b.Close()
			return out, errNoRoom
		}
		out = append(out, piece...)
	}
}

// eventFailure turns an error that an engine told with status 200, in an event or as
// its answer, into the answer that it stands for. data may be cut short.
func (x *exchange) eventFailure(leg admission.Leg, rank *fleet.Rank, data []byte) *failure {
	status := rank.Dialect().ErrorStatus(data)
	body := errorBody(status, data)
	return &failure{
		leg: leg, rank: rank, status: status, body: body, contentType: typeJSON,
		reason:   reasonEngineError,
		transfer: x.pair && rank.Dialect().TransferFailure(status, body),
	}
}

// errorBody is the body of an answer that tells what the event data tells: the same
// bytes if they have the form of one.
func errorBody(status int, data []byte) []byte {
	if openai.WholeJSON(data) {
		nested, _ := openai.RawField(data, "error")
		flat, _ := openai.RawField(data, "object")
		if string(flat) == `"error"` || len(nested) > 0 && (nested[0] == '{' || nested[0] == '"') {
			return append([]byte(nil), data...)
		}
	}
	told := translate.EngineError{Status: status, Message: openai.EventErrorMessage(data)}
	if told.Message == "" {
		told.Message = "the engine told an error"
	}
	return told.AsError().AppendJSON(nil, openai.ShapeOpenAI)
}

// toldError is the failure of an answer of status 200 that is an error object, nil if it
// is none. What it says of the client's fault is told as such; else it is no answer.
func (x *exchange) toldError(leg admission.Leg, rank *fleet.Rank, answer []byte) *failure {
	status, message, isError := openai.ReadErrorObject(answer)
	switch {
	case !isError:
		return nil
	case status >= 400 && status < 500:
		return x.eventFailure(leg, rank, answer)
	}
	return &failure{leg: leg, rank: rank, reason: reasonUpstream,
		local: openai.UpstreamFailed(x.legName(leg), "it answered with status 200 and an error: "+message, nil)}
}

// abortFailure is an engine's word, in an answer of status 200, that it gave the
// request up: the error that it stands for. Without a message it says nothing of too
// little room, whatever status the client is told.
func (x *exchange) abortFailure(leg admission.Leg, rank *fleet.Rank, a openai.Abort) *failure {
	dialect := rank.Dialect()
	status, message := dialect.Abort(a)
	told := translate.EngineError{Status: status, Message: message}
	body := told.AsError().AppendJSON(nil, openai.ShapeOpenAI)
	return &failure{
		leg: leg, rank: rank, status: status, body: body, contentType: typeJSON,
		reason: reasonEngineError, gaveUp: a.Message == "",
		transfer: x.pair && dialect.TransferFailure(status, []byte(message)),
	}
}

// reportPair tells how the hand-off between two ranks went, where that is known:
// a pair that keeps failing while both ends work with others is kept apart.
func (x *exchange) reportPair(pr, dr *fleet.Rank, f *failure) {
	switch {
	case f == nil:
		x.d.fleet.ReportPairSuccess(pr, dr)
	case f.transfer:
		x.d.fleet.ReportTransferFailure(pr, dr)
	}
}
