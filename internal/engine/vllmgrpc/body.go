package vllmgrpc

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/generate"
	"github.com/sluice-router/sluice/internal/upstream"
)

// maxPiece is how many bytes are made of what is there before they are handed on.
const maxPiece = 16 << 10

// body is the answer's body while the engine generates. It pulls: what has come together is
// handed on together, and nothing is read before somebody asks for it.
type body struct {
	c     *call
	src   source // nil once it is closed
	state *answerState
	out   []byte // what Next hands on; a part of state.buffer
	err   error  // what Next returns once out is taken
	told  int    // sequences of which the engine has told the end
}

// answerState is what one answer after another uses.
type answerState struct {
	answer generate.Answer
	msg    message
	event  generate.Event
	buffer []byte
}

var answerStates = sync.Pool{New: func() any { return new(answerState) }}

func newBody(c *call, src source) *body {
	b := &body{c: c, src: src, state: answerStates.Get().(*answerState)}
	id := c.req.ID
	if legs, ok := c.req.Legs.(*engine.VLLMTokenLegs); ok {
		id = legs.AnswerID()
	}
	b.state.answer.Begin(c.req.Generate, id, time.Now().Unix())
	return b
}

// more makes something of what comes next, and of what has come with it. An error is that of
// the answer.
func (b *body) more() error {
	b.out = b.state.buffer[:0]
	for len(b.out) == 0 && b.err == nil {
		if err := b.pull(); err != nil {
			return err
		}
	}
	b.fill()
	return nil
}

// pull takes the next message and appends what becomes of it. The error is that of the answer;
// what was appended before it stays.
func (b *body) pull() error {
	st := b.state
	o, raw, err := b.src.next()
	if err == io.EOF {
		return b.end()
	}
	if err != nil {
		return err
	}
	if err := st.msg.decode(raw); err != nil {
		return err
	}
	if int64(st.msg.index) >= int64(o.samples) {
		return fmt.Errorf("the engine told of sequence %d, and was asked for %d", st.msg.index, o.samples)
	}
	sample := o.sample + int(st.msg.index)
	if err := st.msg.event(&st.event, o.prompt, sample, o.streamed); err != nil {
		return err
	}
	if b.out, err = st.answer.Event(b.out, &st.event); err != nil {
		return &sequenceError{err, o.prompt*b.c.req.Generate.Samples + sample}
	}
	if st.event.Finish != generate.Running {
		b.told++
	}
	if st.answer.Done() && b.told < b.sequences() && b.src.ready() == 0 {
		return b.end() // by stop strings that the engine has not found, or not yet: it need not go on
	}
	return nil
}

// sequences is how many are asked for.
func (b *body) sequences() int { return len(b.c.req.Generate.Prompts) * b.c.req.Generate.Samples }

// sequenceError is what an engine told of sequence k.
type sequenceError struct {
	error
	k int
}

func (e *sequenceError) Unwrap() error { return e.error }

// end appends what ends the answer.
func (b *body) end() (err error) {
	if b.out, err = b.state.answer.End(b.out); err != nil {
		return err
	}
	b.err = io.EOF
	b.src.close()
	return nil
}

// fill appends what becomes of the messages that are there already. An error is told behind
// what was made before it. Once all sequences have ended only the status is missing, which the
// engine sends with the last message, so that the end is one piece with what goes before it.
func (b *body) fill() {
	for b.err == nil && len(b.out) < maxPiece && (b.src.ready() > 0 || b.told == b.sequences()) {
		if err := b.pull(); err != nil {
			b.fail(err)
		}
	}
	b.state.buffer = b.out[:0]
}

// fail ends the body with an error, in the middle of the answer: what the engine said of itself
// is told as an engine behind HTTP does, in an event.
func (b *body) fail(err error) {
	b.src.close()
	status, message, ok := b.c.told(err)
	if !ok || !b.c.req.Generate.Stream {
		b.err = b.c.unwrapped(err)
		return
	}
	b.out = append(b.out, "data: "...)
	b.out = append(appendError(b.out, status, message), "\n\ndata: [DONE]\n\n"...)
	b.err = io.EOF
}

// ready makes sure that there is something in out, or an error in b.err.
func (b *body) ready() bool {
	if len(b.out) == 0 && b.err == nil {
		if err := b.more(); err != nil {
			b.fail(err)
		}
	}
	return len(b.out) > 0
}

// Next implements upstream.Body.
func (b *body) Next() ([]byte, error) {
	if !b.ready() {
		b.release()
		return nil, b.err
	}
	piece := b.out
	b.out = nil
	return piece, nil
}

// Read implements upstream.Body.
func (b *body) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if !b.ready() {
		b.release()
		return 0, b.err
	}
	n := copy(p, b.out)
	b.out = b.out[n:]
	return n, nil
}

// Buffered implements upstream.Body. Messages that have come are not counted: nothing may
// become of them, and what was handed on would wait for the next.
func (b *body) Buffered() int { return len(b.out) }

// Done implements upstream.Body.
func (b *body) Done() bool { return b.err != nil }

// WaitReadable implements upstream.Body.
func (b *body) WaitReadable() error {
	switch {
	case len(b.out) > 0:
		return nil
	case b.err != nil:
		return b.err
	}
	b.src.wait()
	return nil
}

// RequestSent implements upstream.Body: the message was made with the call.
func (b *body) RequestSent() bool { return true }

// Trailer implements upstream.Body.
func (b *body) Trailer(string) string { return "" }

// Close implements upstream.Body.
func (b *body) Close() error {
	b.src.close()
	if b.err == nil || len(b.out) > 0 {
		b.out, b.err = nil, &upstream.Error{Op: upstream.OpBody, Kind: upstream.KindShutdown, Addr: b.c.addr(), Sent: true, Err: net.ErrClosed}
	}
	b.release()
	return nil
}

// maxKept is the largest buffer that is kept for the next answer.
const maxKept = 64 << 10 // bytes

// release gives back what the answer used; nothing of it is used again.
func (b *body) release() {
	st := b.state
	if st == nil {
		return
	}
	b.state = nil
	st.answer.Release()
	if cap(st.buffer) > maxKept {
		st.buffer = nil
	}
	st.event = generate.Event{}
	st.msg.forget()
	answerStates.Put(st)
}

// plainBody is a body that is there as a whole.
type plainBody struct {
	left   []byte
	closed bool
}

func (b *plainBody) end() error {
	if b.closed {
		return &upstream.Error{Op: upstream.OpBody, Kind: upstream.KindShutdown, Sent: true, Err: net.ErrClosed}
	}
	return io.EOF
}

func (b *plainBody) Next() ([]byte, error) {
	p := b.left
	if b.left = nil; len(p) == 0 {
		return nil, b.end()
	}
	return p, nil
}

func (b *plainBody) Read(p []byte) (int, error) {
	switch {
	case len(p) == 0:
		return 0, nil
	case len(b.left) == 0:
		return 0, b.end()
	}
	n := copy(p, b.left)
	b.left = b.left[n:]
	return n, nil
}

func (b *plainBody) Buffered() int { return len(b.left) }
func (b *plainBody) Done() bool    { return true }
func (b *plainBody) WaitReadable() error {
	if len(b.left) == 0 {
		return b.end()
	}
	return nil
}
func (b *plainBody) RequestSent() bool     { return true }
func (b *plainBody) Trailer(string) string { return "" }
func (b *plainBody) Close() error {
	b.closed = b.closed || len(b.left) > 0
	b.left = nil
	return nil
}
