package openai

import "bytes"

// AnswerText collects the text of an answer as the next turn of the conversation will have
// it in its messages. Tools' calls end it, as clients write them in many ways; an answer
// with reasoning has none, as templates leave the reasoning of earlier turns out.
//
// The zero value collects nothing; see Reset. It is not safe for concurrent use.
type AnswerText struct {
	route   Route
	max     int
	text    []byte
	over    bool // what follows does not count
	spoiled bool // nothing counts
}

// Reset begins the answer to a request of a route, of which at most limit bytes are kept. The
// text of the one before is not valid any more.
func (a *AnswerText) Reset(route Route, limit int) {
	*a = AnswerText{route: route, max: limit, text: a.text[:0]}
}

// Text is the text so far. It is valid until Reset.
func (a *AnswerText) Text() []byte {
	if a.spoiled {
		return nil
	}
	return a.text
}

// Words of events by which the kinds of output are told apart.
var (
	wordContent       = []byte(`"content":`)
	wordText          = []byte(`"text":`)
	wordDelta         = []byte(`"delta":`)
	wordsReasoning    = [...][]byte{[]byte(`"reasoning_content":`), []byte(`"reasoning":`)}
	wordToolCalls     = []byte(`"tool_calls":`)
	wordTextDelta     = []byte(`"text_delta"`)
	wordThinkingDelta = []byte(`"thinking_delta"`)
	wordInputDelta    = []byte(`"input_json_delta"`)
	wordOutputText    = []byte(`"response.output_text.delta"`)
	wordReasoningItem = []byte(`"response.reasoning`)
	wordFunctionCall  = []byte(`"response.function_call`)
)

// Event takes the data of an event of a stream. It searches for the text instead of parsing
// the event: inside a JSON string the quotes of the words are escaped, so that the output of
// a model is never taken for one of them.
func (a *AnswerText) Event(data []byte) {
	if a.over || a.spoiled {
		return
	}
	switch a.route {
	case RouteChatCompletions:
		if a.add(data, wordContent) {
			return
		}
		for _, w := range wordsReasoning {
			a.spoiled = a.spoiled || filled(data, w)
		}
		a.over = filled(data, wordToolCalls)
	case RouteCompletions:
		a.add(data, wordText)
	case RouteMessages:
		switch {
		case bytes.Contains(data, wordTextDelta):
			a.add(data, wordText)
		case bytes.Contains(data, wordThinkingDelta):
			a.spoiled = true
		case bytes.Contains(data, wordInputDelta):
			a.over = true
		}
	case RouteResponses:
		head := data[:min(len(data), 128)]
		switch {
		case bytes.Contains(head, wordOutputText):
			a.add(data, wordDelta)
		case bytes.Contains(head, wordReasoningItem):
			a.spoiled = true
		case bytes.Contains(head, wordFunctionCall):
			a.over = true
		}
	}
}

// add adds the string after the first word and tells whether it had something in it.
func (a *AnswerText) add(data, word []byte) bool {
	raw := stringAfter(data, word)
	a.addString(raw)
	return len(raw) > 2
}

// addString adds a JSON string with its quotes; nil: nothing.
func (a *AnswerText) addString(raw []byte) {
	if len(raw) < 2 {
		return
	}
	if len(a.text)+len(raw) > a.max {
		raw = raw[:max(a.max-len(a.text), 1)]
		if at := bytes.LastIndexByte(raw[max(0, len(raw)-12):], '\\'); at >= 0 {
			raw = raw[:max(0, len(raw)-12)+at] // not in the middle of an escape
		}
		a.text, a.over = appendUnescaped(a.text, raw[min(1, len(raw)):], nil), true
		return
	}
	a.text = AppendUnquoted(a.text, raw)
}

// valueAfter is what follows the first word in data, without blanks.
func valueAfter(data, word []byte) []byte {
	i := bytes.Index(data, word)
	if i < 0 {
		return nil
	}
	return bytes.TrimLeft(data[i+len(word):], " ")
}

// stringAfter is the JSON string that follows the first word, with its quotes; nil if none
// does.
func stringAfter(data, word []byte) []byte {
	v := valueAfter(data, word)
	if len(v) == 0 || v[0] != '"' {
		return nil
	}
	for i := 1; i < len(v); i++ {
		switch v[i] {
		case '\\':
			i++
		case '"':
			return v[:i+1]
		}
	}
	return nil
}

// filled tells whether a string, list or object with something in it follows the first word.
func filled(data, word []byte) bool {
	v := valueAfter(data, word)
	return len(v) > 1 && (v[0] == '"' && v[1] != '"' || v[0] == '[' && v[1] != ']' || v[0] == '{')
}

// Whole takes an answer that is not streamed.
func (a *AnswerText) Whole(json []byte) {
	field := func(of []byte, name string) []byte { raw, _ := RawField(of, name); return raw }
	switch a.route {
	case RouteChatCompletions:
		message := field(firstElement(field(json, "choices")), "message")
		if hasOutput(field(message, "reasoning_content")) || hasOutput(field(message, "reasoning")) {
			a.spoiled = true
			return
		}
		a.value(field(message, "content"))
	case RouteCompletions:
		a.value(field(firstElement(field(json, "choices")), "text"))
	case RouteGenerate:
		a.value(field(json, "text"))
	case RouteMessages:
		a.blocks(field(json, "content"))
	case RouteResponses:
		eachElement(field(json, "output"), func(item []byte) bool {
			switch string(field(item, "type")) {
			case `"message"`:
				a.blocks(field(item, "content"))
			case `"reasoning"`:
				a.spoiled = true
			default:
				a.over = true
			}
			return !a.over && !a.spoiled
		})
	}
}

// blocks adds the texts of a list of content blocks.
func (a *AnswerText) blocks(list []byte) {
	eachElement(list, func(block []byte) bool {
		kind, _ := RawField(block, "type")
		switch string(kind) {
		case `"text"`, `"output_text"`:
			text, _ := RawField(block, "text")
			a.value(text)
		case `"thinking"`, `"redacted_thinking"`:
			a.spoiled = true
		default:
			a.over = true
		}
		return !a.over && !a.spoiled
	})
}

func (a *AnswerText) value(raw []byte) {
	if len(raw) > 0 && raw[0] == '"' {
		a.addString(raw)
	}
}

func hasOutput(raw []byte) bool { return len(raw) > 2 && raw[0] == '"' }

// firstElement is the first element of a JSON list; nil if there is none.
func firstElement(list []byte) (first []byte) {
	eachElement(list, func(e []byte) bool { first = e; return false })
	return first
}

// eachElement calls yield with the elements of a JSON list until it returns false.
func eachElement(list []byte, yield func(e []byte) bool) {
	if len(list) == 0 || list[0] != '[' {
		return
	}
	s := new(scanner)
	s.reset(list, DefaultMaxDepth)
	i := 1
	for first := true; ; first = false {
		e, done := s.element(i, first)
		if e < 0 || done {
			return
		}
		if i = s.skip(e, 1); i < 0 || !yield(list[e:i]) {
			return
		}
	}
}
