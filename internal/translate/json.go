package translate

import (
	"bytes"
	"encoding/json"
	"iter"
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
)

// raw is one JSON value without white space around it, known to be valid: it is a
// piece of a body that was checked whole. nil is an absent value.
type raw []byte

// rawOf is the value of a checked body, without the white space around it.
func rawOf(body []byte) raw { return bytes.Trim(body, " \t\r\n") }

func (v raw) isString() bool { return len(v) > 0 && v[0] == '"' }
func (v raw) isObject() bool { return len(v) > 0 && v[0] == '{' }
func (v raw) isArray() bool  { return len(v) > 0 && v[0] == '[' }
func (v raw) isNull() bool   { return len(v) > 0 && v[0] == 'n' }
func (v raw) isTrue() bool   { return len(v) > 0 && v[0] == 't' }
func (v raw) isBool() bool   { return len(v) > 0 && (v[0] == 't' || v[0] == 'f') }
func (v raw) isNumber() bool { return len(v) > 0 && (v[0] == '-' || v[0]-'0' <= 9) }

// isBlank reports whether a value asks for nothing: absent, null, false, "", [] or {}.
func (v raw) isBlank() bool {
	if len(v) == 0 {
		return true
	}
	switch v[0] {
	case 'n', 'f':
		return true
	case '"':
		return len(v) == 2
	case '[', '{':
		return len(rawOf(v[1:len(v)-1])) == 0
	}
	return false
}

func (v raw) kind() string {
	switch {
	case len(v) == 0:
		return "absent"
	case v.isString():
		return "a string"
	case v.isObject():
		return "an object"
	case v.isArray():
		return "an array"
	case v.isNull():
		return "null"
	case v.isBool():
		return "a boolean"
	}
	return "a number"
}

// inner is what is between a string's quotes. Texts are joined by joining these, which
// keeps their escapes as they are.
func (v raw) inner() []byte { return v[1 : len(v)-1] }

// text is a string's decoded text, or "".
func (v raw) text() string {
	if !v.isString() {
		return ""
	}
	if bytes.IndexByte(v, '\\') < 0 {
		return string(v.inner())
	}
	return string(openai.AppendUnquoted(nil, v))
}

// integer reads a count, or -1.
func (v raw) integer() int64 {
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// members iterates over an object: the decoded name and the value of each member.
func (v raw) members() iter.Seq2[[]byte, raw] {
	return func(yield func([]byte, raw) bool) {
		if !v.isObject() {
			return
		}
		i := blanks(v, 1)
		for i < len(v) && v[i] == '"' {
			end := stringEnd(v, i)
			name := []byte(v[i+1 : end-1])
			if bytes.IndexByte(name, '\\') >= 0 {
				name = openai.AppendUnquoted(nil, v[i:end])
			}
			i = blanks(v, blanks(v, end)+1) // over the colon
			end = valueEnd(v, i)
			if !yield(name, v[i:end]) {
				return
			}
			i = blanks(v, blanks(v, end)+1) // over the comma
		}
	}
}

// elements iterates over an array.
func (v raw) elements() iter.Seq2[int, raw] {
	return func(yield func(int, raw) bool) {
		if v.isBlank() || !v.isArray() {
			return
		}
		i := blanks(v, 1)
		for n := 0; i < len(v); n++ {
			end := valueEnd(v, i)
			if !yield(n, v[i:end]) {
				return
			}
			i = blanks(v, blanks(v, end)+1)
		}
	}
}

func blanks(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

func stringEnd(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return len(b)
}

// valueEnd returns the offset after the value at i, without recursion.
func valueEnd(b []byte, i int) int {
	if i >= len(b) {
		return len(b)
	}
	switch b[i] {
	case '"':
		return stringEnd(b, i)
	case '{', '[':
		for depth := 0; i < len(b); {
			switch b[i] {
			case '"':
				i = stringEnd(b, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			i++
			if depth == 0 {
				return i
			}
		}
		return len(b)
	}
	for i < len(b) && b[i] != ',' && b[i] != '}' && b[i] != ']' && b[i] > ' ' {
		i++
	}
	return i
}

// checked is the value in an engine's bytes, and whether they are valid JSON.
func checked(body []byte) (raw, bool) {
	if !json.Valid(body) {
		return nil, false
	}
	return rawOf(body), true
}

// appendQuoted appends text as a JSON string.
func appendQuoted(dst, text []byte) []byte { return openai.AppendString(dst, string(text)) }

// or is v, or instead if v is absent.
func (v raw) or(instead string) []byte {
	if len(v) == 0 {
		return []byte(instead)
	}
	return v
}
