package openai

import "bytes"

// AnswerScanner reads how an answer ended and its token counts from JSON that is relayed,
// however it is split into pieces and however large it is. It keeps the few members with
// these facts, of one element of a list at a time: at most maxAnswerKept bytes. Of the
// JSON it checks only that the brackets close.
//
// The zero value is ready. It is not safe for concurrent use.
type AnswerScanner struct {
	// MaxEach is the number of elements of a list of answers for which Cached is read.
	MaxEach int

	// Aborted: the engine aborted the request, see ReadAbort; Abort is its error. It is
	// set as soon as it is known, the fields below at the end of the answer.
	Aborted bool
	Abort   Abort
	// Usage is the token counts, see ReadUsage.
	Usage    Usage
	HasUsage bool
	// Cached has the cached tokens of each element of a list of answers, -1 if the
	// element has no such count.
	Cached []int64

	state answerState
	kept  bool // the current string or scalar is kept
	esc   int  // bytes that belong to the current escape
	skip  int  // open containers of a value that is not kept
	quote bool // in a string of such a value
	size  int  // of the current string
	stack [maxAnswerDepth]answerFrame
	depth int
	name  []byte
	buf   []byte // the kept members, as JSON
}

type answerState uint8

const (
	answerValue answerState = iota // a value, or the end of a list
	answerName                     // a name, a comma, or the end of an object
	answerInName
	answerColon
	answerString
	answerScalar
	answerSkip
	answerAfter // a comma, or the end of the enclosing list or object
	answerDone
	answerBad
)

type answerFrame struct {
	list    bool
	answers bool // a list of answers or choices
	mark    int  // of buf, before it
}

const (
	maxAnswerDepth = 6
	maxAnswerKept  = 32 << 10
	maxAnswerName  = 32
)

// answerNames are the members that are kept. Of their values, such members, strings of
// at most maxErrorMessage bytes, numbers and literals are kept.
var answerNames = map[string]bool{
	"choices": true, "meta_info": true, "finish_reason": true, "stop_reason": true, "response": true,
	"incomplete_details": true, "reason": true,
	"object": true, "type": true, "status": true, "error": true, "message": true, "code": true, "status_code": true,
	"usage": true, "prompt_tokens": true, "completion_tokens": true, "input_tokens": true, "output_tokens": true,
	"cached_tokens": true, "cache_read_input_tokens": true, "cache_creation_input_tokens": true, "prompt_tokens_details": true, "input_tokens_details": true,
}

// Reset makes the scanner ready for another answer; its buffers stay.
func (a *AnswerScanner) Reset() { *a = AnswerScanner{name: a.name[:0], buf: a.buf[:0]} }

// Closed reports whether the answer is JSON whose brackets have closed.
func (a *AnswerScanner) Closed() bool { return a.state == answerDone }

// Invalid reports whether the answer so far is no JSON object or list.
func (a *AnswerScanner) Invalid() bool {
	return a.state == answerBad || a.state == answerValue && a.depth == 0
}

// Excerpt are the kept members of an answer that is one object, as JSON: ReadErrorObject
// finds an error in it as in the whole answer.
func (a *AnswerScanner) Excerpt() []byte { return a.buf }

// Feed takes the next piece. The piece is not kept.
func (a *AnswerScanner) Feed(p []byte) {
	for i := 0; i < len(p); {
		switch a.state {
		case answerString:
			i = a.text(p, i)
		case answerSkip:
			i = a.skipped(p, i)
		case answerScalar:
			i = a.scalar(p, i)
		case answerInName:
			i = a.inName(p, i)
		case answerDone, answerBad:
			return
		default:
			if c := p[i]; c != ' ' && c != '\n' && c != '\t' && c != '\r' {
				a.take(c)
				if a.state == answerScalar {
					continue // the byte is the first of the value
				}
			}
			i++
		}
	}
}

// take takes a byte outside of names and values.
func (a *AnswerScanner) take(c byte) {
	switch {
	case c == '}' || c == ']':
		if a.depth == 0 || a.stack[a.depth-1].list != (c == ']') || a.state == answerColon {
			a.state = answerBad
			return
		}
		a.close(c)
	case a.state == answerAfter && c == ',':
		a.state = answerName
		if a.stack[a.depth-1].list {
			a.state = answerValue
		}
	case a.state == answerName && c == '"':
		a.state, a.name, a.esc = answerInName, a.name[:0], 0
	case a.state == answerColon && c == ':':
		a.state = answerValue
	case a.state == answerValue:
		a.begin(c)
	default:
		a.state = answerBad
	}
}

// begin begins a value.
func (a *AnswerScanner) begin(c byte) {
	container := c == '{' || c == '['
	keep := a.depth == 0
	if a.depth > 0 {
		if a.stack[a.depth-1].list {
			keep = c == '{'
		} else {
			keep = answerNames[string(a.name)]
		}
	}
	switch {
	case a.depth == 0 && !container:
		a.state = answerBad
		return
	case container && (!keep || a.depth == len(a.stack)):
		a.state, a.skip, a.quote, a.esc = answerSkip, 1, false, 0
		return
	}
	mark := len(a.buf)
	if keep && a.depth > 0 && !a.stack[a.depth-1].list {
		if mark > 0 && a.buf[mark-1] != '{' {
			a.keep(',')
		}
		a.keep('"')
		a.keep(a.name...)
		a.keep('"', ':')
	}
	switch {
	case container:
		list := c == '['
		a.stack[a.depth] = answerFrame{list, list && (a.depth == 0 || string(a.name) == "choices"), mark}
		a.depth++
		a.keep(c)
		a.state = answerName
		if c == '[' {
			a.state = answerValue
		}
	case c == '"':
		a.state, a.kept, a.esc, a.size = answerString, keep, 0, 0
		if keep {
			a.keep('"')
		}
	default:
		a.state, a.kept = answerScalar, keep
	}
}

// keep appends to the excerpt as far as there is room: its readers accept JSON that is
// cut off.
func (a *AnswerScanner) keep(b ...byte) {
	if len(a.buf)+len(b) <= maxAnswerKept {
		a.buf = append(a.buf, b...)
	}
}

// close ends an object or a list.
func (a *AnswerScanner) close(c byte) {
	a.keep(c)
	a.depth--
	a.state = answerAfter
	mark := a.stack[a.depth].mark
	switch {
	case a.depth == 0:
		a.state = answerDone
		if c == '}' {
			a.readAbort(a.buf)
			a.Usage, a.HasUsage = ReadUsage(a.buf)
		}
	case a.stack[a.depth-1].list:
		if one := a.buf[mark:]; a.stack[a.depth-1].answers {
			a.readAbort(one)
			if a.depth == 1 {
				a.count(one)
			}
		}
		a.buf = a.buf[:mark]
	}
}

func (a *AnswerScanner) readAbort(b []byte) {
	if !a.Aborted {
		a.Abort, a.Aborted = ReadAbort(b)
	}
}

// count adds the counts of an element of a list of answers.
func (a *AnswerScanner) count(b []byte) {
	u, ok := ReadUsage(b)
	if ok {
		if !a.HasUsage {
			a.Usage, a.HasUsage = noUsage, true
		}
		a.Usage.add(u)
	}
	if len(a.Cached) < a.MaxEach {
		a.Cached = append(a.Cached, u.CachedTokens)
	}
}

// text takes bytes of a string, up to its end.
func (a *AnswerScanner) text(p []byte, i int) int {
	if !a.kept {
		i, ended := a.toQuote(p, i)
		if ended {
			a.state = answerAfter
		}
		return i
	}
	for ; i < len(p); i++ {
		c := p[i]
		if a.esc == 0 && c == '"' {
			a.keep('"')
			a.state = answerAfter
			return i + 1
		}
		begins := a.esc == 0 // of a character
		a.escape(c)
		if a.size++; begins && a.size > maxErrorMessage {
			a.kept = false // the rest
			a.keep('"')
			return i + 1
		}
		a.keep(c)
	}
	return i
}

// escape follows escapes.
func (a *AnswerScanner) escape(c byte) {
	switch {
	case a.esc == 0:
		if c == '\\' {
			a.esc = -1
		}
	case a.esc > 0:
		a.esc--
	case c == 'u':
		a.esc = 4
	default:
		a.esc = 0
	}
}

// toQuote passes the rest of a string that is not kept.
func (a *AnswerScanner) toQuote(p []byte, i int) (next int, ended bool) {
	if a.esc < 0 { // the digits of an escape contain no quote
		i++
	}
	a.esc = 0
	for end := -1; i < len(p); {
		if end < i {
			if end = bytes.IndexByte(p[i:], '"'); end < 0 {
				end = len(p)
			} else {
				end += i
			}
		}
		at := bytes.IndexByte(p[i:end], '\\')
		if at < 0 {
			return min(end+1, len(p)), end < len(p)
		}
		if i += at + 2; i > len(p) {
			a.esc = -1
		}
	}
	return len(p), false
}

// skipped passes a list or an object that is not kept.
func (a *AnswerScanner) skipped(p []byte, i int) int {
	for i < len(p) {
		if a.quote {
			var ended bool
			i, ended = a.toQuote(p, i)
			a.quote = !ended
			continue
		}
		switch p[i] {
		case '"':
			a.quote = true
		case '{', '[':
			a.skip++
		case '}', ']':
			if a.skip--; a.skip == 0 {
				a.state = answerAfter
				return i + 1
			}
		}
		i++
	}
	return i
}

// scalar passes a number or a literal.
func (a *AnswerScanner) scalar(p []byte, i int) int {
	for ; i < len(p); i++ {
		switch p[i] {
		case ',', '}', ']', ' ', '\n', '\t', '\r':
			a.state = answerAfter
			return i
		}
		if a.kept {
			a.keep(p[i])
		}
	}
	return i
}

// inName takes bytes of a name. A name that is longer than all of answerNames, or has
// escapes, is not kept.
func (a *AnswerScanner) inName(p []byte, i int) int {
	for ; i < len(p); i++ {
		c := p[i]
		if a.esc == 0 && c == '"' {
			a.state = answerColon
			return i + 1
		}
		a.escape(c)
		if len(a.name) < maxAnswerName {
			a.name = append(a.name, c)
		}
	}
	return i
}
