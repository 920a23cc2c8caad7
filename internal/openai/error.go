package openai

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-router/sluice/internal/text"
)

// ErrorCodeHeader carries the code of every error that is sluice's own.
const ErrorCodeHeader = "X-Smg-Error-Code"

// maxErrorMessage bounds a message, in bytes; parts of it may come from outside.
const maxErrorMessage = 2048

// AdmissionInfo says which gate refused a request, and which resource was lacking.
type AdmissionInfo struct {
	// Gate is the gate's name, such as "prefill"; Resource what was short, such as
	// "prefill_slots" or "decode_blocks"; Class the policy class, or "".
	Gate, Resource, Class string
	// Retryable: the same request may succeed later.
	Retryable bool
	// QueueDepth is the number of waiting requests of the queue that refused.
	QueueDepth int
	// Predicted: it was refused when it came, for the wait that it would have had,
	// which is EstimatedWait.
	Predicted     bool
	EstimatedWait time.Duration
}

// Error is an error of sluice itself, with everything that is sent to the client.
type Error struct {
	Status  int    // HTTP status
	Type    string // the API's coarse type, such as "invalid_request_error"
	Code    string // what happened, stable: see the constructors
	Param   string // the field at fault, or ""
	Message string
	// Detail is a code in error.details.error_code of Anthropic's shape, by which its SDKs
	// know how to go on; or "".
	Detail string
	// RetryAfter becomes the Retry-After header (whole seconds, rounded up, at
	// least 1) and admission.retry_after_ms; 0 is no header.
	RetryAfter time.Duration
	Admission  *AdmissionInfo
	// Limit is set where a class's queue limit was reached.
	Limit *LimitInfo
	// Cause is for the log, never for the client.
	Cause error

	format string // Message without its values, if that is known
}

// LimitInfo is which limit of a class was reached.
type LimitInfo struct {
	PolicyClass string
	Kind        string // requests, raw_isl_tokens or cached_tokens
	Current     int64
	Limit       int64
}

// Error is the code and the message, with the cause.
func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Code + ": " + e.Message + ": " + e.Cause.Error()
	}
	return e.Code + ": " + e.Message
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Cause }

// WithCause is a copy of e with a cause for the log.
func (e *Error) WithCause(err error) *Error {
	c := *e
	c.Cause = err
	return &c
}

// Shape is the form of an API's error objects.
type Shape uint8

// The shapes.
const (
	ShapeOpenAI Shape = iota
	ShapeAnthropic
)

// Shape is the form of errors on the route.
func (r Route) Shape() Shape {
	if r == RouteMessages || r == RouteCountTokens {
		return ShapeAnthropic
	}
	return ShapeOpenAI
}

// RetryAfterSeconds is the value of the Retry-After header, or 0 for none.
func (e *Error) RetryAfterSeconds() int {
	if e.RetryAfter <= 0 {
		return 0
	}
	return int(max(1, math.Ceil(e.RetryAfter.Seconds())))
}

// AppendJSON appends the error object in the given shape.
func (e *Error) AppendJSON(dst []byte, shape Shape) []byte {
	if shape == ShapeAnthropic {
		dst = append(dst, `{"type":"error","error":{"type":`...)
		dst = AppendString(dst, e.anthropicType())
		dst = append(dst, `,"message":`...)
		dst = AppendString(dst, text.Clip(e.Message, maxErrorMessage))
		if e.Detail != "" {
			dst = append(dst, `,"details":{"error_code":`...)
			dst = append(AppendString(dst, e.Detail), '}')
		}
	} else {
		dst = append(dst, `{"error":{"message":`...)
		dst = AppendString(dst, text.Clip(e.Message, maxErrorMessage))
		dst = append(dst, `,"type":`...)
		dst = AppendString(dst, e.Type)
		dst = append(dst, `,"param":`...)
		if e.Param == "" {
			dst = append(dst, "null"...)
		} else {
			dst = AppendString(dst, e.Param)
		}
		dst = append(dst, `,"code":`...)
		dst = AppendString(dst, e.Code)
	}
	if a := e.Admission; a != nil {
		dst = append(dst, `,"admission":{"gate":`...)
		dst = AppendString(dst, a.Gate)
		dst = append(dst, `,"resource":`...)
		dst = AppendString(dst, a.Resource)
		dst = append(dst, `,"class":`...)
		dst = AppendString(dst, a.Class)
		dst = append(dst, `,"retryable":`...)
		dst = strconv.AppendBool(dst, a.Retryable)
		dst = append(dst, `,"retry_after_ms":`...)
		dst = strconv.AppendInt(dst, max(0, e.RetryAfter.Milliseconds()), 10)
		dst = append(dst, `,"queue_depth":`...)
		dst = strconv.AppendInt(dst, int64(a.QueueDepth), 10)
		if a.Predicted {
			dst = append(dst, `,"predicted":true,"estimated_wait_ms":`...)
			dst = strconv.AppendInt(dst, max(0, a.EstimatedWait.Milliseconds()), 10)
		}
		dst = append(dst, '}')
	}
	if l := e.Limit; l != nil {
		dst = append(dst, `,"details":{"policy_class":`...)
		dst = AppendString(dst, l.PolicyClass)
		dst = append(dst, `,"limit_kind":`...)
		dst = AppendString(dst, l.Kind)
		dst = append(dst, `,"current":`...)
		dst = strconv.AppendInt(dst, l.Current, 10)
		dst = append(dst, `,"limit":`...)
		dst = strconv.AppendInt(dst, l.Limit, 10)
		dst = append(dst, '}')
	}
	return append(dst, '}', '}')
}

// MarshalJSON is the error in the OpenAI shape.
func (e *Error) MarshalJSON() ([]byte, error) { return e.AppendJSON(nil, ShapeOpenAI), nil }

var _ json.Marshaler = (*Error)(nil)

// anthropicType maps to the error types of the Messages API.
func (e *Error) anthropicType() string {
	switch e.Status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusServiceUnavailable, StatusOverloaded:
		return "overloaded_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	if e.Status >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

// WriteResponse answers a request with the error: status, headers, body, which in
// Anthropic's shape repeats the header X-Request-Id. Nothing may have been written
// before.
func (e *Error) WriteResponse(w http.ResponseWriter, shape Shape) error {
	h := w.Header()
	body := e.AppendJSON(make([]byte, 0, 512), shape)
	if id := h["X-Request-Id"]; shape == ShapeAnthropic && len(id) == 1 {
		body = append(body[:len(body)-1], `,"request_id":`...)
		body = append(AppendString(body, id[0]), '}')
	}
	body = append(body, '\n')
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set(ErrorCodeHeader, e.Code)
	if secs := e.RetryAfterSeconds(); secs > 0 {
		h.Set("Retry-After", strconv.Itoa(secs))
	}
	w.WriteHeader(e.Status)
	if _, err := w.Write(body); err != nil {
		return fmt.Errorf("cannot write the error answer %s: %w", e.Code, err)
	}
	return nil
}

// AppendEvent appends the error as an event of a stream. A stream that was cut inside
// an event must be closed first: EventScanner.AppendClose.
func (e *Error) AppendEvent(dst []byte, shape Shape) []byte {
	if shape == ShapeAnthropic {
		dst = append(dst, "event: error\n"...)
	}
	dst = append(dst, "data: "...)
	dst = e.AppendJSON(dst, shape)
	return append(dst, '\n', '\n')
}
