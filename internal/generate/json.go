package generate

import (
	"encoding/binary"
	"math"
	"strconv"
)

const hexDigits = "0123456789abcdef"

// appendText appends text, which is UTF-8, as the inside of a JSON string.
func appendText(dst, text []byte) []byte {
	start := 0
	for i := 0; i < len(text); {
		if len(text)-i >= 8 && plain(binary.LittleEndian.Uint64(text[i:])) {
			i += 8
			continue
		}
		c := text[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, text[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		start = i
	}
	return append(dst, text[start:]...)
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plain reports whether none of eight bytes needs an escape. It may say no for eight that
// need none.
func plain(x uint64) bool {
	quote, slash := x^'"'*ones, x^'\\'*ones
	control := (x - 0x20*ones) &^ x
	return (control|(quote-ones)&^quote|(slash-ones)&^slash)&highs == 0
}

func appendQuoted(dst, text []byte) []byte {
	return append(appendText(append(dst, '"'), text), '"')
}

// appendLogprob appends a log probability. There is none for minus infinity in JSON; the API
// has -9999 for what is as good as impossible.
func appendLogprob(dst []byte, v float32) []byte {
	if !(v > -9999) {
		v = -9999
	}
	return appendFloat(dst, float64(min(v, math.MaxFloat32)))
}

// appendFloat appends a finite number, whole ones with a fraction, as they are told apart
// from integers by some clients.
func appendFloat(dst []byte, v float64) []byte {
	format := byte('f')
	if a := math.Abs(v); a != 0 && (a < 1e-5 || a >= 1e16) {
		format = 'e'
	}
	at := len(dst)
	dst = strconv.AppendFloat(dst, v, format, -1, 64)
	for _, c := range dst[at:] {
		if c == '.' || c == 'e' {
			return dst
		}
	}
	return append(dst, '.', '0')
}

// AppendIDs appends token ids as a JSON list.
func AppendIDs(dst []byte, ids []uint32) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	return append(dst, ']')
}
