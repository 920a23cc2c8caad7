package translate

import (
	"bytes"
	"slices"
)

// turns writes the messages of a chat body. Many chat templates refuse a second system
// message, one that is not the first, and two messages of the user or of the assistant
// in a row. So all system messages become one message before all others, and adjacent
// messages of one role become one.
type turns struct {
	c       *chatBody
	count   int
	start   int           // offset of the first message in c.b
	leading []leadingPart // texts of the system, in order

	open role // of the message that is not written yet
	user parts
	asst assistant
}

type role uint8

const (
	roleNone role = iota
	roleUser
	roleAssistant
)

// leadingPart is a part of the system message: a text, as a JSON string, or a part of
// another type.
type leadingPart struct {
	text raw
	part []byte
}

func beginTurns(c *chatBody) *turns {
	c.name("messages")
	c.b = append(c.b, '[')
	return &turns{c: c, start: len(c.b)}
}

func (t *turns) end() {
	t.flush()
	if len(t.leading) > 0 {
		b := append([]byte(`{"role":"system","content":`), t.leadingContent()...)
		b = append(b, '}')
		if t.count > 0 {
			b = append(b, ',')
		}
		t.c.b = slices.Insert(t.c.b, t.start, b...)
	}
	t.c.b = append(t.c.b, ']')
}

// system adds a text to the system message.
func (t *turns) system(text raw) {
	if !text.isBlank() {
		t.leading = append(t.leading, leadingPart{text: text})
	}
}

// leadingContent is one string, with an empty line between texts of different turns, or
// a list if there are parts of another type.
func (t *turns) leadingContent() []byte {
	var all parts
	texts := make([]raw, 0, len(t.leading))
	flush := func() {
		if len(texts) > 0 {
			all.text(joinTexts(texts, emptyLine))
			texts = texts[:0]
		}
	}
	for _, p := range t.leading {
		if p.text != nil {
			texts = append(texts, p.text)
			continue
		}
		flush()
		all.open()
		all.b = append(all.b, p.part...)
	}
	flush()
	return all.appendTo(nil)
}

// begin opens a message; the caller appends its other members and the '}'.
func (t *turns) begin(role string) {
	if t.count > 0 {
		t.c.b = append(t.c.b, ',')
	}
	t.count++
	t.c.b = append(append(append(t.c.b, `{"role":"`...), role...), '"')
}

// userTurn continues the user's message, or begins one.
func (t *turns) userTurn() *parts {
	if t.open != roleUser {
		t.flush()
		t.open = roleUser
	}
	t.user.newTurn = t.user.count > 0
	return &t.user
}

// assistantTurn is userTurn for the assistant.
func (t *turns) assistantTurn() *assistant {
	if t.open != roleAssistant {
		t.flush()
		t.open = roleAssistant
	}
	t.asst.content.newTurn = t.asst.content.count > 0
	return &t.asst
}

// flush writes the open message.
func (t *turns) flush() {
	switch t.open {
	case roleUser:
		if t.user.count > 0 {
			t.begin("user")
			t.c.b = append(t.user.appendTo(append(t.c.b, `,"content":`...)), '}')
		}
		t.user.reset()
	case roleAssistant:
		t.assistant(&t.asst)
		t.asst.reset()
	}
	t.open = roleNone
}

// parts collects the parts of a message's content.
type parts struct {
	b     []byte
	count int
	// single is the text while it is the only part; it is not in b then. owned: it was
	// copied to grow, and is no piece of the client's body any more.
	single raw
	owned  bool
	// isText: the last part is a text. newTurn: the next part is of another turn.
	isText, newTurn bool
}

// open begins a part other than a text.
func (p *parts) open() {
	p.writeSingle()
	p.next()
	p.isText = false
}

// writeSingle writes the single text into b, as another part follows.
func (p *parts) writeSingle() {
	if p.single != nil {
		p.b = append(append(append(p.b, partTextOpen...), p.single...), '}')
		p.single, p.owned = nil, false
	}
}

func (p *parts) next() {
	if p.count > 0 {
		p.b = append(p.b, ',')
	}
	p.count++
	p.newTurn = false
}

const partTextOpen = `{"type":"text","text":`

// text adds a text. A text of another turn is joined to the last text, with an empty line
// between them.
func (p *parts) text(v raw) {
	switch {
	case p.count == 0:
		p.next()
		p.single = v
	case p.newTurn && p.isText:
		p.newTurn = false
		p.join(v)
	default:
		p.writeSingle()
		p.next()
		p.b = append(append(append(p.b, partTextOpen...), v...), '}')
	}
	p.isText = true
}

// join appends a text to the last one, without copying the last one each time, as there
// may be many.
func (p *parts) join(v raw) {
	switch {
	case v.isBlank():
	case p.single.isBlank() && p.single != nil:
		p.single = v
	case p.single != nil:
		if !p.owned {
			p.single, p.owned = append(make(raw, 0, 2*(len(p.single)+len(v))), p.single...), true
		}
		p.single = append(append(p.single[:len(p.single)-1], emptyLine...), v[1:]...)
	default:
		p.b = p.b[:len(p.b)-len(`"}`)]
		if !bytes.HasSuffix(p.b, []byte(partTextOpen+`"`)) {
			p.b = append(p.b, emptyLine...)
		}
		p.b = append(append(p.b, v[1:]...), '}')
	}
}

// emptyLine separates texts of turns that are joined, as it is written inside a JSON
// string.
const emptyLine = `\n\n`

func (p *parts) reset() { *p = parts{b: p.b[:0]} }

// appendTo appends the content: a single text as a string, which every template can
// render, else a list.
func (p *parts) appendTo(dst []byte) []byte {
	if p.single != nil {
		return append(dst, p.single...)
	}
	return append(append(append(dst, '['), p.b...), ']')
}

// assistant collects what becomes one message of the assistant.
type assistant struct {
	content  parts
	thinking []byte // joined, as written inside a JSON string
	thought  bool
	calls    []byte
	called   int
}

func (a *assistant) reset() {
	a.content.reset()
	a.thinking, a.thought, a.calls, a.called = a.thinking[:0], false, a.calls[:0], 0
}

func (a *assistant) think(text raw) {
	if len(text.inner()) == 0 {
		return
	}
	if a.thought {
		a.thinking = append(a.thinking, '\\', 'n')
	}
	a.thinking, a.thought = append(a.thinking, text.inner()...), true
}

// call adds a tool call; arguments is a JSON string.
func (a *assistant) call(id, name raw, arguments []byte) {
	if a.called > 0 {
		a.calls = append(a.calls, ',')
	}
	a.called++
	a.calls = append(append(a.calls, `{"id":`...), id...)
	a.calls = append(append(a.calls, `,"type":"function","function":{"name":`...), name...)
	a.calls = append(append(append(a.calls, `,"arguments":`...), arguments...), '}', '}')
}

// assistant writes the message.
func (t *turns) assistant(a *assistant) {
	t.begin("assistant")
	b := append(t.c.b, `,"content":`...)
	switch {
	case a.content.count > 0:
		b = a.content.appendTo(b)
	case a.called > 0:
		b = append(b, "null"...)
	default:
		// An empty turn is kept, as templates require turns to alternate.
		b = append(b, '"', '"')
	}
	if a.thought {
		b = append(append(append(b, `,"reasoning_content":"`...), a.thinking...), '"')
	}
	if a.called > 0 {
		b = append(append(append(b, `,"tool_calls":[`...), a.calls...), ']')
	}
	t.c.b = append(b, '}')
}

// tool writes a tool's result: content, a JSON string, or if that is nil the parts p.
func (t *turns) tool(id, content raw, p *parts) {
	t.flush()
	t.begin("tool")
	b := append(append(t.c.b, `,"tool_call_id":`...), id...)
	b = append(b, `,"content":`...)
	switch {
	case content != nil:
		b = append(b, content...)
	case p.count == 0:
		b = append(b, '"', '"')
	default:
		b = p.appendTo(b)
	}
	t.c.b = append(b, '}')
}

// joinTexts joins texts into one JSON string. between is written as inside a JSON string.
func joinTexts(texts []raw, between string) raw {
	switch len(texts) {
	case 0:
		return nil
	case 1:
		return texts[0]
	}
	inner := make([][]byte, len(texts))
	for i, t := range texts {
		inner[i] = t.inner()
	}
	return append(append([]byte{'"'}, bytes.Join(inner, []byte(between))...), '"')
}
