package grpcchannel

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-router/sluice/internal/upstream"
)

var errMethod = errors.New("the method is not like /package.Service/Method")

// Texts by which grpc-go tells that it made a status itself. An engine that uses them for
// one of its own only gets itself blamed for a broken connection.
var (
	// lostTexts: the connection or the stream ended before the call did.
	lostTexts = []string{
		"error reading from server", "closing transport due to", "transport is closing", "connection error:",
		"the connection is draining", "draining the connection", "no active streams left", "keepalive ping failed",
		"server is not reading", "stream terminated by RST_STREAM", "the provided transport is no longer valid",
	}
	// malformedTexts: what came is not gRPC.
	malformedTexts = []string{
		"server closed the stream without sending trailers", "transport: malformed", "malformed header", "cardinality violation",
		"a HEADERS frame cannot appear", "grpc: failed to decompress", "grpc: Decompressor is not installed",
		"grpc: received unexpected payload format", "grpc: compressed flag set", "grpc: peer compressed",
		"received unexpected content-type", "missing HTTP content-type", "no decompressor available",
	}
	// largeTexts: a message is over its bound, or (largeHead) the metadata. Engines and proxies
	// that are made with grpc-go tell so of messages that were sent to them, with their own bound.
	largeTexts = []string{"grpc: received message larger than max", "grpc: message after decompression larger", "grpc: received message after decompression larger"}
	largeHead  = "peer header list size exceeded limit"
	// http1Text: the server's first bytes are HTTP/1. prefaceEOFText: there are none.
	http1Text      = "looked like an HTTP/1.1 header"
	prefaceEOFText = `error reading server preface: EOF"`
)

func containsAny(s string, of []string) bool {
	for _, t := range of {
		if strings.Contains(s, t) {
			return true
		}
	}
	return false
}

// explain completes e for err of grpc-go, or returns the engine's status. Neither the caller
// nor a limit has ended the call.
func (k *conn) explain(e *upstream.Error, err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return upstream.NewBroken(err, k.ch.cfg.DeadPeerTimeout, e)
	}
	text, opening := st.Message(), !e.Sent
	e.Err = errors.New(text)
	switch {
	case strings.Contains(text, dialMark):
		// Also a stream that the engine has never looked at, and that could not be sent again.
		k.ch.retire(k)
		e.Op, e.Sent = upstream.OpDial, false
		if d := k.dialErr.Load(); d != nil {
			e.Op, e.Kind, e.Limit, e.LimitValue, e.Err = d.Op, d.Kind, d.Limit, d.LimitValue, d.Err
		}
		return e
	case containsAny(text, largeTexts) && strings.Contains(text, strconv.Itoa(k.ch.maxMessage)):
		e.Op, e.Kind = upstream.OpBody, upstream.KindTooLarge // also if it is the first
		e.Err = &upstream.RuleError{Rule: fmt.Sprintf("a message is larger than %d MiB", k.ch.maxMessage>>20)}
		return e
	case strings.Contains(text, largeHead):
		e.Kind = upstream.KindTooLarge
		return e
	case st.Code() == codes.Canceled && strings.Contains(text, "the client connection is closing"):
		e.Kind = upstream.KindShutdown
		return e
	case opening:
		e.Err = heard(text)
		// There was a connection, but no stream came to be: what is at the other end does not
		// begin as HTTP/2 does, or not in time.
		k.ch.retire(k)
		e.Kind = upstream.KindMalformed
		lost := k.lost.Load()
		switch {
		case lost == nil:
			return e
		case k.ch.cfg.Secure && strings.Contains((*lost).Error(), "tls: "):
			// TLS 1.3 lets the client go on before the server has judged its certificate.
			e.Op, e.Kind, e.Err = upstream.OpTLS, upstream.KindTLS, *lost
			return e
		case errors.Is(*lost, os.ErrDeadlineExceeded):
			return upstream.NewTimeout(upstream.LimitConnect, k.ch.cfg.ConnectTimeout, e)
		}
		return k.broken(e, *lost, e.Err)
	case strings.Contains(text, "error code: REFUSED_STREAM"), strings.Contains(text, "stream is rejected because server is draining"):
		// By HTTP/2 nothing of it was looked at. grpc-go has sent it a second time already.
		e.Kind, e.Sent = upstream.KindClosed, false
		return e
	case strings.Contains(text, "stream terminated by RST_STREAM"):
		e.Kind = upstream.KindReset
		return e
	case st.Code() == codes.Internal && text == io.ErrUnexpectedEOF.Error():
		e.Kind = upstream.KindClosed
		return e
	case containsAny(text, malformedTexts):
		e.Kind = upstream.KindMalformed
		return e
	case st.Code() == codes.Unavailable && containsAny(text, lostTexts):
		e.Kind = upstream.KindClosed
		if lost := k.lost.Load(); lost != nil {
			return k.broken(e, *lost, e.Err)
		}
		return e
	}
	return &upstream.StatusError{Code: int(st.Code()), Name: codeName(st.Code()), Message: text}
}

// broken completes e by why the socket ended, and keeps grpc-go's words where those say more.
func (k *conn) broken(e *upstream.Error, lost, words error) *upstream.Error {
	was := e.Kind
	e = upstream.NewBroken(lost, k.ch.cfg.DeadPeerTimeout, e)
	if e.Kind == upstream.KindOther {
		e.Kind = was
	}
	e.Err = &lostError{words, lost}
	return e
}

// heard is grpc-go's text of a connection that came to nothing, with what that says of the
// protocol that is spoken at the address.
func heard(text string) error {
	switch {
	case strings.Contains(text, http1Text):
		return &upstream.ProtocolError{Speaks: upstream.ProtocolHTTP1, Err: errors.New("no HTTP/2, as gRPC needs")}
	case strings.HasSuffix(text, prefaceEOFText):
		return errors.New("it was ended before anything came, as by a server that expects TLS (" + text + ")")
	}
	return errors.New(text)
}

type lostError struct{ words, cause error }

func (e *lostError) Error() string   { return e.words.Error() }
func (e *lostError) Unwrap() []error { return []error{e.words, e.cause} }

var codeNames = [...]string{
	"OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
	"PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
	"UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
}

// codeName is a status's name as gRPC's contract spells it.
func codeName(c codes.Code) string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return "UNKNOWN"
}

// reserved tells whether a line of metadata belongs to the connection or to gRPC.
func reserved(name string) bool {
	switch name {
	case "host", "content-type", "content-length", "user-agent", "te", "connection", "keep-alive", "proxy-connection",
		"transfer-encoding", "upgrade", "expect", "trailer", "accept", "accept-encoding", "content-encoding":
		return true
	}
	return strings.HasPrefix(name, "grpc-")
}

// printable tells whether gRPC carries the value of a line of metadata.
func printable(v string) bool {
	for i := range len(v) {
		if v[i] < ' ' || v[i] > '~' {
			return false
		}
	}
	return true
}
