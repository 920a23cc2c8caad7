package tokenizer

import (
	"bytes"
	"unicode/utf8"
)

// Stream turns ids that come one by one into text. At each moment it has given the longest
// beginning of the text that no id to come can change; Append of all ids and Flush together
// give what Decode gives for all of them. It allocates nothing but the memory for what is held
// back, which it keeps.
//
// What is held back: in byte-level vocabularies the bytes of a character that is not complete
// yet, at most 3. Where tokens such as <0xE2> stand for bytes the run of them that is not at
// its end yet, as the reference prints each of its bytes as U+FFFD if only one of them does
// not fit, the characters that were complete too.
//
// # As vLLM
//
// With AsVLLM it gives what vLLM's HTTP server gives (0.32, streamed or not), which decodes the
// ids anew with each one, and prints what is new if the whole does not end with U+FFFD:
//
//   - Text that ends with U+FFFD waits for more. What waits at the end is not printed at all:
//     a character that is cut off by max_tokens leaves nothing.
//   - Characters of byte tokens come out as soon as each is complete. If their run turns out
//     not to be valid afterwards, the rest of it is lost, and the next token is decoded as if
//     it were the first. (Not imitated: what vLLM prints when the character before was a space
//     that the decoder strips.)
type Stream struct {
	t *Tokenizer
	o DecodeOptions

	part  [utf8.UTFMax]byte // of a character, byte-level
	parts uint8             // its length
	run   []byte            // of tokens that stand for bytes

	began     bool // there was a text for the steps after bytes were put together
	begun     bool // there was a token, which may stand for a byte
	lastAdded bool // the last one was an added token
	stripped  int  // how many of the decoder's strips are done with
	taken     int  // characters that the next one took

	// As vLLM:
	held    []byte // text that waits as it ends with U+FFFD
	printed int    // bytes of run that are printed
	broken  bool   // run is not valid behind them
	lost    bool   // a run was broken so, and nothing was printed since
}

// Begin begins a text.
func (s *Stream) Begin(t *Tokenizer, o DecodeOptions) {
	if cap(s.run)+cap(s.held) > maxKeptBytes {
		s.run, s.held = nil, nil
	}
	*s = Stream{t: t, o: o, run: s.run[:0], held: s.held[:0]}
}

// maxKeptBytes is how much memory of the text before a Stream keeps.
const maxKeptBytes = 4 << 10

// BeginAfter begins the text that follows a prompt: what the text of both together has more
// than that of the prompt. So the first token keeps the space that a decoder would take off the
// beginning of a text, and a character whose first bytes end the prompt becomes complete. That
// is what engines do.
func (s *Stream) BeginAfter(t *Tokenizer, o DecodeOptions, prompt []uint32) {
	s.Begin(t, DecodeOptions{SkipSpecial: o.SkipSpecial, SpacesBetweenSpecial: true})
	var buf [64]byte
	for i := 0; i < len(prompt) && (!s.begun || s.stripped < len(t.text.strips)); i++ {
		s.next(buf[:0], prompt[i])
	}
	s.emit(buf[:0], s.run[:len(s.run)-len(incomplete(s.run))])
	// A character that is not complete began in the last three tokens that have bytes.
	at, n := len(prompt), 0
	for at > 0 && n < utf8.UTFMax-1 {
		at--
		if id := prompt[at]; t.Known(id) && !(o.SkipSpecial && t.tokens[id].special) {
			n += len(t.text.bytes(id))
			if !t.text.byteLevel && t.text.flags[id]&oneByte == 0 {
				at++
				break
			}
		}
	}
	s.parts, s.run = 0, s.run[:0]
	for _, id := range prompt[at:] {
		s.next(buf[:0], id)
	}
	s.began, s.lastAdded = s.begun, false
	tail := incomplete(s.run)
	s.o = o
	if o.AsVLLM && len(s.run) > len(tail) { // that the run has a character is enough
		s.printed = 1
	}
	s.run = append(s.run[:s.printed], tail...)
}

// incomplete is the beginning of a character at the end of text.
func incomplete(text []byte) []byte {
	for n := min(len(text), utf8.UTFMax-1); n > 0; n-- {
		if end := text[len(text)-n:]; utf8.RuneStart(end[0]) && !utf8.FullRune(end) {
			return end
		}
	}
	return nil
}

// Append appends the text that is certain with one more id. An id without a token has none.
func (s *Stream) Append(dst []byte, id uint32) []byte {
	if !s.o.AsVLLM {
		return s.next(dst, id)
	}
	if len(s.held) > 0 {
		if s.held = s.step(s.held, id); s.waits(s.held) {
			return dst
		}
		dst = append(dst, s.held...)
		s.held = s.held[:0]
		return dst
	}
	start := len(dst)
	if dst = s.step(dst, id); s.waits(dst[start:]) {
		s.held = append(s.held, dst[start:]...)
		dst = dst[:start]
	}
	return dst
}

// step is next, and begins anew behind a run that was lost.
func (s *Stream) step(dst []byte, id uint32) []byte {
	start, lastAdded := len(dst), s.lastAdded
	dst = s.next(dst, id)
	if !s.lost {
		return dst
	}
	if s.waits(dst[start:]) {
		return dst[:start]
	}
	s.parts, s.run, s.printed, s.broken, s.lost = 0, s.run[:0], 0, false, false
	s.began, s.begun, s.stripped, s.taken, s.lastAdded = false, false, 0, 0, lastAdded
	return s.next(dst[:start], id)
}

// waits reports whether text, and what of a character there is behind it, ends with U+FFFD if it
// ends now.
func (s *Stream) waits(text []byte) bool {
	return s.parts > 0 || len(s.run) > s.printed || bytes.HasSuffix(text, replacement)
}

// next appends the text of one more id.
func (s *Stream) next(dst []byte, id uint32) []byte {
	if !s.t.Known(id) {
		s.lastAdded = false
		return dst
	}
	d, tok := &s.t.text, &s.t.tokens[id]
	if tok.special && s.o.SkipSpecial {
		return dst
	}
	if tok.added && s.lastAdded && !s.o.SkipSpecial && !s.o.SpacesBetweenSpecial {
		return append(s.end(dst), tok.text...)
	}
	s.lastAdded = tok.added
	text, flags := d.bytes(id), d.flags[id]
	if d.byteLevel {
		if s.parts == 0 && flags&whole != 0 {
			return s.emit(dst, text)
		}
		return s.level(dst, text)
	}
	first := !s.begun
	s.begun = true
	if flags&oneByte != 0 {
		s.run = append(s.run, text[0])
		if s.o.AsVLLM {
			return s.character(dst)
		}
		return dst
	}
	if len(s.run) > 0 {
		dst = s.endRun(dst)
	}
	if !s.began {
		s.began = true
		if d.metaspace {
			return s.emit(dst, []byte(apply(d.after, apply(d.before, tok.text, first), true)))
		}
	} else if d.spaced {
		dst = append(dst, ' ')
	}
	return s.emit(dst, text)
}

// Flush appends what is left when the text has ended: U+FFFD for what is not a character, and
// nothing as vLLM does. The stream may go on behind it.
func (s *Stream) Flush(dst []byte) []byte {
	if s.o.AsVLLM {
		s.parts, s.run, s.held, s.printed, s.broken = 0, s.run[:0], s.held[:0], 0, false
		s.lost = false
		return dst
	}
	return s.end(dst)
}

// end appends what is left of bytes behind which something else comes.
func (s *Stream) end(dst []byte) []byte {
	if s.parts > 0 {
		s.parts = 0
		return s.emit(dst, replacement)
	}
	if len(s.run) > 0 {
		return s.endRun(dst)
	}
	return dst
}

var replacement = []byte("\uFFFD")

// level appends the characters that bytes make with those before them. For each sequence of
// bytes that is not valid, as long as it could still have become so, there is one U+FFFD.
func (s *Stream) level(dst, text []byte) []byte {
	for _, b := range text {
		for !s.fits(b) {
			if s.parts == 0 {
				dst = s.emit(dst, replacement)
				break
			}
			s.parts = 0
			dst = s.emit(dst, replacement)
		}
		if s.parts > 0 && utf8.FullRune(s.part[:s.parts]) {
			n := s.parts
			s.parts = 0
			dst = s.emit(dst, s.part[:n])
		}
	}
	return dst
}

// fits adds a byte to the character that is not complete, if it can be a part of it.
func (s *Stream) fits(b byte) bool {
	low, high := byte(0x80), byte(0xbf)
	switch s.parts {
	case 0:
		if b >= 0x80 && (b < 0xc2 || b > 0xf4) {
			return false
		}
		low, high = 0, 0xff
	case 1:
		switch s.part[0] {
		case 0xe0:
			low = 0xa0
		case 0xed:
			high = 0x9f
		case 0xf0:
			low = 0x90
		case 0xf4:
			high = 0x8f
		}
	}
	if b < low || b > high {
		return false
	}
	s.part[s.parts] = b
	s.parts++
	return true
}

// endRun appends the characters of a run of tokens that stand for bytes: all of them if the
// bytes are valid UTF-8, else U+FFFD for each byte.
func (s *Stream) endRun(dst []byte) []byte {
	d, run, printed := &s.t.text, s.run, s.printed
	s.run, s.printed, s.broken = s.run[:0], 0, false
	switch {
	case printed == len(run):
		return dst
	case printed > 0:
		s.lost = true
		return dst
	case utf8.Valid(run):
		return s.piece(dst, d, run)
	}
	for range run {
		dst = s.piece(dst, d, replacement)
	}
	return dst
}

// character appends the character that the last byte of a run makes complete.
func (s *Stream) character(dst []byte) []byte {
	rest := s.run[s.printed:]
	if s.broken || !utf8.FullRune(rest) {
		return dst
	}
	if r, n := utf8.DecodeRune(rest); r == utf8.RuneError && n == 1 {
		s.broken = true
		return dst
	}
	s.printed = len(s.run)
	return s.piece(dst, &s.t.text, rest)
}

// piece appends a text that was made of bytes.
func (s *Stream) piece(dst []byte, d *decoding, text []byte) []byte {
	if len(d.after) > 0 {
		text = []byte(apply(d.after, string(text), !s.began))
	}
	s.began = true
	return s.emit(dst, text)
}

// emit appends text, without what is stripped off the beginning of all.
func (s *Stream) emit(dst, text []byte) []byte {
	for strips := s.t.text.strips; s.stripped < len(strips) && len(text) > 0; {
		r, n := utf8.DecodeRune(text)
		if next := strips[s.stripped]; s.taken == next.count || r != next.char {
			s.stripped++
			s.taken = 0
			continue
		}
		s.taken++
		text = text[n:]
	}
	return append(dst, text...)
}
