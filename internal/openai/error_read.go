package openai

import (
	"bytes"
	"net/http"
	"unicode/utf8"

	"github.com/sluice-router/sluice/internal/text"
)

// ReadErrorObject reports whether the JSON of an answer or of an event is in fact an
// error object, as some engines send one with status 200: a top-level "error" that is
// an object or a string, or the flat form {"object":"error"} of older engines.
// status is the code in it if that is an HTTP status of an error, else 0; message its
// text of at most 2 KiB, or "".
//
// In the Responses API an "error" is also a part of an answer that failed: see ReadAbort.
// An answer without the word costs one search for it.
func ReadErrorObject(json []byte) (status int, message string, ok bool) {
	if !bytes.Contains(json, errorWord) {
		return 0, "", false
	}
	s := new(scanner)
	s.reset(json, DefaultMaxDepth)
	i := s.space(0)
	if i >= len(json) || json[i] != '{' {
		return 0, "", false
	}
	var flat, nested errorFacts
	isFlat, isNested := false, false
	i++
	for first := true; i >= 0; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			break // cut off after its error, it still is an error object
		}
		switch key := string(s.nameOf(name)); {
		case key == "error" && json[v] == '{':
			isNested = true
			i = nested.object(s, v+1)
		default:
			if i = s.skip(v, 1); i < 0 {
				break
			}
			raw := json[v:i]
			switch key {
			case "error":
				if json[v] == '"' {
					isNested = true
					nested.message = raw
				}
			case "object", "type":
				isFlat = isFlat || string(raw) == `"error"`
			default:
				flat.take(key, raw)
			}
		}
	}
	switch {
	case isNested:
		status, message = nested.tell()
		if status == 0 && isFlat {
			status, _ = flat.tell()
		}
	case isFlat:
		status, message = flat.tell()
	}
	return status, message, isNested || isFlat
}

// errorFacts are the members of an error object that are used, raw.
type errorFacts struct{ code, message []byte }

func (e *errorFacts) object(s *scanner, i int) int {
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			return v
		}
		if i = s.skip(v, 2); i < 0 {
			return -1
		}
		e.take(string(s.nameOf(name)), s.b[v:i])
	}
}

func (e *errorFacts) take(key string, raw []byte) {
	switch key {
	case "message":
		e.message = raw
	case "code", "status", "status_code":
		if kindOf(raw[0]) == KindNumber {
			e.code = raw
		}
	}
}

func (e *errorFacts) tell() (status int, message string) {
	if n, ok := parseInt(e.code); ok && n >= http.StatusBadRequest && n < 600 {
		status = int(n)
	}
	if len(e.message) > 0 && e.message[0] == '"' {
		raw := e.message
		message = text.Clip(string(AppendUnquoted(nil, raw)), maxErrorMessage)
	}
	return status, message
}

// EventErrorMessage is the engine's text in the data of an error event, of at most 2
// KiB, or "": the message of an error object, at the top level or in the response that
// failed, a top-level message, or the data itself if that is no JSON.
func EventErrorMessage(data []byte) string {
	if _, message, ok := ReadErrorObject(data); ok && message != "" {
		return message
	}
	if response, ok := RawField(data, "response"); ok {
		_, message, _ := ReadErrorObject(response)
		return message
	}
	var flat errorFacts
	raw, ok := RawField(data, "message")
	if !ok {
		raw, ok = RawField(data, "detail") // of Python's web frameworks
	}
	if ok {
		flat.message = raw
		_, message := flat.tell()
		return message
	}
	data = bytes.TrimSpace(data)
	if len(data) == 0 || data[0] == '{' || data[0] == '[' || !utf8.Valid(data) {
		return ""
	}
	return text.Clip(string(data), maxErrorMessage)
}
