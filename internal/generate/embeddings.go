package generate

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
)

// AppendEmbeddings appends the answer to a request for embeddings, as vLLM gives it over HTTP:
// one vector for each prompt. created is in seconds since 1970.
func (r *Request) AppendEmbeddings(b []byte, vectors [][]float32, id string, created int64) []byte {
	b = openai.AppendString(append(b, `{"id":`...), "embd-"+id)
	b = strconv.AppendInt(append(b, `,"object":"list","created":`...), created, 10)
	b = openai.AppendString(append(b, `,"model":`...), r.Model)
	b = append(b, `,"data":[`...)
	for i, v := range vectors {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, `{"index":`...), int64(i), 10)
		b = append(b, `,"object":"embedding","embedding":`...)
		if r.Form.Base64 {
			b = appendBase64(b, v)
		} else {
			b = appendFloatList(b, v)
		}
		b = append(b, '}')
	}
	n := r.PromptTokens()
	b = strconv.AppendInt(append(b, `],"usage":{"prompt_tokens":`...), n, 10)
	b = strconv.AppendInt(append(b, `,"total_tokens":`...), n, 10)
	return append(b, `,"completion_tokens":0,"prompt_tokens_details":null}}`...)
}

// appendBase64 appends the bytes of the numbers, each little-endian.
func appendBase64(b []byte, v []float32) []byte {
	raw := make([]byte, 0, 4*len(v))
	for _, x := range v {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	b = append(b, '"')
	b = base64.StdEncoding.AppendEncode(b, raw)
	return append(b, '"')
}

func appendFloatList(b []byte, v []float32) []byte {
	b = append(b, '[')
	for i, x := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendFloat(b, float64(x), 'g', -1, 64)
	}
	return append(b, ']')
}
