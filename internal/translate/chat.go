package translate

import (
	"bytes"
	"fmt"

	"github.com/sluice-router/sluice/internal/openai"
)

// chatAnswer is what is of use in a chat answer or in one event of a stream. Its
// values are pieces of the engine's bytes.
type chatAnswer struct {
	model  raw
	choice chatChoice
	usage  chatUsage
}

// chatChoice is the first choice, its message or its delta.
type chatChoice struct {
	there     bool
	content   raw // a string that is not empty, or nil
	refusal   raw // the same, and so is reasoning
	reasoning raw
	calls     []chatCall
	logprobs  raw // the array of the content's tokens, or nil
	finish    finish
	matched   raw // the stop string that ended it, as a JSON string, or nil
}

// chatCall is a tool call or a piece of one. Its values are JSON strings that are not
// empty, or nil.
type chatCall struct {
	index               int64 // -1 is not reported
	id, name, arguments raw
	// only: it came as the API's older function_call, of which an answer has one.
	only bool
}

// chatUsage is token counts, -1 where they are not reported.
type chatUsage struct {
	there                                bool
	prompt, completion, cached, thinking int64
}

// finish is why a choice ended, the worse the greater. Of several that a stream tells
// the worst counts: a stop after all does not make a cut answer whole.
type finish uint8

const (
	finishNone finish = iota
	finishStop
	finishTools
	finishLength
	finishFilter
	finishAborted
)

// finishOf reads a finish reason: a word, or an object with the word as its type. Those
// that are not known tell that the model has ended, as a stop does.
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

// read reads a checked answer or event into a, whose slices are used again.
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

// choiceIndex is 0 where an engine reports none.
func choiceIndex(c raw) int64 {
	for name, v := range c.members() {
		if string(name) == "index" {
			return v.integer()
		}
	}
	return 0
}

func (c *chatChoice) read(v raw) {
	c.there = true
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
	var only chatCall
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
			only = chatCall{index: -1, only: true}
			only.function(v)
		}
	}
	if len(c.calls) == 0 && !only.empty() {
		c.calls = append(c.calls, only)
	}
}

// parts reads content that is a list, or one part of it. Texts follow one another as
// they do in a stream.
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
			if v.isObject() { // some parsers forget to make it a string
				p.arguments = appendQuoted(nil, v)
			}
		}
	}
}

func (u *chatUsage) read(v raw) {
	if !v.isObject() {
		return
	}
	*u = chatUsage{there: true, prompt: -1, completion: -1, cached: -1, thinking: -1}
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
	case !a.choice.there:
		return nil, malformed("its answer has no choices")
	case len(a.choice.calls) > maxCalls:
		return nil, tooManyCalls()
	case a.choice.finish == finishAborted:
		return nil, newEngineError(0, "the engine gave the request up")
	}
	return a, nil
}

// chatEvents reads a chat stream. It is the common half of both APIs' streams.
type chatEvents struct {
	frames  frames
	event   chatAnswer
	usage   chatUsage
	finish  finish
	matched []byte // a copy, as a JSON string
	err     error
	done    bool
}

var doneMarker = []byte("[DONE]")

// feed calls chunk for each event with a choice, or with nothing yet but a role, and
// finished at the end marker; both may return an error.
func (c *chatEvents) feed(piece []byte, chunk func(*chatAnswer) error, finished func() error, comment func()) error {
	if c.err != nil || c.done {
		return c.err
	}
	tooLong := c.frames.feed(piece, func(data []byte) bool {
		c.err = c.take(data, chunk, finished)
		return c.err == nil && !c.done
	}, comment)
	if tooLong && c.err == nil {
		c.err = &LimitError{fmt.Sprintf("an event of the engine's stream is larger than %d bytes", c.frames.max)}
	}
	return c.err
}

func (c *chatEvents) take(data []byte, chunk func(*chatAnswer) error, finished func() error) error {
	switch trimmed := bytes.TrimSpace(data); {
	case len(trimmed) == 0:
		return nil // it says nothing
	case bytes.Equal(trimmed, doneMarker):
		return c.close(finished)
	}
	v, ok := checked(data)
	if !ok || !v.isObject() {
		return malformed("an event of its stream is not a JSON object")
	}
	if status, message, ok := openai.ReadErrorObject(v); ok {
		return newEngineError(status, message)
	}
	e := &c.event
	e.read(v)
	if e.usage.there {
		c.usage = e.usage
	}
	if e.choice.matched != nil {
		c.matched = append(c.matched[:0], e.choice.matched...)
	}
	if e.choice.finish != finishNone {
		if c.finish = max(c.finish, e.choice.finish); c.finish == finishAborted {
			return newEngineError(0, "the engine gave the request up")
		}
	}
	return chunk(e)
}

// close ends a stream that is complete: its end marker came, or it ended after its
// finish reason.
func (c *chatEvents) close(finished func() error) error {
	if c.finish == finishNone {
		return malformed("its stream ended without a finish reason")
	}
	if err := finished(); err != nil {
		return err
	}
	c.done = true
	c.frames = frames{}
	return nil
}

// end is the end of the bytes.
func (c *chatEvents) end(finished func() error) error {
	if c.err == nil && !c.done {
		c.err = c.close(finished)
	}
	return c.err
}
