package upstream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/internal/wire"
	"github.com/sluice-router/sluice/internal/workerurl"
)

// Defaults of Config.
const (
	DefaultMaxIdleConns    = 256
	DefaultIdleTimeout     = 4 * time.Second
	DefaultConnectTimeout  = 5 * time.Second
	DefaultDeadPeerTimeout = 30 * time.Second
	DefaultMaxHeaderBytes  = 64 << 10

	// MaxIdleTimeout is the upper bound of Config.IdleTimeout. Engines behind
	// uvicorn close an idle connection after 5 s, observed to the hundredth.
	MaxIdleTimeout = 4900 * time.Millisecond
)

// TLS is how an https or grpcs engine is trusted and how sluice names itself to it. The
// zero value trusts the system's certificates.
type TLS struct {
	CAFile     string         // PEM file; only these authorities are trusted
	RootCAs    *x509.CertPool // instead of CAFile
	CertFile   string         // PEM file of the client certificate; needs KeyFile
	KeyFile    string
	ServerName string // name expected in the engine's certificate, instead of the URL's host
	SkipVerify bool   // accept any certificate
}

// Config is one engine with its transport settings. It prints without its key.
type Config struct {
	URL string // see workerurl.ParseLoose
	TLS TLS
	// APIKey is sent as "Authorization: Bearer …".
	APIKey string
	// HTTP2 carries requests over HTTP/2: by ALPN for https, with prior knowledge
	// for http.
	HTTP2 bool
	// NetHTTP carries HTTP/1.1 with net/http's client instead of the own one, to fall
	// back on if that has a fault.
	NetHTTP bool
	// MaxIdleConns bounds the connections kept warm. 0: DefaultMaxIdleConns,
	// negative: none.
	MaxIdleConns int
	// IdleTimeout is how long an unused connection is kept. 0: DefaultIdleTimeout;
	// at most MaxIdleTimeout.
	IdleTimeout time.Duration
	// ConnectTimeout bounds name look-up, connect and TLS handshake together. 0:
	// DefaultConnectTimeout, negative: none.
	ConnectTimeout time.Duration
	// DeadPeerTimeout is how long an engine's machine may leave data or keep-alive
	// probes unacknowledged before the connection is given up (Linux only). A
	// machine that answers but whose engine is silent is not affected. 0:
	// DefaultDeadPeerTimeout, negative: the system's.
	DeadPeerTimeout time.Duration
	// MaxHeaderBytes bounds the head of a response. 0: DefaultMaxHeaderBytes.
	MaxHeaderBytes int
	// Sockets, if not nil, counts the endpoint's connections, with those of others.
	Sockets *Sockets
	// OpenChannel makes the channel of an engine that speaks gRPC; needed where URL begins
	// with grpc:// or grpcs://. It does not connect.
	OpenChannel func(ChannelConfig) (Channel, error)
	// Dial replaces net.Dialer, for tests.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

func (c Config) String() string {
	key := ""
	if c.APIKey != "" {
		key = " key=…"
	}
	return fmt.Sprintf("upstream(%s http2=%t%s)", redact(c.URL), c.HTTP2, key)
}

// redact hides what may be a password in a URL that could not be read.
func redact(s string) string {
	i := strings.Index(s, "://")
	at := strings.LastIndexByte(s, '@')
	if at < 0 {
		return s
	}
	if i < 0 || i > at {
		return "…" + s[at:]
	}
	return s[:i+3] + "…" + s[at:]
}

// GoString keeps the key out of %#v.
func (c Config) GoString() string { return c.String() }

// LogValue keeps the key out of logs.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

func (c *Config) setDefaults() {
	if c.MaxIdleConns == 0 {
		c.MaxIdleConns = DefaultMaxIdleConns
	}
	if c.MaxIdleConns < 0 {
		c.MaxIdleConns = 0
	}
	if c.IdleTimeout <= 0 {
		c.IdleTimeout = DefaultIdleTimeout
	}
	c.IdleTimeout = min(c.IdleTimeout, MaxIdleTimeout)
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = DefaultConnectTimeout
	}
	if c.DeadPeerTimeout == 0 {
		c.DeadPeerTimeout = DefaultDeadPeerTimeout
	}
	if c.MaxHeaderBytes <= 0 {
		c.MaxHeaderBytes = DefaultMaxHeaderBytes
	}
}

// tlsConfig is nil for http and grpc.
func (c *Config) tlsConfig(b workerurl.URL) (*tls.Config, error) {
	if !b.Secure() {
		return nil, nil
	}
	t := &tls.Config{
		RootCAs:            c.TLS.RootCAs,
		ServerName:         c.TLS.ServerName,
		InsecureSkipVerify: c.TLS.SkipVerify, // the operator asked for it by name
		MinVersion:         tls.VersionTLS12,
		ClientSessionCache: tls.NewLRUClientSessionCache(4),
	}
	if t.ServerName == "" {
		t.ServerName = b.Host
	}
	if c.TLS.CAFile != "" {
		pem, err := os.ReadFile(c.TLS.CAFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read CA file: %w", err)
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cannot use CA file %q: it holds no certificate in PEM form", c.TLS.CAFile)
		}
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		return nil, errors.New("a client certificate needs both its certificate file and its key file")
	}
	if c.TLS.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.TLS.CertFile, c.TLS.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cannot load client certificate %q: %w", c.TLS.CertFile, err)
		}
		t.Certificates = []tls.Certificate{cert}
	}
	return t, nil
}

// Stats counts what an endpoint's connections did since it was made.
type Stats struct {
	Requests int64 // calls of Do
	Dials    int64 // connections asked for
	Reuses   int64 // requests sent over a connection used before
	Stale    int64 // idle connections found dead or dirty when looked at
	Resends  int64 // requests sent a second time, see the package comment
	Active   int64 // connections in use now
	Idle     int64 // connections kept warm now
}

type counters struct {
	requests, active, reuses, dials, stale, resends atomic.Int64
}

// transport carries requests; one implementation is this package's own, one
// net/http's, one has a channel.
type transport interface {
	do(ctx context.Context, req *Request) (*Response, error)
	idle() int // connections kept warm
	closeIdle()
	close()
}

// Endpoint is one engine. It owns its connections and is safe for concurrent use.
type Endpoint struct {
	// immutable
	t       transport
	channel Channel // nil for HTTP

	// atomic
	closed atomic.Bool
	n      counters

	// immutable
	addr string
	base workerurl.URL
	cfg  Config
}

// NewEndpoint checks cfg and makes an endpoint. It does not connect: an engine may
// be down.
func NewEndpoint(cfg Config) (*Endpoint, error) {
	base, err := workerurl.ParseLoose(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("cannot use %q as an engine's URL: it %w", redact(cfg.URL), err)
	}
	cfg.setDefaults()
	if !wire.ValidValue(cfg.APIKey) {
		return nil, fmt.Errorf("cannot use the key for %s: it holds a control character", base)
	}
	tc, err := cfg.tlsConfig(base)
	if err != nil {
		return nil, fmt.Errorf("cannot set up TLS for %s: %w", base, err)
	}
	e := &Endpoint{cfg: cfg, base: base, addr: base.Addr()}
	switch {
	case base.GRPC():
		t, err := newGRPC(e, tc)
		if err != nil {
			return nil, fmt.Errorf("cannot use gRPC for %s: %w", base, err)
		}
		e.t, e.channel = t, t.channel
	case cfg.HTTP2 || cfg.NetHTTP:
		e.t = newNetHTTP(e, tc)
	default:
		e.t = newOwn(e, tc)
	}
	return e, nil
}

// Channel is what carries calls to an engine that speaks gRPC, nil for one that speaks
// HTTP.
func (e *Endpoint) Channel() Channel { return e.channel }

// Base is the engine's canonical URL.
func (e *Endpoint) Base() workerurl.URL { return e.base }

// Do sends req and returns when the head of the response is in, whatever its
// status. The error is an *[Error]. When ctx ends, before or after Do returned,
// the connection is closed at once.
//
// To an engine that speaks gRPC it is one unary call: Path is the full name of the method,
// the body the message, and so is the answer's; Method is not looked at. A gRPC status that
// is not OK becomes an HTTP status with an error as OpenAI's API forms it.
func (e *Endpoint) Do(ctx context.Context, req *Request) (*Response, error) {
	e.n.requests.Add(1)
	if err := checkRequest(req); err != nil {
		return nil, &Error{Op: OpRequest, Kind: KindInvalid, Addr: e.addr, Err: err}
	}
	if ctx.Err() != nil {
		return nil, canceled(ctx, &Error{Op: OpDial, Addr: e.addr})
	}
	if e.closed.Load() {
		return nil, &Error{Op: OpDial, Kind: KindShutdown, Addr: e.addr, Err: net.ErrClosed}
	}
	return e.t.do(ctx, req)
}

// CloseIdle closes the connections not in use.
func (e *Endpoint) CloseIdle() { e.t.closeIdle() }

// Close refuses new requests and closes the connections not in use. Requests in
// flight go on; their connections are closed when they end.
func (e *Endpoint) Close() {
	e.closed.Store(true)
	e.t.close()
}

// Stats returns the counts as of now.
func (e *Endpoint) Stats() Stats {
	s := Stats{
		Requests: e.n.requests.Load(), Dials: e.n.dials.Load(), Reuses: e.n.reuses.Load(),
		Stale: e.n.stale.Load(), Resends: e.n.resends.Load(),
		Active: e.n.active.Load(), Idle: int64(e.t.idle()),
	}
	if e.channel != nil {
		s.Active = int64(e.channel.Active())
	}
	return s
}
