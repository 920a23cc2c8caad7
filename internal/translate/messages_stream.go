package translate

import (
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
)

type blockKind uint8

const (
	blockNone blockKind = iota
	blockText
	blockThinking
	blockTool
)

// messagesStream turns chat events into those of the Messages API: message_start,
// then for each block content_block_start, content_block_delta..., content_block_stop,
// then message_delta and message_stop. Blocks follow one another.
type messagesStream struct {
	m *Messages
	chatEvents
	out     []byte // events of the piece at hand
	started bool   // something was written
	created bool   // message_start was
	failed  bool

	blocks int // how many were opened
	open   blockKind
	tools  toolCursor
}

// Stream begins a stream; see Exchange.
func (m *Messages) Stream() Stream {
	return &messagesStream{m: m, chatEvents: chatEvents{frames: frames{max: m.opts.MaxEventBytes}}}
}

func (s *messagesStream) Started() bool { return s.started }
func (s *messagesStream) Done() bool    { return s.done || s.failed }

func (s *messagesStream) Feed(piece []byte, write func([]byte)) error {
	if s.failed {
		return s.err
	}
	err := s.feed(piece, s.chunk, s.complete, s.comment)
	s.flush(write)
	return err
}

func (s *messagesStream) End(write func([]byte)) error {
	if s.failed {
		return s.err
	}
	err := s.end(s.complete)
	s.flush(write)
	return err
}

func (s *messagesStream) Fail(e *openai.Error, write func([]byte)) {
	if s.Done() {
		return
	}
	s.failed, s.started = true, true
	s.out = e.AppendEvent(s.out, openai.ShapeAnthropic)
	s.flush(write)
	s.frames = frames{}
}

func (s *messagesStream) Ping(write func([]byte)) {
	if s.Done() {
		return
	}
	s.started = true
	s.ping()
	s.flush(write)
}

func (s *messagesStream) flush(write func([]byte)) {
	if len(s.out) > 0 {
		write(s.out)
	}
	s.out = shrink(s.out)
}

func (s *messagesStream) ping() {
	s.out = append(s.out, "event: ping\ndata: {\"type\":\"ping\"}\n\n"...)
}

// comment passes on an engine's own keep-alive, unless it would be the first of all.
func (s *messagesStream) comment() {
	if s.started {
		s.ping()
	}
}

// eventOpen begins an event; the caller appends the object's other members.
func (s *messagesStream) eventOpen(name string) {
	s.out = append(append(s.out, "event: "...), name...)
	s.out = append(append(append(s.out, "\ndata: {\"type\":\""...), name...), '"')
}

func (s *messagesStream) eventClose(tail string) {
	s.out = append(append(s.out, tail...), '}', '\n', '\n')
}

func (s *messagesStream) chunk(e *chatAnswer) error {
	if !s.created {
		s.created, s.started = true, true
		s.eventOpen("message_start")
		s.out = append(s.out, `,"message":`...)
		s.out = s.m.appendHead(s.out, e.model)
		s.out = append(s.out, `],"stop_reason":null,"stop_sequence":null,"usage":{`...)
		s.out = appendMessagesUsage(s.out, e.usage, false)
		s.eventClose("}}")
	}
	c := &e.choice
	if c.reasoning != nil && !s.m.omitThinking {
		s.enter(blockThinking)
		s.delta(`{"type":"thinking_delta","thinking":`, c.reasoning)
	}
	// A call that is under way goes on before a text ends it.
	wasTool := s.open == blockTool
	if wasTool {
		if err := s.callAll(c.calls); err != nil {
			return err
		}
	}
	if c.content != nil {
		s.enter(blockText)
		s.delta(`{"type":"text_delta","text":`, c.content)
	}
	if !wasTool {
		return s.callAll(c.calls)
	}
	return nil
}

func (s *messagesStream) callAll(calls []chatCall) error {
	for i := range calls {
		if err := s.call(&calls[i]); err != nil {
			return err
		}
	}
	return nil
}

// enter makes sure that a block of the kind is open.
func (s *messagesStream) enter(kind blockKind) {
	if s.open == kind {
		return
	}
	s.leave()
	s.start(kind)
	if kind == blockText {
		s.out = append(s.out, `{"type":"text","text":""}`...)
	} else {
		s.out = append(s.out, `{"type":"thinking","thinking":"","signature":""}`...)
	}
	s.eventClose("")
}

func (s *messagesStream) start(kind blockKind) {
	s.open = kind
	s.eventOpen("content_block_start")
	s.out = strconv.AppendInt(append(s.out, `,"index":`...), int64(s.blocks), 10)
	s.out = append(s.out, `,"content_block":`...)
	s.blocks++
}

func (s *messagesStream) leave() {
	if s.open == blockNone {
		return
	}
	s.open = blockNone
	s.eventOpen("content_block_stop")
	s.out = strconv.AppendInt(append(s.out, `,"index":`...), int64(s.blocks-1), 10)
	s.eventClose("")
}

func (s *messagesStream) delta(open string, text raw) {
	s.eventOpen("content_block_delta")
	s.out = strconv.AppendInt(append(s.out, `,"index":`...), int64(s.blocks-1), 10)
	s.out = append(append(append(s.out, `,"delta":`...), open...), text...)
	s.eventClose("}")
}

func (s *messagesStream) call(call *chatCall) error {
	isNew, err := s.tools.see(call, s.open == blockTool)
	if err != nil {
		return err
	}
	if isNew {
		s.leave()
		s.start(blockTool)
		s.out = append(s.out, `{"type":"tool_use","id":`...)
		s.out = s.m.appendToolID(s.out, call.id, s.tools.count-1)
		s.out = append(append(s.out, `,"name":`...), call.name...)
		s.eventClose(`,"input":{}}`)
	}
	if call.arguments != nil {
		s.delta(`{"type":"input_json_delta","partial_json":`, call.arguments)
	}
	return nil
}

func (s *messagesStream) complete() error {
	if s.blocks == 0 {
		s.enter(blockText)
	}
	s.leave()
	s.eventOpen("message_delta")
	s.out = append(s.out, `,"delta":{`...)
	s.out = s.m.appendStop(s.out, s.finish, s.matched, s.tools.count > 0)
	s.out = append(s.out, `},"usage":{`...)
	s.out = appendMessagesUsage(s.out, s.usage, true)
	s.eventClose("}")
	s.eventOpen("message_stop")
	s.eventClose("")
	return nil
}

// toolCursor follows the tool calls of a stream, one after another.
type toolCursor struct {
	count   int
	current int64  // the index of the last one, -1 if it has none
	id      string // its id, "" if it has none
}

// see takes a piece of a call and tells whether it begins a new one; open tells that
// the last one can still grow. Calls that come in turns can't be told as blocks that
// follow one another.
func (t *toolCursor) see(call *chatCall, open bool) (isNew bool, err error) {
	if call.id == nil && call.name == nil && call.arguments == nil {
		return false, nil // it says nothing
	}
	isNew = t.count == 0 || call.index >= 0 && t.current >= 0 && call.index != t.current ||
		call.id != nil && t.id != "" && call.id.text() != t.id ||
		call.index < 0 && call.id == nil && call.name != nil
	switch {
	case !isNew && !open:
		if call.arguments == nil {
			return false, nil
		}
		return false, malformed("its stream goes on with a tool call that it had left")
	case !isNew:
		return false, nil
	case call.name == nil:
		return false, malformed("its stream has a tool call without a name")
	case t.count > 0 && call.index >= 0 && call.index < t.current:
		return false, malformed("its stream goes back to an earlier tool call")
	}
	t.count++
	t.current, t.id = call.index, call.id.text()
	return true, nil
}
