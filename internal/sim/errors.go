package sim

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"
)

var (
	// errKilled is the cause of everything that ends with the process.
	errKilled = errors.New("worker killed")
	// errAborted is the cause of a request ended by /abort_request.
	errAborted = errors.New("aborted by /abort_request")
	// errBroken: a fault ended the connection, and nothing more can be sent.
	errBroken = errors.New("connection broken by fault")
)

// wireError is an error with the status the engine gives it.
type wireError struct {
	status  int
	kind    string // the OpenAI error type; "" is the status as text
	message string
	native  bool // /generate's shape {"error":{"message"}}
	param   string
	detail  string // more, for the log only
	kvLoad  bool   // KV did not come
}

func (e *wireError) Error() string { return e.message }

// abortf is the engine's FINISH_ABORT with a status code: its type is the
// status as text.
func abortf(status int, format string, args ...any) *wireError {
	return &wireError{status: status, message: fmt.Sprintf(format, args...)}
}

// invalidf is a request the engine's validation refuses.
func invalidf(param, format string, args ...any) *wireError {
	return &wireError{status: 400, kind: "BadRequestError", param: param, message: fmt.Sprintf(format, args...)}
}

func appendQuoted(b []byte, s string) []byte {
	b, err := jsontext.AppendQuote(b, s)
	if err != nil {
		// Invalid UTF-8: AppendQuote has replaced it.
		return b
	}
	return b
}

// body renders the error: flat on all routes, except what /generate refuses by
// itself.
func (e *wireError) body() []byte {
	if e.native {
		b := appendQuoted([]byte(`{"error":{"message":`), e.message)
		return append(b, "}}"...)
	}
	return e.appendObject(nil)
}

func (e *wireError) appendObject(b []byte) []byte {
	b = appendQuoted(append(b, `{"object":"error","message":`...), e.message)
	kind := e.kind
	if kind == "" {
		kind = fmt.Sprint(e.status)
	}
	b = appendQuoted(append(b, `,"type":`...), kind)
	if e.param == "" {
		b = append(b, `,"param":null`...)
	} else {
		b = appendQuoted(append(b, `,"param":`...), e.param)
	}
	return fmt.Appendf(b, `,"code":%d}`, e.status)
}

// event renders the error as the payload of an event of a running stream:
// nested, and with a shape of its own on /generate.
func (e *wireError) event(generate bool) []byte {
	b := []byte(`{"error":`)
	if generate {
		b = appendQuoted(append(b, `{"message":`...), e.message)
		b = fmt.Appendf(b, `,"type":"invalid_request_error","code":%d,"retryable":false}`, e.status)
	} else {
		b = e.appendObject(b)
	}
	return append(b, '}')
}

// asWire turns an error of the engine into the error that the client is sent.
func asWire(err error) *wireError {
	var w *wireError
	if errors.As(err, &w) {
		return w
	}
	return &wireError{status: 500, kind: "InternalServerError", message: err.Error()}
}
