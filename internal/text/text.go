// Package text bounds text that comes from outside, for messages and logs.
package text

import "strings"

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
