package translate

import (
	"github.com/sluice-router/sluice/internal/openai"
)

// Options are the options of a translation. The zero value is usable.
type Options struct {
	// ID makes the ids of the answer and its parts ("msg_" + ID, "resp_" + ID, ...);
	// it must be unique per request and is best made of letters, digits and '-'.
	ID string
	// Created is the answer's time of creation, in Unix seconds.
	Created int64
	// MaxEventBytes bounds one event of the engine's stream; 0 is
	// openai.DefaultMaxEventBytes.
	MaxEventBytes int
	// MaxOutputBytes bounds the output that a Responses stream keeps, because its
	// last event repeats all of it, and what a Messages stream holds back while
	// another block is open; 0 is DefaultMaxOutputBytes.
	MaxOutputBytes int
	// RefuseTools refuses tools that cannot be passed to the engine; else they are left
	// out, and Exchange.Note says so.
	RefuseTools bool
}

// DefaultMaxOutputBytes is 16 MiB: several million tokens.
const DefaultMaxOutputBytes = 16 << 20

func (o Options) withDefaults() Options {
	if o.MaxEventBytes <= 0 {
		o.MaxEventBytes = openai.DefaultMaxEventBytes
	}
	if o.MaxOutputBytes <= 0 {
		o.MaxOutputBytes = DefaultMaxOutputBytes
	}
	return o
}

// Exchange is a request that was translated, and turns its answer back. It keeps
// nothing of the request's body.
type Exchange interface {
	// Note says what of the request was left out that the client may miss, in
	// printable ASCII that fits a header; "" if nothing was.
	Note() string
	// Answer translates a whole answer with status 200. prompt is the router's own
	// count of the prompt's tokens, which is reported if the engine reports none. The
	// error is an *EngineError if the answer has one, a *LimitError if it exceeded a
	// limit, else an *openai.Error with status 502: the engine did not send a chat
	// answer. The output of the model is never an error.
	Answer(chat []byte, prompt int64) ([]byte, error)
	// AppendError appends the client's form of an engine's answer with any other
	// status.
	AppendError(dst []byte, status int, body []byte) []byte
	// Stream begins the translation of an event stream. prompt is as in Answer; it is
	// also reported if the engine's count comes too late.
	Stream(prompt int64) Stream
}

// Stream translates one event stream. write is called with whole events, to be sent at
// once; the bytes are only valid during the call. A Stream is not safe for concurrent
// use.
type Stream interface {
	// Feed takes the next piece of the engine's stream, cut anywhere. An error ends
	// the stream; the client gets it only from Fail. It is one of those of
	// Exchange.Answer.
	Feed(piece []byte, write func([]byte)) error
	// End is called at the end of the engine's stream. It is an error if the answer
	// was cut short.
	End(write func([]byte)) error
	// Fail sends an error to the client as the last event, unless the stream is
	// complete.
	Fail(e *openai.Error, write func([]byte))
	// Ping writes an event or comment that keeps a silent stream alive.
	Ping(write func([]byte))
	// Held is how many bytes of the answer are held in memory: those that cannot be sent
	// yet, and those that the last event repeats.
	Held() int
	// Started reports whether the client was sent an event; before that an error may
	// still be a status.
	Started() bool
	// Done reports whether the last event was written.
	Done() bool
}

var (
	_ Exchange = (*Messages)(nil)
	_ Exchange = (*Responses)(nil)
	_ Stream   = (*messagesStream)(nil)
	_ Stream   = (*responsesStream)(nil)
)
