package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"
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

// ChannelConfig is what a channel to one engine is made of.
type ChannelConfig struct {
	// Addr is the engine's host and port, as errors name it; Authority is what requests name.
	Addr, Authority string
	// Dial opens a connection to the engine, TLS included. Its error is an *[Error]. It
	// counts the connection; closing it ends that.
	Dial func(ctx context.Context) (net.Conn, error)
	// Secure tells that Dial agrees on TLS.
	Secure bool
	// APIKey is sent with every call as "authorization: Bearer …".
	APIKey string
	// ConnectTimeout bounds what comes after Dial until the connection can be used;
	// negative: nothing does. DeadPeerTimeout is that of Config, which Dial sees to.
	ConnectTimeout, DeadPeerTimeout time.Duration
	// MaxHeaderBytes bounds the metadata of an answer.
	MaxHeaderBytes int
}

// NewCanceled completes e for a call whose ctx has ended.
func NewCanceled(ctx context.Context, e *Error) *Error { return canceled(ctx, e) }

// NewTimeout completes e for a call of which a limit has passed.
func NewTimeout(limit string, value time.Duration, e *Error) *Error {
	e.Kind, e.Limit, e.LimitValue, e.Err = KindTimeout, limit, value, errLimit
	return e
}

// NewBroken completes e for a call whose connection ended with err.
func NewBroken(err error, deadPeer time.Duration, e *Error) *Error {
	e.Err = err
	classify(e, err)
	if errors.Is(err, syscall.ETIMEDOUT) {
		e.Kind, e.Limit, e.LimitValue = KindTimeout, LimitDeadPeer, deadPeer
	}
	return e
}
