package engine

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/sluice-router/sluice/internal/openai"
)

// EventErrorStatus is the HTTP status that an error event stands for: the number
// from 400 to 599 in its error object (SGLang, vLLM), or what the error types of the
// Messages API stand for; 500 where it has neither. data may be cut short.
func EventErrorStatus(data []byte) int {
	if status, _, ok := openai.ReadErrorObject(data); ok && status != 0 {
		return status
	}
	type facts struct {
		Code, Status json.RawMessage
		Type         string
	}
	var e struct {
		facts
		Error    facts
		Response struct{ Error facts }
	}
	if json.Unmarshal(data, &e) != nil {
		return http.StatusInternalServerError
	}
	for _, code := range [...]json.RawMessage{e.Error.Code, e.Code, e.Error.Status, e.Status, e.Response.Error.Code} {
		if n, err := strconv.Atoi(strings.Trim(string(code), `"`)); err == nil && n >= 400 && n <= 599 {
			return n
		}
	}
	if status := messagesErrors[e.Error.Type]; status != 0 && e.Type == "error" {
		return status
	}
	return http.StatusInternalServerError
}

// messagesErrors are the statuses of the error types of the Messages API, whose error
// objects have no code.
var messagesErrors = map[string]int{
	"invalid_request_error": http.StatusBadRequest,
	"authentication_error":  http.StatusUnauthorized,
	"permission_error":      http.StatusForbidden,
	"not_found_error":       http.StatusNotFound,
	"request_too_large":     http.StatusRequestEntityTooLarge,
	"rate_limit_error":      http.StatusTooManyRequests,
	"timeout_error":         http.StatusGatewayTimeout,
	"overloaded_error":      http.StatusServiceUnavailable,
}
