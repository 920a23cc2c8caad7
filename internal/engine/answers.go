package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

// HTTP is the part of a dialect that is common to engines that speak the API over
// HTTP, to be embedded: how they are called and what their answers mean. Its probes
// tell of an engine what every one tells: whether it lives, and which models it lists.
type HTTP struct{}

// Speaks implements Dialect.
func (HTTP) Speaks(scheme string) bool { return scheme == "http" || scheme == "https" }

// TakesTokens implements Dialect.
func (HTTP) TakesTokens() bool { return false }

// Call implements Dialect.
func (HTTP) Call(ctx context.Context, to *upstream.Endpoint, req *Request) (*upstream.Response, error) {
	return to.Do(ctx, &req.Request)
}

// TransferFailure implements Dialect. An engine ends a request whose hand-off broke
// with an abort of status 500.
func (HTTP) TransferFailure(status int, body []byte) bool {
	if status != http.StatusInternalServerError {
		return false
	}
	low := bytes.ToLower(body[:min(len(body), 4096)])
	for _, word := range transferWords {
		if bytes.Contains(low, word) {
			return true
		}
	}
	return false
}

var transferWords = [][]byte{
	[]byte("transfer"), []byte("bootstrap"), []byte("kvpoll"), []byte("disagg"), []byte("abort"),
}

// RankMissing implements Dialect. Engines say which number is out of which range, by the
// name that the number has with them.
func (HTTP) RankMissing(status int, body []byte) bool {
	if status != http.StatusBadRequest {
		return false
	}
	body = body[:min(len(body), 4096)]
	return bytes.Contains(body, []byte("out of range")) &&
		(bytes.Contains(body, []byte("dp_rank")) || bytes.Contains(body, []byte("data_parallel_rank")))
}

// HandOffLost implements Dialect: no status means it.
func (HTTP) HandOffLost(int) bool { return false }

// ErrorStatus implements Dialect: the number from 400 to 599 in the error object
// (SGLang, vLLM), or what the error types of the Messages API stand for; 500 where
// it has neither.
func (HTTP) ErrorStatus(data []byte) int {
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

// Abort implements Dialect.
func (HTTP) Abort(a openai.Abort) (status int, message string) {
	if a.Message == "" {
		return a.Status, "the engine aborted the request"
	}
	return a.Status, a.Message
}

// EditWhole implements Dialect: an id of the client's is marked as this attempt's.
func (HTTP) EditWhole(s *openai.Splicer, w Whole) { markRID(s, w.Request, w.Attempt) }

// RankHeader implements Dialect.
func (HTTP) RankHeader() string { return "" }

// markRID marks the client's own rid of a further attempt as AttemptID does with the
// request's id: an engine that still has the attempt before refuses a second one of
// the same id.
func markRID(s *openai.Splicer, p *openai.Peeked, attempt int) {
	if attempt < 2 {
		return
	}
	switch p.FieldKind(openai.FieldRID) {
	case openai.KindString:
		if id, ok := p.Str(openai.FieldRID); ok {
			s.SetString(openai.FieldRID, AttemptID(id, attempt))
		}
	case openai.KindArray:
		var ids []string
		if json.Unmarshal(p.Raw(openai.FieldRID), &ids) != nil {
			return // the engine says what is wrong with it
		}
		list := []byte{'['}
		for i, id := range ids {
			if i > 0 {
				list = append(list, ',')
			}
			list = openai.AppendString(list, AttemptID(id, attempt))
		}
		s.SetRaw(openai.FieldRID, append(list, ']'))
	}
}

// AttemptID is what engines call a request with an id on its n-th attempt, from 1: the
// id itself on the first, then one of its own for each. Engines match ids by prefix,
// so that the mark comes first.
func AttemptID(id string, n int) string {
	if n < 2 {
		return id
	}
	return "r" + strconv.Itoa(n-1) + "-" + id
}
