package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// PieceKind tells what a piece of a prompt is.
type PieceKind uint8

// The kinds of pieces.
const (
	// PieceFrame begins a message or what a template renders like one; its bytes are the
	// role.
	PieceFrame PieceKind = iota
	// PieceText is text, decoded: the same for each way to write it in JSON. A text may come
	// in several pieces; pieces of texts that stand side by side are one text.
	PieceText
	// PieceJSON is a JSON value as the client wrote it, such as the tools.
	PieceJSON
	// PieceMedia is the JSON of a reference to what is no text: a URL, or the data.
	PieceMedia
)

// maxPieces bounds the pieces of one walk, for prompts of very many very small ones.
const maxPieces = 1 << 16

// PieceTaker takes the pieces of a prompt. The bytes are valid until TakePiece returns; if
// that returns false, no more follow.
type PieceTaker interface {
	TakePiece(kind PieceKind, b []byte) bool
}

// PromptWalk hands the pieces of prompts to a taker, in the order in which chat templates
// render them whatever their order in the body is: what changes the template, the tools,
// the instructions, the messages. Of a message come the role, the name, the content and
// the calls of tools; members that mark or annotate it (cache_control, annotations, ids,
// the reasoning of earlier turns) are left out, as clients add and remove them from turn
// to turn.
//
// The zero value is ready. It is not safe for concurrent use.
type PromptWalk struct {
	s     scanner
	take  PieceTaker
	left  int  // of maxPieces
	over  bool // the taker wants no more
	plain [2048]byte
}

// headFields change how a template renders a prompt from its beginning.
var headFields = [...]Field{FieldLoRAPath, FieldChatTemplate, FieldChatTemplateArgs, FieldDocuments, FieldReasoningEffort, FieldTools}

// Walk walks the prompt of p, or the first one of a list. Prompts that are token ids or
// embeddings have no pieces; see WalkTokens.
func (w *PromptWalk) Walk(p *Peeked, take PieceTaker) {
	w.take, w.left, w.over = take, maxPieces, false
	defer func() { w.take, w.s.b = nil, nil }()
	for _, f := range headFields {
		if p.Given(f) && !w.over {
			w.piece(PieceJSON, p.Raw(f))
		}
	}
	switch p.Route {
	case RouteChatCompletions:
		w.field(p, FieldMessages, "")
	case RouteMessages:
		w.field(p, FieldSystem, "system")
		w.field(p, FieldMessages, "")
	case RouteResponses:
		w.field(p, FieldInstructions, "system")
		w.field(p, FieldInput, "user")
	case RouteCompletions, RouteGenerate:
		for i := range p.Prompt {
			if at := &p.Prompt[i]; at.Item == 0 && !at.Tokens {
				w.text(p.Body[at.Start:at.End])
				break
			}
		}
	}
}

// field walks a list of messages or the content of one; role is that of content alone.
func (w *PromptWalk) field(p *Peeked, f Field, role string) {
	raw := p.Raw(f)
	if w.over || len(raw) == 0 || raw[0] != '"' && raw[0] != '[' {
		return
	}
	w.s.reset(raw, DefaultMaxDepth)
	if raw[0] == '[' && f != FieldSystem {
		w.messages()
		return
	}
	if w.piece(PieceFrame, []byte(role)); raw[0] == '"' {
		w.text(raw)
	} else {
		w.parts(1)
	}
}

func (w *PromptWalk) messages() {
	s := &w.s
	i := 1
	for first := true; !w.over; first = false {
		e, done := s.element(i, first)
		if e < 0 || done {
			return
		}
		if s.b[e] == '{' {
			i = w.message(e + 1)
		} else {
			i = s.skip(e, depthArray)
		}
		if i < 0 {
			w.over = true
			return
		}
	}
}

// The members of a message or of an item of the Responses API that count.
const (
	memberRole = iota
	memberType
	memberName
	memberContent
	memberArguments
	memberOutput
	memberToolCalls
	numMembers
)

var memberNames = [numMembers]string{"role", "type", "name", "content", "arguments", "output", "tool_calls"}

// message walks the message whose members begin at i and returns the offset after it.
func (w *PromptWalk) message(i int) int {
	s := &w.s
	var at [numMembers]Span
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 {
			return -1
		}
		if i = v; done {
			break
		}
		if i = s.skip(v, depthMessage); i < 0 {
			return -1
		}
		for m, want := range memberNames {
			if s.nameIs(name, want) {
				at[m] = Span{v, i}
				break
			}
		}
	}
	head := at[memberRole]
	if head.IsZero() {
		head = at[memberType]
	}
	if role := s.b[head.Start:head.End]; len(role) > 2 && role[0] == '"' {
		w.piece(PieceFrame, role[1:len(role)-1])
	} else {
		w.piece(PieceFrame, nil)
	}
	for m := memberName; m < numMembers; m++ {
		if !at[m].IsZero() && !w.over {
			w.member(m, at[m])
		}
	}
	return i
}

func (w *PromptWalk) member(m int, at Span) {
	s := &w.s
	raw := s.b[at.Start:at.End]
	switch {
	case raw[0] == 'n': // null
	case m == memberToolCalls || m == memberName:
		if !bytes.Equal(raw, []byte("[]")) {
			w.piece(PieceJSON, raw)
		}
	case raw[0] == '"':
		w.text(raw)
	case raw[0] == '[' && w.parts(at.Start+1) < 0:
		w.over = true
	}
}

// parts walks the content parts that begin at i.
func (w *PromptWalk) parts(i int) int {
	s := &w.s
	for first := true; ; first = false {
		e, done := s.element(i, first)
		if e < 0 || done {
			return e
		}
		switch {
		case w.over:
			return -1
		case s.b[e] == '{':
			i = w.part(e + 1)
		default:
			if i = s.skip(e, depthContent); i > 0 && s.b[e] == '"' {
				w.text(s.b[e:i])
			}
		}
		if i < 0 {
			return -1
		}
	}
}

// part walks one content part. Members that tell only of what kind or where it is are left
// out, and with them what a template leaves out of earlier turns: thinking.
func (w *PromptWalk) part(i int) int {
	s := &w.s
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			return v
		}
		is := func(n string) bool { return s.nameIs(name, n) }
		content := is("content")
		if content && s.b[v] == '[' { // of a tool's result; the parts in it are flat
			if i = w.results(v + 1); i < 0 {
				return -1
			}
			continue
		}
		if i = s.skip(v, depthPart); i < 0 {
			return -1
		}
		raw := s.b[v:i]
		switch {
		case w.over || raw[0] == 'n':
		case raw[0] == '"' && (content || is("text")):
			w.text(raw)
		case is("name"), is("input"):
			w.piece(PieceJSON, raw)
		case is("image_url"), is("input_audio"), is("audio_url"), is("video_url"), is("source"), is("file"), is("image"), is("audio"), is("video"),
			is("file_id"), is("file_url"), is("file_data"):
			w.piece(PieceMedia, raw)
		}
	}
}

// results walks the parts of a tool's result: their texts and media.
func (w *PromptWalk) results(i int) int {
	s := &w.s
	for first := true; ; first = false {
		e, done := s.element(i, first)
		if e < 0 || done {
			return e
		}
		if s.b[e] != '{' {
			if i = s.skip(e, depthPart); i < 0 {
				return -1
			}
			continue
		}
		i = e + 1
		for inner := true; ; inner = false {
			name, v, end := s.member(i, inner)
			if v < 0 {
				return -1
			}
			if i = v; end {
				break
			}
			if i = s.skip(v, depthPart); i < 0 {
				return -1
			}
			switch raw := s.b[v:i]; {
			case w.over:
			case raw[0] == '"' && s.nameIs(name, "text"):
				w.text(raw)
			case s.nameIs(name, "source"), s.nameIs(name, "image_url"):
				w.piece(PieceMedia, raw)
			}
		}
	}
}

func (w *PromptWalk) piece(k PieceKind, b []byte) {
	if w.over {
		return
	}
	if w.left--; w.left < 0 || !w.take.TakePiece(k, b) {
		w.over = true
	}
}

// longRun is the length from which on a run without escapes is searched for its end with a
// search that is fast for long ones, in bytes.
const longRun = 64

// text hands over the text of a JSON string, with its quotes: long runs from where they
// are, the rest decoded into a small buffer.
func (w *PromptWalk) text(raw []byte) {
	raw = raw[1 : len(raw)-1]
	n, run := 0, longRun // of w.plain; since the last escape
	for len(raw) > 0 && !w.over {
		if run >= longRun {
			run = bytes.IndexByte(raw, '\\')
			if run < 0 {
				run = len(raw)
			}
			if run > len(w.plain)/4 {
				n = w.flush(n)
				w.piece(PieceText, raw[:run])
				raw = raw[run:]
				continue
			}
			run = 0
		}
		if n > len(w.plain)-32 {
			n = w.flush(n)
		}
		if len(raw) < 8 && raw[0] != '\\' {
			w.plain[n] = raw[0]
			n++
			raw = raw[1:]
			continue
		}
		if len(raw) >= 8 {
			x := binary.LittleEndian.Uint64(raw)
			binary.LittleEndian.PutUint64(w.plain[n:], x)
			y := x ^ '\\'*ones
			mark := (y - ones) &^ y & highs
			if mark == 0 {
				n, run, raw = n+8, run+8, raw[8:]
				continue
			}
			plain := bits.TrailingZeros64(mark) / 8
			n, raw = n+plain, raw[plain:]
		}
		run = 0
		if len(raw) > 1 && raw[1] != 'u' {
			w.plain[n] = unescaped[raw[1]]
			n++
			raw = raw[2:]
			continue
		}
		escape := escapeLen(raw)
		n = len(appendUnescaped(w.plain[:n], raw[:escape], nil))
		raw = raw[escape:]
	}
	w.flush(n)
}

// flush hands over the first n bytes of the buffer, which is empty then.
func (w *PromptWalk) flush(n int) int {
	if n > 0 {
		w.piece(PieceText, w.plain[:n])
	}
	return 0
}

// escapeLen is the length of the escape at the start of b, of both halves of a pair.
func escapeLen(b []byte) int {
	switch {
	case len(b) < 2 || b[1] != 'u':
		return min(2, len(b))
	case len(b) >= 12 && b[6] == '\\' && b[7] == 'u' && (b[2] == 'd' || b[2] == 'D'):
		return 12
	}
	return min(6, len(b))
}

// WalkTokens hands the token ids of the prompt of p, or of the first one of a list, to take
// in pieces of a few hundred until that returns false. It tells whether the prompt is of
// token ids; one that no engine takes, with an id beyond 32 bits, ends there.
func WalkTokens(p *Peeked, take func(ids []uint32) bool) bool {
	if !p.PromptKind.TokenIDs() {
		return false
	}
	var at PromptSpan
	for i := range p.Prompt {
		if p.Prompt[i].Tokens && p.Prompt[i].Item == 0 {
			at = p.Prompt[i]
			break
		}
	}
	if at.IsZero() {
		return false
	}
	var ids [256]uint32
	n, digits, v := 0, 0, uint64(0)
	for _, c := range p.Body[at.Start+1 : at.End] {
		if isDigit(c) {
			v = v*10 + uint64(c-'0')
			if digits++; v > 1<<32-1 {
				break
			}
			continue
		}
		if digits > 0 {
			ids[n] = uint32(v)
			if n++; n == len(ids) {
				if !take(ids[:n]) {
					return true
				}
				n = 0
			}
			v, digits = 0, 0
		}
		if c == '-' || c == '.' || c == 'e' || c == 'E' {
			break
		}
	}
	if n > 0 {
		take(ids[:n])
	}
	return true
}
