package translate

import (
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
)

// responsesStream turns chat events into those of the Responses API. Its last event
// repeats the whole output, so that is kept, up to a bound.
type responsesStream struct {
	r *Responses
	chatEvents
	out     []byte // events of the piece at hand
	seq     int64
	started bool // something was written
	created bool // response.created was
	failed  bool
	model   raw // a copy

	items []byte // the items that are complete, rendered
	count int    // how many were opened
	open  outItem
	text  []byte // the open item's text, as spelled inside quotes
	logs  []byte // the open item's log probabilities, with commas
	tools toolCursor
}

// Stream begins a stream; see Exchange.
func (r *Responses) Stream() Stream {
	return &responsesStream{r: r, chatEvents: chatEvents{frames: frames{max: r.opts.MaxEventBytes}}}
}

func (s *responsesStream) Started() bool { return s.started }
func (s *responsesStream) Done() bool    { return s.done || s.failed }

func (s *responsesStream) Feed(piece []byte, write func([]byte)) error {
	if s.failed {
		return s.err
	}
	err := s.feed(piece, s.chunk, s.complete, s.comment)
	s.flush(write)
	return err
}

func (s *responsesStream) End(write func([]byte)) error {
	if s.failed {
		return s.err
	}
	err := s.end(s.complete)
	s.flush(write)
	return err
}

// Fail ends the response as failed, with what was complete of its output; before
// response.created there is only the error to tell.
func (s *responsesStream) Fail(e *openai.Error, write func([]byte)) {
	if s.Done() {
		return
	}
	s.failed, s.started = true, true
	if s.created {
		s.eventOpen("response.failed")
		s.response(statusFailed, e)
	} else {
		s.eventOpen("error")
		s.out = append(s.out, `,"code":`...)
		s.out = openai.AppendString(s.out, e.Code)
		s.out = append(s.out, `,"message":`...)
		s.out = openai.AppendString(s.out, clipMessage(e.Message))
		s.out = append(s.out, `,"param":null`...)
	}
	s.eventClose("")
	s.flush(write)
	s.release()
}

func (s *responsesStream) Ping(write func([]byte)) {
	if s.Done() {
		return
	}
	s.started = true
	s.comment()
	s.flush(write)
}

// comment passes on an engine's own keep-alive, unless it would be the first of all.
func (s *responsesStream) comment() {
	if s.started {
		s.out = append(s.out, ": keep-alive\n\n"...)
	}
}

func (s *responsesStream) flush(write func([]byte)) {
	if len(s.out) > 0 {
		write(s.out)
	}
	s.out = shrink(s.out)
}

func (s *responsesStream) release() {
	s.frames, s.items, s.text, s.logs = frames{}, nil, nil, nil
}

func (s *responsesStream) eventOpen(name string) {
	s.out = append(append(s.out, "event: "...), name...)
	s.out = append(append(s.out, "\ndata: {\"type\":\""...), name...)
	s.out = append(s.out, `","sequence_number":`...)
	s.out = strconv.AppendInt(s.out, s.seq, 10)
	s.seq++
}

func (s *responsesStream) eventClose(tail string) {
	s.out = append(append(s.out, tail...), '}', '\n', '\n')
}

// itemEvent begins an event about the open item.
func (s *responsesStream) itemEvent(name string) {
	s.eventOpen(name)
	s.out = append(append(s.out, `,"item_id":`...), s.open.id...)
	s.outputIndex()
	if s.open.kind != itemCall {
		s.out = append(s.out, `,"content_index":0`...)
	}
}

func (s *responsesStream) outputIndex() {
	s.out = strconv.AppendInt(append(s.out, `,"output_index":`...), int64(s.count-1), 10)
}

func (s *responsesStream) response(status string, e *openai.Error) {
	s.out = append(s.out, `,"response":`...)
	s.out = s.r.appendResponse(s.out, s.model, status, s.finish, s.items, s.usage, e)
}

func (s *responsesStream) chunk(e *chatAnswer) error {
	if !s.created {
		s.created, s.started = true, true
		s.model = append(raw(nil), e.model...)
		told := s.usage
		s.usage = chatUsage{} // it is told at the end
		s.eventOpen("response.created")
		s.response(statusInProgress, nil)
		s.eventClose("")
		s.eventOpen("response.in_progress")
		s.response(statusInProgress, nil)
		s.eventClose("")
		s.usage = told
	}
	c := &e.choice
	if c.reasoning != nil {
		s.enter(outItem{kind: itemReasoning})
		s.grow(c.reasoning)
		s.itemEvent("response.reasoning_text.delta")
		s.out = append(append(s.out, `,"delta":`...), c.reasoning...)
		s.eventClose("")
	}
	// A call that is under way goes on before a text ends it.
	wasCall := s.open.kind == itemCall
	if wasCall {
		if err := s.callAll(c.calls); err != nil {
			return err
		}
	}
	if c.content != nil {
		s.enter(outItem{kind: itemMessage})
		s.grow(c.content)
		s.itemEvent("response.output_text.delta")
		s.out = append(append(s.out, `,"delta":`...), c.content...)
		s.out = append(s.out, `,"logprobs":`...)
		s.out = appendOneLine(s.out, s.takeLogprobs(c.logprobs))
		s.eventClose("")
	}
	if !wasCall {
		if err := s.callAll(c.calls); err != nil {
			return err
		}
	}
	if len(s.items)+len(s.text)+len(s.logs) > s.r.opts.MaxOutputBytes {
		return malformed("its output is longer than the router keeps for the last event of a response")
	}
	return nil
}

func (s *responsesStream) grow(text raw) { s.text = append(s.text, text.inner()...) }

// takeLogprobs keeps an array's elements for the item's end.
func (s *responsesStream) takeLogprobs(v raw) raw {
	if !s.r.logprobs || v.isBlank() {
		return raw("[]")
	}
	if len(s.logs) > 0 {
		s.logs = append(s.logs, ',')
	}
	s.logs = appendOneLine(s.logs, rawOf(v[1:len(v)-1]))
	return v
}

func (s *responsesStream) callAll(calls []chatCall) error {
	for i := range calls {
		if err := s.call(&calls[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s *responsesStream) call(call *chatCall) error {
	isNew, err := s.tools.see(call, s.open.kind == itemCall)
	if err != nil {
		return err
	}
	if isNew {
		s.leave(statusCompleted)
		id := s.r.callID(call.id, s.tools.count-1)
		s.start(outItem{kind: itemCall, name: append(raw(nil), call.name...), callID: append(raw(nil), id...)})
	}
	if call.arguments != nil {
		s.grow(call.arguments)
		s.itemEvent("response.function_call_arguments.delta")
		s.out = append(append(s.out, `,"delta":`...), call.arguments...)
		s.eventClose("")
	}
	return nil
}

// enter makes sure that an item of the kind is open.
func (s *responsesStream) enter(item outItem) {
	if s.open.kind == item.kind {
		return
	}
	s.leave(statusCompleted)
	s.start(item)
}

func (s *responsesStream) start(item outItem) {
	item.id = s.r.appendItemID(nil, item.kind, s.count)
	s.open = item
	s.count++
	s.eventOpen("response.output_item.added")
	s.outputIndex()
	s.out = append(s.out, `,"item":`...)
	s.out = s.r.appendItem(s.out, &s.open, statusInProgress)
	s.eventClose("")
	if item.kind != itemCall {
		s.partEvent("response.content_part.added", raw(`""`), nil)
	}
}

func (s *responsesStream) partEvent(name string, text, logprobs raw) {
	s.itemEvent(name)
	s.out = append(s.out, `,"part":`...)
	if s.open.kind == itemReasoning {
		s.out = append(append(append(s.out, `{"type":"reasoning_text","text":`...), text...), '}')
	} else {
		s.out = s.r.appendTextPart(s.out, text, logprobs)
	}
	s.eventClose("")
}

// leave completes the open item.
func (s *responsesStream) leave(status string) {
	item := &s.open
	if item.kind == itemNone {
		return
	}
	item.text = append(append(append(make(raw, 0, len(s.text)+2), '"'), s.text...), '"')
	item.logprobs = append(append(append(make(raw, 0, len(s.logs)+2), '['), s.logs...), ']')
	switch item.kind {
	case itemReasoning:
		s.itemEvent("response.reasoning_text.done")
		s.out = append(append(s.out, `,"text":`...), item.text...)
		s.eventClose("")
	case itemMessage:
		s.itemEvent("response.output_text.done")
		s.out = append(append(s.out, `,"text":`...), item.text...)
		s.out = append(append(s.out, `,"logprobs":`...), item.logprobs...)
		s.eventClose("")
	case itemCall:
		s.itemEvent("response.function_call_arguments.done")
		s.out = append(append(s.out, `,"name":`...), item.name...)
		s.out = append(append(s.out, `,"arguments":`...), item.text...)
		s.eventClose("")
	}
	if item.kind != itemCall {
		s.partEvent("response.content_part.done", item.text, item.logprobs)
	}
	if len(s.items) > 0 {
		s.items = append(s.items, ',')
	}
	at := len(s.items)
	s.items = s.r.appendItem(s.items, item, status)
	s.eventOpen("response.output_item.done")
	s.outputIndex()
	s.out = append(append(s.out, `,"item":`...), s.items[at:]...)
	s.eventClose("")
	s.open, s.text, s.logs = outItem{}, shrink(s.text), s.logs[:0]
}

func (s *responsesStream) complete() error {
	if !s.created {
		return malformed("its stream ended before it began")
	}
	if s.count == 0 || s.open.kind == itemReasoning {
		s.enter(outItem{kind: itemMessage}) // as in a whole answer, there is always one
	}
	status := s.finish.status()
	s.leave(status)
	s.eventOpen("response." + status)
	s.response(status, nil)
	s.eventClose("")
	s.release()
	return nil
}
