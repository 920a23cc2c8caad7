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
	blockRefusal // a text block, separate from the answer's text
	blockThinking
	blockTool
)

// messagesStream turns chat events into those of the Messages API: message_start,
// then for each block content_block_start, content_block_delta..., content_block_stop,
// then message_delta and message_stop. Only one block is open at a time, so that text
// that comes while a call is open waits until the call's arguments have ended. The
// arguments wait too, as only then is it known whether they are an object, which an input
// must be.
type messagesStream struct {
	m *Messages
	eventStream
	created bool // message_start was written
	refused bool // the engine sent a refusal

	prompt int64 // the router's own count

	blocks int // how many were opened
	open   blockKind
	call   *toolCall // of the open block, if it is a tool's
	eager  bool      // its arguments are sent as they come
	ids    callIDs
	table  callTable
	// waiting are the blocks that come after the open one; held is their size and that
	// of held arguments, in bytes. While there are any, the open block is a call whose
	// arguments have not ended.
	waiting []waitingBlock
	held    int
}

// waitingBlock is a block that has begun while a call was open that may still grow.
type waitingBlock struct {
	kind blockKind
	call *toolCall
	text []byte // if it is no call, as written inside a JSON string
}

// Stream begins a stream; see Exchange.
func (m *Messages) Stream(prompt int64) Stream {
	s := &messagesStream{m: m, prompt: prompt, ids: m.callIDs(), table: callTable{max: m.opts.MaxOutputBytes}}
	s.client, s.frames.max = s, m.opts.MaxEventBytes
	return s
}

func (s *messagesStream) Held() int { return s.held + s.table.size }

func (s *messagesStream) Fail(e *openai.Error, write func([]byte)) {
	if s.Done() {
		return
	}
	s.failed, s.started = true, true
	s.out = e.AppendEvent(s.out, openai.ShapeAnthropic)
	s.flush(write)
	s.frames, s.waiting, s.table, s.call = frames{}, nil, callTable{}, nil
}

func (s *messagesStream) keepAlive() {
	s.out = append(s.out, "event: ping\ndata: {\"type\":\"ping\"}\n\n"...)
}

// eventOpen begins an event; the caller appends the object's other members.
func (s *messagesStream) eventOpen(name string) {
	s.out = append(append(s.out, "event: "...), name...)
	s.out = append(append(append(s.out, "\ndata: {\"type\":\""...), name...), '"')
}

func (s *messagesStream) chunk(e *chatAnswer) error {
	if !s.created {
		s.created, s.started = true, true
		s.eventOpen("message_start")
		s.out = append(s.out, `,"message":`...)
		s.out = s.m.appendHead(s.out, e.model)
		s.out = append(s.out, `],"stop_reason":null,"stop_sequence":null,"usage":{`...)
		usage := e.usage
		if usage.prompt <= 0 {
			usage = chatUsage{prompt: s.prompt}
		}
		s.out = appendMessagesUsage(s.out, usage, false)
		s.eventClose("}}")
	}
	c := &e.choice
	if c.reasoning != nil && !s.m.omitThinking {
		s.addText(blockThinking, c.reasoning)
	}
	// The pieces of an open call come before a text that ends it.
	wasTool := s.open == blockTool
	if wasTool {
		if err := s.callAll(c.calls); err != nil {
			return err
		}
	}
	if c.content != nil {
		s.addText(blockText, c.content)
	}
	if c.refusal != nil {
		s.refused = true
		s.addText(blockRefusal, c.refusal)
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

// addText sends a text, or holds it until the open call has ended.
func (s *messagesStream) addText(kind blockKind, text raw) {
	if s.canClose() {
		s.openBlock(kind)
		s.delta(deltaOpen[kind], text.inner())
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

// deltaOpen is the beginning of a delta of each kind.
var deltaOpen = [...]string{
	blockText:     `{"type":"text_delta","text":"`,
	blockRefusal:  `{"type":"text_delta","text":"`,
	blockThinking: `{"type":"thinking_delta","thinking":"`,
	blockTool:     `{"type":"input_json_delta","partial_json":"`,
}

// canClose reports whether the open block is complete and no block waits.
func (s *messagesStream) canClose() bool {
	return len(s.waiting) == 0 && (s.open != blockTool || s.call.scan.state == argsWhole)
}

func (s *messagesStream) callAll(calls []chatCall) error {
	for i := range calls {
		if err := s.addCallPiece(&calls[i]); err != nil {
			return err
		}
	}
	return nil
}

// addCallPiece takes a piece of a call.
func (s *messagesStream) addCallPiece(p *chatCall) error {
	known := len(s.table.calls)
	c, err := s.table.record(p)
	if c == nil {
		return err
	}
	if len(s.table.calls) > known {
		s.waiting = append(s.waiting, waitingBlock{kind: blockTool, call: c})
	}
	if p.arguments != nil {
		arguments := c.scan.feed(p.arguments.inner())
		c.held = append(c.held, arguments...)
		s.held += len(arguments)
		if c.opened {
			s.sendInput(c, false)
		}
	}
	s.advance(false)
	return nil
}

// advance opens waiting blocks whose predecessors have ended; at the end of the stream
// all of them.
func (s *messagesStream) advance(end bool) {
	for len(s.waiting) > 0 {
		w := s.waiting[0]
		if !end && (s.open == blockTool && s.call.scan.state != argsWhole || w.call != nil && w.call.name == nil) {
			return
		}
		s.waiting = s.waiting[1:]
		if w.call == nil {
			s.openBlock(w.kind)
			s.held -= len(w.text)
			s.delta(deltaOpen[w.kind], w.text)
			continue
		}
		if w.call.isEmpty() {
			continue
		}
		s.openCall(w.call)
	}
	s.waiting = nil
}

// openCall opens a call's block and sends the arguments that were held.
func (s *messagesStream) openCall(c *toolCall) {
	s.closeBlock()
	s.startBlock(blockTool)
	s.call, c.opened = c, true
	s.eager = len(s.m.eager) > 0 && slices.Contains(s.m.eager, c.name.text())
	s.out = append(s.out, `{"type":"tool_use","id":`...)
	s.out = append(s.out, s.ids.next(c.id)...)
	s.out = append(append(s.out, `,"name":`...), c.name.or(`""`)...)
	s.eventClose(`,"input":{}}`)
	s.sendInput(c, false)
}

// sendInput sends what can be sent of the open call's arguments; at the end all of them.
func (s *messagesStream) sendInput(c *toolCall, end bool) {
	if len(c.held) == 0 {
		return
	}
	switch {
	case s.eager && c.scan.state != argsOther:
		s.delta(deltaOpen[blockTool], c.held)
	case end || c.scan.state == argsWhole:
		if input, asIs := toolInput(quoted(c.held)); asIs {
			s.delta(deltaOpen[blockTool], c.held)
		} else if len(input) > len("{}") {
			s.delta(deltaOpen[blockTool], rawOf(appendQuoted(nil, input)).inner())
		}
	default:
		return
	}
	s.held -= len(c.held)
	c.held = nil
}

// openBlock opens a block of the kind unless one is open.
func (s *messagesStream) openBlock(kind blockKind) {
	if s.open == kind {
		return
	}
	s.closeBlock()
	s.startBlock(kind)
	if kind == blockThinking {
		s.out = append(s.out, `{"type":"thinking","thinking":"","signature":""}`...)
	} else {
		s.out = append(s.out, `{"type":"text","text":""}`...)
	}
	s.eventClose("")
}

func (s *messagesStream) startBlock(kind blockKind) {
	s.open = kind
	s.eventOpen("content_block_start")
	s.out = strconv.AppendInt(append(s.out, `,"index":`...), int64(s.blocks), 10)
	s.out = append(s.out, `,"content_block":`...)
	s.blocks++
}

func (s *messagesStream) closeBlock() {
	if s.open == blockNone {
		return
	}
	if s.open == blockTool {
		s.sendInput(s.call, true)
	}
	s.open, s.call = blockNone, nil
	s.eventOpen("content_block_stop")
	s.out = strconv.AppendInt(append(s.out, `,"index":`...), int64(s.blocks-1), 10)
	s.eventClose("")
}

// delta sends a piece of the open block; text is written as inside a JSON string.
func (s *messagesStream) delta(open string, text []byte) {
	s.eventOpen("content_block_delta")
	s.out = strconv.AppendInt(append(s.out, `,"index":`...), int64(s.blocks-1), 10)
	s.out = append(append(append(s.out, `,"delta":`...), open...), text...)
	s.eventClose(`"}`)
}

func (s *messagesStream) complete() error {
	s.advance(true)
	if s.blocks == 0 {
		s.openBlock(blockText)
	}
	s.closeBlock()
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
