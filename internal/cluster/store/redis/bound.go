package redis

import (
	"errors"
	"net"
	"strconv"

	"github.com/sluice-router/sluice/internal/cluster/store"
)

// bounded is a connection on which the answers of the server are bounded: the library makes
// room for whatever length is announced, before anything of that is there.
type bounded struct {
	net.Conn
	left int    // bytes that the answers to a call may still have
	line []byte // the begin of the current line
	skip int    // bytes of a string that come first
	err  error
}

const (
	maxAnswer = store.MaxValue + 4096
	maxList   = 16 // elements; the scripts answer three
	maxLength = 32 // bytes of a line that announces a length
)

var errTooLarge = errors.New("the answer of the server is too large")

// allow begins a call.
func (b *bounded) allow() { b.left = maxAnswer }

// Read is of net.Conn.
func (b *bounded) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.Conn.Read(p)
	if b.left -= n; b.left < 0 || !b.look(p[:n]) {
		b.err = errTooLarge
		return 0, b.err
	}
	return n, err
}

// look follows the lengths in what was read, and tells whether they are allowed.
func (b *bounded) look(p []byte) bool {
	for len(p) > 0 {
		if b.skip > 0 {
			n := min(b.skip, len(p))
			b.skip -= n
			p = p[n:]
			continue
		}
		c := p[0]
		p = p[1:]
		if c == '\n' {
			if !b.announced() {
				return false
			}
			b.line = b.line[:0]
		} else if len(b.line) < maxLength {
			b.line = append(b.line, c)
		}
	}
	return true
}

// announced takes a whole line.
func (b *bounded) announced() bool {
	if len(b.line) == 0 || b.line[0] != '$' && b.line[0] != '*' {
		return true
	}
	n, err := strconv.Atoi(string(b.line[1:max(1, len(b.line)-1)])) // without \r
	switch {
	case err != nil || len(b.line) == maxLength:
		return false
	case b.line[0] == '*':
		return n <= maxList
	case n >= 0:
		b.skip = min(n, maxAnswer) + 2 // \r\n
	}
	return n <= maxAnswer
}
