package server

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-router/sluice/internal/dispatch"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/telemetry"
)

// request is one request from its head to its access log line. It is owned by the
// handler's goroutine, except for what call.Free releases.
type request struct {
	s     *Server
	raw   http.ResponseWriter
	r     *http.Request
	out   reply
	id    [1]string // the answer's header
	route *route    // nil: none matched
	call  dispatch.Call

	reason  string
	err     error
	refusal *openai.Error // the error with which the request was refused before dispatch
	// counted: dispatch has counted the request.
	counted bool
	// key is the name of the API key that the client sent; empty: it has none.
	key string
	// model is the requested model; empty until the body was parsed.
	model string

	// maxBody bounds the body, in bytes.
	maxBody int64
	buf     buffer
	length  int // of the body, in buf
	// reserved is the size in bytes of copies of the body.
	reserved int64
	// bodyBegun: some of the body was read; bodyDone: all of it was.
	bodyBegun, bodyDone bool
}

// reply counts what is sent.
type reply struct {
	http.ResponseWriter
	status int // 0: nothing was sent yet
	bytes  int64
}

func (w *reply) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *reply) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *reply) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (q *request) begin() {
	q.out.ResponseWriter = q.raw
	q.maxBody = q.s.cfg.Server.MaxPayloadSize
	q.call.Arrived = time.Now()
	q.call.ID = requestID(q.r.Header)
	q.id[0] = q.call.ID
	q.raw.Header()[headerRequestID] = q.id[:]
}

// finish is deferred: it answers requests whose handler panicked without an answer,
// and writes the access log line.
func (q *request) finish() {
	p := recover()
	aborted := p == http.ErrAbortHandler
	if p != nil && !aborted {
		q.s.log.Error("panic in a request's handler", "id", q.call.ID, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		q.reason, q.err = reasonInternal, fmt.Errorf("panic: %v", p)
		if q.out.status == 0 {
			q.answerPanic()
		} else {
			aborted = true
		}
	}
	if q.out.status == 0 {
		// The client disconnected. If the handler just returned, net/http would send
		// an empty 200.
		aborted = true
	}
	q.count()
	q.access()
	if aborted {
		panic(http.ErrAbortHandler)
	}
}

func (q *request) answerPanic() {
	defer func() {
		if recover() != nil {
			q.out.status = 0 // then the connection is closed
		}
	}()
	q.out.Header().Set(headerConnection, "close")
	q.write(openai.Internal(nil))
}

// writeLimit bounds the time to send one of the router's own answers where no option does.
const writeLimit = time.Minute

// limitWrite sets the write deadline, so that a client that does not read cannot hold
// its handler.
func (q *request) limitWrite() {
	limit := q.s.cfg.Timeouts.ClientWrite
	if limit <= 0 {
		limit = writeLimit
	}
	_ = http.NewResponseController(q.raw).SetWriteDeadline(time.Now().Add(limit)) // not every writer has one
}

// write answers with one of the router's own errors.
func (q *request) write(e *openai.Error) {
	q.limitWrite()
	_ = e.WriteResponse(&q.out, q.shape()) // fails only if the client disconnected
}

// shape is the form of the API that the client speaks: the route's, and where both
// APIs have the path, or none has, that of the SDK.
func (q *request) shape() openai.Shape {
	if q.route == nil || q.route.bothAPIs {
		if len(q.r.Header[headerAnthropicVersion]) > 0 || strings.HasPrefix(q.r.URL.Path, pathMessages+"/") {
			return openai.ShapeAnthropic
		}
	}
	return q.api().Shape()
}

func (q *request) api() openai.Route {
	if q.route == nil {
		return openai.RouteOther
	}
	return q.route.api
}

// status is the status for log and metrics: the one that was sent, else 499 for a
// client that disconnected.
func (q *request) status() int {
	if q.counted {
		return q.call.Record.Status
	}
	if q.out.status == 0 {
		return dispatch.StatusClientGone
	}
	return q.out.status
}

// count adds the request to the metrics, unless dispatch has done so or the route is
// quiet. Labels are of closed sets: no path, method or name of a client is a label.
func (q *request) count() {
	if q.counted || q.route != nil && q.route.quiet {
		return
	}
	q.s.opts.Requests.Refused(q.api(), q.status(), q.reason)
}

// failed tells whether the request is one that an operator looks for: sluice or an
// engine failed it, there was no room for it, or its answer broke off. What is wrong
// with the request itself is the client's.
func (q *request) failed(status int) bool {
	switch {
	case status >= 500:
		return true
	case status == http.StatusTooManyRequests:
		return q.reason != reasonEngineStatus
	case status < 400:
		return q.reason != reasonOK && q.reason != reasonClientGone
	}
	return false
}

// peer is an address without its port.
func peer(addr string) string {
	if i := strings.LastIndexByte(addr, ':'); i > 0 {
		addr = addr[:i]
	}
	return strings.TrimSuffix(strings.TrimPrefix(addr, "["), "]")
}

func (q *request) access() {
	rec := &q.call.Record
	line := telemetry.AccessLine{
		ID: q.call.ID, Method: q.r.Method, Client: peer(q.r.RemoteAddr), Key: q.key,
		Model: rec.Model, Class: rec.Class, Resource: rec.Resource,
		Prefill: rec.PrefillRank, PrefillID: rec.PrefillName, Decode: rec.DecodeRank, DecodeID: rec.DecodeName,
		Attempts: rec.Attempts, Failed: rec.Failed, Queued: rec.Queued, Encoded: rec.Encoded, Predicted: rec.Predicted, TTFT: rec.TTFT, Total: time.Since(q.call.Arrived),
		Status: q.status(), Reason: q.reason, Code: rec.Code, BytesIn: int64(q.length), BytesOut: q.out.bytes,
		PromptTokens: rec.PromptTokens, OutputTokens: rec.OutputTokens,
		CacheWhy: rec.Cache.Why, CacheBest: rec.Cache.Best, CacheChosen: rec.Cache.Chosen, CacheReported: rec.Cache.Reported,
		Note: rec.Note,
	}
	line.PrefixHashes = q.s.hashes.encode(rec.PromptKeys)
	if line.Model == "" {
		line.Model = q.model
	}
	switch {
	case q.route == nil:
		line.Route = q.r.URL.Path
	case q.route.quiet:
		line.Route = q.r.URL.Path
		line.Level = slog.LevelDebug
	default:
		line.Route = q.route.name
		if q.route.polled && line.Status < 400 && (q.r.Method == http.MethodGet || q.r.Method == http.MethodHead) {
			line.Level = slog.LevelDebug
		}
	}
	if line.Level == slog.LevelInfo && q.failed(line.Status) {
		line.Level = slog.LevelWarn
	}
	if line.Status >= 500 || rec.Status == http.StatusOK && q.reason != reasonOK && q.reason != reasonClientGone {
		line.Err = q.err
	} else if line.Status >= 400 && (line.Status != http.StatusTooManyRequests || q.reason == reasonEngineStatus) {
		line.Err = q.clientFault()
	}
	q.s.log.Access(&line)
}

// clientFault tells for the log what was wrong with a request, without anything of the
// request itself; nil if nothing can be said.
func (q *request) clientFault() error {
	var says interface{ LogText() string }
	switch {
	case q.refusal != nil:
		says = q.refusal
	case !errors.As(q.err, &says):
		return nil
	}
	if text := says.LogText(); text != "" {
		return errors.New(text)
	}
	return nil
}

// json answers with a document.
func (q *request) json(status int, body []byte) {
	q.limitWrite()
	h := q.out.Header()
	h[headerContentType] = []string{contentTypeJSON}
	h[headerContentLength] = []string{strconv.Itoa(len(body))}
	q.out.WriteHeader(status)
	_, _ = q.out.Write(body) // fails only if the client disconnected
}
