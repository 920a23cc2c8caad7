package translate

import (
	"fmt"
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
)

// responsesStream turns chat events into those of the Responses API. Its last event
// repeats the whole output, which is therefore kept, up to a limit.
type responsesStream struct {
	r *Responses
	eventStream
	seq     int64 // number of the next event
	created bool  // response.created was written
	model   raw   // a copy

	items []*liveItem // by their output_index
	text  *liveItem   // the open item that is not a call
	calls map[*toolCall]*liveItem
	ids   callIDs
	table callTable
	kept  int // bytes of the items and of held arguments
}

// liveItem is an item of a stream. Several calls may be open at once.
type liveItem struct {
	outItem
	index int
	call  *toolCall
	part  int // content_index of the open part
	open  partKind
	grown []byte // the open part's text or a call's arguments so far, as written inside a JSON string
	logs  []byte // log probabilities so far, with commas
	whole []byte // the complete item, nil while it is open
}

// Stream begins a stream; see Exchange. This API reports the prompt's tokens at the end
// only, as the engine counted them.
func (r *Responses) Stream(int64) Stream {
	s := &responsesStream{r: r, ids: r.callIDs(), table: callTable{max: r.opts.MaxOutputBytes}}
	s.client, s.frames.max = s, r.opts.MaxEventBytes
	return s
}

func (s *responsesStream) Held() int { return s.kept + s.table.size }

// Fail ends the response as failed, with its complete output items; before
// response.created it sends the error alone.
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

// keepAlive writes a comment. No empty line follows it: that would be an empty event to
// some clients.
func (s *responsesStream) keepAlive() { s.out = append(s.out, ": keep-alive\n"...) }

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
		usage := s.usage
		s.usage = chatUsage{} // it is sent at the end
		s.eventOpen("response.created")
		s.response(statusInProgress, nil)
		s.eventClose("")
		s.eventOpen("response.in_progress")
		s.response(statusInProgress, nil)
		s.eventClose("")
		s.usage = usage
	}
	c := &e.choice
	if c.reasoning != nil {
		item := s.openTextItem(partReasoning)
		s.appendText(item, c.reasoning.inner())
		s.itemEvent("response.reasoning_text.delta", item)
		s.out = append(append(s.out, `,"delta":`...), c.reasoning...)
		s.eventClose("")
	}
	// The pieces of an open call come before a text that ends it.
	wasCall := s.text == nil && len(s.items) > 0
	if wasCall {
		if err := s.callAll(c.calls); err != nil {
			return err
		}
	}
	if c.content != nil {
		item := s.openTextItem(partText)
		s.appendText(item, c.content.inner())
		s.itemEvent("response.output_text.delta", item)
		s.out = append(append(s.out, `,"delta":`...), c.content...)
		s.out = append(s.out, `,"logprobs":`...)
		s.out = appendOneLine(s.out, s.takeLogprobs(item, c.logprobs))
		s.eventClose("")
	}
	if c.refusal != nil {
		item := s.openTextItem(partRefusal)
		s.appendText(item, c.refusal.inner())
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

func (s *responsesStream) appendText(item *liveItem, text []byte) {
	item.grown = append(item.grown, text...)
	s.kept += len(text)
}

// takeLogprobs keeps an array's elements for the end of the item.
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
		if err := s.addCallPiece(&calls[i]); err != nil {
			return err
		}
	}
	return nil
}

// addCallPiece takes a piece of a call. Each call gets an item as soon as its name is
// known; several may be open at once.
func (s *responsesStream) addCallPiece(p *chatCall) error {
	c, err := s.table.record(p)
	if c == nil {
		return err
	}
	var arguments []byte
	if p.arguments != nil {
		arguments = c.scan.feed(p.arguments.inner())
	}
	item := s.calls[c]
	if item == nil {
		if c.name == nil {
			c.held = append(c.held, arguments...)
			s.kept += len(arguments)
			return nil
		}
		item = s.beginCall(c)
	}
	s.sendArguments(item, arguments)
	if c.scan.state == argsWhole && item.whole == nil && item.index < len(s.items)-1 {
		s.closeItem(item, statusCompleted) // others have begun since
	}
	return nil
}

func (s *responsesStream) beginCall(c *toolCall) *liveItem {
	s.closeEnded()
	if s.calls == nil {
		s.calls = make(map[*toolCall]*liveItem)
	}
	item := s.openItem(outItem{kind: itemCall, name: c.name.or(`""`), callID: s.ids.next(c.id)})
	item.call = c
	s.calls[c] = item
	held := c.held
	c.held = nil
	s.kept -= len(held)
	s.sendArguments(item, held)
	return item
}

func (s *responsesStream) sendArguments(item *liveItem, arguments []byte) {
	if len(arguments) == 0 {
		return
	}
	s.appendText(item, arguments)
	s.itemEvent("response.function_call_arguments.delta", item)
	s.out = append(append(append(s.out, `,"delta":"`...), arguments...), '"')
	s.eventClose("")
}

// openTextItem opens an item with a part of the kind unless one is open.
func (s *responsesStream) openTextItem(part partKind) *liveItem {
	kind := itemMessage
	if part == partReasoning {
		kind = itemReasoning
	}
	switch {
	case s.text == nil || s.text.kind != kind:
		s.closeEnded()
		s.text = s.openItem(outItem{kind: kind})
		s.openPart(s.text, part)
	case s.text.open != part:
		s.closePart(s.text)
		s.text.part++
		s.openPart(s.text, part)
	}
	return s.text
}

// closeEnded ends the items that are complete when another begins: a text, and calls
// whose arguments have ended.
func (s *responsesStream) closeEnded() {
	if s.text != nil {
		s.closeItem(s.text, statusCompleted)
		s.text = nil
	}
	if len(s.items) > 0 { // earlier ones were closed when their arguments ended
		if last := s.items[len(s.items)-1]; last.whole == nil && last.call.scan.state == argsWhole {
			s.closeItem(last, statusCompleted)
		}
	}
}

func (s *responsesStream) openItem(o outItem) *liveItem {
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

// closePart ends the open part.
func (s *responsesStream) closePart(item *liveItem) {
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

// closeItem ends an open item.
func (s *responsesStream) closeItem(item *liveItem, status string) {
	before := len(item.parts) + len(item.grown)
	if item.kind == itemCall {
		item.arguments = quoted(item.grown)
		s.itemEvent("response.function_call_arguments.done", item)
		s.out = append(append(s.out, `,"name":`...), item.name...)
		s.out = append(append(s.out, `,"arguments":`...), item.arguments...)
		s.eventClose("")
	} else {
		s.closePart(item)
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

// quoted makes a JSON string of a text that is written as inside one.
func quoted(text []byte) raw {
	return append(append(append(make(raw, 0, len(text)+2), '"'), text...), '"')
}

func (s *responsesStream) complete() error {
	if !s.created {
		return malformed("its stream ended before it began")
	}
	for _, c := range s.table.calls {
		if s.calls[c] == nil && !c.isEmpty() {
			s.beginCall(c) // its name never came
		}
	}
	if !s.answered() {
		s.openTextItem(partText) // an answer always has a message or a call
	}
	status := s.finish.status()
	for i, item := range s.items {
		if item.whole == nil {
			item.cut = item.call != nil && item.call.scan.state == argsOpen
			s.closeItem(item, item.status(status, i == len(s.items)-1))
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
