package engine

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// EventErrorStatus is the HTTP status that an error event stands for: the
// numeric code in its error object (SGLang, vLLM), 500 where it has none. data may
// be cut short.
func EventErrorStatus(data []byte) int {
	const fallback = 500
	var e struct {
		Code  json.RawMessage `json:"code"`
		Error struct {
			Code json.RawMessage `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(data, &e) == nil {
		for _, code := range []json.RawMessage{e.Error.Code, e.Code} {
			if n, err := strconv.Atoi(string(bytes.Trim(code, `"`))); err == nil && n >= 400 && n <= 599 {
				return n
			}
		}
	}
	return fallback
}
