package translate

import (
	"slices"
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
)

// Answer translates a whole chat answer; see Exchange.
func (m *Messages) Answer(chat []byte, prompt int64) ([]byte, error) {
	a, err := readWhole(chat)
	if err != nil {
		return nil, err
	}
	c := &a.choice
	b := make([]byte, 0, len(chat)+256)
	b = m.appendHead(b, a.model)
	count := 0
	block := func() {
		b = append(b, commaIf(count > 0)...)
		count++
	}
	if c.reasoning != nil && !m.omitThinking {
		block()
		b = append(append(b, `{"type":"thinking","thinking":`...), c.reasoning...)
		b = append(b, `,"signature":""}`...)
	}
	for _, text := range []raw{c.content, c.refusal} {
		if text != nil {
			block()
			b = append(append(append(b, `{"type":"text","text":`...), text...), '}')
		}
	}
	ids := m.callIDs()
	for i := range c.calls {
		call := &c.calls[i]
		arguments, state := cutArguments(call.arguments)
		input, _ := toolInput(arguments)
		if call.name == nil && state == argsNone {
			continue
		}
		block()
		b = append(b, `{"type":"tool_use","id":`...)
		b = append(b, ids.next(call.id)...)
		b = append(append(b, `,"name":`...), call.name.or(`""`)...)
		b = append(append(append(b, `,"input":`...), input...), '}')
	}
	if count == 0 {
		b = append(b, `{"type":"text","text":""}`...)
	}
	b = append(b, `],`...)
	b = m.appendStop(b, c.finish.withRefusal(c.refusal != nil), c.matched, ids.n > 0)
	b = append(b, `,"usage":{`...)
	b = appendMessagesUsage(b, a.usage.withPrompt(prompt), true)
	return append(b, '}', '}'), nil
}

// appendHead appends the message object up to its content's '['.
func (m *Messages) appendHead(b []byte, model raw) []byte {
	b = openai.AppendString(append(b, `{"id":`...), "msg_"+m.opts.ID)
	b = append(b, `,"type":"message","role":"assistant","model":`...)
	return append(append(b, model.or(string(m.model))...), `,"content":[`...)
}

func (m *Messages) callIDs() callIDs { return callIDs{made: "toolu_" + m.opts.ID} }

// invalidJSON is the member of a call's input that has the arguments if they are not an
// object. The API's own guide suggests the name.
const invalidJSON = "INVALID_JSON"

// toolInput is the input of a call: the object in its arguments, an empty object if there
// are none, else an object with their text in invalidJSON. So a tool never runs with
// arguments that the model did not choose, and the client can show the model what it
// wrote. asIs: input is the unchanged text of the arguments.
func toolInput(arguments raw) (input raw, asIs bool) {
	if arguments == nil {
		return raw("{}"), false
	}
	v, ok := checked(openai.AppendUnquoted(nil, arguments))
	switch {
	case ok && v.isObject():
		return v, true
	case ok && v.isNull():
		return raw("{}"), false
	}
	return append(append(append(raw(`{"`), invalidJSON+`":`...), arguments...), '}'), false
}

// withRefusal is the finish of an answer in which the model may have refused, which is a
// stop reason in this API. A refusal that was cut by a limit counts as cut.
func (f finish) withRefusal(refused bool) finish {
	if refused && f != finishLength {
		return finishFilter
	}
	return f
}

// appendStop appends stop_reason and stop_sequence. A matched text is only reported if it
// is one of the client's stop sequences: engines also stop at their own.
func (m *Messages) appendStop(b []byte, f finish, matched raw, called bool) []byte {
	reason, sequence := "end_turn", raw("null")
	switch f {
	case finishLength:
		reason = "max_tokens"
	case finishFilter:
		reason = "refusal"
	default:
		switch {
		case called: // some engines end a forced tool choice with "stop", or with an unknown reason
			reason = "tool_use"
		case matched != nil && slices.Contains(m.stops, matched.text()):
			reason, sequence = "stop_sequence", matched
		}
	}
	b = append(append(append(b, `"stop_reason":"`...), reason...), `","stop_sequence":`...)
	return append(b, sequence...)
}

// withPrompt is the usage with the router's own count of the prompt if the engine reports
// none.
func (u chatUsage) withPrompt(prompt int64) chatUsage {
	if u.prompt <= 0 {
		u.prompt = prompt
	}
	return u
}

// appendMessagesUsage appends the members of a usage object. In this API the tokens
// read from a cache are not among the input tokens.
func appendMessagesUsage(b []byte, u chatUsage, output bool) []byte {
	prompt, cached := max(u.prompt, 0), max(u.cached, 0)
	b = append(b, `"input_tokens":`...)
	b = strconv.AppendInt(b, max(prompt-cached, 0), 10)
	if u.present && u.cached >= 0 {
		b = append(b, `,"cache_read_input_tokens":`...)
		b = strconv.AppendInt(b, cached, 10)
	}
	b = append(b, `,"output_tokens":`...)
	if !output {
		return append(b, '0')
	}
	b = strconv.AppendInt(b, max(u.completion, 0), 10)
	if u.thinking > 0 {
		b = append(b, `,"output_tokens_details":{"thinking_tokens":`...)
		b = append(strconv.AppendInt(b, u.thinking, 10), '}')
	}
	return b
}
