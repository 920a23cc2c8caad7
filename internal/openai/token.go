package openai

import "bytes"

// TellsToken reports whether the JSON of an event has output of the model in it: text,
// reasoning, a refusal, token ids or a piece of a tool call, in the form of any API.
// The events with which a stream is opened, closed or kept alive have none.
//
// It needs no complete check of the JSON, only that it never panics.
func TellsToken(json []byte) bool {
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
			if json[e] == '{' && s.tellsToken(e, tokenEvent) {
				return true
			}
			if i = s.skip(e, 1); i < 0 {
				return false
			}
		}
	}
	return json[i] == '{' && s.tellsToken(i, tokenEvent)
}

// tokenPlace is a kind of object in which output can be.
type tokenPlace uint8

const (
	tokenEvent    tokenPlace = iota // the event itself
	tokenChoice                     // of chat, completions or vLLM's generate
	tokenDelta                      // of chat or Messages
	tokenItem                       // what begins with an event of Messages or Responses
	tokenLogprobs                   // of a choice: a token may have no text of its own yet
)

// tellsToken looks for output in the object at i. It ends at the first.
func (s *scanner) tellsToken(i int, in tokenPlace) bool {
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
			return s.b[v] == '[' && s.choiceTells(v)
		case is("text"), is("output_ids"), is("token_ids"):
			return s.hasContent(v)
		case is("delta"):
			if s.b[v] == '{' {
				return s.tellsToken(v, tokenDelta)
			}
			return s.b[v] == '"' && s.hasContent(v)
		case is("content_block"), is("item"):
			return s.b[v] == '{' && s.tellsToken(v, tokenItem)
		}
	case tokenChoice:
		switch {
		case is("delta"), is("message"):
			return s.b[v] == '{' && s.tellsToken(v, tokenDelta)
		case is("logprobs"):
			return s.b[v] == '{' && s.tellsToken(v, tokenLogprobs)
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

// choiceTells looks into the choices, a list at i.
func (s *scanner) choiceTells(i int) bool {
	i++
	for first := true; ; first = false {
		e, done := s.element(i, first)
		if e < 0 || done {
			return false
		}
		if s.b[e] == '{' && s.tellsToken(e, tokenChoice) {
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

// finishTail is how near to its end an event of chat or completions tells its finish
// reason.
const finishTail = 160

// finishText begins with a rare byte: such searches are fast.
var finishText = []byte(`_reason":"`)

// noteToken counts an event that has a token. The first is looked for in each event.
// After it an event is taken to have one unless something cheap to see speaks against
// it: token counts, a finish reason, or an event's name that tells no piece of output.
func (e *EventScanner) noteToken(usage bool) {
	look := e.TokenEvents == 0 || usage || e.name != nameNone && e.name != nameDelta ||
		bytes.Contains(e.data[max(0, len(e.data)-finishTail):], finishText)
	if look && !e.dataLost && !TellsToken(e.data) {
		return
	}
	e.TokenEvents++ // one too long to be looked into is no opening
}
