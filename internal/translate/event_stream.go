package translate

import (
	"bytes"
	"fmt"

	"github.com/sluice-router/sluice/internal/openai"
)

// clientEvents writes the events of the client's API into eventStream.out.
type clientEvents interface {
	// chunk is called for each event with a choice, or with nothing yet but a role.
	chunk(*chatAnswer) error
	// complete is called at the end of the answer.
	complete() error
	// keepAlive writes what keeps a silent stream alive.
	keepAlive()
}

// eventStream is the common part of both APIs' streams: it reads the chat stream, and
// collects the events that client writes.
type eventStream struct {
	client  clientEvents
	out     []byte // events of the piece at hand
	started bool   // something was written
	failed  bool

	frames  frames
	event   chatAnswer
	usage   chatUsage
	finish  finish
	matched []byte // a copy, as a JSON string
	err     error
	done    bool
}

var doneMarker = []byte("[DONE]")

func (s *eventStream) Started() bool { return s.started }
func (s *eventStream) Done() bool    { return s.done || s.failed }

func (s *eventStream) Feed(piece []byte, write func([]byte)) error {
	if s.failed {
		return s.err
	}
	err := s.feed(piece)
	s.flush(write)
	return err
}

func (s *eventStream) End(write func([]byte)) error {
	if s.failed {
		return s.err
	}
	if s.err == nil && !s.done {
		s.err = s.close()
	}
	s.flush(write)
	return s.err
}

func (s *eventStream) Ping(write func([]byte)) {
	if s.Done() {
		return
	}
	s.started = true
	s.client.keepAlive()
	s.flush(write)
}

func (s *eventStream) flush(write func([]byte)) {
	if len(s.out) > 0 {
		write(s.out)
	}
	s.out = shrink(s.out)
}

func (s *eventStream) eventClose(tail string) {
	s.out = append(append(s.out, tail...), '}', '\n', '\n')
}

func (s *eventStream) feed(piece []byte) error {
	if s.err != nil || s.done {
		return s.err
	}
	tooLong := s.frames.feed(piece, func(data []byte) bool {
		s.err = s.take(data)
		return s.err == nil && !s.done
	}, func() {
		if s.started { // an engine's keep-alive does not begin the answer
			s.client.keepAlive()
		}
	})
	if tooLong && s.err == nil {
		s.err = &LimitError{fmt.Sprintf("an event of the engine's stream is larger than %d bytes", s.frames.max)}
	}
	return s.err
}

func (s *eventStream) take(data []byte) error {
	switch trimmed := bytes.TrimSpace(data); {
	case len(trimmed) == 0:
		return nil
	case bytes.Equal(trimmed, doneMarker):
		return s.close()
	}
	v, ok := checked(data)
	if !ok || !v.isObject() {
		return malformed("an event of its stream is not a JSON object")
	}
	if status, message, ok := openai.ReadErrorObject(v); ok {
		return newEngineError(status, message)
	}
	e := &s.event
	e.read(v)
	if e.usage.present {
		s.usage = e.usage
	}
	if e.choice.matched != nil {
		s.matched = append(s.matched[:0], e.choice.matched...)
	}
	if e.choice.finish != finishNone {
		if s.finish = max(s.finish, e.choice.finish); s.finish == finishAborted {
			return newEngineError(0, "the engine aborted the request")
		}
	}
	return s.client.chunk(e)
}

// close ends a stream that is complete: its end marker came, or it ended after its
// finish reason.
func (s *eventStream) close() error {
	if s.finish == finishNone {
		return malformed("its stream ended without a finish reason")
	}
	if err := s.client.complete(); err != nil {
		return err
	}
	s.done = true
	s.frames = frames{}
	return nil
}
