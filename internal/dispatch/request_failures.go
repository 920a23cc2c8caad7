package dispatch

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/translate"
	"github.com/sluice-router/sluice/internal/upstream"
	"github.com/sluice-router/sluice/internal/wire"
)

// maxFailedNamed bounds the failed attempts that a request's access line names.
const maxFailedNamed = 3

// noteFailed records an attempt that failed with f: for the access line, and with the
// words of the engine in a line of its own at debug.
func (x *request) noteFailed(f *failure) {
	if f.clientLeft || f.secondary {
		return
	}
	rec := &x.call.Record
	where := ""
	switch {
	case f.rank == nil:
	case f.transfer || f.unproven: // it may be either of the two
		where = strings.Trim(rec.PrefillRank+"+"+rec.DecodeRank, "+")
	default:
		where = f.rank.ID()
	}
	if x.d.log.Enabled(&x.ctx, slog.LevelDebug) {
		x.d.log.Debug("attempt failed", "id", x.call.ID, "attempt", x.attempts, "rank", where, "reason", f.reason, "error", f.cause())
	}
	if where == "" || f.blame() == blameNobody {
		return
	}
	how, _ := f.word()
	if f.status != 0 {
		how = itoa(f.status)
	}
	switch x.failed++; {
	case x.failed == 1:
		rec.Failed = where + " " + how
	case x.failed <= maxFailedNamed:
		rec.Failed += ", " + where + " " + how
	case x.failed == maxFailedNamed+1:
		rec.Failed += ", …"
	}
}

// legFailure turns the error of a call into a failure of that leg.
func (x *request) legFailure(ctx *legContext, leg admission.Leg, rank *fleet.Rank, err error) *failure {
	f := &failure{leg: leg, rank: rank, err: err}
	if cause := ctx.ended(); cause != nil {
		switch {
		case errors.Is(cause, errPeerFailed), errors.Is(cause, errAttemptOver), errors.Is(cause, errDecodeOver):
			f.secondary = true
			return f
		case errors.Is(cause, errWorkerDead):
			f.workerDead = true
			f.reason = reasonWorkerDead
			why := "its worker was declared dead while the request ran"
			if errors.Is(context.Cause(rank.Alive()), fleet.ErrRemoved) {
				why = "its worker was removed while the request ran, and the time for that was over"
			}
			f.local = openai.UpstreamFailed(leg.String(), why, err)
			return f
		case errors.Is(cause, errRankWedged):
			f.wedged = true
			f.reason = reasonWorkerWedged
			f.local = openai.UpstreamFailed(leg.String(), "its engine stopped making progress while the request ran", err)
			return f
		case errors.Is(cause, errRevoked):
			f.rank = nil
			f.reason = reasonGate
			f.local = openai.GateUnavailable(openai.AdmissionInfo{Gate: leg.String(), Class: x.ticket.ClassName(), Retryable: true}, revokedRetry)
			return f
		case errors.Is(cause, errRequestTimeout):
			f.rank = nil
			f.reason = reasonTimeout
			f.local = openai.UpstreamTimeout(x.legName(leg), "whole answer", x.d.cfg.Timeouts.Request, "--request-timeout-secs")
			return f
		case errors.Is(cause, ErrShutdown):
			f.rank = nil
			f.reason = reasonDraining
			f.local = openai.Draining()
			return f
		default:
			f.rank = nil
			f.clientLeft = true
			f.reason = reasonClientGone
			return f
		}
	}
	var ue *upstream.Error
	if errors.As(err, &ue) {
		if ue.Kind == upstream.KindTimeout {
			f.reason = reasonUpstreamTime
			f.local = openai.UpstreamTimeout(x.legName(leg), limitNoun(ue.Limit), ue.LimitValue, limitOption(ue.Limit)).WithCause(err)
			return f
		}
		if !upstream.EngineFault(err) {
			f.rank = nil
		}
		if ue.Kind == upstream.KindTooLarge && ue.Op == upstream.OpHeader {
			return limitFailure(leg, rank, "the engine's answer cannot be taken: "+limitText(ue))
		}
		f.reason = reasonUpstream
		if ue.Kind == upstream.KindLocal {
			f.local = outOfFiles(err)
			return f
		}
		f.local = openai.UpstreamFailed(x.legName(leg), upstreamReason(ue), err)
		return f
	}
	f.reason = reasonUpstream
	f.local = openai.UpstreamFailed(x.legName(leg), "the connection failed", err)
	return f
}

// clientEnd is the end of a request by its own context: its time is over, or the
// client left.
func (x *request) clientEnd(cause error) *failure {
	if errors.Is(cause, errRequestTimeout) {
		return &failure{reason: reasonTimeout, err: cause,
			local: openai.UpstreamTimeout("", "whole answer", x.d.cfg.Timeouts.Request, "--request-timeout-secs")}
	}
	if errors.Is(cause, ErrShutdown) {
		return &failure{reason: reasonDraining, err: cause, local: openai.Draining()}
	}
	return &failure{clientLeft: true, reason: reasonClientGone, err: cause}
}

// statusFailure reads an engine's error answer. What its status says counts however
// the rest of it comes: one whose body breaks off, or is larger than the router takes,
// is passed on cut.
func (x *request) statusFailure(ctx *legContext, leg admission.Leg, rank *fleet.Rank, resp *upstream.Response) *failure {
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
		reason:      reasonEngineStatus,
		ended:       resp.Ended,
		transfer:    x.plan.pair && rank.Dialect().TransferFailure(resp.Status, body),
		rankMissing: rank != nil && rank.DPRank() >= 0 && rank.Dialect().RankMissing(resp.Status, body),
	}
	if rank != nil && (resp.Status == statusNotFound || f.rankMissing) {
		rank.CheckSoon() // it may not serve any more what it was sent
	}
	f.noModel = f.status == statusNotFound && modelMissing(body)
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

// eventFailure turns an error that an engine told with status 200, in an event or as
// its answer, into the answer that it stands for. data may be cut short.
func (x *request) eventFailure(leg admission.Leg, rank *fleet.Rank, data []byte) *failure {
	status := rank.Dialect().ErrorStatus(data)
	body := errorBody(status, data)
	return &failure{
		leg: leg, rank: rank, status: status, body: body, contentType: typeJSON,
		reason:   reasonEngineError,
		transfer: x.plan.pair && rank.Dialect().TransferFailure(status, body),
	}
}

// toldError is the failure of an answer of status 200 that is an error object, nil if it
// is none. What it says of the client's fault is told as such; else it is no answer.
func (x *request) toldError(leg admission.Leg, rank *fleet.Rank, answer []byte) *failure {
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
func (x *request) abortFailure(leg admission.Leg, rank *fleet.Rank, a openai.Abort) *failure {
	dialect := rank.Dialect()
	status, message := dialect.Abort(a)
	told := translate.EngineError{Status: status, Message: message}
	body := told.AsError().AppendJSON(nil, openai.ShapeOpenAI)
	return &failure{
		leg: leg, rank: rank, status: status, body: body, contentType: typeJSON,
		reason: reasonEngineError, gaveUp: a.Message == "",
		transfer: x.plan.pair && dialect.TransferFailure(status, []byte(message)),
	}
}

// noRoom is the failure of an answer that there is no room for. It is no engine's.
func (x *request) noRoom() *failure {
	e := &openai.Error{Status: http.StatusServiceUnavailable, Type: "server_error", Code: reasonBufferFull, RetryAfter: time.Second,
		Message: "the router holds as much of requests and answers as it may (--max-buffered-bytes), and the answer has no room; try again shortly"}
	return &failure{reason: reasonBufferFull, local: e, err: errNoRoom}
}

// collect reads a body to its end, at most limit bytes. It closes the body when
// there is more, or when there is no memory for it: errNoRoom.
func (x *request) collect(b upstream.Body, limit int) ([]byte, error) {
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

var errTooLarge = errors.New("larger than allowed")

// upstreamReason says what went wrong without naming an address.
func upstreamReason(e *upstream.Error) string {
	var rule *upstream.RuleError
	switch e.Kind {
	case upstream.KindRefused:
		return "it refuses connections"
	case upstream.KindUnreachable, upstream.KindResolve:
		return "it cannot be reached"
	case upstream.KindTLS:
		return "no TLS connection to it is possible"
	case upstream.KindReset:
		return "it reset the connection"
	case upstream.KindClosed:
		return "it closed the connection before its answer was whole"
	case upstream.KindMalformed:
		if errors.As(e, &rule) {
			return "its answer breaks the rules of its contract: " + rule.Rule
		}
		return "its answer is not valid HTTP"
	case upstream.KindTooLarge:
		if errors.As(e, &rule) {
			return rule.Rule
		}
		return "a part of its answer is larger than allowed"
	}
	return "the connection failed"
}

// limitText says which bound of the router an engine's answer passed, without an
// address.
func limitText(e *upstream.Error) string {
	if errors.Is(e.Err, wire.ErrTooLarge) {
		return strings.ReplaceAll(e.Err.Error(), ": "+wire.ErrTooLarge.Error(), "")
	}
	return "its head is larger than allowed"
}

func limitNoun(limit string) string {
	switch limit {
	case upstream.LimitConnect:
		return "connection"
	case upstream.LimitHeader:
		return "response header"
	case upstream.LimitFirstByte:
		return "first byte"
	case upstream.LimitStreamIdle:
		return "further byte"
	}
	return "answer"
}

func limitOption(limit string) string {
	switch limit {
	case upstream.LimitConnect:
		return "--connect-timeout-secs"
	case upstream.LimitHeader:
		return "--response-header-timeout-secs"
	case upstream.LimitFirstByte:
		return "--first-byte-timeout-secs"
	case upstream.LimitStreamIdle:
		return "--stream-idle-timeout-secs"
	case upstream.LimitTotal:
		return "--request-timeout-secs"
	}
	return ""
}
