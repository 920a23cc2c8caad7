package sim

import (
	"fmt"
	"strconv"
)

// The responses API.

// status is how a response ended: complete, or cut by max_output_tokens.
func (v *vwriter) status() string {
	if v.seqs[0].finish == "length" {
		return "incomplete"
	}
	return "completed"
}

// item appends the one output item.
func (v *vwriter) item(b []byte, status string, text bool) []byte {
	b = appendQuoted(append(b, `{"id":`...), "msg_"+v.req.response)
	b = append(b, `,"content":[`...)
	if text {
		b = v.part(b)
	}
	return append(appendQuoted(append(b, `],"role":"assistant","status":`...), status), `,"type":"message","phase":null}`...)
}

// part appends the one content part, with the text so far.
func (v *vwriter) part(b []byte) []byte {
	s := v.seqs[0]
	return append(v.text(append(b, `{"annotations":[],"text":"`...), s, 0, s.produced), `","type":"output_text","logprobs":null}`...)
}

// response appends the response object.
func (v *vwriter) response(b []byte, status string, over bool) []byte {
	b = appendQuoted(append(b, `{"id":`...), v.id)
	b = fmt.Appendf(b, `,"created_at":%d,"incomplete_details":`, v.created)
	if status == "incomplete" {
		b = append(b, `{"reason":"max_output_tokens"}`...)
	} else {
		b = append(b, "null"...)
	}
	b = appendQuoted(append(b, `,"instructions":null,"metadata":null,"model":`...), v.req.model)
	b = append(b, `,"object":"response","output":[`...)
	if over {
		b = v.item(b, "completed", true)
	}
	most := "null"
	if v.req.maxTokens >= 0 {
		most = strconv.Itoa(v.req.maxTokens)
	}
	b = append(b, `],"parallel_tool_calls":true,"temperature":`...)
	b = append(append(b, v.req.temperature...), `,"tool_choice":"none","tools":[],"top_p":1.0,"background":false,"max_output_tokens":`...)
	b = append(append(b, most...), `,"max_tool_calls":null,"previous_response_id":null,"prompt":null,"reasoning":null,"service_tier":"auto","status":`...)
	b = append(appendQuoted(b, status), `,"text":null,"top_logprobs":null,"truncation":"disabled","usage":`...)
	if over {
		prompt, out := v.counts()
		b = fmt.Appendf(b, `{"input_tokens":%d,"input_tokens_details":{"cached_tokens":%d,"cache_write_tokens":%d,"input_tokens_per_turn":[],"cached_tokens_per_turn":[]},"output_tokens":%d,`+
			`"output_tokens_details":{"reasoning_tokens":0,"tool_output_tokens":0,"output_tokens_per_turn":[],"tool_output_tokens_per_turn":[]},"total_tokens":%d}`, prompt, v.cached(), v.seqs[0].created, out, prompt+out)
	} else {
		b = append(b, "null"...)
	}
	b = v.transfer(append(b, `,"user":null,"presence_penalty":0.0,"frequency_penalty":0.0,`...))
	return append(b, `,"ec_transfer_params":null,"input_messages":null,"output_messages":null}`...)
}

// sendEvent sends one event of the responses API. members appends the members that
// precede the sequence number and the type.
func (v *vwriter) sendEvent(kind string, members func([]byte) []byte) error {
	v.mu.Lock()
	n := v.number
	v.number++
	v.mu.Unlock()
	return v.o.eventOf(kind, func(b []byte) []byte {
		return fmt.Appendf(append(members(append(b, '{')), ','), `"sequence_number":%d,"type":%q}`, n, kind)
	})
}

func (v *vwriter) openResponse() error {
	for _, kind := range []string{"response.created", "response.in_progress"} {
		if err := v.sendEvent(kind, func(b []byte) []byte {
			return v.response(append(b, `"response":`...), "in_progress", false)
		}); err != nil {
			return err
		}
	}
	return nil
}

// position appends the part of the response that an event belongs to.
func (v *vwriter) position(b []byte) []byte {
	return appendQuoted(append(b, `"content_index":0,"output_index":0,"item_id":`...), "msg_"+v.req.response)
}

func (v *vwriter) delta(s *sequence) error {
	if s.produced == 1 {
		if err := v.sendEvent("response.output_item.added", func(b []byte) []byte {
			return append(v.item(append(b, `"item":`...), "in_progress", false), `,"output_index":0`...)
		}); err != nil {
			return err
		}
		if err := v.sendEvent("response.content_part.added", func(b []byte) []byte {
			return append(v.position(b), `,"part":{"annotations":[],"text":"","type":"output_text","logprobs":[]}`...)
		}); err != nil {
			return err
		}
	}
	return v.sendEvent("response.output_text.delta", func(b []byte) []byte {
		b = append(v.position(b), `,"delta":"`...)
		return append(v.text(b, s, s.produced-1, s.produced), `","logprobs":[]`...)
	})
}

func (v *vwriter) closeResponse() error {
	s := v.seqs[0]
	for _, e := range []struct {
		kind string
		fill func([]byte) []byte
	}{
		{"response.output_text.done", func(b []byte) []byte {
			return append(v.text(append(v.position(b), `,"logprobs":[],"text":"`...), s, 0, s.produced), '"')
		}},
		{"response.content_part.done", func(b []byte) []byte { return v.part(append(v.position(b), `,"part":`...)) }},
		{"response.output_item.done", func(b []byte) []byte {
			return append(v.item(append(b, `"item":`...), "completed", true), `,"output_index":0`...)
		}},
		{"response.completed", func(b []byte) []byte {
			return v.response(append(b, `"response":`...), v.status(), true)
		}},
	} {
		if err := v.sendEvent(e.kind, e.fill); err != nil {
			return err
		}
	}
	return nil
}

// The messages API.

// stopReason is the finish in Anthropic's terms.
func (v *vwriter) stopReason() string {
	if v.seqs[0].finish == "length" {
		return "max_tokens"
	}
	return "end_turn"
}

// messageUsage is a usage object's members. With cached tokens in it, which the first
// event of a stream never has, input_tokens are those that were neither cached nor are
// now. SGLang does not tell the latter.
func (v *vwriter) messageUsage(s *sequence, out int, first bool) []byte {
	if !v.w.opt.CacheReport || first {
		return fmt.Appendf(nil, `"input_tokens":%d,"output_tokens":%d`, s.prompt, out)
	}
	if v.w.opt.Backend == SGLang {
		return fmt.Appendf(nil, `"input_tokens":%d,"output_tokens":%d,"cache_read_input_tokens":%d`, s.prompt-s.cached, out, s.cached)
	}
	return fmt.Appendf(nil, `"input_tokens":%d,"output_tokens":%d,"cache_creation_input_tokens":%d,"cache_read_input_tokens":%d`,
		max(0, s.prompt-s.cached-s.created), out, s.created, s.cached)
}

func (v *vwriter) message() []byte {
	s := v.seqs[0]
	b := appendQuoted([]byte(`{"id":`), v.id)
	b = v.text(append(b, `,"type":"message","role":"assistant","content":[{"type":"text","text":"`...), s, 0, s.produced)
	b = appendQuoted(append(b, `"}],"model":`...), v.req.model)
	b = fmt.Appendf(b, `,"stop_reason":%q,"usage":{%s}`, v.stopReason(), v.messageUsage(s, s.produced, false))
	if s.v.transfer != nil { // this API leaves out what is null
		b = v.transfer(append(b, ','))
	}
	return append(b, '}')
}

func (v *vwriter) openMessage() error { return nil }

func (v *vwriter) blockDelta(s *sequence) error {
	if s.produced == 1 {
		if err := v.o.eventOf("message_start", func(b []byte) []byte {
			b = appendQuoted(append(b, `{"type":"message_start","message":{"id":`...), v.id)
			b = appendQuoted(append(b, `,"type":"message","role":"assistant","content":[],"model":`...), v.req.model)
			return fmt.Appendf(b, `,"stop_reason":null,"stop_sequence":null,"usage":{%s}}}`, v.messageUsage(s, 0, true))
		}); err != nil {
			return err
		}
		if err := v.o.eventOf("content_block_start", func(b []byte) []byte {
			return append(b, `{"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}`...)
		}); err != nil {
			return err
		}
	}
	return v.o.eventOf("content_block_delta", func(b []byte) []byte {
		b = append(b, `{"type":"content_block_delta","delta":{"type":"text_delta","text":"`...)
		return append(v.text(b, s, s.produced-1, s.produced), `"},"index":0}`...)
	})
}

func (v *vwriter) closeMessage() error {
	s := v.seqs[0]
	if err := v.o.eventOf("content_block_stop", func(b []byte) []byte {
		return append(b, `{"type":"content_block_stop","index":0}`...)
	}); err != nil {
		return err
	}
	if err := v.o.eventOf("message_delta", func(b []byte) []byte {
		return fmt.Appendf(b, `{"type":"message_delta","delta":{"stop_reason":%q,"stop_sequence":null},"usage":{%s}}`,
			v.stopReason(), v.messageUsage(s, s.produced, false))
	}); err != nil {
		return err
	}
	return v.o.eventOf("message_stop", func(b []byte) []byte { return append(b, `{"type":"message_stop"}`...) })
}
