package grpcchannel

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"

	"github.com/sluice-router/sluice/internal/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bytesCodec is the server's: messages are []byte.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (bytesCodec) Unmarshal(d mem.BufferSlice, v any) error {
	*v.(*[]byte) = d.Materialize()
	return nil
}

// engine is a server whose every method is serve, which gets the call's message.
type engine struct {
	*grpc.Server
	addr string
}

// serveCall answers a call with a message.
type serveCall func(s grpc.ServerStream, in []byte) error

func startEngine(t testing.TB, addr string, serve serveCall, opts ...grpc.ServerOption) *engine {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	opts = append(opts, grpc.ForceServerCodecV2(bytesCodec{}), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
		var in []byte
		if err := s.RecvMsg(&in); err != nil {
			return err
		}
		return serve(s, in)
	}))
	e := &engine{Server: grpc.NewServer(opts...), addr: l.Addr().String()}
	done := make(chan struct{})
	go func() { defer close(done); _ = e.Serve(l) }()
	t.Cleanup(func() { e.Stop(); <-done })
	return e
}

func echo(s grpc.ServerStream, in []byte) error { return s.SendMsg(in) }

// endpoint reaches addr as a worker's endpoint does.
func endpoint(t testing.TB, url string, edit func(*upstream.Config)) *upstream.Endpoint {
	t.Helper()
	cfg := upstream.Config{URL: url, OpenChannel: Open}
	if edit != nil {
		edit(&cfg)
	}
	ep, err := upstream.NewEndpoint(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ep.Close)
	return ep
}

func channelTo(t testing.TB, addr string) *Channel {
	t.Helper()
	return endpoint(t, "grpc://"+addr, nil).Channel().(*Channel)
}

const method = "/test.Engine/Generate"

func openStream(ctx context.Context, t *testing.T, c upstream.Channel, msg string, l upstream.Limits) upstream.MessageStream {
	t.Helper()
	s, err := c.Stream(ctx, method, []byte(msg), upstream.CallOptions{Limits: l})
	if err != nil {
		t.Fatalf("Stream: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}

// readAll reads to the end, which must be a good one.
func readAll(t *testing.T, s upstream.MessageStream) (out []string) {
	t.Helper()
	for {
		p, err := s.Next()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatalf("Next: %v after %d messages", err, len(out))
		}
		out = append(out, string(p))
	}
}

// transportError is err as an error of the transport.
func transportError(t *testing.T, err error) *upstream.Error {
	t.Helper()
	var e *upstream.Error
	if !errors.As(err, &e) {
		t.Fatalf("error is %T (%v), want *upstream.Error", err, err)
	}
	return e
}

func wantKind(t *testing.T, err error, kind upstream.Kind, op upstream.Op, sent bool) *upstream.Error {
	t.Helper()
	e := transportError(t, err)
	if e.Kind != kind || e.Op != op || e.Sent != sent {
		t.Fatalf("got kind %s, op %s, sent %t; want %s, %s, %t (%v)", e.Kind, e.Op, e.Sent, kind, op, sent, err)
	}
	return e
}

// soon waits for c, long enough for any machine.
func soon(t *testing.T, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s did not happen", what)
	}
}
