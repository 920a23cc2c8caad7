package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// prompt is what the engine keeps of a tokenized prompt.
type prompt struct {
	tokens int
	hash   uint64   // of all tokens
	blocks []uint64 // for each whole block, the hash of all tokens up to its end
	ids    []uint32 // the tokens, if events tell them

	// For the prefix cache: the hasher after the text's last whole token, and the
	// text behind it, to go on with the output.
	grow  *hasher
	carry []byte
}

// bos is the token every text begins with.
const bos = 1

// bytesPerToken is the length of the text of one token; where it is not ASCII, a
// token has a byte less.
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

// piece is the length of the next token's text: four bytes of ASCII or three of
// anything, so that ids fit into 31 bits, as those of real vocabularies do.
func piece(text []byte) int {
	n := min(len(text), bytesPerToken)
	for _, c := range text[:n] {
		if c >= 0x80 {
			return min(n, bytesPerToken-1)
		}
	}
	return n
}

// token is the id of a piece: its bytes with a one before them, of seven bits each if
// all are ASCII (even ids), so that ids differ and the piece can be recovered.
func token(piece []byte) int64 {
	bits, odd := 7, int64(0)
	for _, c := range piece {
		if c >= 0x80 {
			bits, odd = 8, 1
		}
	}
	id := int64(1)
	for _, c := range piece {
		id = id<<bits | int64(c)
	}
	return id<<1 | odd
}

// appendPiece appends the bytes of a token, nothing for an id that is no token's.
func appendPiece(b []byte, id int64) []byte {
	bits := 7 + int(id&1)
	id >>= 1
	n := 0
	for n < bytesPerToken && id>>(bits*n) > 1 {
		n++
	}
	if id>>(bits*n) != 1 {
		return b
	}
	for n--; n >= 0; n-- {
		b = append(b, byte(id>>(bits*n)&(1<<bits-1)))
	}
	return b
}

// hasher builds a prompt token by token.
type hasher struct {
	prompt
	size  int          // of a block, 0: do not keep blocks
	keep  bool         // the ids
	salt  uint64       // of the blocks, not of the text that is made of hash
	chain *digestChain // makes the blocks' hashes, if they are not made by mix
}

func (h *hasher) add(id int64) {
	h.hash = mix(h.hash, uint64(id))
	h.tokens++
	if h.keep {
		h.ids = append(h.ids, uint32(id))
	}
	if h.chain != nil {
		h.chain.add(uint32(id))
	}
	if h.size == 0 || h.tokens%h.size != 0 {
		return
	}
	key := h.hash
	if h.chain != nil {
		key = h.chain.next()
	} else if h.salt != 0 {
		key = mix(key, h.salt)
	}
	h.blocks = append(h.blocks, key)
}

// fork is a copy that goes on by itself.
func (h *hasher) fork() *hasher {
	f := *h
	f.blocks, f.ids = slices.Clip(h.blocks), slices.Clip(h.ids)
	f.chain = h.chain.fork()
	return &f
}

// digestChain makes SGLang's hashes of blocks: the first eight bytes of the SHA-256
// of the digest before and the tokens, four bytes each, the lowest first.
type digestChain struct {
	before []byte // the digest before; nothing at the root, unless there is a salt or an adapter
	tokens []byte
}

func newDigestChain(scope *cacheScope) *digestChain {
	c := &digestChain{}
	if scope.adapter != "" || scope.salt != "" {
		d := sha256.Sum256([]byte(scope.adapter + "\x00" + scope.salt))
		c.before = d[:]
	}
	return c
}

func (c *digestChain) add(id uint32) { c.tokens = binary.LittleEndian.AppendUint32(c.tokens, id) }

// next ends a block and returns its hash.
func (c *digestChain) next() uint64 {
	d := sha256.Sum256(append(c.before, c.tokens...))
	c.before, c.tokens = d[:], c.tokens[:0]
	return binary.BigEndian.Uint64(d[:])
}

func (c *digestChain) fork() *digestChain {
	if c == nil {
		return nil
	}
	return &digestChain{before: slices.Clone(c.before), tokens: slices.Clone(c.tokens)}
}

// tokenize calls add for each token of a text.
func tokenize(text []byte, add func(int64)) {
	add(bos)
	text = text[pieces(text, add):]
	flush(text, add)
}

// pieces calls add for each token that will be the same whatever follows the text,
// and returns how many bytes they are.
func pieces(text []byte, add func(int64)) int {
	at := 0
	for len(text)-at >= bytesPerToken {
		if x := binary.BigEndian.Uint32(text[at:]); x&0x80808080 == 0 { // token of four bytes of ASCII, fast
			add(int64(1<<28|x>>3&(0x7f<<21)|x>>2&(0x7f<<14)|x>>1&(0x7f<<7)|x&0x7f) << 1)
			at += bytesPerToken
			continue
		}
		n := piece(text[at:])
		add(token(text[at : at+n]))
		at += n
	}
	return at
}

// flush calls add for the tokens of what pieces has left.
func flush(text []byte, add func(int64)) {
	for len(text) > 0 {
		n := piece(text)
		add(token(text[:n]))
		text = text[n:]
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
