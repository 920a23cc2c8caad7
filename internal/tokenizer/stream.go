package tokenizer

import "unicode/utf8"

// Stream turns ids that come one by one into text. At each moment it has given the longest
// beginning of the text that no id to come can change; Append of all ids and Flush together
// give what Decode gives for all of them. It allocates nothing but the memory for a run of
// tokens that stand for bytes, which it keeps.
//
// What is held back: in byte-level vocabularies the bytes of a character that is not complete
// yet, at most 3. Where tokens such as <0xE2> stand for bytes the run of them that is not at
// its end yet, as the reference prints each of its bytes as U+FFFD if only one of them does
// not fit, the characters that were complete too.
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
}

// Begin begins a text.
func (s *Stream) Begin(t *Tokenizer, o DecodeOptions) {
	*s = Stream{t: t, o: o, run: s.run[:0]}
}

// Append appends the text that is certain with one more id. An id without a token has none.
func (s *Stream) Append(dst []byte, id uint32) []byte {
	if !s.t.Known(id) {
		s.lastAdded = false
		return dst
	}
	d, tok := &s.t.text, &s.t.tokens[id]
	if tok.special && s.o.SkipSpecial {
		return dst
	}
	if tok.added && s.lastAdded && !s.o.SkipSpecial && !s.o.SpacesBetweenSpecial {
		return append(s.Flush(dst), tok.text...)
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

// Flush appends what is left when the text has ended: U+FFFD for what is not a character. The
// stream may go on behind it.
func (s *Stream) Flush(dst []byte) []byte {
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
	d, run := &s.t.text, s.run
	s.run = s.run[:0]
	if utf8.Valid(run) {
		return s.piece(dst, d, run)
	}
	for range run {
		dst = s.piece(dst, d, replacement)
	}
	return dst
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
