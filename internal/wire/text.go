package wire

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/sluice-router/sluice/internal/text"
)

// ErrTooLarge is wrapped by errors about a bound; every other error of this
// package is about the form.
var ErrTooLarge = errors.New("too large")

// TooLarge is the error of what is over a bound.
func TooLarge(what string, bound int, unit string) error {
	return fmt.Errorf("%s is over the bound of %d %s: %w", what, bound, unit, ErrTooLarge)
}

// HeadEnd returns the length of the head at the start of b, its empty line
// included, or -1 if b does not hold all of it. *scanned remembers how far b was
// looked at, so that a head that comes byte by byte costs no more than one that
// comes at once.
func HeadEnd(b []byte, scanned *int) int {
	for i := *scanned; ; {
		j := bytes.IndexByte(b[i:], '\n')
		if j < 0 {
			*scanned = len(b)
			return -1
		}
		lf := i + j
		rest := b[lf+1:]
		switch {
		case len(rest) > 0 && rest[0] == '\n':
			return lf + 2
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return lf + 3
		case len(rest) == 0 || len(rest) == 1 && rest[0] == '\r':
			*scanned = lf
			return -1
		}
		i = lf + 1
	}
}

// CutLine takes the first line off b, without its LF or CR LF.
func CutLine(b []byte) (line, rest []byte) {
	i := bytes.IndexByte(b, '\n')
	line, rest = b[:i], b[i+1:]
	if i > 0 && line[i-1] == '\r' {
		line = line[:i-1]
	}
	return line, rest
}

// CutField splits a header or trailer line.
func CutField(line []byte) (name, value []byte, err error) {
	i := bytes.IndexByte(line, ':')
	if i < 0 || !ValidToken(line[:i]) {
		return nil, nil, fmt.Errorf("header line %q is malformed", text.Clip(string(line), text.MaxQuoted))
	}
	value = TrimSpace(line[i+1:])
	if !ValidValue(value) {
		return nil, nil, fmt.Errorf("the value of header %q holds a control character", text.Clip(string(line[:i]), text.MaxQuoted))
	}
	return line[:i], value, nil
}

// TrimSpace takes spaces and tabs off both ends.
func TrimSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// EqualFold compares with a word in lower case, ASCII only.
func EqualFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// HasToken reports whether a comma-separated list has a word, given in lower case.
func HasToken(list []byte, lower string) bool {
	for len(list) > 0 {
		word := list
		if i := bytes.IndexByte(list, ','); i >= 0 {
			word, list = list[:i], list[i+1:]
		} else {
			list = nil
		}
		if EqualFold(TrimSpace(word), lower) {
			return true
		}
	}
	return false
}

// ParseLength reads the value of Content-Length.
func ParseLength(b []byte) (int64, error) {
	if len(b) == 0 || len(b) > 19 {
		return 0, fmt.Errorf("Content-Length %q is not a valid length", text.Clip(string(b), text.MaxQuoted))
	}
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("Content-Length %q is not a valid length", text.Clip(string(b), text.MaxQuoted))
		}
		n = n*10 + uint64(c-'0') // 19 digits fit
	}
	if n > math.MaxInt64 {
		return 0, fmt.Errorf("Content-Length %q is not a valid length", string(b))
	}
	return int64(n), nil
}

// tokenTable marks the characters of a token (RFC 9110, section 5.6.2).
var tokenTable = func() (t [256]bool) {
	for c := '0'; c <= '9'; c++ {
		t[c] = true
	}
	for c := 'a'; c <= 'z'; c++ {
		t[c], t[c-'a'+'A'] = true, true
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		t[c] = true
	}
	return t
}()

// ValidToken reports whether s is a token.
func ValidToken[T string | []byte](s T) bool {
	for i := 0; i < len(s); i++ {
		if !tokenTable[s[i]] {
			return false
		}
	}
	return len(s) > 0
}

// ValidValue allows every byte but control characters other than the tab.
func ValidValue[T string | []byte](s T) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
