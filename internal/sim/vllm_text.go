package sim

import (
	"bytes"
	"encoding/json"

	"github.com/go-json-experiment/json/jsontext"
)

// prompt is what the engine keeps of a tokenized prompt.
type prompt struct {
	tokens int
	hash   uint64   // of all tokens
	blocks []uint64 // for each whole block, the hash of all tokens up to its end
}

// bos is the token every text begins with.
const bos = 1

// bytesPerToken is the length of the text of one token.
const bytesPerToken = 4

// mix hashes two numbers into one.
func mix(h, x uint64) uint64 {
	h ^= x + 0x9e3779b97f4a7c15
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}

// token is the id of a piece of up to four bytes: the bytes with a one before them, so
// that ids differ and the piece can be recovered.
func token(piece []byte) int64 {
	id := int64(1)
	for _, c := range piece {
		id = id<<8 | int64(c)
	}
	return id
}

// appendPiece appends the bytes of a token, nothing for an id that is no token's.
func appendPiece(b []byte, id int64) []byte {
	n := 0
	for n < bytesPerToken && id>>(8*n) > 1 {
		n++
	}
	if id>>(8*n) != 1 {
		return b
	}
	for n--; n >= 0; n-- {
		b = append(b, byte(id>>(8*n)))
	}
	return b
}

// hasher builds a prompt token by token.
type hasher struct {
	prompt
	size int // of a block, 0: do not keep blocks
}

func (h *hasher) add(id int64) {
	h.hash = mix(h.hash, uint64(id))
	h.tokens++
	if h.size > 0 && h.tokens%h.size == 0 {
		h.blocks = append(h.blocks, h.hash)
	}
}

// tokenize calls add for each token of a text.
func tokenize(text []byte, add func(int64)) {
	add(bos)
	for len(text) > bytesPerToken {
		add(token(text[:bytesPerToken]))
		text = text[bytesPerToken:]
	}
	if len(text) > 0 {
		add(token(text))
	}
}

// word is output token k of the greedy answer to the prompt with that hash.
func word(hash uint64, k int) string {
	const consonants, vowels = "bcdfghjklmnprstv", "aeiou"
	x := mix(hash, uint64(k)+7)
	b := []byte{' '}
	for range 2 + int(x%2) {
		b = append(b, consonants[x>>8%16], vowels[x>>16%5])
		x = mix(x, 3)
	}
	return string(b)
}

// transcript renders tools, a system prompt and messages into one text, as a chat
// template does.
type transcript struct {
	head []byte // tools, system
	body []byte
}

func (s *transcript) prompt() []byte {
	return append(append(s.head, s.body...), "assistant\n"...)
}

func line(b []byte, role string, text []byte) []byte {
	b = append(append(b, role...), '\n')
	return append(append(b, text...), '\n')
}

// compact is a value without insignificant space, so that white space does not change
// the tokens.
func compact(v jsontext.Value) []byte {
	var b bytes.Buffer
	if json.Compact(&b, v) != nil {
		return v
	}
	return b.Bytes()
}

// contentOf is the text of a message's content: a string, or a list of parts. A part
// that is not text is included as JSON.
func contentOf(v jsontext.Value) ([]byte, bool) {
	switch v.Kind() {
	case 0, 'n':
		return nil, true
	case '"':
		b, err := jsontext.AppendUnquote(nil, v)
		return b, err == nil || len(b) > 0
	case '[':
		var out []byte
		for _, part := range elements(v) {
			if part.Kind() != '{' {
				return nil, false
			}
			if text := field(part, "text"); text.Kind() == '"' {
				b, _ := jsontext.AppendUnquote(nil, text)
				out = append(out, b...)
				continue
			}
			out = append(out, compact(part)...)
		}
		return out, true
	}
	return nil, false
}

// messages adds a list of messages. It returns false if v is no such list.
func (s *transcript) messages(v jsontext.Value) bool {
	if v.Kind() != '[' {
		return false
	}
	for _, m := range elements(v) {
		if m.Kind() != '{' {
			return false
		}
		role, err := str("role", field(m, "role"))
		if err != nil {
			return false
		}
		content := field(m, "content")
		if role == "" { // an item of the responses API that is no message
			if k := field(m, "type"); k.Kind() != '"' {
				return false
			}
			s.body = line(s.body, "item", compact(m))
			continue
		}
		text, ok := contentOf(content)
		if !ok {
			return false
		}
		if calls := field(m, "tool_calls"); calls != nil && calls.Kind() != 'n' {
			text = append(text, compact(calls)...)
		}
		s.body = line(s.body, role, text)
	}
	return true
}
