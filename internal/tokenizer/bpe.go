package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-router/sluice/internal/text"
)

// bpe is the model: which pieces a word is made of, and which of them are merged.
type bpe struct {
	pairs        *pairTable
	ignoreMerges bool // a word that is a token is not merged, it is that token

	// words finds the tokens that a word may be as a whole: by their bytes where
	// words are bytes, else by their text.
	words *textIndex
	// direct knows of each token whether a word of the same text is merged to just
	// this token: 2 bits each, 0 not known yet, else directYes or directNo. Most words
	// are one token, so most need not be merged. It is filled as words are met, always
	// with the same answers.
	direct []atomic.Uint32

	// bytewise tells that words are sequences of bytes (byteIDs), not of characters.
	bytewise bool
	byteIDs  [256]uint32
	raw      []string // the bytes of the tokens by id

	// chars are the tokens of single characters.
	chars charIndex
	// fallback are the tokens <0x00> to <0xFF>, by which a character is spelt that is no
	// token; noID where there is none, or where the file does not want them used.
	fallback [256]uint32
	unk      uint32 // the token for what cannot be spelt; noID: it is left out
	unkError bool   // the file names a token for that, and does not have it
	fuseUnk  bool   // several such characters in a row are one token
	// prefix stands before each piece but the first of a word, suffix behind the last.
	prefix, suffix string
	// joins are the pairs of first pieces over which some merge reaches. Between others
	// words are cut, which changes nothing but the time: what is merged on one side does
	// not depend on the other. nil: words are not cut.
	joins *pairTable
}

const (
	noID      = ^uint32(0)
	directYes = 1
	directNo  = 2
)

// charIndex finds the tokens of single characters: pages of 256.
type charIndex [(utf8.MaxRune + 1) / 256]*[256]uint32

func (c *charIndex) set(r rune, id uint32) {
	page := &c[r>>8]
	if *page == nil {
		*page = new([256]uint32)
	}
	(*page)[r&255] = id + 1
}

// get returns the token of r, noID if there is none.
func (c *charIndex) get(r rune) uint32 {
	page := c[r>>8]
	if page == nil {
		return noID
	}
	return page[r&255] - 1
}

// buildModel makes the model of the file's vocabulary, which t has already.
func (t *Tokenizer) buildModel(m *modelFile) error {
	b := &t.model
	b.ignoreMerges, b.fuseUnk = m.ignoreMerges, m.fuseUnk
	b.words = t.vocab
	b.unk = noID
	if m.unkToken != nil {
		if id, ok := t.vocab.find(*m.unkToken); ok {
			b.unk = id
		} else {
			b.unkError = true
		}
	}
	if m.prefix != nil {
		b.prefix = *m.prefix
	}
	if m.suffix != nil {
		b.suffix = *m.suffix
	}
	if len(b.prefix) > 64 || len(b.suffix) > 64 {
		return unsupported("model", "a prefix or suffix of so many bytes")
	}
	for i := range b.fallback {
		b.fallback[i] = noID
		if m.byteFallback {
			if id, ok := t.vocab.find(fmt.Sprintf("<0x%02X>", i)); ok {
				b.fallback[i] = id
			}
		}
	}
	for id := range t.tokens {
		s := t.tokens[id].text
		if r, n := utf8.DecodeRuneInString(s); n > 0 && n == len(s) {
			b.chars.set(r, uint32(id))
		}
	}
	b.direct = make([]atomic.Uint32, len(t.tokens)/16+1)
	return t.readMerges(m.merges)
}

// readMerges reads the section "merges" of the model, whose elements are pairs, or texts
// with a space between two tokens.
func (t *Tokenizer) readMerges(v jsontext.Value) error {
	b := &t.model
	if !present(v) {
		v = jsontext.Value("[]")
	}
	if v.Kind() != '[' {
		return errors.New("tokenizer.json: the merges are no list")
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(v), fileOptions)
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	type merge struct{ left, right, merged uint32 }
	var merges []merge
	var buf []byte
	for dec.PeekKind() != ']' {
		var left, right string
		buf = buf[:0]
		split := 0
		switch dec.PeekKind() {
		case '"':
			value, err := dec.ReadValue()
			if err == nil {
				buf, err = jsontext.AppendUnquote(buf, value)
			}
			if err != nil {
				return brokenSection("the merges", err)
			}
			s := stringOf(buf)
			if strings.HasPrefix(s, "#version") {
				continue
			}
			left, right, _ = strings.Cut(s, " ")
			if strings.Count(s, " ") != 1 {
				return fmt.Errorf("tokenizer.json: %q is no pair to merge", text.Clip(s, 80))
			}
		case '[':
			_, err := dec.ReadToken()
			for i := 0; i < 2 && err == nil; i++ {
				split = len(buf)
				var value jsontext.Value
				if value, err = dec.ReadValue(); err == nil {
					buf, err = jsontext.AppendUnquote(buf, value)
				}
			}
			if err == nil && dec.PeekKind() != ']' {
				err = errors.New("an element is no pair")
			}
			if err == nil {
				_, err = dec.ReadToken()
			}
			if err != nil {
				return brokenSection("the merges", err)
			}
			s := stringOf(buf)
			left, right = s[:split], s[split:]
		default:
			return errors.New("tokenizer.json: a merge is neither a pair nor a text")
		}
		if len(buf) > 2*maxTokenBytes {
			return errors.New("tokenizer.json: a merge is too long")
		}
		l, ok := t.vocab.find(left)
		r, ok2 := t.vocab.find(right)
		if !ok || !ok2 || len(right) < len(b.prefix) {
			return fmt.Errorf("tokenizer.json: a merge of %q and %q, which are not both in the vocabulary", text.Clip(left, 80), text.Clip(right, 80))
		}
		if len(merges) == maxMerges {
			return fmt.Errorf("tokenizer.json has more than %d merges", maxMerges)
		}
		at := len(buf)
		buf = append(append(buf, left...), right[len(b.prefix):]...)
		merged, ok := t.vocab.find(stringOf(buf[at:]))
		if !ok {
			return fmt.Errorf("tokenizer.json: merging makes %q, which is not in the vocabulary", text.Clip(string(buf[at:]), 80))
		}
		merges = append(merges, merge{l, r, merged})
	}
	b.pairs = newPairTable(len(merges))
	for rank, m := range merges {
		b.pairs.set(m.left, m.right, uint32(rank), m.merged)
	}
	if b.prefix == "" && b.suffix == "" {
		joins := make(map[[2]uint32]struct{})
		const most = 1 << 22 // real models have a tenth of it
		var lasts, firsts [3]uint32
		for _, m := range merges {
			if len(joins) > most {
				break
			}
			nl := t.outermost(lasts[:0], t.tokens[m.left].text, true)
			nr := t.outermost(firsts[:0], t.tokens[m.right].text, false)
			for _, l := range nl {
				for _, r := range nr {
					joins[[2]uint32{l, r}] = struct{}{}
				}
			}
		}
		if len(joins) <= most {
			b.joins = newPairTable(len(joins))
			for j := range joins {
				b.joins.set(j[0], j[1], 0, 0)
			}
		}
	}
	return nil
}

// outermost appends the pieces that words start as and that a token's text may begin with,
// or end with: a character, a byte's token, the token for what cannot be spelt.
func (t *Tokenizer) outermost(ids []uint32, s string, end bool) []uint32 {
	decode, has, n := utf8.DecodeRuneInString, strings.HasPrefix, min(6, len(s))
	part := s[:n]
	if end {
		decode, has = utf8.DecodeLastRuneInString, strings.HasSuffix
		part = s[len(s)-n:]
	}
	r, _ := decode(s)
	if id := t.model.chars.get(r); id != noID {
		ids = append(ids, id)
	}
	if n == 6 && strings.HasPrefix(part, "<0x") {
		if id, ok := t.vocab.find(part); ok {
			ids = append(ids, id)
		}
	}
	if unk := t.model.unk; unk != noID && has(s, t.tokens[unk].text) {
		ids = append(ids, unk)
	}
	return ids
}

// useBytes makes the model take words as bytes, if it has a token for each. It reports
// whether it does.
func (t *Tokenizer) useBytes() bool {
	b := &t.model
	if b.prefix != "" || b.suffix != "" {
		return false
	}
	for i, r := range byteChars {
		if b.byteIDs[i] = b.chars.get(r); b.byteIDs[i] == noID {
			return false
		}
	}
	b.bytewise = true
	b.chars, b.joins = charIndex{}, nil
	// The bytes of all tokens, one after another, and those of each as a part of that.
	var all []byte
	ends := make([]int, len(t.tokens))
	for id := range t.tokens {
		start := len(all)
		for _, r := range t.tokens[id].text {
			c, ok := charBytes[r]
			if !ok {
				all = all[:start]
				break
			}
			all = append(all, c)
		}
		ends[id] = len(all)
	}
	arena := string(all)
	b.raw = make([]string, len(t.tokens))
	b.words = newTextIndex(len(t.tokens), func(id uint32) string { return b.raw[id] })
	start := 0
	for id, end := range ends {
		if start < end {
			b.raw[id] = arena[start:end]
			b.words.add(b.raw[id], uint32(id))
		}
		start = end
	}
	return true
}

func (b *bpe) bytes() int64 {
	n := b.pairs.bytes() + int64(len(b.direct))*4 + int64(len(b.raw))*16
	if b.bytewise {
		n += b.words.bytes()
		for _, s := range b.raw {
			n += int64(len(s))
		}
	}
	if b.joins != nil {
		n += b.joins.bytes()
	}
	for _, page := range b.chars {
		if page != nil {
			n += 1024
		}
	}
	return n
}

// directness returns what is known of a token.
func (b *bpe) directness(id uint32) uint32 { return b.direct[id/16].Load() >> (id % 16 * 2) & 3 }

func (b *bpe) setDirect(id uint32, yes bool) {
	v := uint32(directNo)
	if yes {
		v = directYes
	}
	b.direct[id/16].Or(v << (id % 16 * 2))
}

// word appends the ids of a word to e.dst.
func (b *bpe) word(e *encoder, s string) {
	if !e.tick(len(s)) {
		return
	}
	if b.bytewise {
		b.byteWord(e, s)
		return
	}
	if b.ignoreMerges {
		if id, ok := b.words.find(s); ok {
			e.dst = append(e.dst, id)
			return
		}
	}
	if b.prefix != "" || b.suffix != "" {
		b.affixedWord(e, s)
		return
	}
	b.charWord(e, s)
}

// byteWord encodes a word of bytes.
func (b *bpe) byteWord(e *encoder, s string) {
	if len(s) == 1 {
		e.dst = append(e.dst, b.byteIDs[s[0]])
		return
	}
	id, whole := b.words.find(s)
	if whole && (b.ignoreMerges || b.directness(id) == directYes) {
		e.dst = append(e.dst, id)
		return
	}
	n := len(e.dst)
	if len(s) <= shortWord {
		p := e.pieces[:0]
		for i := 0; i < len(s); i++ {
			p = append(p, piece{id: b.byteIDs[s[i]]})
		}
		e.pieces = p
		e.mergeShort(b.pairs)
	} else if e.roomFor(len(s)) {
		l := slices.Grow(e.links[:0], len(s))
		for i := 0; i < len(s) && e.tick(1); i++ {
			l = append(l, link{id: b.byteIDs[s[i]]})
		}
		if e.links = l; e.err == nil {
			e.mergeLong(b.pairs)
		}
	}
	b.learn(e, n, id, whole)
}

// learn keeps whether the word that was just encoded is the token id: e.dst has its ids
// from n on.
func (b *bpe) learn(e *encoder, n int, id uint32, whole bool) {
	if whole && e.err == nil && b.directness(id) == 0 {
		b.setDirect(id, len(e.dst) == n+1 && e.dst[n] == id)
	}
}

// charWord encodes a word of characters: it looks for the ids of its pieces, and merges
// what is between places that no merge reaches over.
func (b *bpe) charWord(e *encoder, s string) {
	ids := e.ids[:0]
	from, exact := 0, true // where in s ids begin, and whether they are all characters
	unknown := false       // a token for what cannot be spelt is due
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		id := b.chars.get(r)
		if id == noID || unknown {
			exact = false
		}
		if id != noID {
			if unknown {
				ids, unknown = append(ids, b.unk), false
			}
			if len(ids) > 0 && b.joins != nil && !b.joins.has(ids[len(ids)-1], id) {
				e.ids = ids
				b.mergeChars(e, s[from:i], exact)
				ids, from, exact = e.ids[:0], i, true
			}
			ids = append(ids, id)
		} else if b.spellable(s[i : i+n]) {
			for _, c := range []byte(s[i : i+n]) {
				ids = append(ids, b.fallback[c])
			}
		} else {
			unknown = b.unspelt(e, &ids, unknown)
		}
		if i += n; !e.tick(1) {
			return
		}
	}
	if unknown {
		ids, exact = append(ids, b.unk), false
	}
	e.ids = ids
	b.mergeChars(e, s[from:], exact)
}

// spellable reports whether there are tokens for all bytes of a character.
func (b *bpe) spellable(char string) bool {
	for i := 0; i < len(char); i++ {
		if b.fallback[char[i]] == noID {
			return false
		}
	}
	return true
}

// unspelt notes a character that is no token and cannot be spelt by bytes. As in the
// reference its token comes when the next character that is one does, behind the
// bytes of those in between, or at the end. It returns whether one is due.
func (b *bpe) unspelt(e *encoder, ids *[]uint32, due bool) bool {
	switch {
	case b.unkError:
		e.fail(errUnknownToken)
		return false
	case b.unk == noID:
		return due
	case due && !b.fuseUnk:
		*ids = append(*ids, b.unk)
	}
	return true
}

// mergeChars merges e.ids, the pieces of s. exact tells that they spell s, character by
// character.
func (b *bpe) mergeChars(e *encoder, s string, exact bool) {
	switch len(e.ids) {
	case 0:
		return
	case 1:
		e.dst = append(e.dst, e.ids[0])
		return
	}
	id, whole := uint32(0), false
	if exact {
		if id, whole = b.words.find(s); whole && b.directness(id) == directYes {
			e.dst = append(e.dst, id)
			return
		}
	}
	n := len(e.dst)
	e.mergeIDs(b.pairs)
	b.learn(e, n, id, whole)
}

// mergeIDs merges e.ids, of which there is at least one.
func (e *encoder) mergeIDs(pairs *pairTable) {
	if len(e.ids) <= shortWord {
		e.pieces = e.pieces[:0]
		for _, id := range e.ids {
			e.pieces = append(e.pieces, piece{id: id})
		}
		e.mergeShort(pairs)
		return
	}
	if !e.roomFor(len(e.ids)) {
		return
	}
	e.links = slices.Grow(e.links[:0], len(e.ids))
	for _, id := range e.ids {
		if e.links = append(e.links, link{id: id}); !e.tick(1) {
			return
		}
	}
	e.mergeLong(pairs)
}

// affixedWord encodes a word of a model whose pieces tell whether they begin or end a
// word. No current model is like that, so it takes no care to be fast.
func (b *bpe) affixedWord(e *encoder, s string) {
	ids, unknown := e.ids[:0], false
	for i := 0; i < len(s); {
		_, n := utf8.DecodeRuneInString(s[i:])
		e.char = e.char[:0]
		if i > 0 {
			e.char = append(e.char, b.prefix...)
		}
		e.char = append(e.char, s[i:i+n]...)
		if i += n; i == len(s) {
			e.char = append(e.char, b.suffix...)
		}
		char := stringOf(e.char)
		if id, ok := b.words.find(char); ok {
			if unknown {
				ids, unknown = append(ids, b.unk), false
			}
			ids = append(ids, id)
		} else if b.spellable(char) {
			for _, c := range e.char {
				ids = append(ids, b.fallback[c])
			}
		} else {
			unknown = b.unspelt(e, &ids, unknown)
		}
		if !e.tick(4) {
			return
		}
	}
	if unknown {
		ids = append(ids, b.unk)
	}
	if e.ids = ids; len(ids) > 0 {
		e.mergeIDs(b.pairs)
	}
}
