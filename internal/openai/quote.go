package openai

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// AppendString appends v as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func AppendString(dst []byte, v string) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(v); {
		c := v[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' && c != 0x7f {
				i++
				continue
			}
			dst = append(dst, v[start:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(v[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, v[start:i]...)
			dst = append(dst, "\uFFFD"...)
			i++
			start = i
			continue
		}
		i += n
	}
	dst = append(dst, v[start:]...)
	return append(dst, '"')
}

// AppendUnquoted appends the text of the JSON string raw, given with its quotes and
// known to be valid (a span that Peek found). A lone surrogate becomes U+FFFD.
func AppendUnquoted(dst, raw []byte) []byte {
	if len(raw) < 2 {
		return dst
	}
	return appendUnescaped(dst, raw[1:len(raw)-1], nil)
}

// HasLoneSurrogate reports whether the JSON string raw, given with its quotes and known to be
// valid, has a \u escape of half a character without the other half: no text has that, and
// no tokenizer takes it.
func HasLoneSurrogate(raw []byte) bool {
	for i := 0; ; {
		at := bytes.IndexByte(raw[i:], '\\')
		if at < 0 {
			return false
		}
		i += at
		r, ok := uint32(0), false
		if i+1 < len(raw) && raw[i+1] == 'u' {
			r, ok = hex4(raw, i+2)
		}
		if !ok || !utf16.IsSurrogate(rune(r)) {
			i = min(i+2, len(raw))
			continue
		}
		i += 6
		if i+1 >= len(raw) || raw[i] != '\\' || raw[i+1] != 'u' {
			return true
		}
		low, _ := hex4(raw, i+2)
		if utf16.DecodeRune(rune(r), rune(low)) == utf8.RuneError {
			return true
		}
		i += 6
	}
}

// unescaped are the bytes that a backslash and another byte stand for.
var unescaped = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// appendUnescaped appends plain, then the decoded form of raw.
func appendUnescaped(dst, raw, plain []byte) []byte {
	dst = append(dst, plain...)
	start := 0
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			i++
			continue
		}
		dst = append(dst, raw[start:i]...)
		if i+1 >= len(raw) {
			return dst
		}
		switch c := raw[i+1]; c {
		case 'u':
			r, ok := hex4(raw, i+2)
			if !ok {
				return dst
			}
			i += 4
			if utf16.IsSurrogate(rune(r)) {
				lo, ok := uint32(0), false
				if i+3 < len(raw) && raw[i+2] == '\\' && raw[i+3] == 'u' {
					lo, ok = hex4(raw, i+4)
				}
				pair := rune(utf8.RuneError)
				if ok {
					pair = utf16.DecodeRune(rune(r), rune(lo))
				}
				if pair != utf8.RuneError {
					i += 6
				}
				dst = utf8.AppendRune(dst, pair)
			} else {
				dst = utf8.AppendRune(dst, rune(r))
			}
		default:
			if e := unescaped[c]; e != 0 {
				c = e
			}
			dst = append(dst, c)
		}
		i += 2
		start = i
	}
	return append(dst, raw[start:]...)
}

// parseInt reads a plain JSON integer: no fraction, no exponent, within 64 bits.
func parseInt(raw []byte) (int64, bool) {
	neg := false
	if len(raw) > 0 && raw[0] == '-' {
		neg = true
		raw = raw[1:]
	}
	if len(raw) == 0 || len(raw) > 19 {
		return 0, false
	}
	var v uint64
	for _, c := range raw {
		if !isDigit(c) {
			return 0, false
		}
		v = v*10 + uint64(c-'0')
	}
	if neg {
		if v > 1<<63 {
			return 0, false
		}
		return -int64(v), true
	}
	if v > 1<<63-1 {
		return 0, false
	}
	return int64(v), true
}
