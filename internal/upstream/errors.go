package upstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Op is the phase of a request in which it failed.
type Op string

// The phases, in their order.
const (
	OpRequest Op = "request" // the request itself cannot be sent: a fault of the caller
	OpDial    Op = "dial"    // name look-up and TCP connect
	OpTLS     Op = "tls"     // TLS handshake
	OpWrite   Op = "write"   // sending the request
	OpHeader  Op = "header"  // waiting for and reading the head of the response
	OpBody    Op = "body"    // reading the body of the response
)

// Kind is what went wrong.
type Kind string

// The kinds. Local and Invalid and Canceled are not the engine's fault.
const (
	KindRefused     Kind = "refused"     // nobody listens at the address
	KindUnreachable Kind = "unreachable" // no route, host down
	KindResolve     Kind = "resolve"     // the name has no address
	KindTLS         Kind = "tls"         // handshake or certificate
	KindReset       Kind = "reset"       // connection reset, or broken while writing
	KindClosed      Kind = "closed"      // ended by the engine before the answer was whole
	KindTimeout     Kind = "timeout"     // a limit of the request passed; see Error.Limit
	KindMalformed   Kind = "malformed"   // the answer is not HTTP as it should be
	KindTooLarge    Kind = "too_large"   // a part of the answer is over its bound
	KindCanceled    Kind = "canceled"    // the context given to Do ended
	KindLocal       Kind = "local"       // this machine: no file descriptors, no ports
	KindInvalid     Kind = "invalid"     // the request cannot be put on the wire
	KindShutdown    Kind = "shutdown"    // the endpoint was closed
	KindOther       Kind = "other"
)

// Names of limits as they appear in Error.Limit and in messages.
const (
	LimitConnect    = "connect"
	LimitHeader     = "response-header"
	LimitFirstByte  = "first-byte"
	LimitStreamIdle = "stream-idle"
	LimitTotal      = "total"
	LimitDeadPeer   = "dead-peer"
)

// Error is the only type of error that Do and the body's methods return, io.EOF
// at a body's end aside.
type Error struct {
	Op   Op
	Kind Kind
	// Addr is the engine's host and port.
	Addr string
	// Limit and LimitValue name what passed if Kind is KindTimeout, or the bound
	// in bytes or lines if it is KindTooLarge.
	Limit      string
	LimitValue time.Duration
	// Sent: bytes of the request may have reached the engine's process,
	// so that sending it again may make it run twice.
	Sent bool
	// Reused: it happened on a connection used before.
	Reused bool
	// Err is the cause, never nil.
	Err error
	// ctxErr is the context's own error when Err is a custom cause.
	ctxErr error
}

func (e *Error) Error() string {
	what := map[Op]string{
		OpRequest: "cannot send request to", OpDial: "cannot connect to", OpTLS: "cannot agree on TLS with",
		OpWrite: "cannot send request to", OpHeader: "cannot read response head from", OpBody: "cannot read response body from",
	}[e.Op]
	if e.Kind == KindTimeout && e.Limit != "" {
		return fmt.Sprintf("%s %s: the %s limit of %s passed", what, e.Addr, e.Limit, e.LimitValue)
	}
	why := e.Err.Error()
	if kind := string(e.Kind) + ": "; !strings.HasPrefix(why, kind) { // crypto/tls says so itself
		why = kind + why
	}
	return fmt.Sprintf("%s %s: %s", what, e.Addr, why)
}

// ProtocolError is the cause of an error where what is at the address was heard to speak
// another protocol than the endpoint does: most often its URL has the wrong scheme.
type ProtocolError struct {
	// Speaks is the protocol that was heard.
	Speaks Protocol
	// Err is how that showed.
	Err error
}

// Protocol is what is spoken at an address.
type Protocol string

// The protocols that are told apart.
const (
	ProtocolHTTP1 Protocol = "HTTP/1"
	ProtocolHTTP2 Protocol = "HTTP/2" // in the clear, as gRPC without TLS
	ProtocolTLS   Protocol = "TLS"
)

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("what is there speaks %s: %s", e.Speaks, e.Err)
}
func (e *ProtocolError) Unwrap() error { return e.Err }

// The first bytes by which protocols are known; those of HTTP/2 follow three of a length.
const (
	http2Settings = "\x04\x00\x00\x00\x00\x00" // a server's first frame: SETTINGS, no flags, stream 0
	tlsAlert      = "\x15\x03"                 // the record in which a server refuses what is no handshake
)

// protocolOf names the protocol whose server begins with b, as err if none is known by it.
func protocolOf(b []byte, err error) error {
	switch {
	case len(b) >= 9 && string(b[3:9]) == http2Settings:
		return &ProtocolError{ProtocolHTTP2, err}
	case strings.HasPrefix(string(b[:min(len(b), 2)]), tlsAlert):
		return &ProtocolError{ProtocolTLS, err}
	}
	return err
}

// RuleError is the cause of an error of kind [KindMalformed] or [KindTooLarge] where the answer came as it should, by
// gRPC, and breaks a rule of the engine's contract. Its words are not the engine's.
type RuleError struct{ Rule string }

func (e *RuleError) Error() string { return e.Rule }

// Unwrap gives the cause, and for a custom cause of a context also the context's
// own error, so that errors.Is(err, context.Canceled) holds too.
func (e *Error) Unwrap() []error {
	if e.ctxErr != nil && e.ctxErr != e.Err {
		return []error{e.Err, e.ctxErr}
	}
	return []error{e.Err}
}

// Timeout is like that of net.Error.
func (e *Error) Timeout() bool { return e.Kind == KindTimeout }

// EngineFault reports whether err is to be charged to the engine. It is false when the
// caller cancelled, the request was invalid, or this machine lacked a resource.
func EngineFault(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Kind {
	case KindCanceled, KindInvalid, KindLocal, KindShutdown:
		return false
	}
	return true
}

var errLimit = errors.New("time limit passed")

func canceled(ctx context.Context, e *Error) *Error {
	e.Kind, e.Err, e.ctxErr = KindCanceled, context.Cause(ctx), ctx.Err()
	return e
}
