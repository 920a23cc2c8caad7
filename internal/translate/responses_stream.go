package translate

import (
	"fmt"
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

	items []*liveItem // by their output_index
	text  *liveItem   // the open one of a kind other than call
	calls map[*toolCall]*liveItem
	ids   callIDs
	table callTable
	kept  int // bytes of the items and of what calls hold
}

// liveItem is an item of a stream. Several calls may be open at once.
type liveItem struct {
	outItem
	index int
	call  *toolCall
	part  int // content_index of the open part
	open  partKind
	grown []byte // the open part's text or a call's arguments so far, as spelled inside quotes
	logs  []byte // log probabilities so far, with commas
	whole []byte // the item as it is told in the end, nil while it is open
}

// Stream begins a stream; see Exchange. This API reports the prompt's tokens at the end
// only, as the engine counted them.
func (r *Responses) Stream(int64) Stream {
	return &responsesStream{r: r, ids: r.callIDs(), table: callTable{max: r.opts.MaxOutputBytes}, chatEvents: chatEvents{frames: frames{max: r.opts.MaxEventBytes}}}
}

func (s *responsesStream) Started() bool { return s.started }
func (s *responsesStream) Done() bool    { return s.done || s.failed }
func (s *responsesStream) Held() int     { return s.kept + s.table.size }

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

// comment passes on an engine's own keep-alive, unless it would be the first of all. No
// empty line is behind it: that would be an empty event to some clients.
func (s *responsesStream) comment() {
	if s.started {
		s.out = append(s.out, ": keep-alive\n"...)
	}
}

func (s *responsesStream) flush(write func([]byte)) {
	if len(s.out) > 0 {
		write(s.out)
	}
	s.out = shrink(s.out)
}

func (s *responsesStream) release() {
	s.frames, s.items, s.text, s.calls, s.table = frames{}, nil, nil, nil, callTable{}
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

// itemEvent begins an event about an item.
func (s *responsesStream) itemEvent(name string, item *liveItem) {
	s.eventOpen(name)
	s.out = append(append(s.out, `,"item_id":`...), item.id...)
	s.outputIndex(item)
	if item.kind != itemCall {
		s.out = strconv.AppendInt(append(s.out, `,"content_index":`...), int64(item.part), 10)
	}
}

func (s *responsesStream) outputIndex(item *liveItem) {
	s.out = strconv.AppendInt(append(s.out, `,"output_index":`...), int64(item.index), 10)
}

// response appends the response object with the items that have ended.
func (s *responsesStream) response(status string, e *openai.Error) {
	var items []byte
	for _, item := range s.items {
		if item.whole != nil {
			items = append(append(items, commaIf(len(items) > 0)...), item.whole...)
		}
	}
	s.out = append(s.out, `,"response":`...)
	s.out = s.r.appendResponse(s.out, s.model, status, s.finish, items, s.usage, e)
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
		item := s.enter(partReasoning)
		s.grow(item, c.reasoning.inner())
		s.itemEvent("response.reasoning_text.delta", item)
		s.out = append(append(s.out, `,"delta":`...), c.reasoning...)
		s.eventClose("")
	}
	// A call that is under way goes on before a text ends it.
	wasCall := s.text == nil && len(s.items) > 0
	if wasCall {
		if err := s.callAll(c.calls); err != nil {
			return err
		}
	}
	if c.content != nil {
		item := s.enter(partText)
		s.grow(item, c.content.inner())
		s.itemEvent("response.output_text.delta", item)
		s.out = append(append(s.out, `,"delta":`...), c.content...)
		s.out = append(s.out, `,"logprobs":`...)
		s.out = appendOneLine(s.out, s.takeLogprobs(item, c.logprobs))
		s.eventClose("")
	}
	if c.refusal != nil {
		item := s.enter(partRefusal)
		s.grow(item, c.refusal.inner())
		s.itemEvent("response.refusal.delta", item)
		s.out = append(append(s.out, `,"delta":`...), c.refusal...)
		s.eventClose("")
	}
	if !wasCall {
		if err := s.callAll(c.calls); err != nil {
			return err
		}
	}
	if s.kept > s.r.opts.MaxOutputBytes {
		return &LimitError{fmt.Sprintf("the engine's output is longer than the %d bytes that are kept for the last event of a response", s.r.opts.MaxOutputBytes)}
	}
	return nil
}

func (s *responsesStream) grow(item *liveItem, text []byte) {
	item.grown = append(item.grown, text...)
	s.kept += len(text)
}

// takeLogprobs keeps an array's elements for the item's end.
func (s *responsesStream) takeLogprobs(item *liveItem, v raw) raw {
	if !s.r.logprobs || v.isBlank() {
		return raw("[]")
	}
	before := len(item.logs)
	if before > 0 {
		item.logs = append(item.logs, ',')
	}
	item.logs = appendOneLine(item.logs, rawOf(v[1:len(v)-1]))
	s.kept += len(item.logs) - before
	return v
}

func (s *responsesStream) callAll(calls []chatCall) error {
	for i := range calls {
		if err := s.growCall(&calls[i]); err != nil {
			return err
		}
	}
	return nil
}

// growCall takes a piece of a call. Each call has an item of its own from the moment its
// name is known; several may be under way.
func (s *responsesStream) growCall(p *chatCall) error {
	c, err := s.table.see(p)
	if c == nil {
		return err
	}
	var told []byte
	if p.arguments != nil {
		told = c.scan.feed(p.arguments.inner())
	}
	item := s.calls[c]
	if item == nil {
		if c.name == nil {
			c.held = append(c.held, told...)
			s.kept += len(told)
			return nil
		}
		item = s.beginCall(c)
	}
	s.tellArguments(item, told)
	if c.scan.state == argsWhole && item.whole == nil && item.index < len(s.items)-1 {
		s.leave(item, statusCompleted) // others have begun since
	}
	return nil
}

func (s *responsesStream) beginCall(c *toolCall) *liveItem {
	s.leaveEnded()
	if s.calls == nil {
		s.calls = make(map[*toolCall]*liveItem)
	}
	item := s.start(outItem{kind: itemCall, name: c.name.or(`""`), callID: s.ids.next(c.id)})
	item.call = c
	s.calls[c] = item
	held := c.held
	c.held = nil
	s.kept -= len(held)
	s.tellArguments(item, held)
	return item
}

func (s *responsesStream) tellArguments(item *liveItem, told []byte) {
	if len(told) == 0 {
		return
	}
	s.grow(item, told)
	s.itemEvent("response.function_call_arguments.delta", item)
	s.out = append(append(append(s.out, `,"delta":"`...), told...), '"')
	s.eventClose("")
}

// enter makes sure that an item with a part of the kind is open.
func (s *responsesStream) enter(part partKind) *liveItem {
	kind := itemMessage
	if part == partReasoning {
		kind = itemReasoning
	}
	switch {
	case s.text == nil || s.text.kind != kind:
		s.leaveEnded()
		s.text = s.start(outItem{kind: kind})
		s.openPart(s.text, part)
	case s.text.open != part:
		s.leavePart(s.text)
		s.text.part++
		s.openPart(s.text, part)
	}
	return s.text
}

// leaveEnded ends the items that nothing more is expected of when another begins: a
// text, and calls whose arguments have ended.
func (s *responsesStream) leaveEnded() {
	if s.text != nil {
		s.leave(s.text, statusCompleted)
		s.text = nil
	}
	if len(s.items) > 0 { // those before the last were ended as they came to their end
		if last := s.items[len(s.items)-1]; last.whole == nil && last.call.scan.state == argsWhole {
			s.leave(last, statusCompleted)
		}
	}
}

func (s *responsesStream) start(o outItem) *liveItem {
	o.id = s.r.appendItemID(nil, o.kind, len(s.items))
	item := &liveItem{outItem: o, index: len(s.items)}
	s.items = append(s.items, item)
	s.eventOpen("response.output_item.added")
	s.outputIndex(item)
	s.out = append(s.out, `,"item":`...)
	s.out = s.r.appendItem(s.out, &item.outItem, statusInProgress)
	s.eventClose("")
	return item
}

func (s *responsesStream) openPart(item *liveItem, kind partKind) {
	item.open = kind
	s.partEvent("response.content_part.added", item, s.r.appendPart(nil, kind, nil, nil))
}

func (s *responsesStream) partEvent(name string, item *liveItem, part []byte) {
	s.itemEvent(name, item)
	s.out = append(append(s.out, `,"part":`...), part...)
	s.eventClose("")
}

// leavePart ends the open part.
func (s *responsesStream) leavePart(item *liveItem) {
	text := quoted(item.grown)
	var logprobs raw
	switch item.open {
	case partReasoning:
		s.itemEvent("response.reasoning_text.done", item)
		s.out = append(append(s.out, `,"text":`...), text...)
	case partText:
		logprobs = append(append(append(make(raw, 0, len(item.logs)+2), '['), item.logs...), ']')
		s.itemEvent("response.output_text.done", item)
		s.out = append(append(s.out, `,"text":`...), text...)
		s.out = append(append(s.out, `,"logprobs":`...), logprobs...)
	case partRefusal:
		s.itemEvent("response.refusal.done", item)
		s.out = append(append(s.out, `,"refusal":`...), text...)
	}
	s.eventClose("")
	part := s.r.appendPart(nil, item.open, text, logprobs)
	s.partEvent("response.content_part.done", item, part)
	s.kept += len(part) - len(item.grown) - len(item.logs)
	item.grown, item.logs = nil, nil
	item.parts = append(append(item.parts, commaIf(item.parts != nil)...), part...)
}

// leave ends an open item.
func (s *responsesStream) leave(item *liveItem, status string) {
	before := len(item.parts) + len(item.grown)
	if item.kind == itemCall {
		item.arguments = quoted(item.grown)
		s.itemEvent("response.function_call_arguments.done", item)
		s.out = append(append(s.out, `,"name":`...), item.name...)
		s.out = append(append(s.out, `,"arguments":`...), item.arguments...)
		s.eventClose("")
	} else {
		s.leavePart(item)
		before = len(item.parts)
	}
	item.whole = s.r.appendItem(nil, &item.outItem, status)
	s.kept += len(item.whole) - before
	item.grown, item.parts, item.arguments = nil, nil, nil
	s.eventOpen("response.output_item.done")
	s.outputIndex(item)
	s.out = append(append(s.out, `,"item":`...), item.whole...)
	s.eventClose("")
}

// quoted is a text, spelled as inside quotes, as a JSON string.
func quoted(text []byte) raw {
	return append(append(append(make(raw, 0, len(text)+2), '"'), text...), '"')
}

func (s *responsesStream) complete() error {
	if !s.created {
		return malformed("its stream ended before it began")
	}
	for _, c := range s.table.calls {
		if s.calls[c] == nil && !c.uncallable() {
			s.beginCall(c) // it never got a name
		}
	}
	if !s.answered() {
		s.enter(partText) // as in a whole answer, there is always one
	}
	status := s.finish.status()
	for i, item := range s.items {
		if item.whole == nil {
			item.cut = item.call != nil && item.call.scan.state == argsOpen
			s.leave(item, item.status(status, i == len(s.items)-1))
		}
	}
	s.eventOpen("response." + status)
	s.response(status, nil)
	s.eventClose("")
	s.release()
	return nil
}

// answered reports whether there is an item other than reasoning.
func (s *responsesStream) answered() bool {
	for _, item := range s.items {
		if item.kind != itemReasoning {
			return true
		}
	}
	return false
}
