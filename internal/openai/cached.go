package openai

import (
	"bytes"
	"strconv"
)

// CachedSplicer writes another count for cached_tokens into JSON or events that pass
// by, whatever the pieces they come in. It adds no field, changes no value but a
// number, and holds nothing back but that number. In a text of JSON the name's quotes
// would be escaped, so that what a model says is never changed.
//
// The zero value is ready.
type CachedSplicer struct {
	matched int  // bytes of cachedName at the end of the last piece
	colon   bool // the name was there: a colon or the value is next
	value   bool // the colon too
	digits  bool // in the number that was replaced
}

var cachedName = []byte(`"cached_tokens"`)

// Within tells whether the last piece ended in or before a number to replace.
func (c *CachedSplicer) Within() bool { return c.matched > 0 || c.colon }

// Splice returns the piece with count as the number; without one it is the piece
// itself, else new memory. A negative count changes nothing.
func (c *CachedSplicer) Splice(piece []byte, count int64) []byte {
	var out []byte
	done := 0 // of piece, in out
	for i := 0; i < len(piece); {
		b := piece[i]
		switch {
		case c.digits:
			if b >= '0' && b <= '9' {
				i++
				done = i
				continue
			}
			*c = CachedSplicer{}
		case c.colon:
			switch {
			case b == ' ' || b == '\t':
				i++
			case b == ':' && !c.value:
				c.value = true
				i++
			case c.value && b >= '0' && b <= '9' && count >= 0:
				if out == nil {
					out = make([]byte, 0, len(piece)+20)
				}
				out = strconv.AppendInt(append(out, piece[done:i]...), count, 10)
				c.digits = true
				done = i
			default:
				*c = CachedSplicer{}
			}
		case c.matched > 0:
			if b != cachedName[c.matched] {
				c.matched = 0 // b may begin the name: it is looked at again
				continue
			}
			i++
			if c.matched++; c.matched == len(cachedName) {
				c.matched, c.colon = 0, true
			}
		default:
			if at := bytes.Index(piece[i:], cachedName); at >= 0 {
				i += at + len(cachedName)
				c.colon = true
				continue
			}
			// The name may be cut off at the end.
			tail := piece[max(i, len(piece)-len(cachedName)+1):]
			if at := bytes.LastIndexByte(tail, '"'); at >= 0 && bytes.HasPrefix(cachedName, tail[at:]) {
				c.matched = len(tail) - at
			}
			i = len(piece)
		}
	}
	if out == nil && done == 0 {
		return piece
	}
	return append(out, piece[done:]...)
}
