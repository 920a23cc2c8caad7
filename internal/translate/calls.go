package translate

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
)

// maxCalls bounds the tool calls of one answer.
const maxCalls = 1024

// toolCall is one call of a stream, assembled from pieces. Engines differ in what a piece
// has: an index, an id, a name, all of them or none, and the pieces of several calls may
// be interleaved.
type toolCall struct {
	index    int64 // -1 if none was sent
	legacy   bool  // sent as function_call
	id, name raw   // copies, nil until they come
	scan     argScan
	// held are arguments that could not be sent yet, as written inside a JSON string.
	held []byte
	// opened: the start of the call was sent to the client.
	opened bool
}

// callIDs are the ids of an answer's calls. A client sends each result under its call's
// id, so a call whose id was used by another call gets a new one.
type callIDs struct {
	used map[string]struct{}
	made string // prefix of generated ids
	n    int    // calls so far
}

// next is the id of the next call, as a JSON string: id, unless it is nil or used.
func (u *callIDs) next(id raw) raw {
	n := u.n
	u.n++
	if id != nil {
		if u.used == nil {
			u.used = make(map[string]struct{}, 2)
		}
		if _, twice := u.used[string(id)]; !twice {
			u.used[string(id)] = struct{}{}
			return id
		}
	}
	return openai.AppendString(nil, u.made+"_"+strconv.Itoa(n))
}

// callTable finds the call that a piece belongs to.
type callTable struct {
	// max bounds ids and names together, in bytes.
	max, size int
	calls     []*toolCall
}

// record takes the id and the name that a piece has of its call, and returns the call,
// nil for an empty piece.
func (t *callTable) record(p *chatCall) (*toolCall, error) {
	if p.empty() || p.legacy && len(t.calls) > 0 && !t.calls[0].legacy {
		return nil, nil // empty, or the same call that tool_calls have
	}
	c := t.match(p)
	if c == nil {
		if len(t.calls) == maxCalls {
			return nil, tooManyCalls()
		}
		c = &toolCall{index: p.index, legacy: p.legacy}
		t.calls = append(t.calls, c)
	}
	if c.id == nil && p.id != nil {
		c.id = bytes.Clone(p.id)
		t.size += len(c.id)
	}
	if c.name == nil && p.name != nil {
		c.name = bytes.Clone(p.name)
		t.size += len(c.name)
	}
	if t.size > t.max {
		return nil, &LimitError{fmt.Sprintf("ids and names of the tool calls in the engine's answer are longer than %d bytes", t.max)}
	}
	return c, nil
}

// match finds the call of a piece. It returns nil for a piece that begins a call.
func (t *callTable) match(p *chatCall) *toolCall {
	if len(t.calls) == 0 {
		return nil
	}
	last := t.calls[len(t.calls)-1]
	if p.legacy {
		return last
	}
	if p.index < 0 && p.id == nil {
		if p.name != nil && last.name != nil {
			return nil
		}
		return last
	}
	for i := len(t.calls) - 1; i >= 0; i-- {
		c := t.calls[i]
		switch {
		case p.id != nil && c.id != nil:
			// Some engines send the same index for all calls.
			if bytes.Equal(p.id, c.id) && (p.index < 0 || c.index < 0 || p.index == c.index) {
				return c
			}
		case p.index >= 0 && p.index == c.index:
			return c
		}
	}
	if p.index < 0 && last.id == nil && (p.name == nil || last.name == nil) {
		return last // its id comes in a later piece
	}
	return nil
}

func tooManyCalls() *LimitError {
	return &LimitError{fmt.Sprintf("the engine's answer has more than %d tool calls", maxCalls)}
}

// empty reports whether a piece, or a call of a whole answer, has nothing but perhaps an
// index.
func (p *chatCall) empty() bool { return p.id == nil && p.name == nil && p.arguments == nil }

// isEmpty reports whether nothing but an id came of a call.
func (c *toolCall) isEmpty() bool { return c.name == nil && c.scan.state == argsNone }

// argScan follows the arguments of a call to the end of their JSON object, without
// judging whether they are valid.
type argScan struct {
	state     argState
	depth     int
	inString  bool
	backslash bool
}

type argState uint8

const (
	argsNone  argState = iota // nothing but white space
	argsOpen                  // an object that has not ended
	argsWhole                 // an object
	argsOther                 // something else
)

// feed takes a piece as it is written inside a JSON string, and returns the part of it
// to send: neither white space before the object nor anything after it.
func (a *argScan) feed(piece []byte) []byte {
	from := 0
	for i := 0; i < len(piece); {
		c, n := nextChar(piece[i:])
		switch a.state {
		case argsNone:
			switch c {
			case ' ', '\t', '\r', '\n':
				from = i + n
			case '{':
				a.state, a.depth = argsOpen, 1
			default:
				a.state = argsOther
			}
		case argsOpen:
			if a.take(c); a.depth == 0 {
				a.state = argsWhole
				return piece[from : i+n]
			}
		case argsWhole:
			return nil
		case argsOther:
			return piece[from:]
		}
		i += n
	}
	if a.state == argsWhole {
		return nil
	}
	return piece[from:]
}

func (a *argScan) take(c byte) {
	if a.inString {
		switch {
		case a.backslash:
			a.backslash = false
		case c == '\\':
			a.backslash = true
		case c == '"':
			a.inString = false
		}
		return
	}
	switch c {
	case '"':
		a.inString = true
	case '{', '[':
		a.depth++
	case '}', ']':
		a.depth--
	}
}

// nextChar is the first character of b, the inside of a JSON string, and its length in b.
// A character that is not ASCII counts as 0 or byte by byte.
func nextChar(b []byte) (c byte, n int) {
	if b[0] != '\\' || len(b) < 2 {
		return b[0], 1
	}
	switch b[1] {
	case 'n':
		return '\n', 2
	case 't':
		return '\t', 2
	case 'r':
		return '\r', 2
	case 'b', 'f':
		return 0, 2
	case 'u':
		if len(b) < 6 {
			return 0, len(b)
		}
		if b[2] != '0' || b[3] != '0' {
			return 0, 6
		}
		v := hexDigit(b[4])<<4 | hexDigit(b[5])
		if v >= 0x80 {
			v = 0
		}
		return v, 6
	}
	return b[1], 2
}

func hexDigit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10
	}
	return 0
}

// cutArguments is the part of a whole call's arguments that a stream would send, as a
// JSON string, or nil.
func cutArguments(arguments raw) (cut raw, state argState) {
	if arguments == nil {
		return nil, argsNone
	}
	var a argScan
	inner := arguments.inner()
	kept := a.feed(inner)
	switch len(kept) {
	case 0:
		return nil, a.state
	case len(inner):
		return arguments, a.state
	}
	return append(append(append(make(raw, 0, len(kept)+2), '"'), kept...), '"'), a.state
}
