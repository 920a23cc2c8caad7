package translate

import (
	"fmt"
	"net/http"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/text"
)

// EngineError is an error that the engine reported in an answer or a stream that began
// with status 200.
type EngineError struct {
	// Status is an HTTP status of an error, 500 where the engine reports none.
	Status int
	// Message is the engine's own text, at most 2 KiB.
	Message string
}

func newEngineError(status int, message string) *EngineError {
	if status == 0 {
		status = http.StatusInternalServerError
	}
	if message == "" {
		message = "the engine failed and did not say why"
	}
	return &EngineError{status, message}
}

// Error is the status and the message.
func (e *EngineError) Error() string {
	return fmt.Sprintf("the engine reported an error with status %d: %s", e.Status, e.Message)
}

// AsError is the error as it is sent to the client.
func (e *EngineError) AsError() *openai.Error {
	return &openai.Error{Status: e.Status, Type: openAIType(e.Status), Code: "engine_error", Message: e.Message}
}

// LimitError ends an answer that exceeded a limit of the router. No engine is at fault,
// and another engine would fail in the same way.
type LimitError struct {
	// Message names the limit.
	Message string
}

// Error is the message.
func (e *LimitError) Error() string { return e.Message }

// openAIType is the type of an error that comes without one, by its status.
func openAIType(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return "rate_limit_error"
	case status >= http.StatusInternalServerError:
		return "server_error"
	}
	return "invalid_request_error"
}

func malformed(what string) *openai.Error {
	return openai.UpstreamFailed("", what, nil)
}

// maxRawMessage bounds the text of an answer that is no error object.
const maxRawMessage = 512

// engineFault is an engine's answer with an error status: flat (SGLang), nested
// (vLLM), FastAPI's own, or no JSON at all.
type engineFault struct {
	message           string
	kind, param, code raw
}

func readFault(status int, body []byte) (f engineFault) {
	v, ok := checked(body)
	if !ok {
		f.message = fmt.Sprintf("the engine answered with status %d", status)
		return f
	}
	detail := raw(nil)
	f.take(v, &detail)
	for name, v := range v.members() {
		if string(name) == "error" {
			f.take(v, &detail)
			if v.isString() {
				f.message = v.text()
			}
		}
	}
	switch {
	case f.message != "":
	case detail.isString():
		f.message = detail.text()
	case detail != nil:
		f.message = string(detail[:min(len(detail), maxRawMessage)])
	default:
		f.message = fmt.Sprintf("the engine answered with status %d", status)
	}
	return f
}

func (f *engineFault) take(v raw, detail *raw) {
	for name, v := range v.members() {
		if v.isNull() {
			continue
		}
		switch string(name) {
		case "message":
			if v.isString() {
				f.message = v.text()
			}
		case "type":
			f.kind = someText(v)
		case "param":
			f.param = someText(v)
		case "code":
			if v.isString() || v.isNumber() {
				f.code = v
			}
		case "detail":
			*detail = v
		}
	}
}

// AppendError appends the error in the Messages API's form. The type follows from the
// status, so that SDKs raise the right exception.
func (m *Messages) AppendError(dst []byte, status int, body []byte) []byte {
	f := readFault(status, body)
	e := openai.Error{Status: status, Message: f.message}
	return e.AppendJSON(dst, openai.ShapeAnthropic)
}

// AppendError appends the error nested, as the API has it, with the engine's own type,
// param and code.
func (r *Responses) AppendError(dst []byte, status int, body []byte) []byte {
	f := readFault(status, body)
	dst = append(dst, `{"error":{"message":`...)
	dst = openai.AppendString(dst, clipMessage(f.message))
	dst = append(dst, `,"type":`...)
	if f.kind != nil {
		dst = append(dst, f.kind...)
	} else {
		dst = openai.AppendString(dst, openAIType(status))
	}
	dst = append(append(dst, `,"param":`...), f.param.or("null")...)
	dst = append(append(dst, `,"code":`...), f.code.or("null")...)
	return append(dst, '}', '}')
}

// clipMessage bounds the length of a message from outside.
func clipMessage(message string) string { return text.Clip(message, 2048) }
