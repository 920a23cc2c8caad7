// Package text bounds text that comes from outside, for messages and logs.
package text

import "strings"

const (
	// MaxQuoted is how many bytes of text from outside a message about a malformed request or answer quotes.
	MaxQuoted = 64
	// MaxLine is how many bytes of text from outside stand in a line of the log.
	MaxLine = 256
)

// Clip returns the first limit bytes of s and "…", or s if it is no longer than that.
// No character is cut in two.
func Clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	cut := limit
	for cut > 0 && s[cut]&0xc0 == 0x80 {
		cut--
	}
	return strings.ToValidUTF8(s[:cut], "\uFFFD") + "…"
}

// Line returns s for a line of a log or a message: clipped to MaxLine bytes, and with
// spaces for the control characters, which could fake another line.
func Line(s string) string {
	if len(s) > MaxLine {
		s = Clip(s, MaxLine-len("…"))
	}
	if Printable(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}

// Printable reports whether s holds no control character: no byte under a space, and
// no DEL.
func Printable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}
