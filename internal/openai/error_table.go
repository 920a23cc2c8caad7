package openai

import (
	"fmt"
	"net/http"
	"time"

	"github.com/sluice-router/sluice/internal/text"
)

// StatusOverloaded is the status some clients of policy classes expect in place of
// 429; see the option overload_status.
const StatusOverloaded = 529

// The types of OpenAI-shaped errors.
const (
	typeInvalid    = "invalid_request_error"
	typeRateLimit  = "rate_limit_error"
	typeOverloaded = "overloaded_error"
	typeServer     = "server_error"
)

// codeEngineError is the code of an engine's error that is sent in another API's form.
const codeEngineError = "engine_error"

// maxNameInMessage bounds a client's own text in a message, in bytes.
const maxNameInMessage = 128

// InvalidRequest is 400 invalid_request: the body cannot be read, a value has the
// wrong type, or a field may not be set. param is the field, or "".
func InvalidRequest(param, format string, args ...any) *Error {
	return &Error{Status: http.StatusBadRequest, Type: typeInvalid, Code: "invalid_request", Param: param,
		Message: fmt.Sprintf(format, args...), format: format}
}

// InvalidTarget is 400 invalid_target: the request is pinned to a worker that cannot
// serve it.
func InvalidTarget(target, reason string) *Error {
	return &Error{Status: http.StatusBadRequest, Type: typeInvalid, Code: "invalid_target",
		Message: fmt.Sprintf("the request is pinned to %q, which is impossible: %s", text.Clip(target, maxNameInMessage), reason)}
}

// InvalidAPIKey is 401 invalid_api_key, on a route that asks for a client's key.
func InvalidAPIKey() *Error {
	return &Error{Status: http.StatusUnauthorized, Type: typeInvalid, Code: "invalid_api_key",
		Message: "this route needs a client's API key (--api-key), and it is missing or wrong; send it as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\""}
}

// RouterLimit is 500 router_limit: the answer exceeded a limit of the router, which what
// names.
func RouterLimit(what string) *Error {
	return &Error{Status: http.StatusInternalServerError, Type: typeServer, Code: "router_limit",
		Message: what + ", the most that the router takes here; ask for less at a time"}
}

// ModelNotFound is 404 model_not_found: no worker serves the model, whatever its
// health.
func ModelNotFound(model string) *Error {
	return &Error{Status: http.StatusNotFound, Type: typeInvalid, Code: "model_not_found", Param: "model",
		Message: fmt.Sprintf("the model %q is not served here; GET /v1/models lists those that are", text.Clip(model, maxNameInMessage))}
}

// RouteNotFound is 404 route_not_found: no worker that could be asked has the route.
func RouteNotFound(path string) *Error {
	return &Error{Status: http.StatusNotFound, Type: typeInvalid, Code: "route_not_found",
		Message: fmt.Sprintf("no worker here serves the path %q", text.Clip(path, maxNameInMessage))}
}

// RequestTooLarge is 413 request_too_large; limit is in bytes.
func RequestTooLarge(limit int64) *Error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Type: typeInvalid, Code: "request_too_large",
		Message: fmt.Sprintf("the request body is larger than %d bytes (--max-payload-size); send a smaller one or ask for a higher limit", limit)}
}

// BufferFull is 503 buffer_full; limit is in bytes.
func BufferFull(limit int64) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "buffer_full", RetryAfter: time.Second,
		Message: fmt.Sprintf("the bodies of all requests together would exceed %d bytes (--max-buffered-bytes); try again shortly", limit)}
}

// TextQueueFull is 503 buffer_full: more texts wait to become tokens than may; limit is in
// bytes.
func TextQueueFull(limit int64) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "buffer_full", RetryAfter: time.Second,
		Message: fmt.Sprintf("the texts that wait to become tokens would exceed %d bytes (--tokenizer-queue-memory), or the client's part of it; try again shortly", limit)}
}

// PrefillQueueFull is 429 pd_prefill_queue_full: the router-wide queue in front of
// prefill holds as many requests as it may.
func PrefillQueueFull(limit int, a AdmissionInfo, retry time.Duration) *Error {
	e := refused(http.StatusTooManyRequests, "pd_prefill_queue_full", a, retry)
	e.Message = fmt.Sprintf("all prefill slots are taken and the queue is full (%d waiting, limit %d: --prefill-queue-size)%s",
		a.QueueDepth, limit, e.again())
	return e
}

// QueueFull is 429 queue_full: the same with a class file.
func QueueFull(limit int, a AdmissionInfo, retry time.Duration) *Error {
	e := refused(http.StatusTooManyRequests, "queue_full", a, retry)
	e.Message = fmt.Sprintf("the router's queue is full (%d waiting, limit %d)%s", a.QueueDepth, limit, e.again())
	return e
}

// PrefillQueueTimeout is 429 pd_prefill_queue_timeout: the request waited for the longest
// time allowed, which is limit.
func PrefillQueueTimeout(limit time.Duration, a AdmissionInfo, retry time.Duration) *Error {
	e := refused(http.StatusTooManyRequests, "pd_prefill_queue_timeout", a, retry)
	e.Message = fmt.Sprintf("no prefill slot came free within %s (--prefill-queue-timeout-secs)%s", limit, e.again())
	return e
}

// QueueTimeout is 429 queue_timeout: the same with a class file.
func QueueTimeout(limit time.Duration, a AdmissionInfo, retry time.Duration) *Error {
	e := refused(http.StatusTooManyRequests, "queue_timeout", a, retry)
	e.Message = fmt.Sprintf("the request waited %s, the longest the router lets one wait%s", limit, e.again())
	return e
}

// Predicted turns the error of a request that waited too long into that of a request that
// was refused on arrival, because its wait would be far beyond the bound.
func (e *Error) Predicted(bound time.Duration) *Error {
	e.Message = fmt.Sprintf("the request would wait about %s, and may wait %s; it is refused at once (--refuse-early)%s",
		e.Admission.EstimatedWait.Round(100*time.Millisecond), bound, e.again())
	return e
}

// ClassQueueFull is policy_class_queue_full: a limit of the class's queue is reached.
// overload 0 is status 429; otherwise it is the status, such as StatusOverloaded.
func ClassQueueFull(limit LimitInfo, a AdmissionInfo, retry time.Duration, overload int) *Error {
	e := refused(overload, "policy_class_queue_full", a, retry)
	e.Limit = &limit
	e.Message = fmt.Sprintf("the queue of class %q is full: %s is %d, limit %d%s",
		limit.PolicyClass, limit.Kind, limit.Current, limit.Limit, e.again())
	return e
}

// QueueDeadlineExceeded is queue_deadline_exceeded: the class's or the client's
// deadline, a time to wait, passed in the queue.
func QueueDeadlineExceeded(deadline time.Duration, a AdmissionInfo, retry time.Duration, overload int) *Error {
	e := refused(overload, "queue_deadline_exceeded", a, retry)
	e.Message = fmt.Sprintf("the request's deadline of %s passed while it waited%s", deadline, e.again())
	return e
}

// AllWorkersOverloaded is all_workers_overloaded: each worker that could serve the
// request is over a reject threshold.
func AllWorkersOverloaded(a AdmissionInfo, retry time.Duration, overload int) *Error {
	e := refused(overload, "all_workers_overloaded", a, retry)
	e.Message = "every worker that could serve this request is over its load threshold" + e.again()
	return e
}

// NoAvailableWorkers is 503 no_available_workers: workers of that kind are known (or
// expected), but none can be used now. role is "prefill", "decode", "prefill and no decode" or "".
func NoAvailableWorkers(model, role string, retry time.Duration) *Error {
	if role != "" {
		role += " "
	}
	which := ""
	if model != "" {
		which = fmt.Sprintf(" for the model %q", text.Clip(model, maxNameInMessage))
	}
	e := &Error{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "no_available_workers", RetryAfter: retry}
	e.Message = fmt.Sprintf("no %sworker%s is ready now (down, still loading, or draining)%s", role, which, e.again())
	return e
}

// ModelUndecided is 503 no_available_workers for a request that names no model while
// some worker has not reported yet which one it serves.
func ModelUndecided(retry time.Duration) *Error {
	e := &Error{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "no_available_workers", RetryAfter: retry}
	e.Message = "the request names no model, and not all workers have reported yet which model they serve; name one in the field \"model\"" + e.again()
	return e
}

// WorkersUnavailable is NoAvailableWorkers as decided by the gate.
func WorkersUnavailable(model, role string, a AdmissionInfo, retry time.Duration) *Error {
	e := NoAvailableWorkers(model, role, retry)
	e.Admission = &a
	return e
}

// GateUnavailable is 503 gate_unavailable: no member of the cluster decides for all, and
// this one may not decide alone, or has no share of the workers that could serve the
// request.
func GateUnavailable(a AdmissionInfo, retry time.Duration) *Error {
	e := refused(http.StatusServiceUnavailable, "gate_unavailable", a, retry)
	e.Type = typeServer
	e.Message = "the routers of the cluster have no one among them that decides for all (see GET /cluster), and this one may not start the request alone" + e.again()
	return e
}

// UpstreamFailed is 502 upstream_failed: the engine could not be reached, broke off
// before an answer, or sent something that is not an answer. role is "prefill", "decode" or
// ""; reason must not hold addresses or keys; cause goes to the log.
func UpstreamFailed(role, reason string, cause error) *Error {
	return &Error{Status: http.StatusBadGateway, Type: typeServer, Code: "upstream_failed", Cause: cause,
		Message: fmt.Sprintf("the %s failed: %s", engine(role), text.Clip(reason, 512))}
}

// UpstreamTimeout is 504 upstream_timeout: what (such as "first byte") did not come
// within the limit that option sets.
func UpstreamTimeout(role, what string, limit time.Duration, option string) *Error {
	if option != "" {
		option = " (" + option + ")"
	}
	return &Error{Status: http.StatusGatewayTimeout, Type: typeServer, Code: "upstream_timeout",
		Message: fmt.Sprintf("the %s gave no %s within %s%s", engine(role), what, limit, option)}
}

// Draining is 503 draining: this process is shutting down.
func Draining() *Error {
	return &Error{Status: http.StatusServiceUnavailable, Type: typeServer, Code: "draining", RetryAfter: time.Second,
		Message: "the router is shutting down and takes no new requests; send it again, another one will take it"}
}

// Internal is 500 internal_error: a fault of sluice itself; cause goes to the log.
func Internal(cause error) *Error {
	return &Error{Status: http.StatusInternalServerError, Type: typeServer, Code: "internal_error", Cause: cause,
		Message: "the router failed to handle the request; its log says why"}
}

func refused(status int, code string, a AdmissionInfo, retry time.Duration) *Error {
	typ := typeRateLimit
	switch status {
	case 0:
		status = http.StatusTooManyRequests
	case StatusOverloaded:
		typ = typeOverloaded
	}
	return &Error{Status: status, Type: typ, Code: code, RetryAfter: retry, Admission: &a}
}

func (e *Error) again() string {
	if secs := e.RetryAfterSeconds(); secs > 0 {
		return fmt.Sprintf("; try again in %d s", secs)
	}
	return "; try again later"
}

func engine(role string) string {
	if role == "" {
		return "engine"
	}
	return role + " engine"
}
