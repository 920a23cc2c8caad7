package upstream

import (
	"context"
	"fmt"
)

// Channel carries calls to an engine that speaks gRPC. Methods are full names
// ("/package.Service/Method"), messages are in their encoded form. Errors are an *[Error] of
// the transport or a *[StatusError] of the engine. It is safe for concurrent use.
type Channel interface {
	// Invoke calls a method with one message and one answer. message is not kept.
	Invoke(ctx context.Context, method string, message []byte, o CallOptions) (answer []byte, err error)
	// Stream calls a method that answers with any number of messages, and returns when the
	// message is on its way. The caller must read the stream to its end or close it. When ctx
	// ends the engine is told at once.
	Stream(ctx context.Context, method string, message []byte, o CallOptions) (MessageStream, error)
	// CloseIdle closes the connections that carry no call, Close also refuses further calls;
	// calls in flight go on.
	CloseIdle()
	Close()
	// Idle and Active are how many connections carry no call, and how many calls there are.
	Idle() int
	Active() int
}

// CallOptions are those of one call.
type CallOptions struct {
	// Header are lines of metadata, names in lower case.
	Header Header
	Limits Limits
}

// MessageStream is the answer of a call that answers with several messages. Its methods
// belong to one goroutine at a time, Close to any.
type MessageStream interface {
	// Next returns the next message, valid until the next call. At the end with status OK it
	// is io.EOF, else an *Error or a *StatusError. It waits if there is none yet.
	Next() ([]byte, error)
	// Ready is how many messages Next returns without waiting, as far as that is known.
	Ready() int
	// Wait returns when Next need not wait any more. Its error is the one that Next returns.
	Wait() error
	// Close ends the call. If the stream has not ended the engine is told at once.
	Close()
}

// StatusError is the status of a gRPC call that is not OK.
type StatusError struct {
	// Code is the number of the status, Name its name ("INVALID_ARGUMENT").
	Code int
	Name string
	// Message is the engine's, not checked.
	Message string
}

func (e *StatusError) Error() string { return fmt.Sprintf("%s: %s", e.Name, e.Message) }
