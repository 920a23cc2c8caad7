package translate

import (
	"bytes"
	"slices"
)

// turns writes the messages of a chat body. Many chat templates refuse a second message
// of the system, one that is not the first, and two of the user or of the assistant one
// after the other. So what is said by the system, wherever it stands, becomes one
// message before all others, and neighbours of one role become one.
type turns struct {
	c     *chatBody
	count int
	start int        // where the first message stands in c.b
	lead  []leadPart // what the system says, in order

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

// leadPart is a text of the system's, as a JSON string, or a part of another type.
type leadPart struct {
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
	if len(t.lead) > 0 {
		b := append([]byte(`{"role":"system","content":`), t.leadContent()...)
		b = append(b, '}')
		if t.count > 0 {
			b = append(b, ',')
		}
		t.c.b = slices.Insert(t.c.b, t.start, b...)
	}
	t.c.b = append(t.c.b, ']')
}

// system adds a text to what the system says.
func (t *turns) system(text raw) {
	if !text.isBlank() {
		t.lead = append(t.lead, leadPart{text: text})
	}
}

// leadContent is one string, an empty line between what were turns of their own. Only
// parts of another type make it a list.
func (t *turns) leadContent() []byte {
	var all parts
	texts := make([]raw, 0, len(t.lead))
	flush := func() {
		if len(texts) > 0 {
			all.text(joinTexts(texts, emptyLine))
			texts = texts[:0]
		}
	}
	for _, p := range t.lead {
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

// byUser goes on with the user's message, or begins one.
func (t *turns) byUser() *parts {
	if t.open != roleUser {
		t.flush()
		t.open = roleUser
	}
	t.user.apart = t.user.count > 0
	return &t.user
}

// byAssistant is byUser for the assistant.
func (t *turns) byAssistant() *assistant {
	if t.open != roleAssistant {
		t.flush()
		t.open = roleAssistant
	}
	t.asst.content.apart = t.asst.content.count > 0
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
	// only is the text while it is the one part, which is then not in b. owned: it has
	// grown, and is no piece of the client's body any more.
	only  raw
	owned bool
	// isText: the last part is a text. apart: what comes next is of another turn.
	isText, apart bool
}

// open begins a part other than a text.
func (p *parts) open() {
	p.settle()
	p.next()
	p.isText = false
}

// settle writes the text that was the one part.
func (p *parts) settle() {
	if p.only != nil {
		p.b = append(append(append(p.b, partTextOpen...), p.only...), '}')
		p.only, p.owned = nil, false
	}
}

func (p *parts) next() {
	if p.count > 0 {
		p.b = append(p.b, ',')
	}
	p.count++
	p.apart = false
}

const partTextOpen = `{"type":"text","text":`

// text adds a text. One of another turn goes on with the last text behind an empty line.
func (p *parts) text(v raw) {
	switch {
	case p.count == 0:
		p.next()
		p.only = v
	case p.apart && p.isText:
		p.apart = false
		p.join(v)
	default:
		p.settle()
		p.next()
		p.b = append(append(append(p.b, partTextOpen...), v...), '}')
	}
	p.isText = true
}

// join puts a text behind the last one, without copying that one each time: there may be
// many.
func (p *parts) join(v raw) {
	switch {
	case v.isBlank():
	case p.only.isBlank() && p.only != nil:
		p.only = v
	case p.only != nil:
		if !p.owned {
			p.only, p.owned = append(make(raw, 0, 2*(len(p.only)+len(v))), p.only...), true
		}
		p.only = append(append(p.only[:len(p.only)-1], emptyLine...), v[1:]...)
	default:
		p.b = p.b[:len(p.b)-len(`"}`)]
		if !bytes.HasSuffix(p.b, []byte(partTextOpen+`"`)) {
			p.b = append(p.b, emptyLine...)
		}
		p.b = append(append(p.b, v[1:]...), '}')
	}
}

// emptyLine is between texts of turns that become one, as it is spelled inside quotes.
const emptyLine = `\n\n`

func (p *parts) reset() { *p = parts{b: p.b[:0]} }

// appendTo appends the content: one text is a string, which every template can
// render; else a list.
func (p *parts) appendTo(dst []byte) []byte {
	if p.only != nil {
		return append(dst, p.only...)
	}
	return append(append(append(dst, '['), p.b...), ']')
}

// assistant collects what becomes one message of the assistant.
type assistant struct {
	content  parts
	thinking []byte // joined, as spelled inside quotes
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
		// A turn that says nothing is still one: templates want turns to alternate.
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

// tool writes a tool's result. content is a JSON string, or nil if p has it.
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

// joinTexts joins texts into one JSON string. between is spelled as inside quotes.
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
