package openai

import "bytes"

// HasToken reports whether the JSON of an event has output of the model in it: text,
// reasoning, a refusal, token ids or a piece of a tool call, in the form of any API.
// Events that open or close a stream or keep it alive have none.
//
// The JSON need not be checked: invalid JSON does not make it panic.
func HasToken(json []byte) bool {
	s := new(scanner)
	s.reset(json, DefaultMaxDepth)
	i := s.space(0)
	if i >= len(json) {
		return false
	}
	if json[i] == '[' { // a list of answers
		i++
		for first := true; ; first = false {
			e, done := s.element(i, first)
			if e < 0 || done {
				return false
			}
			if json[e] == '{' && s.hasToken(e, tokenEvent) {
				return true
			}
			if i = s.skip(e, 1); i < 0 {
				return false
			}
		}
	}
	return json[i] == '{' && s.hasToken(i, tokenEvent)
}

// tokenPlace is a kind of object in which output can be.
type tokenPlace uint8

const (
	tokenEvent    tokenPlace = iota // the event itself
	tokenChoice                     // of chat, completions or vLLM's generate
	tokenDelta                      // of chat or Messages
	tokenItem                       // a block or item that an event of Messages or Responses begins
	tokenLogprobs                   // of a choice: a token may have no text of its own yet
)

// hasToken reports whether the object at i has output. It stops at the first.
func (s *scanner) hasToken(i int, in tokenPlace) bool {
	i++
	for first := true; ; first = false {
		name, v, done := s.member(i, first)
		if v < 0 || done {
			return false
		}
		if s.memberTells(name, v, in) {
			return true
		}
		if i = s.skip(v, 1); i < 0 {
			return false
		}
	}
}

func (s *scanner) memberTells(name Span, v int, in tokenPlace) bool {
	is := func(n string) bool { return s.nameIs(name, n) }
	switch in {
	case tokenEvent:
		switch {
		case is("choices"):
			return s.b[v] == '[' && s.choicesHaveToken(v)
		case is("text"), is("output_ids"), is("token_ids"):
			return s.hasContent(v)
		case is("delta"):
			if s.b[v] == '{' {
				return s.hasToken(v, tokenDelta)
			}
			return s.b[v] == '"' && s.hasContent(v)
		case is("content_block"), is("item"):
			return s.b[v] == '{' && s.hasToken(v, tokenItem)
		}
	case tokenChoice:
		switch {
		case is("delta"), is("message"):
			return s.b[v] == '{' && s.hasToken(v, tokenDelta)
		case is("logprobs"):
			return s.b[v] == '{' && s.hasToken(v, tokenLogprobs)
		}
		return (is("text") || is("token_ids")) && s.hasContent(v)
	case tokenDelta:
		return (is("content") || is("reasoning_content") || is("reasoning") || is("tool_calls") || is("function_call") || is("refusal") ||
			is("text") || is("thinking") || is("partial_json") || is("audio")) && s.hasContent(v)
	case tokenItem:
		return (is("name") || is("text") || is("thinking")) && s.hasContent(v)
	case tokenLogprobs:
		return (is("content") || is("tokens")) && s.hasContent(v)
	}
	return false
}

// choicesHaveToken is hasToken for the choices, a list at i.
func (s *scanner) choicesHaveToken(i int) bool {
	i++
	for first := true; ; first = false {
		e, done := s.element(i, first)
		if e < 0 || done {
			return false
		}
		if s.b[e] == '{' && s.hasToken(e, tokenChoice) {
			return true
		}
		if i = s.skip(e, 2); i < 0 {
			return false
		}
	}
}

// hasContent reports whether the value at v is a text, list or object with something in
// it.
func (s *scanner) hasContent(v int) bool {
	switch s.b[v] {
	case '"':
		return v+1 < len(s.b) && s.b[v+1] != '"'
	case '[', '{':
		next := s.space(v + 1)
		return next < len(s.b) && s.b[next] != ']' && s.b[next] != '}'
	}
	return false
}

// finishTail is the length of an event's end in which events of chat or completions have
// their finish reason.
const finishTail = 160

// finishText begins with a rare byte, which makes searches fast.
var finishText = []byte(`_reason":"`)

// noteToken counts an event that has a token. Until the first, each event is searched for
// one. After it an event counts as having a token unless a cheap check says otherwise:
// token counts, a finish reason, or the name of an event without output.
func (e *EventScanner) noteToken(usage bool) {
	look := e.TokenEvents == 0 || usage || e.name != nameNone && e.name != nameDelta ||
		bytes.Contains(e.data[max(0, len(e.data)-finishTail):], finishText)
	if look && !e.dataLost && !HasToken(e.data) {
		return
	}
	e.TokenEvents++ // an event that is too long to be searched does not open a stream
}
