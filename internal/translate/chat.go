package translate

import (
	"github.com/sluice-router/sluice/internal/openai"
)

// chatAnswer are the fields that are used of a chat answer or of one event of a stream.
// Its values are pieces of the engine's bytes.
type chatAnswer struct {
	model  raw
	choice chatChoice
	usage  chatUsage
}

// chatChoice is the first choice, its message or its delta.
type chatChoice struct {
	present   bool
	content   raw // a string that is not empty, or nil
	refusal   raw // as content, and so is reasoning
	reasoning raw
	calls     []chatCall
	logprobs  raw // the array of the content's tokens, or nil
	finish    finish
	matched   raw // the stop string at which it ended, as a JSON string, or nil
}

// chatCall is a tool call or a piece of one. Its values are JSON strings that are not
// empty, or nil.
type chatCall struct {
	index               int64 // -1: not reported
	id, name, arguments raw
	// legacy: it came as the API's older function_call, of which an answer has one.
	legacy bool
}

// chatUsage is token counts, -1 where they are not reported.
type chatUsage struct {
	present                              bool
	prompt, completion, cached, thinking int64
}

// finish is why a choice ended; a worse reason is greater. If a stream has several, the
// worst counts: a later stop does not make an answer complete that was cut.
type finish uint8

const (
	finishNone finish = iota
	finishStop
	finishTools
	finishLength
	finishFilter
	finishAborted
)

// finishOf reads a finish reason: a string, or an object with the string as its type. An
// unknown one counts as a stop.
func finishOf(v raw) finish {
	word := v.text()
	switch {
	case v.isObject():
		word = "stop"
		for name, v := range v.members() {
			if string(name) == "type" && v.isString() {
				word = v.text()
			}
		}
	case v.isBlank():
		return finishNone
	}
	switch word {
	case "length":
		return finishLength
	case "tool_calls", "function_call":
		return finishTools
	case "content_filter":
		return finishFilter
	case "abort", "error":
		return finishAborted
	}
	return finishStop
}

// read reads a checked answer or event into a, whose slices are reused.
func (a *chatAnswer) read(v raw) {
	*a = chatAnswer{choice: chatChoice{calls: a.choice.calls[:0]}}
	for name, v := range v.members() {
		switch string(name) {
		case "model":
			a.model = someText(v)
		case "usage":
			a.usage.read(v)
		case "choices":
			for _, c := range v.elements() {
				if choiceIndex(c) == 0 {
					a.choice.read(c)
					break
				}
			}
		}
	}
}

// choiceIndex is a choice's index, 0 if the engine sends none.
func choiceIndex(c raw) int64 {
	for name, v := range c.members() {
		if string(name) == "index" {
			return v.integer()
		}
	}
	return 0
}

func (c *chatChoice) read(v raw) {
	c.present = true
	for name, v := range v.members() {
		switch string(name) {
		case "message", "delta":
			c.message(v)
		case "finish_reason":
			c.finish = finishOf(v)
		case "matched_stop", "stop_reason": // SGLang, vLLM; a number is a token's id
			if s := someText(v); s != nil {
				c.matched = s
			}
		case "logprobs":
			for name, v := range v.members() {
				if string(name) == "content" && v.isArray() && !v.isBlank() {
					c.logprobs = v
				}
			}
		}
	}
}

func (c *chatChoice) message(v raw) {
	var legacy chatCall
	for name, v := range v.members() {
		switch string(name) {
		case "content":
			if c.content = someText(v); c.content == nil && !v.isBlank() {
				c.parts(v)
			}
		case "refusal":
			if s := someText(v); s != nil {
				c.refusal = s
			}
		case "reasoning_content", "reasoning":
			if s := someText(v); s != nil {
				c.reasoning = s
			}
		case "tool_calls":
			for _, v := range v.elements() {
				c.calls = append(c.calls, readCall(v))
			}
		case "function_call":
			legacy = chatCall{index: -1, legacy: true}
			legacy.function(v)
		}
	}
	if len(c.calls) == 0 && !legacy.empty() {
		c.calls = append(c.calls, legacy)
	}
}

// parts reads content that is a list, or one part of a list. Its texts are joined without
// a separator, as in a stream.
func (c *chatChoice) parts(v raw) {
	var content, refusal, reasoning []raw
	take := func(v raw) {
		if s := someText(v); s != nil {
			content = append(content, s)
			return
		}
		for name, v := range v.members() {
			list := &content
			switch string(name) {
			case "text", "content":
			case "refusal":
				list = &refusal
			case "thinking", "reasoning": // a text, or a list of parts with texts
				list = &reasoning
				for _, v := range v.elements() {
					for name, v := range v.members() {
						if s := someText(v); string(name) == "text" && s != nil {
							reasoning = append(reasoning, s)
						}
					}
				}
			default:
				continue
			}
			if s := someText(v); s != nil {
				*list = append(*list, s)
			}
		}
	}
	if v.isObject() {
		take(v)
	}
	for _, v := range v.elements() {
		take(v)
	}
	c.content = joinTexts(content, "")
	if len(refusal) > 0 {
		c.refusal = joinTexts(refusal, "")
	}
	if len(reasoning) > 0 {
		c.reasoning = joinTexts(reasoning, "")
	}
}

func readCall(v raw) chatCall {
	call := chatCall{index: -1}
	for name, v := range v.members() {
		switch string(name) {
		case "index":
			call.index = v.integer()
		case "id":
			call.id = someText(v)
		case "function":
			call.function(v)
		}
	}
	return call
}

// function reads the name and the arguments.
func (p *chatCall) function(v raw) {
	for name, v := range v.members() {
		switch string(name) {
		case "name":
			p.name = someText(v)
		case "arguments":
			p.arguments = someText(v)
			if v.isObject() { // some engines send the object itself instead of a string
				p.arguments = appendQuoted(nil, v)
			}
		}
	}
}

func (u *chatUsage) read(v raw) {
	if !v.isObject() {
		return
	}
	*u = chatUsage{present: true, prompt: -1, completion: -1, cached: -1, thinking: -1}
	for name, v := range v.members() {
		switch string(name) {
		case "prompt_tokens":
			u.prompt = v.integer()
		case "completion_tokens":
			u.completion = v.integer()
		case "reasoning_tokens":
			u.thinking = max(u.thinking, v.integer())
		case "prompt_tokens_details", "completion_tokens_details":
			for name, v := range v.members() {
				switch string(name) {
				case "cached_tokens":
					u.cached = v.integer()
				case "reasoning_tokens":
					u.thinking = max(u.thinking, v.integer())
				}
			}
		}
	}
}

// someText is v if it is a string that is not empty.
func someText(v raw) raw {
	if v.isString() && len(v) > 2 {
		return v
	}
	return nil
}

// readWhole reads a whole answer with status 200.
func readWhole(body []byte) (*chatAnswer, error) {
	v, ok := checked(body)
	if !ok || !v.isObject() {
		return nil, malformed("its answer is not a JSON object")
	}
	if status, message, ok := openai.ReadErrorObject(v); ok {
		return nil, newEngineError(status, message)
	}
	a := new(chatAnswer)
	a.read(v)
	switch {
	case !a.choice.present:
		return nil, malformed("its answer has no choices")
	case len(a.choice.calls) > maxCalls:
		return nil, tooManyCalls()
	case a.choice.finish == finishAborted:
		return nil, newEngineError(0, "the engine aborted the request")
	}
	return a, nil
}
