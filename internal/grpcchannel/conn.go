package grpcchannel

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-router/sluice/internal/upstream"
)

const (
	// streamWindow is how many bytes of one call the engine may send ahead of its reader,
	// connWindow those of all calls of a connection until grpc-go has taken them from the
	// socket. 64 KiB is the smallest that grpc-go lets one set.
	streamWindow = 64 << 10
	connWindow   = 1 << 20
	// maxMessage bounds one message of an engine, in bytes: as large as the largest that
	// engines let others send.
	maxMessage = 256 << 20
	// bufSize is that of a connection's read buffer and of its write buffer, which grpc-go
	// only holds while there is something to write.
	bufSize = 32 << 10
)

// conn is one connection as grpc-go has it: it dials again when the connection was lost,
// but not after a dial that failed.
type conn struct {
	// immutable
	ch *Channel
	cc *grpc.ClientConn

	// guarded by Channel.mu
	calls     int
	idleSince time.Time
	retired   bool

	// atomic
	live    atomic.Int32                   // sockets
	dialErr atomic.Pointer[upstream.Error] // of the last dial
	lost    atomic.Pointer[error]          // why the last socket ended
}

func newConn(ch *Channel) (*conn, error) {
	k := &conn{ch: ch}
	creds := insecure.NewCredentials()
	if ch.cfg.Secure {
		creds = secured{}
	}
	cc, err := grpc.NewClient("passthrough:///engine", // the dialer knows the address
		grpc.WithContextDialer(k.dial),
		grpc.WithTransportCredentials(creds),
		grpc.WithAuthority(ch.cfg.Authority),
		grpc.WithUserAgent("sluice"),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithDisableHealthCheck(),
		grpc.WithIdleTimeout(0),
		grpc.WithInitialWindowSize(streamWindow),
		grpc.WithInitialConnWindowSize(connWindow),
		grpc.WithReadBufferSize(bufSize),
		grpc.WithWriteBufferSize(bufSize),
		grpc.WithMaxHeaderListSize(uint32(ch.cfg.MaxHeaderBytes)),
		grpc.WithConnectParams(grpc.ConnectParams{
			// A dial that failed is not repeated, see retire: the back-off only has to be
			// longer than that takes. It is also grpc-go's time to connect; the real one is
			// that of the dial and of socket.
			Backoff:           backoff.Config{BaseDelay: time.Hour, Multiplier: 1, MaxDelay: time.Hour},
			MinConnectTimeout: time.Hour,
		}),
		grpc.WithDefaultCallOptions(
			grpc.ForceCodecV2(rawCodec),
			grpc.MaxCallRecvMsgSize(ch.maxMessage),
		),
	)
	if err != nil {
		return nil, err
	}
	k.cc = cc
	return k, nil
}

func (k *conn) open() bool { return k.live.Load() > 0 }
func (k *conn) close()     { _ = k.cc.Close() }

// dialMark is in the text of a call's error if it failed for want of a connection.
const dialMark = "sluice cannot connect: "

// dial is called by grpc-go whenever it wants a connection.
func (k *conn) dial(ctx context.Context, _ string) (net.Conn, error) {
	start := time.Now()
	c, err := k.ch.cfg.Dial(ctx)
	if err != nil {
		var e *upstream.Error
		if !errors.As(err, &e) {
			e = &upstream.Error{Op: upstream.OpDial, Kind: upstream.KindOther, Addr: k.ch.cfg.Addr, Err: err}
		}
		k.dialErr.Store(e)
		return nil, errors.New(dialMark + err.Error())
	}
	k.dialErr.Store(nil)
	k.lost.Store(nil)
	k.live.Add(1)
	s := &socket{Conn: c, k: k}
	if d := k.ch.cfg.ConnectTimeout; d > 0 {
		s.greeting = true
		_ = c.SetReadDeadline(start.Add(d))
	}
	return s, nil
}

// socket notes why a connection ended, which grpc-go tells as text only, and bounds the wait
// for the server's first bytes.
type socket struct {
	net.Conn
	k    *conn
	over atomic.Bool
	// greeting: nothing has been read yet, and the connect limit still runs. It is grpc-go's
	// reader's.
	greeting bool
}

func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if s.greeting && n > 0 {
		s.greeting = false
		_ = s.SetReadDeadline(time.Time{})
	}
	if err != nil && !s.over.Load() {
		s.k.lost.CompareAndSwap(nil, &err)
	}
	return n, err
}

func (s *socket) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	if err != nil && !s.over.Load() {
		s.k.lost.CompareAndSwap(nil, &err)
	}
	return n, err
}

func (s *socket) Close() error {
	if !s.over.Swap(true) {
		s.k.live.Add(-1)
	}
	return s.Conn.Close()
}

// secured are credentials for connections that are secure when they come from the dialer.
type secured struct{}

func (secured) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, credentials.TLSInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

func (secured) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.ErrUnsupported
}

func (secured) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}
func (s secured) Clone() credentials.TransportCredentials { return s }
func (secured) OverrideServerName(string) error           { return nil }
