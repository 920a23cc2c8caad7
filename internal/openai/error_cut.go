package openai

import (
	"bytes"
	"encoding/json"
	"net/http"
	"unicode/utf8"
)

// maxCutMessage is how much of an engine's message is kept of an error that is cut,
// in bytes.
const maxCutMessage = 4096

// CutError makes an error object of an engine's error whose body could not be taken
// whole: with the beginning of its message, or of the body where that has none. why
// says what is wrong with the body.
func CutError(status int, body []byte, why string) []byte {
	text := cutMessage(body)
	if text == "" {
		text = "the engine answered with status " + http.StatusText(status)
	}
	e := Error{Status: status, Type: typeServer, Code: "engine_error_cut", Message: text + " … (the engine's error is cut: " + why + ")"}
	if status < 500 {
		e.Type = typeInvalid
	}
	return e.AppendJSON(nil, ShapeOpenAI)
}

// cutMessage is the beginning of the first message in an error object that may be
// cut anywhere.
func cutMessage(body []byte) string {
	for _, key := range []string{`"message"`, `"detail"`} {
		_, rest, ok := bytes.Cut(body, []byte(key))
		if !ok {
			continue
		}
		rest = bytes.TrimLeft(rest, " \t\r\n:")
		if len(rest) == 0 || rest[0] != '"' {
			continue
		}
		rest = rest[1:min(len(rest), maxCutMessage)]
		if text, ok := unquoteCut(rest); ok {
			return text
		}
	}
	text := bytes.TrimSpace(body[:min(len(body), maxCutMessage)])
	if len(text) > 0 && (text[0] == '{' || text[0] == '[') {
		return "" // JSON without a message
	}
	for len(text) > 0 && !utf8.Valid(text) {
		text = text[:len(text)-1]
		if len(text) < maxCutMessage-utf8.UTFMax {
			return "" // no text
		}
	}
	return string(text)
}

// unquoteCut reads a JSON string from after its opening quote to its end, or to where it
// is cut off.
func unquoteCut(b []byte) (text string, ok bool) {
	end := 0
	for end < len(b) && b[end] != '"' {
		if b[end] == '\\' {
			end++
		}
		end++
	}
	end = min(end, len(b))
	// An escape or a character may be cut in two.
	for range len(`\uXXXX\uXXXX`) {
		quoted := append(append([]byte{'"'}, b[:end]...), '"')
		if json.Unmarshal(quoted, &text) == nil && (end == 0 || utf8.RuneStart(b[end-1]) || utf8.Valid(b[:end])) {
			return text, text != ""
		}
		if end == 0 {
			break
		}
		end--
	}
	return "", false
}
