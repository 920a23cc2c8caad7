package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strconv"
	"sync/atomic"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-router/sluice/internal/mono"
)

// grpc carries requests as unary calls of gRPC, see Do.
type grpc struct {
	// immutable
	ep      *Endpoint
	tls     *tls.Config // nil for grpc
	channel Channel
	dialer  func(ctx context.Context, network, addr string) (net.Conn, error) // counts

	open atomic.Int64 // connections
	lost atomic.Int64 // connections that the other end has ended
	back atomic.Int64 // lost when a connection was made last

	onLost atomic.Pointer[func()]
}

func (t *grpc) tell() {
	if f := t.onLost.Load(); f != nil {
		(*f)()
	}
}

// watchedConn counts a connection that ends before it is closed here.
type watchedConn struct {
	net.Conn
	t    *grpc
	over atomic.Bool
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && !c.over.Swap(true) {
		c.t.lost.Add(1)
		c.t.tell()
	}
	return n, err
}

func (c *watchedConn) Close() error {
	c.over.Store(true)
	return c.Conn.Close()
}

// Lost counts the connections that the engine, or the network, has ended: after that another
// process may be at its address. It is 0 for engines by HTTP, which end idle connections as
// they like.
func (e *Endpoint) Lost() int64 {
	if t, ok := e.t.(*grpc); ok {
		return t.lost.Load()
	}
	return 0
}

// OnLost has f called after Lost has grown, and again when there is a connection after that:
// what it leads to may be told apart only then. f must not block.
func (e *Endpoint) OnLost(f func()) {
	if t, ok := e.t.(*grpc); ok {
		t.onLost.Store(&f)
	}
}

var errNoGRPC = errors.New("this program has no gRPC")

func newGRPC(e *Endpoint, tc *tls.Config) (*grpc, error) {
	if e.cfg.OpenChannel == nil {
		return nil, errNoGRPC
	}
	if tc != nil {
		tc.NextProtos = []string{"h2"} // gRPC's servers refuse those that do not ask for it
	}
	t := &grpc{ep: e, tls: tc}
	dial := e.cfg.Dial
	if dial == nil {
		dial = e.dialer().DialContext
	}
	t.dialer = e.cfg.Sockets.count(dial, &t.open)
	var err error
	t.channel, err = e.cfg.OpenChannel(ChannelConfig{
		Addr: e.addr, Authority: e.base.Authority(), Dial: t.dial, Secure: tc != nil, APIKey: e.cfg.APIKey,
		ConnectTimeout: e.cfg.ConnectTimeout, DeadPeerTimeout: e.cfg.DeadPeerTimeout, MaxHeaderBytes: e.cfg.MaxHeaderBytes,
	})
	if err != nil {
		return nil, err
	}
	e.cfg.Sockets.addNet(t)
	return t, nil
}

// dial connects and agrees on TLS, all within the connect limit.
func (t *grpc) dial(ctx context.Context) (net.Conn, error) {
	e := t.ep
	e.n.dials.Add(1)
	if e.cfg.ConnectTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, mono.Now().Add(e.cfg.ConnectTimeout).Time())
		defer cancel()
	}
	op := OpDial
	c, err := t.dialer(ctx, "tcp", e.addr)
	if err == nil {
		c = newRawSocket(c)
	}
	if err == nil && t.tls != nil {
		op = OpTLS
		c, err = handshake(ctx, c, t.tls)
	}
	if err == nil {
		if n := t.lost.Load(); t.back.Swap(n) != n {
			t.tell()
		}
		return &watchedConn{Conn: c, t: t}, nil
	}
	out := &Error{Op: op, Kind: KindOther, Addr: e.addr, Err: err}
	classify(out, err)
	switch {
	case out.Kind == KindTimeout && e.cfg.ConnectTimeout > 0:
		out.Limit, out.LimitValue = LimitConnect, e.cfg.ConnectTimeout
	case op == OpTLS && out.Kind == KindOther:
		out.Kind = KindTLS
	}
	return nil, out
}

var errNoHTTP2 = errors.New("the engine does not agree on HTTP/2, which gRPC needs")

// handshake closes c if it fails.
func handshake(ctx context.Context, c net.Conn, tc *tls.Config) (net.Conn, error) {
	out := tls.Client(c, tc)
	err := out.HandshakeContext(ctx)
	if err == nil && out.ConnectionState().NegotiatedProtocol != "h2" {
		err = errNoHTTP2
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return out, nil
}

func (t *grpc) idle() int     { return t.channel.Idle() }
func (t *grpc) closeIdle()    { t.channel.CloseIdle() }
func (t *grpc) opened() int64 { return t.open.Load() }

func (t *grpc) close() {
	t.ep.cfg.Sockets.dropNet(t)
	t.channel.Close()
}

func (t *grpc) do(ctx context.Context, req *Request) (*Response, error) {
	var message []byte
	if len(req.Body) == 1 {
		message = req.Body[0]
	} else if n := bodyLen(req); n > 0 {
		message = make([]byte, 0, n)
		for _, s := range req.Body {
			message = append(message, s...)
		}
	}
	answer, err := t.channel.Invoke(ctx, req.Path, message, CallOptions{Header: req.Header, Limits: req.Limits})
	if err == nil {
		return NewResponse(200, Header{{"Content-Type", "application/grpc"}}, int64(len(answer)), &bytesBody{left: answer}), nil
	}
	var st *StatusError
	if errors.As(err, &st) {
		return st.Response(), nil
	}
	return nil, err
}

// Status is the HTTP status that means the same.
func (e *StatusError) Status() int {
	switch e.Code {
	case 3, 9, 11: // INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_RANGE
		return 400
	case 16: // UNAUTHENTICATED
		return 401
	case 7: // PERMISSION_DENIED
		return 403
	case 5: // NOT_FOUND
		return 404
	case 6, 10: // ALREADY_EXISTS, ABORTED
		return 409
	case 8: // RESOURCE_EXHAUSTED
		return 429
	case 12: // UNIMPLEMENTED
		return 501
	case 1: // CANCELLED: the engine did that by itself
		return 502
	case 14: // UNAVAILABLE
		return 503
	case 4: // DEADLINE_EXCEEDED
		return 504
	}
	return 500
}

// maxStatusMessage bounds what is shown of an engine's message, in bytes.
const maxStatusMessage = 8 << 10

// Response is the answer that tells of the error as an engine behind HTTP would: with a
// status and a body as OpenAI's API has them.
func (e *StatusError) Response() *Response {
	status := e.Status()
	kind := "invalid_request_error"
	if status >= 500 {
		kind = "server_error"
	}
	message := e.Message
	if len(message) > maxStatusMessage {
		message = message[:maxStatusMessage]
	}
	if message == "" {
		message = "the engine answered with status " + e.Name
	}
	b := append([]byte(nil), `{"error":{"message":`...)
	b, _ = jsontext.AppendQuote(b, []byte(message)) // what is no UTF-8 is replaced
	b = append(b, `,"type":"`...)
	b = append(b, kind...)
	b = append(b, `","param":null,"code":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, "}}"...)
	resp := NewResponse(status, Header{{"Content-Type", "application/json"}}, int64(len(b)), &bytesBody{left: b})
	resp.Ended = e.Ended()
	return resp
}

// Ended tells whether the status says that the engine ended what it had begun: CANCELLED or
// DEADLINE_EXCEEDED. There is no proxy that could have said so instead of it, as with HTTP.
func (e *StatusError) Ended() bool { return e.Code == 1 || e.Code == 4 }

// bytesBody is a body that is there as a whole.
type bytesBody struct {
	left []byte
	over bool // closed before its end
}

func (b *bytesBody) end() error {
	if b.over {
		return &Error{Op: OpBody, Kind: KindShutdown, Sent: true, Err: net.ErrClosed}
	}
	return io.EOF
}

// Next implements Body.
func (b *bytesBody) Next() ([]byte, error) {
	if len(b.left) == 0 {
		return nil, b.end()
	}
	p := b.left
	b.left = nil
	return p, nil
}

// Read implements Body.
func (b *bytesBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if len(b.left) == 0 {
		return 0, b.end()
	}
	n := copy(p, b.left)
	b.left = b.left[n:]
	return n, nil
}

// Buffered implements Body.
func (b *bytesBody) Buffered() int { return len(b.left) }

// Done implements Body.
func (b *bytesBody) Done() bool { return true }

// WaitReadable implements Body.
func (b *bytesBody) WaitReadable() error {
	if len(b.left) == 0 {
		return b.end()
	}
	return nil
}

// RequestSent implements Body.
func (b *bytesBody) RequestSent() bool { return true }

// Trailer implements Body.
func (b *bytesBody) Trailer(string) string { return "" }

// Close implements Body.
func (b *bytesBody) Close() error {
	b.over = b.over || len(b.left) > 0
	b.left = nil
	return nil
}
