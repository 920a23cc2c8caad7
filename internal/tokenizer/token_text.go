package tokenizer

import (
	"bytes"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// AppendTokenText appends the text by which vLLM names a token in log probabilities (token of
// a chat, tokens of a completion; their bytes are those of this text). before are the tokens
// before it in the answer, of which the last four count: the token that was drawn at each
// place, also where the text of an alternative is asked for.
//
// It is the token's own text, special tokens included. Of a character that is spread over
// several tokens the last one has the whole, and the others have none.
func (t *Tokenizer) AppendTokenText(dst []byte, before []uint32, id uint32) []byte {
	start := len(dst)
	dst = t.appendPrinted(dst, id)
	if t.mark != "" && t.Known(id) {
		dst = t.restoreSpaces(dst, start, id)
	}
	if !bytes.HasSuffix(dst[start:], replacement) {
		return dst
	}
	dst = dst[:start]
	before = before[max(0, len(before)-4):]
	for n := len(before) - 1; n >= 0; n-- {
		whole := t.appendPrinted(dst, append(append(make([]uint32, 0, 5), before[n:]...), id)...)
		if bytes.HasSuffix(whole[start:], replacement) {
			continue
		}
		// The tokens at the end of those before that end within a character have no text of
		// their own, so what they begin belongs to this one.
		end := len(before)
		for end > n && bytes.HasSuffix(t.appendPrinted(nil, before[end-1]), replacement) {
			end--
		}
		own := whole[start+commonCharacters(whole[start:], t.appendPrinted(nil, before[n:end]...)):]
		return append(dst, own...) // own lies behind dst's end: they may overlap, and are moved forward
	}
	return dst
}

// appendPrinted appends the text of tokens by themselves.
func (t *Tokenizer) appendPrinted(dst []byte, ids ...uint32) []byte {
	return t.Decode(dst, ids, DecodeOptions{SpacesBetweenSpecial: true})
}

// commonCharacters is the length of the beginning that two texts have in common, in bytes, in
// whole characters.
func commonCharacters(a, b []byte) int {
	n := 0
	for n < len(a) && n < len(b) {
		x, size := utf8.DecodeRune(a[n:])
		if y, _ := utf8.DecodeRune(b[n:]); x != y {
			break
		}
		n += size
	}
	return n
}

// restoreSpaces puts the spaces back that the decoder took off a token at the beginning of a
// text: as many as the token has marks.
func (t *Tokenizer) restoreSpaces(dst []byte, start int, id uint32) []byte {
	token := t.tokens[id].text
	missing := 0
	for strings.HasPrefix(token, t.mark) {
		token = token[len(t.mark):]
		missing++
	}
	for _, c := range dst[start:] {
		if c != ' ' || missing == 0 {
			break
		}
		missing--
	}
	if missing == 0 {
		return dst
	}
	end := len(dst)
	dst = slices.Grow(dst, missing)[:end+missing]
	copy(dst[start+missing:], dst[start:end])
	for i := range missing {
		dst[start+i] = ' '
	}
	return dst
}

// readMark reads which character stands for a space at the beginning of tokens, if the
// pre-tokenizer tells.
func (t *Tokenizer) readMark(pre jsontext.Value) {
	type step struct {
		Type          string           `json:"type"`
		Replacement   string           `json:"replacement"`
		Pretokenizers []jsontext.Value `json:"pretokenizers"`
	}
	var p step
	if json.Unmarshal(pre, &p, fileOptions) != nil {
		return // the reader of the pre-tokenizer tells
	}
	steps := []step{p}
	if p.Type == "Sequence" {
		steps = nil
		for _, raw := range p.Pretokenizers {
			var s step
			_ = json.Unmarshal(raw, &s, fileOptions)
			steps = append(steps, s)
		}
	}
	for _, s := range steps {
		if s.Type == "Metaspace" {
			t.mark = s.Replacement
			return
		}
	}
}
