package openai

import (
	"bytes"
	"slices"
	"strconv"
)

// CachedSplicer replaces the count of cached_tokens in JSON or events that are relayed,
// however they are split into pieces. It adds no field, replaces only numbers, and holds
// back only the number that it replaces. Inside a JSON string the quotes of the name are
// escaped, so the output of a model is never changed.
//
// The zero value is ready.
type CachedSplicer struct {
	// Each are the counts of the answers in a list, in their order, instead of one for
	// all; a negative one changes nothing.
	Each []int64

	name    []byte // of the field, with its quotes; nil is cachedName
	matched int    // bytes of cachedName at the end of the last piece
	colon   bool   // after the name: a colon or the value is next
	value   bool   // after the colon
	digits  bool   // in the number that was replaced
}

var cachedName = []byte(`"cached_tokens"`) // in all APIs but Messages

// end is the end of a field.
func (c *CachedSplicer) end() {
	if c.digits || c.value {
		c.Each = c.Each[min(1, len(c.Each)):]
	}
	*c = CachedSplicer{name: c.name, Each: c.Each}
}

// Splice returns the piece with count as the number; without one it is the piece
// itself, else new memory. A negative count changes nothing.
func (c *CachedSplicer) Splice(piece []byte, count int64) []byte {
	name := c.name
	if name == nil {
		name = cachedName
	}
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
			c.end()
		case c.colon:
			switch {
			case b == ' ' || b == '\t':
				i++
			case b == ':' && !c.value:
				c.value = true
				i++
			case c.value && b >= '0' && b <= '9' && c.count(count) >= 0:
				if out == nil {
					out = make([]byte, 0, len(piece)+20)
				}
				out = strconv.AppendInt(append(out, piece[done:i]...), c.count(count), 10)
				c.digits = true
				done = i
			default:
				c.end()
			}
		case c.matched > 0:
			if b != name[c.matched] {
				c.matched = 0 // b may begin the name: it is read again
				continue
			}
			i++
			if c.matched++; c.matched == len(name) {
				c.matched, c.colon = 0, true
			}
		default:
			if at := bytes.Index(piece[i:], name); at >= 0 {
				i += at + len(name)
				c.colon = true
				continue
			}
			// The name may be cut off at the end.
			tail := piece[max(i, len(piece)-len(name)+1):]
			if at := bytes.LastIndexByte(tail, '"'); at >= 0 && bytes.HasPrefix(name, tail[at:]) {
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

// count is the number that is written next.
func (c *CachedSplicer) count(all int64) int64 {
	if len(c.Each) > 0 {
		return c.Each[0]
	}
	return all
}

// LineSplicer changes the data of events, each on one line, that can only be changed as a
// whole: each line is passed on when it is complete.
type LineSplicer struct {
	line []byte
	lost bool // the line is too long to be held
	out  []byte
}

// Splice returns the bytes to pass on, valid until the next call.
func (l *LineSplicer) Splice(piece []byte, edit func(data []byte) []byte) []byte {
	l.out = l.out[:0]
	for len(piece) > 0 {
		end := lineEnd(piece)
		if end < 0 {
			l.line = append(l.line, piece...)
			if l.lost = l.lost || len(l.line) > DefaultMaxEventBytes; l.lost {
				l.out, l.line = append(l.out, l.line...), nil
			}
			break
		}
		l.line = append(l.line, piece[:end]...)
		if data, ok := bytes.CutPrefix(l.line, dataField); ok && !l.lost {
			l.out = append(append(l.out, dataField...), edit(data)...)
		} else {
			l.out = append(l.out, l.line...)
		}
		l.out = append(l.out, piece[end])
		l.line, l.lost = l.line[:0], false
		piece = piece[end+1:]
	}
	if cap(l.line) > maxKeptBuffer && len(l.line) == 0 {
		l.line = nil
	}
	return l.out
}

var dataField = []byte("data:")

// Rest is the unfinished line of a stream that has ended.
func (l *LineSplicer) Rest() []byte { return l.line }

// SpliceListEvent writes the count of an event's index in a list of answers into it.
func SpliceListEvent(data []byte, counts []int64) []byte {
	at, ok := ListIndex(data)
	if !ok || at >= len(counts) {
		return data
	}
	return new(CachedSplicer).Splice(data, counts[at])
}

// ListIndex is the index in a list of answers that an event has.
func ListIndex(data []byte) (index int, ok bool) {
	raw, _ := RawField(data, "index")
	n, ok := parseInt(raw)
	if !ok || n < 0 || n > 1<<30 {
		return 0, false
	}
	return int(n), true
}

// SpliceMessages writes the count of cached tokens into the usage of an answer or an
// event of the Messages API, if there is one. The counts beside it are changed so that all
// add up to the prompt as before: those of tokens that are kept in the cache from now on
// only if they are too many. It changes nothing but the usage: arguments of tools are JSON
// in this API, and may have such names. A negative count changes nothing.
func SpliceMessages(json []byte, cached int64) []byte {
	u, ok := ReadUsage(json)
	if !ok || u.CachedTokens < 0 || u.PromptTokens < 0 || cached < 0 {
		return json
	}
	at, ok := findField(json, "usage")
	if !ok {
		message, _ := findField(json, "message")
		if at, ok = findField(json[message.Start:message.End], "usage"); !ok {
			return json
		}
		at.Start, at.End = at.Start+message.Start, at.End+message.Start
	}
	usage := json[at.Start:at.End]
	others := max(0, u.PromptTokens-cached)
	created, ok := intField(usage, "cache_creation_input_tokens")
	if ok && created > others {
		created = others
		usage = (&CachedSplicer{name: []byte(`"cache_creation_input_tokens"`)}).Splice(usage, created)
	}
	read := CachedSplicer{name: []byte(`"cache_read_input_tokens"`)}
	input := CachedSplicer{name: []byte(`"input_tokens"`)}
	usage = input.Splice(read.Splice(usage, cached), others-created)
	return slices.Concat(json[:at.Start], usage, json[at.End:])
}

// intField is a field of an object that is a number from 0 up; else it is 0, and ok false.
func intField(json []byte, field string) (n int64, ok bool) {
	raw, _ := RawField(json, field)
	if n, ok = parseInt(raw); !ok || n < 0 {
		return 0, false
	}
	return n, true
}
