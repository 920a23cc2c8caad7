package openai

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// maxScanDepth is the deepest nesting that a scanner may allow.
const maxScanDepth = 10000

type scanFault uint8

const (
	faultNone scanFault = iota
	faultEnd
	faultChar
	faultControl
	faultEscape
	faultNumber
	faultLiteral
	faultDepth
	faultKey
	faultColon
	faultComma
)

// scanner checks JSON strictly. Its methods take the offset of something and return
// the offset after it, or -1 with fault and faultAt set.
type scanner struct {
	b        []byte
	maxDepth int
	fault    scanFault
	faultAt  int

	// decoded is the length in bytes, as UTF-8, of the last string passed.
	decoded int
	// numbers counts the numbers passed by the last call of numberRun.
	numbers int

	nameBuf [32]byte

	// inObject has a bit per nesting level: set for an object, clear for an array.
	// It has room for the default bound only, as scanners are on the stacks of
	// goroutines; deep, once it is needed, has the levels of a larger one.
	inObject [DefaultMaxDepth/64 + 1]uint64
	deep     []uint64
}

func (s *scanner) reset(b []byte, maxDepth int) {
	s.b = b
	s.maxDepth = min(maxDepth, maxScanDepth)
	s.fault, s.faultAt = faultNone, 0
}

func (s *scanner) fail(f scanFault, at int) int {
	// The first fault is the one to report.
	if s.fault == faultNone {
		s.fault, s.faultAt = f, at
	}
	return -1
}

// describe says what is wrong and where, for the author of a client.
func (s *scanner) describe() string {
	at := s.faultAt
	what := "an unexpected byte"
	if at < len(s.b) {
		if c := s.b[at]; c >= 0x20 && c < 0x7f {
			what = fmt.Sprintf("unexpected %q", string(rune(c)))
		} else {
			what = fmt.Sprintf("unexpected byte 0x%02x", c)
		}
	}
	switch s.fault {
	case faultEnd:
		return fmt.Sprintf("it ends unfinished after %d bytes", len(s.b))
	case faultControl:
		return fmt.Sprintf("unescaped control character 0x%02x inside a string at byte %d", s.b[at], at)
	case faultEscape:
		return fmt.Sprintf("bad escape sequence in a string at byte %d", at)
	case faultNumber:
		return fmt.Sprintf("malformed number at byte %d", at)
	case faultLiteral:
		return fmt.Sprintf("unknown literal at byte %d", at)
	case faultDepth:
		return fmt.Sprintf("it is nested deeper than %d levels at byte %d", s.maxDepth, at)
	case faultKey:
		return fmt.Sprintf("%s at byte %d where a field name in quotes should be", what, at)
	case faultColon:
		return fmt.Sprintf("%s at byte %d where ':' should be", what, at)
	case faultComma:
		return fmt.Sprintf("%s at byte %d where ',' or the closing bracket should be", what, at)
	default:
		return fmt.Sprintf("%s at byte %d", what, at)
	}
}

// space returns the offset of the first byte at or after i that is not white space.
func (s *scanner) space(i int) int {
	b := s.b
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special marks (in the high bit) the bytes of x that end a run of plain string
// text: a quote, a backslash, a control character. Because of the borrow, bytes above
// the lowest marked one may be marked wrongly; the lowest mark is right.
func special(x uint64) uint64 {
	return ((x - 0x20*ones) | ((x ^ '"'*ones) - ones) | ((x ^ '\\'*ones) - ones)) &^ x & highs
}

// str passes the string whose opening quote is at i and leaves its decoded length.
func (s *scanner) str(i int) int {
	b := s.b
	start := i
	i++
	saved := 0
	for {
		for len(b)-i >= 32 {
			c := b[i : i+32 : i+32]
			m0 := special(binary.LittleEndian.Uint64(c))
			m1 := special(binary.LittleEndian.Uint64(c[8:]))
			m2 := special(binary.LittleEndian.Uint64(c[16:]))
			m3 := special(binary.LittleEndian.Uint64(c[24:]))
			if m0|m1|m2|m3 == 0 {
				i += 32
				continue
			}
			switch {
			case m0 != 0:
				i += bits.TrailingZeros64(m0) >> 3
			case m1 != 0:
				i += 8 + bits.TrailingZeros64(m1)>>3
			case m2 != 0:
				i += 16 + bits.TrailingZeros64(m2)>>3
			default:
				i += 24 + bits.TrailingZeros64(m3)>>3
			}
			goto found
		}
		for i < len(b) && b[i] >= 0x20 && b[i] != '"' && b[i] != '\\' {
			i++
		}
	found:
		if i >= len(b) {
			return s.fail(faultEnd, len(b))
		}
		switch c := b[i]; {
		case c == '"':
			s.decoded = i - start - 1 - saved
			return i + 1
		case c < 0x20:
			return s.fail(faultControl, i)
		}
		// A backslash.
		if i+1 >= len(b) {
			return s.fail(faultEnd, len(b))
		}
		switch b[i+1] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			i += 2
			saved++
		case 'u':
			r, ok := hex4(b, i+2)
			if !ok {
				if len(b) < i+6 && hexPrefix(b[i+2:]) {
					return s.fail(faultEnd, len(b))
				}
				return s.fail(faultEscape, i)
			}
			i += 6
			switch {
			case r < 0x80:
				saved += 5
			case r < 0x800:
				saved += 4
			case r >= 0xd800 && r < 0xdc00 && i+1 < len(b) && b[i] == '\\' && b[i+1] == 'u':
				if lo, ok := hex4(b, i+2); ok && lo >= 0xdc00 && lo < 0xe000 {
					i += 6
					saved += 8
				} else {
					saved += 3
				}
			default:
				// Three bytes; a lone surrogate counts as U+FFFD, which also has three.
				saved += 3
			}
		default:
			return s.fail(faultEscape, i)
		}
	}
}

func hexPrefix(b []byte) bool {
	for _, c := range b {
		if unhex(c) > 15 {
			return false
		}
	}
	return true
}

func unhex(c byte) uint32 {
	switch {
	case c >= '0' && c <= '9':
		return uint32(c - '0')
	case c >= 'a' && c <= 'f':
		return uint32(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return uint32(c-'A') + 10
	}
	return 16
}

func hex4(b []byte, i int) (uint32, bool) {
	if len(b) < i+4 {
		return 0, false
	}
	h0, h1, h2, h3 := unhex(b[i]), unhex(b[i+1]), unhex(b[i+2]), unhex(b[i+3])
	if h0|h1|h2|h3 > 15 {
		return 0, false
	}
	return h0<<12 | h1<<8 | h2<<4 | h3, true
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// number passes the number that starts at i.
func (s *scanner) number(i int) int {
	b := s.b
	j := i
	if b[j] == '-' {
		j++
	}
	if j >= len(b) {
		return s.fail(faultEnd, len(b))
	}
	switch c := b[j]; {
	case c == '0':
		j++
	case isDigit(c):
		j++
		for j < len(b) && isDigit(b[j]) {
			j++
		}
	default:
		return s.fail(faultNumber, i)
	}
	if j < len(b) && b[j] == '.' {
		j++
		if j >= len(b) {
			return s.fail(faultEnd, len(b))
		}
		if !isDigit(b[j]) {
			return s.fail(faultNumber, i)
		}
		for j < len(b) && isDigit(b[j]) {
			j++
		}
	}
	if j < len(b) && b[j]|0x20 == 'e' {
		j++
		if j < len(b) && (b[j] == '+' || b[j] == '-') {
			j++
		}
		if j >= len(b) {
			return s.fail(faultEnd, len(b))
		}
		if !isDigit(b[j]) {
			return s.fail(faultNumber, i)
		}
		for j < len(b) && isDigit(b[j]) {
			j++
		}
	}
	if j < len(b) && isDigit(b[j]) {
		return s.fail(faultNumber, i) // a leading zero
	}
	return j
}

// numberRun passes numbers separated by commas, the first at i, up to the last one that
// is not followed by a comma and a number. It sets numbers to their count. It is the
// inner loop for token ids.
func (s *scanner) numberRun(i int) int {
	b := s.b
	n := 0
	for {
		j := i
		// The common case inline: an integer directly followed by a comma.
		if c := b[j]; c-'1' <= 8 {
			j++
			for j < len(b) && b[j]-'0' <= 9 {
				j++
			}
			if j < len(b)-1 && b[j] == ',' {
				n++
				i = j + 1
				if b[i]-'0' <= 9 {
					continue
				}
				if k := s.space(i); k < len(b) && (isDigit(b[k]) || b[k] == '-') {
					i = k
					continue
				}
				s.numbers = n
				return j
			}
		}
		j = s.number(i)
		if j < 0 {
			return -1
		}
		n++
		k := s.space(j)
		if k < len(b) && b[k] == ',' {
			k = s.space(k + 1)
			if k < len(b) && (isDigit(b[k]) || b[k] == '-') {
				i = k
				continue
			}
		}
		s.numbers = n
		return j
	}
}

func (s *scanner) literal(i int, word string) int {
	b := s.b
	if len(b)-i < len(word) {
		if word[:len(b)-i] == string(b[i:]) {
			return s.fail(faultEnd, len(b))
		}
		return s.fail(faultLiteral, i)
	}
	if string(b[i:i+len(word)]) != word {
		return s.fail(faultLiteral, i)
	}
	return i + len(word)
}

// skip passes the value that starts at or after i, inside depth containers.
func (s *scanner) skip(i, depth int) int {
	b := s.b
	level := depth
	inObject := s.inObject[:]
	if s.deep != nil {
		inObject = s.deep
	}
	for {
		i = s.space(i)
		if i >= len(b) {
			return s.fail(faultEnd, len(b))
		}
		switch c := b[i]; c {
		case '"':
			i = s.str(i)
		case '{':
			if level >= s.maxDepth {
				return s.fail(faultDepth, i)
			}
			k := s.space(i + 1)
			if k < len(b) && b[k] == '}' {
				i = k + 1
				break
			}
			if level++; level>>6 >= len(inObject) {
				inObject = s.deepen()
			}
			inObject[level>>6] |= 1 << (level & 63)
			if i = s.key(k); i < 0 {
				return -1
			}
			continue
		case '[':
			if level >= s.maxDepth {
				return s.fail(faultDepth, i)
			}
			k := s.space(i + 1)
			if k < len(b) && b[k] == ']' {
				i = k + 1
				break
			}
			if level++; level>>6 >= len(inObject) {
				inObject = s.deepen()
			}
			inObject[level>>6] &^= 1 << (level & 63)
			if k < len(b) && isDigit(b[k]) {
				i = s.numberRun(k)
				break
			}
			i = k
			continue
		case 't':
			i = s.literal(i, "true")
		case 'f':
			i = s.literal(i, "false")
		case 'n':
			i = s.literal(i, "null")
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			i = s.number(i)
		default:
			return s.fail(faultChar, i)
		}
		if i < 0 {
			return -1
		}
		// After a value: close what ends here, up to the next comma.
		for {
			if level == depth {
				return i
			}
			i = s.space(i)
			if i >= len(b) {
				return s.fail(faultEnd, len(b))
			}
			object := inObject[level>>6]>>(level&63)&1 != 0
			if b[i] == ',' {
				i++
				if object {
					if i = s.key(s.space(i)); i < 0 {
						return -1
					}
				}
				break
			}
			if object && b[i] == '}' || !object && b[i] == ']' {
				level--
				i++
				continue
			}
			return s.fail(faultComma, i)
		}
	}
}

// deepen makes room for the levels beyond the default bound.
//
//go:noinline
func (s *scanner) deepen() []uint64 {
	s.deep = make([]uint64, maxScanDepth/64+1)
	copy(s.deep, s.inObject[:])
	return s.deep
}

// key passes a field name at i and its colon.
func (s *scanner) key(i int) int {
	if i >= len(s.b) {
		return s.fail(faultEnd, len(s.b))
	}
	if s.b[i] != '"' {
		return s.fail(faultKey, i)
	}
	if i = s.str(i); i < 0 {
		return -1
	}
	i = s.space(i)
	if i >= len(s.b) {
		return s.fail(faultEnd, len(s.b))
	}
	if s.b[i] != ':' {
		return s.fail(faultColon, i)
	}
	return i + 1
}
