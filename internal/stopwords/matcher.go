package stopwords

import "bytes"

// Matcher is one text's way through a Set. It holds no text: what is held back is the
// beginning of a stop string, which the Set has. The zero value passes everything on.
type Matcher struct {
	set     *Set
	at      uint32 // the state
	matched int32  // the stop string with which the text ended, plus 1; 0: none yet
}

// Begin returns a Matcher for a text that begins now. s must not change while it is used.
func (s *Set) Begin() Matcher { return Matcher{set: s} }

// Append appends to dst what of the text so far, of which text is the next piece, is certain
// to come before a stop string. matched is the place of the stop string in the list with
// which the text has ended; -1: it has not. Behind the end all is dropped.
func (m *Matcher) Append(dst, text []byte) (out []byte, matched int) {
	if m.matched > 0 {
		return dst, int(m.matched) - 1
	}
	if m.set == nil || len(m.set.nodes) < 2 {
		return append(dst, text...), -1
	}
	return m.run(dst, text, true)
}

// Pass is Append for text in which stop strings are not looked for, as it comes before the
// least number of tokens. One that begins in it and ends in text that is given to Append
// counts.
func (m *Matcher) Pass(dst, text []byte) []byte {
	if m.matched > 0 {
		return dst
	}
	if m.set == nil || len(m.set.nodes) < 2 {
		return append(dst, text...)
	}
	dst, _ = m.run(dst, text, false)
	return dst
}

func (m *Matcher) run(dst, text []byte, look bool) (out []byte, matched int) {
	s := m.set
	held := 0 // bytes before text that are held back: the beginning of word
	if !s.include {
		held = int(s.nodes[m.at].depth)
	}
	word := s.stops[s.nodes[m.at].word][:held]
	at := m.at
	for i := 0; i < len(text); i++ {
		if at == 0 {
			if i += s.skip(text[i:]); i == len(text) {
				break
			}
		}
		at = s.step(at, text[i])
		n := &s.nodes[at]
		if n.stop >= 0 && look {
			m.at, m.matched = 0, int32(n.stop)+1
			cut := i + 1
			if !s.include {
				cut -= len(s.stops[n.stop])
			}
			return m.release(dst, word, text, cut), int(n.stop)
		}
		// A state without children is the same as the longest shorter one: nothing goes on
		// from it, and so nothing of it need be held back.
		for !n.parent && at != 0 {
			at = n.fail
			n = &s.nodes[at]
		}
	}
	m.at = at
	cut := len(text)
	if !s.include {
		cut -= int(s.nodes[at].depth)
	}
	return m.release(dst, word, text, cut), -1
}

// release appends what comes before cut, a place in text, of the held back word and of text.
// A negative cut lies in word.
func (m *Matcher) release(dst []byte, word string, text []byte, cut int) []byte {
	if cut < 0 {
		return append(dst, word[:len(word)+cut]...)
	}
	return append(append(dst, word...), text[:cut]...)
}

// skip returns the number of bytes with which no stop string begins.
func (s *Set) skip(text []byte) int {
	if s.only >= 0 {
		if i := bytes.IndexByte(text, byte(s.only)); i >= 0 {
			return i
		}
		return len(text)
	}
	for i, c := range text {
		if s.begins(c) {
			return i
		}
	}
	return len(text)
}

// Held returns the number of bytes that are held back.
func (m *Matcher) Held() int {
	if m.set == nil || len(m.set.nodes) == 0 || m.set.include {
		return 0
	}
	return int(m.set.nodes[m.at].depth)
}

// Flush appends what is held back: the text has ended otherwise than by a stop string.
func (m *Matcher) Flush(dst []byte) []byte {
	if n := m.Held(); n > 0 {
		dst = append(dst, m.set.stops[m.set.nodes[m.at].word][:n]...)
	}
	m.at = 0
	return dst
}
