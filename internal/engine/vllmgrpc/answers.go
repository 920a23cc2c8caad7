package vllmgrpc

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-router/sluice/internal/generate"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

// invalid is the error of a request that cannot be sent.
func (c *call) invalid(err error) error {
	return &upstream.Error{Op: upstream.OpRequest, Kind: upstream.KindInvalid, Addr: c.addr(), Err: err}
}

// malformed is the error of an answer that breaks the rules.
func (c *call) malformed(err error) error {
	return &upstream.Error{Op: upstream.OpBody, Kind: upstream.KindMalformed, Addr: c.addr(), Sent: true, Err: &upstream.RuleError{Rule: err.Error()}}
}

func (c *call) addr() string {
	base := c.to.Base()
	return base.Addr()
}

// failed is the answer for an error before the first bytes: what the engine said, with a status
// of its own, or the error of the connection.
func (c *call) failed(err error) (*upstream.Response, error) {
	if status, message, ok := c.told(err); ok {
		resp := told(status, message)
		var st *upstream.StatusError
		resp.Ended = errors.As(err, &st) && st.Ended()
		return resp, nil
	}
	return nil, c.unwrapped(err)
}

// unwrapped is err as the contract of a call has it: an *upstream.Error.
func (c *call) unwrapped(err error) error {
	var ue *upstream.Error
	if errors.As(err, &ue) {
		return ue
	}
	return c.malformed(err)
}

// told is what an error says of the engine's own word; ok is false for other errors.
func (c *call) told(err error) (status int, message string, ok bool) {
	var st *upstream.StatusError
	var ee *generate.EngineError
	var se *sequenceError
	switch {
	case errors.As(err, &st):
		return statusOf(st), messageOf(st), true
	case !errors.As(err, &ee) || ee.Finish == generate.Running:
		return 0, "", false
	case ee.Finish == generate.Aborted:
		return http.StatusInternalServerError, `the engine ended the request with finish_reason "abort", which nobody had asked for`, true
	case errors.As(err, &se) && se.k < len(c.handedOver) && c.handedOver[se.k]:
		return http.StatusInternalServerError, transferLost, true
	}
	return http.StatusInternalServerError, `the engine could not go on with the request: finish_reason "error"`, true
}

// statusOf is the HTTP status that a gRPC status stands for.
func statusOf(st *upstream.StatusError) int {
	const resourceExhausted = 8
	if st.Code == resourceExhausted && strings.Contains(st.Message, "larger than max") {
		return http.StatusRequestEntityTooLarge // of a message; another attempt would end in the same way
	}
	return st.Status()
}

const maxStatusMessage = 8 << 10 // bytes

func messageOf(st *upstream.StatusError) string {
	if st.Message == "" {
		return "the engine answered with status " + st.Name
	}
	return strings.ToValidUTF8(st.Message[:min(len(st.Message), maxStatusMessage)], "\uFFFD")
}

// appendError appends an error as an engine behind HTTP tells it.
func appendError(dst []byte, status int, message string) []byte {
	kind := "InternalServerError"
	if status < 500 {
		kind = "BadRequestError"
	}
	dst = append(dst, `{"error":{"message":`...)
	dst = openai.AppendString(dst, message)
	dst = append(append(append(dst, `,"type":"`...), kind...), `","param":null,"code":`...)
	return append(strconv.AppendInt(dst, int64(status), 10), "}}"...)
}

// told is an answer with an error.
func told(status int, message string) *upstream.Response {
	body := appendError(nil, status, message)
	return upstream.NewResponse(status, jsonHeader, int64(len(body)), &plainBody{left: body})
}

// json is the answer of a prefill leg, in the form in which it comes by HTTP; with several
// sequences kv_transfer_params is a list.
func (p *prefilled) json() []byte {
	room := 256
	for _, params := range p.params {
		room += len(params) + len("null,")
	}
	b := append(make([]byte, 0, room), `{"object":"prefill","choices":[],"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, p.prompt, 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(p.done), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, p.prompt+int64(p.done), 10)
	b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, min(p.cached, p.prompt), 10)
	b = append(b, `}},"kv_transfer_params":`...)
	list := len(p.params) > 1
	if list {
		b = append(b, '[')
	}
	now := time.Now()
	for k, params := range p.params {
		if k > 0 {
			b = append(b, ',')
		}
		switch params = bytes.TrimSpace(params); {
		case len(params) == 0, list && now.Sub(p.at[k]) > maxHandOffAge:
			b = append(b, "null"...)
		case (params[0] == '{' || string(params) == "null") && openai.WholeJSON(params):
			b = append(b, params...)
		default: // one sequence's list would be read as that of several
			b = append(b, `"no object"`...) // which whoever reads the hand-off refuses
		}
	}
	if list {
		b = append(b, ']')
	}
	return append(b, '}')
}
