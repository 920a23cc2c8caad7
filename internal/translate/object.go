package translate

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/text"
)

// codeUntranslatable is the code of a request that is valid in its own API but asks
// for something that the engine's chat route cannot do.
const codeUntranslatable = "untranslatable"

// path names a field for an error; nil is the body itself.
type path struct {
	up    *path
	name  string // "" for an element
	index int
}

func (p *path) field(name string) *path { return &path{up: p, name: name} }
func (p *path) element(i int) *path     { return &path{up: p, index: i} }

func (p *path) String() string {
	switch {
	case p == nil:
		return ""
	case p.name == "":
		return p.up.String() + "[" + strconv.Itoa(p.index) + "]"
	case p.up == nil:
		return p.name
	}
	return p.up.String() + "." + p.name
}

// bad is the error of a wrong value. The message names the field too, since the
// Messages API's error objects have no member for it.
func bad(at *path, format string, args ...any) *openai.Error {
	e := openai.InvalidRequest(at.String(), format, args...)
	e.Message = e.Param + ": " + e.Message
	return e
}

// mustBe is the error of a value of the wrong type; want is the right one.
func mustBe(at *path, want string, v raw) *openai.Error {
	return bad(at, "must be "+want+", not %s", v.kind())
}

// unsupported is the error of a value that can't be translated.
func unsupported(at *path, format string, args ...any) *openai.Error {
	e := bad(at, format, args...)
	e.Code = codeUntranslatable
	return e
}

// object is an object of a request.
type object struct {
	at   *path
	list []member
}

type member struct {
	name  string
	value raw
}

// readObject refuses an object with a duplicate name: the value that was checked must
// be the one that is sent.
func readObject(v raw, at *path) (object, error) {
	o := object{at: at}
	if !v.isObject() {
		return o, mustBe(at, "an object", v)
	}
	o.list = make([]member, 0, 8)
	var seen map[string]struct{}
	for name, value := range v.members() {
		m := member{string(name), value}
		twice := false
		if len(o.list) < 16 {
			for _, other := range o.list {
				twice = twice || other.name == m.name
			}
		} else {
			if seen == nil {
				seen = make(map[string]struct{}, 64)
				for _, other := range o.list {
					seen[other.name] = struct{}{}
				}
			}
			_, twice = seen[m.name]
			seen[m.name] = struct{}{}
		}
		if twice {
			return o, bad(at.field(clipName(m.name)), "is there twice")
		}
		o.list = append(o.list, m)
	}
	return o, nil
}

// readTyped reads an object whose type says what else it has.
func readTyped(v raw, at *path) (o object, kind string, err error) {
	if o, err = readObject(v, at); err != nil {
		return o, "", err
	}
	k, err := o.need("type")
	return o, k.text(), err
}

func clipName(name string) string { return text.Clip(name, 64) }

// get is the member's value, nil if it is absent or null.
func (o object) get(name string) raw {
	for _, m := range o.list {
		if m.name == name {
			if m.value.isNull() {
				return nil
			}
			return m.value
		}
	}
	return nil
}

// str is a string member, nil if it is absent or null.
func (o object) str(name string) (raw, error) {
	v := o.get(name)
	if v != nil && !v.isString() {
		return nil, mustBe(o.at.field(name), "a string", v)
	}
	return v, nil
}

// need is a required string member.
func (o object) need(name string) (raw, error) {
	v, err := o.str(name)
	if err == nil && v == nil {
		return nil, bad(o.at.field(name), "is required")
	}
	return v, err
}

// texts are the values of those string members that are present and not empty.
func (o object) texts(names ...string) (texts []raw, err error) {
	for _, name := range names {
		v, err := o.str(name)
		if err != nil {
			return nil, err
		}
		if !v.isBlank() {
			texts = append(texts, v)
		}
	}
	return texts, nil
}

// memberReader reads members one after another. err is the first error; what is read
// after it may be nil.
type memberReader struct {
	object
	err error
}

func (o object) reader() memberReader { return memberReader{object: o} }

func (r *memberReader) keep(v raw, err error) raw {
	if r.err == nil {
		r.err = err
	}
	return v
}

func (r *memberReader) need(name string) raw    { return r.keep(r.object.need(name)) }
func (r *memberReader) str(name string) raw     { return r.keep(r.object.str(name)) }
func (r *memberReader) array(name string) raw   { return r.keep(r.object.array(name)) }
func (r *memberReader) boolean(name string) raw { return r.keep(r.object.boolean(name)) }

// array is an array member, nil if it is absent or null.
func (o object) array(name string) (raw, error) {
	v := o.get(name)
	if v != nil && !v.isArray() {
		return nil, mustBe(o.at.field(name), "an array", v)
	}
	return v, nil
}

// number is a number member, nil if it is absent or null.
func (o object) number(name string) (raw, error) {
	v := o.get(name)
	if v != nil && !v.isNumber() {
		return nil, mustBe(o.at.field(name), "a number", v)
	}
	return v, nil
}

// boolean is a boolean member, nil if it is absent or null.
func (o object) boolean(name string) (raw, error) {
	v := o.get(name)
	if v != nil && !v.isBool() {
		return nil, mustBe(o.at.field(name), "a boolean", v)
	}
	return v, nil
}

// chatBody writes the chat request.
type chatBody struct {
	b       []byte
	written []string
}

func newChatBody(size int) *chatBody {
	c := &chatBody{b: make([]byte, 0, size+size/4+256), written: make([]string, 0, 16)}
	c.b = append(c.b, '{')
	return c
}

// name begins a field; the caller appends its value.
func (c *chatBody) name(name string) {
	if len(c.b) > 1 {
		c.b = append(c.b, ',')
	}
	c.b = append(openai.AppendString(c.b, name), ':')
	c.written = append(c.written, name)
}

// field writes a field if there is a value.
func (c *chatBody) field(name string, v []byte) {
	if len(v) > 0 {
		c.name(name)
		c.b = append(c.b, v...)
	}
}

func (c *chatBody) end() []byte { return append(c.b, '}') }

// rule is how a field of the client's API is treated.
type rule uint8

const (
	handled rule = iota + 1 // translated by name
	dropped                 // left out: it has no effect here
	refused                 // refused unless it asks for nothing
)

// chatOnly are fields of the chat API that a client of another API cannot set: the other
// API's answer has no member for their results, or it has another field for the same.
var chatOnly = map[string]string{
	"n":                     "the answer has a place for one sample only",
	"best_of":               "the answer has a place for one sample only",
	"use_beam_search":       "the answer has a place for one sample only",
	"logprobs":              "the answer has no place for them under this name",
	"echo":                  "the answer has no place for it",
	"max_completion_tokens": "it has another name in this API",
	"max_tokens":            "it has another name in this API",
	"functions":             "use tools",
	"function_call":         "use tool_choice",
	"prompt":                "it has another name in this API",
	"modalities":            "only text can be answered",
	"audio":                 "only text can be answered",
}

// rest passes on the fields that the client's API does not have, and refuses those that
// cannot be passed on.
func (c *chatBody) rest(top object, rules map[string]rule) error {
	ours := c.written // without those passed on here: searching them too would be quadratic
	for _, m := range top.list {
		at := top.at.field(clipName(m.name))
		switch rules[m.name] {
		case handled, dropped:
			continue
		case refused:
			if !m.value.isBlank() {
				return unsupported(at, "the engine behind this route cannot do this")
			}
			continue
		}
		if m.value.isNull() {
			continue
		}
		if why, ok := chatOnly[m.name]; ok {
			one := string(m.value) == "1" && (m.name == "n" || m.name == "best_of")
			if one || m.value.isBlank() {
				continue // the default
			}
			return unsupported(at, "cannot be set on this route: %s", why)
		}
		if slices.Contains(ours, m.name) {
			return bad(at, "contradicts another field that says the same on this route")
		}
		c.field(m.name, m.value)
	}
	return nil
}

// translateRequest makes the chat body of a request: each step translates some fields,
// and rules say what becomes of the others. The model is a copy.
func translateRequest(route openai.Route, body []byte, rules map[string]rule, steps ...func(*chatBody, object) error) (chat []byte, model raw, err error) {
	top, err := readRequest(route, body)
	if err != nil {
		return nil, nil, err
	}
	if model, err = top.need("model"); err != nil {
		return nil, nil, err
	}
	c := newChatBody(len(body))
	c.field("model", model)
	for _, step := range steps {
		if err := step(c, top); err != nil {
			return nil, nil, err
		}
	}
	if err := c.rest(top, rules); err != nil {
		return nil, nil, err
	}
	return c.end(), bytes.Clone(model), nil
}

// readRequest checks the whole body and reads its fields.
func readRequest(route openai.Route, body []byte) (object, error) {
	p, err := openai.Peek(route, body, openai.PeekOptions{MaxPromptSpans: 1})
	if err != nil {
		return object{}, err
	}
	p.Release()
	return readObject(rawOf(body), nil)
}
