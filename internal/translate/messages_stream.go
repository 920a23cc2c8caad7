package translate

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
)

type blockKind uint8

const (
	blockNone blockKind = iota
	blockText
	blockRefusal // a text too, but one of its own
	blockThinking
	blockTool
)

// messagesStream turns chat events into those of the Messages API: message_start,
// then for each block content_block_start, content_block_delta..., content_block_stop,
// then message_delta and message_stop. Blocks follow one another, so that what comes
// while a call is under way waits until its arguments have ended. So do these: until
// then nobody knows whether they are an object, and an input is nothing else.
type messagesStream struct {
	m *Messages
	chatEvents
	out     []byte // events of the piece at hand
	started bool   // something was written
	created bool   // message_start was
	failed  bool
	refused bool // the model refused in so many words

	prompt int64 // the router's own count

	blocks int // how many were opened
	open   blockKind
	call   *toolCall // of the open block, if it is a tool's
	eager  bool      // its arguments are told as they come
	ids    callIDs
	table  callTable
	// waiting are the blocks that come after the open one, held bytes of them in all.
	// While there are any, the open block is a call whose arguments have not ended.
	waiting []waitingBlock
	held    int
}

// waitingBlock is a block that has begun while a call was open that may still grow.
type waitingBlock struct {
	kind blockKind
	call *toolCall
	text []byte // of another kind, as spelled inside quotes
}

// Stream begins a stream; see Exchange.
func (m *Messages) Stream(prompt int64) Stream {
	return &messagesStream{m: m, prompt: prompt, ids: m.callIDs(), table: callTable{max: m.opts.MaxOutputBytes}, chatEvents: chatEvents{frames: frames{max: m.opts.MaxEventBytes}}}
}

func (s *messagesStream) Started() bool { return s.started }
func (s *messagesStream) Done() bool    { return s.done || s.failed }
func (s *messagesStream) Held() int     { return s.held + s.table.size }

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
	s.frames, s.waiting, s.table, s.call = frames{}, nil, callTable{}, nil
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
		told := e.usage
		if told.prompt <= 0 {
			told = chatUsage{prompt: s.prompt}
		}
		s.out = appendMessagesUsage(s.out, told, false)
		s.eventClose("}}")
	}
	c := &e.choice
	if c.reasoning != nil && !s.m.omitThinking {
		s.say(blockThinking, c.reasoning)
	}
	// A call that is under way goes on before a text ends it.
	wasTool := s.open == blockTool
	if wasTool {
		if err := s.callAll(c.calls); err != nil {
			return err
		}
	}
	if c.content != nil {
		s.say(blockText, c.content)
	}
	if c.refusal != nil {
		s.refused = true
		s.say(blockRefusal, c.refusal)
	}
	if !wasTool {
		if err := s.callAll(c.calls); err != nil {
			return err
		}
	}
	if s.held > s.m.opts.MaxOutputBytes {
		return &LimitError{fmt.Sprintf("more than %d bytes of the engine's answer came before the arguments of a tool call had ended", s.m.opts.MaxOutputBytes)}
	}
	return nil
}

// say sends a text, or keeps it until the open call has ended.
func (s *messagesStream) say(kind blockKind, text raw) {
	if s.mayLeave() {
		s.enter(kind)
		s.delta(openDelta[kind], text.inner())
		return
	}
	last := len(s.waiting) - 1
	if last < 0 || s.waiting[last].kind != kind {
		s.waiting = append(s.waiting, waitingBlock{kind: kind})
		last++
	}
	w := &s.waiting[last]
	w.text = append(w.text, text.inner()...)
	s.held += len(text.inner())
}

// openDelta begins the delta of each kind.
var openDelta = [...]string{
	blockText:     `{"type":"text_delta","text":"`,
	blockRefusal:  `{"type":"text_delta","text":"`,
	blockThinking: `{"type":"thinking_delta","thinking":"`,
	blockTool:     `{"type":"input_json_delta","partial_json":"`,
}

// mayLeave reports whether nothing more is expected of the open block, and nothing waits.
func (s *messagesStream) mayLeave() bool {
	return len(s.waiting) == 0 && (s.open != blockTool || s.call.scan.state == argsWhole)
}

func (s *messagesStream) callAll(calls []chatCall) error {
	for i := range calls {
		if err := s.grow(&calls[i]); err != nil {
			return err
		}
	}
	return nil
}

// grow takes a piece of a call.
func (s *messagesStream) grow(p *chatCall) error {
	known := len(s.table.calls)
	c, err := s.table.see(p)
	if c == nil {
		return err
	}
	if len(s.table.calls) > known {
		s.waiting = append(s.waiting, waitingBlock{kind: blockTool, call: c})
	}
	if p.arguments != nil {
		told := c.scan.feed(p.arguments.inner())
		c.held = append(c.held, told...)
		s.held += len(told)
		if c.opened {
			s.tellInput(c, false)
		}
	}
	s.advance(false)
	return nil
}

// advance opens the blocks that wait, as far as the ones before them have ended; all of
// them at the end of the stream.
func (s *messagesStream) advance(end bool) {
	for len(s.waiting) > 0 {
		w := s.waiting[0]
		if !end && (s.open == blockTool && s.call.scan.state != argsWhole || w.call != nil && w.call.name == nil) {
			return
		}
		s.waiting = s.waiting[1:]
		if w.call == nil {
			s.enter(w.kind)
			s.held -= len(w.text)
			s.delta(openDelta[w.kind], w.text)
			continue
		}
		if w.call.uncallable() {
			continue
		}
		s.begin(w.call)
	}
	s.waiting = nil
}

// begin opens a call's block and sends what was held of it.
func (s *messagesStream) begin(c *toolCall) {
	s.leave()
	s.start(blockTool)
	s.call, c.opened = c, true
	s.eager = len(s.m.eager) > 0 && slices.Contains(s.m.eager, c.name.text())
	s.out = append(s.out, `{"type":"tool_use","id":`...)
	s.out = append(s.out, s.ids.next(c.id)...)
	s.out = append(append(s.out, `,"name":`...), c.name.or(`""`)...)
	s.eventClose(`,"input":{}}`)
	s.tellInput(c, false)
}

// tellInput sends what can be sent of the open call's arguments; all of it at the end.
func (s *messagesStream) tellInput(c *toolCall, end bool) {
	if len(c.held) == 0 {
		return
	}
	switch {
	case s.eager && c.scan.state != argsOther:
		s.delta(openDelta[blockTool], c.held)
	case end || c.scan.state == argsWhole:
		if input, asIs := toolInput(quoted(c.held)); asIs {
			s.delta(openDelta[blockTool], c.held)
		} else if len(input) > len("{}") {
			s.delta(openDelta[blockTool], rawOf(appendQuoted(nil, input)).inner())
		}
	default:
		return
	}
	s.held -= len(c.held)
	c.held = nil
}

// enter makes sure that a block of the kind is open.
func (s *messagesStream) enter(kind blockKind) {
	if s.open == kind {
		return
	}
	s.leave()
	s.start(kind)
	if kind == blockThinking {
		s.out = append(s.out, `{"type":"thinking","thinking":"","signature":""}`...)
	} else {
		s.out = append(s.out, `{"type":"text","text":""}`...)
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
	if s.open == blockTool {
		s.tellInput(s.call, true)
	}
	s.open, s.call = blockNone, nil
	s.eventOpen("content_block_stop")
	s.out = strconv.AppendInt(append(s.out, `,"index":`...), int64(s.blocks-1), 10)
	s.eventClose("")
}

// delta sends a piece of the open block; text is spelled as inside quotes.
func (s *messagesStream) delta(open string, text []byte) {
	s.eventOpen("content_block_delta")
	s.out = strconv.AppendInt(append(s.out, `,"index":`...), int64(s.blocks-1), 10)
	s.out = append(append(append(s.out, `,"delta":`...), open...), text...)
	s.eventClose(`"}`)
}

func (s *messagesStream) complete() error {
	s.advance(true)
	if s.blocks == 0 {
		s.enter(blockText)
	}
	s.leave()
	s.eventOpen("message_delta")
	s.out = append(s.out, `,"delta":{`...)
	s.out = s.m.appendStop(s.out, s.finish.withRefusal(s.refused), s.matched, s.ids.n > 0)
	s.out = append(s.out, `},"usage":{`...)
	s.out = appendMessagesUsage(s.out, s.usage.withPrompt(s.prompt), true)
	s.eventClose("}")
	s.eventOpen("message_stop")
	s.eventClose("")
	return nil
}
