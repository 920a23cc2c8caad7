package translate

import (
	"bytes"
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
)

// BegunResponse is kept of the response with which an engine's own stream began, to end
// that stream with an event if it breaks off. Its values are JSON.
type BegunResponse struct {
	id, created, model []byte
}

// maxBegun bounds each value that is kept, in bytes.
const maxBegun = 1 << 10

// ReadBegunResponse reads the data of response.created, or of another event that has the
// response in it; nil if it has none. The data is not kept.
func ReadBegunResponse(data []byte) *BegunResponse {
	response, ok := openai.RawField(data, "response")
	if !ok {
		return nil
	}
	field := func(name, def string) []byte {
		if v, ok := openai.RawField(response, name); ok && len(v) <= maxBegun && bytes.IndexByte(v, '\n') < 0 && string(v) != "null" {
			return bytes.Clone(v)
		}
		return []byte(def)
	}
	b := &BegunResponse{id: field("id", ""), created: field("created_at", "0"), model: field("model", `""`)}
	if len(b.id) == 0 {
		return nil
	}
	return b
}

// AppendFailed appends the event response.failed as number seq of the stream, with the
// error e. SDKs expect all members of the response, so those that were not kept are sent
// empty.
func (b *BegunResponse) AppendFailed(dst []byte, seq int, e *openai.Error) []byte {
	dst = append(dst, "event: response.failed\ndata: {\"type\":\"response.failed\",\"sequence_number\":"...)
	dst = strconv.AppendInt(dst, int64(seq), 10)
	dst = append(append(dst, `,"response":{"id":`...), b.id...)
	dst = append(append(dst, `,"object":"response","created_at":`...), b.created...)
	dst = append(dst, `,"status":"failed","error":{"code":`...)
	dst = openai.AppendString(dst, responseErrorCode(e.Status))
	dst = append(dst, `,"message":`...)
	dst = openai.AppendString(dst, clipMessage(e.Message))
	dst = append(append(dst, `},"incomplete_details":null,"instructions":null,"metadata":null,"model":`...), b.model...)
	return append(dst, `,"output":[],"parallel_tool_calls":true,"temperature":null,"tool_choice":"auto","tools":[],"top_p":null,"usage":null}}`+"\n\n"...)
}
