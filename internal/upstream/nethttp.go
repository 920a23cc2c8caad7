package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/internal/wire"
)

// netHTTP sends requests with net/http's client: HTTP/2, and HTTP/1.1 where
// Config.NetHTTP asks for it.
type netHTTP struct {
	ep   *Endpoint
	rt   *http.Transport
	open atomic.Int64 // connections
}

func newNetHTTP(e *Endpoint, tc *tls.Config) *netHTTP {
	dial := e.cfg.Dial
	if dial == nil {
		dial = e.dialer().DialContext
	}
	idle := e.cfg.MaxIdleConns
	t := &netHTTP{ep: e}
	rt := &http.Transport{
		DialContext:            e.cfg.Sockets.count(dial, &t.open),
		TLSClientConfig:        tc,
		DisableCompression:     true,
		DisableKeepAlives:      idle == 0,
		MaxIdleConnsPerHost:    idle,
		IdleConnTimeout:        e.cfg.IdleTimeout,
		MaxResponseHeaderBytes: int64(e.cfg.MaxHeaderBytes),
		WriteBufferSize:        4 << 10,
		ReadBufferSize:         4 << 10,
		Protocols:              new(http.Protocols),
	}
	if e.cfg.ConnectTimeout > 0 {
		rt.TLSHandshakeTimeout = e.cfg.ConnectTimeout
	}
	switch {
	case !e.cfg.HTTP2:
		rt.Protocols.SetHTTP1(true)
	case tc != nil:
		rt.Protocols.SetHTTP2(true)
		rt.ForceAttemptHTTP2 = true
	default:
		rt.Protocols.SetUnencryptedHTTP2(true)
	}
	if e.cfg.HTTP2 {
		// Otherwise a dead connection would not be detected, and all its streams hang.
		rt.HTTP2 = &http.HTTP2Config{}
		if e.cfg.DeadPeerTimeout > 0 {
			rt.HTTP2.SendPingTimeout = e.cfg.DeadPeerTimeout / 2
			rt.HTTP2.PingTimeout = e.cfg.DeadPeerTimeout / 2
		}
	}
	t.rt = rt
	e.cfg.Sockets.addNet(t)
	return t
}

func (t *netHTTP) closeIdle()    { t.rt.CloseIdleConnections() }
func (t *netHTTP) opened() int64 { return t.open.Load() }

// close also makes net/http close the connections in use when they are free.
func (t *netHTTP) close() {
	t.ep.cfg.Sockets.dropNet(t)
	t.rt.CloseIdleConnections()
}

// idle is how many connections carry no request, about.
func (t *netHTTP) idle() int {
	open, active := t.open.Load(), t.ep.n.active.Load()
	if t.ep.cfg.HTTP2 && active > 0 {
		active = open // one may carry them all
	}
	return int(max(open-active, 0))
}

func (t *netHTTP) do(ctx context.Context, req *Request) (*Response, error) {
	e := t.ep
	u, err := url.ParseRequestURI(e.target(req))
	if err != nil {
		return nil, &Error{Op: OpRequest, Kind: KindInvalid, Addr: e.addr, Err: errors.New("the path is not a valid request target")}
	}
	u.Scheme, u.Host = e.base.Scheme, e.base.Addr()

	b := &netHTTPBody{ep: e, ctx: ctx, limits: req.Limits, start: time.Now()}
	inner, cancel := context.WithCancelCause(ctx)
	b.cancel = cancel
	inner = httptrace.WithClientTrace(inner, &httptrace.ClientTrace{
		ConnectStart: func(string, string) { e.n.dials.Add(1) },
		GotConn: func(i httptrace.GotConnInfo) {
			b.reused.Store(i.Reused)
			b.sent.Store(true)
			if i.Reused {
				e.n.reuses.Add(1)
			}
		},
	})

	hr := (&http.Request{
		Method: req.Method, URL: u, Host: e.base.Authority(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: make(http.Header, len(req.Header)+2),
	}).WithContext(inner)
	hr.Header["User-Agent"] = nil // none but the caller's
	for _, f := range req.Header {
		if connectionHeader(f.Name) || e.cfg.APIKey != "" && strings.EqualFold(f.Name, "Authorization") {
			continue
		}
		k := http.CanonicalHeaderKey(f.Name)
		hr.Header[k] = append(hr.Header[k], f.Value)
	}
	if e.cfg.APIKey != "" {
		hr.Header["Authorization"] = []string{"Bearer " + e.cfg.APIKey}
	}
	if n := bodyLen(req); n > 0 {
		b.out = &segments{segs: req.Body}
		hr.ContentLength = n
		hr.Body = &segmentReader{s: b.out}
		hr.GetBody = func() (io.ReadCloser, error) { return &segmentReader{s: b.out}, nil }
	} else if len(req.Body) > 0 || req.Method == "POST" || req.Method == "PUT" || req.Method == "PATCH" {
		hr.Body = http.NoBody
	}

	e.n.active.Add(1)
	// The limits count from here: net/http does not say when it got a connection
	// without a race, and the dial has a limit of its own.
	b.arm(OpHeader)
	resp, err := t.rt.RoundTrip(hr) //nolint:bodyclose // the caller closes it
	if err != nil {
		op := OpHeader
		if !b.sent.Load() {
			op = OpDial
		}
		return nil, b.fail(op, err)
	}
	b.arm(OpBody)
	b.resp = resp
	out := &Response{Status: resp.StatusCode, ContentLength: resp.ContentLength, Reused: b.reused.Load(), Body: b}
	var sb strings.Builder
	for k, vs := range resp.Header {
		for _, v := range vs {
			if !wire.ValidToken(k) || !wire.ValidValue(v) {
				return nil, b.fail(OpHeader, errNetHTTPHeader)
			}
			sb.WriteString(k)
			sb.WriteString(": ")
			sb.WriteString(v)
			sb.WriteString("\n")
		}
	}
	if resp.ContentLength >= 0 && resp.Header["Content-Length"] == nil {
		fmt.Fprintf(&sb, "Content-Length: %d\n", resp.ContentLength)
	}
	out.head = sb.String()
	return out, nil
}

var errNetHTTPHeader = errors.New("malformed header")

// netHTTPBody is a body and the limits of its request.
type netHTTPBody struct {
	// immutable after do
	ep     *Endpoint
	ctx    context.Context
	cancel context.CancelCauseFunc
	limits Limits
	start  time.Time
	resp   *http.Response
	out    *segments

	// atomic
	reused, sent atomic.Bool

	// owned by the caller's goroutine
	timer   *time.Timer
	buf     *[wire.BufSize]byte
	r, w    int
	pending error // came with the bytes in buf
	err     error // sticky
	first   bool  // a byte of the body has come

	mu    sync.Mutex
	limit string        // guarded by mu: what the timer stands for
	value time.Duration // guarded by mu
	fired bool          // guarded by mu
}

// arm sets the timer to the limit that passes first in the phase op.
func (b *netHTTPBody) arm(op Op) {
	now := time.Now()
	var at time.Time
	var limit string
	var value time.Duration
	add := func(name string, d time.Duration, from time.Time) {
		if d > 0 && (limit == "" || from.Add(d).Before(at)) {
			at, limit, value = from.Add(d), name, d
		}
	}
	add(LimitTotal, b.limits.Total, b.start)
	if op == OpHeader {
		add(LimitHeader, b.limits.Header, b.start)
	} else {
		add(LimitStreamIdle, b.limits.StreamIdle, now)
	}
	if !b.first {
		add(LimitFirstByte, b.limits.FirstByte, b.start)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fired {
		return
	}
	b.limit, b.value = limit, value
	switch {
	case limit == "":
		if b.timer != nil {
			b.timer.Stop()
		}
	case b.timer == nil:
		cancel := b.cancel // release may end the exchange just when the timer fires
		b.timer = time.AfterFunc(at.Sub(now), func() {
			b.mu.Lock()
			b.fired = true
			b.mu.Unlock()
			cancel(errLimit)
		})
	default:
		b.timer.Reset(at.Sub(now))
	}
}

func (b *netHTTPBody) limitPassed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fired
}

// fail ends the exchange with what err means, once.
func (b *netHTTPBody) fail(op Op, err error) *Error {
	e := &Error{Op: op, Kind: KindOther, Addr: b.ep.addr, Sent: b.sent.Load(), Reused: b.reused.Load(), Err: err}
	b.mu.Lock()
	fired, limit, value := b.fired, b.limit, b.value
	b.mu.Unlock()
	switch {
	case b.ctx.Err() != nil:
		_ = canceled(b.ctx, e)
	case fired:
		e.Kind, e.Limit, e.LimitValue, e.Err = KindTimeout, limit, value, errLimit
	default:
		classify(e, err)
		if s := err.Error(); e.Kind == KindOther && (strings.Contains(s, "malformed") || strings.Contains(s, "invalid") || strings.Contains(s, "too many transfer encodings") || strings.Contains(s, "unsupported transfer encoding")) {
			e.Kind = KindMalformed
		} else if strings.Contains(s, "server response headers exceeded") {
			e.Kind = KindTooLarge
		}
		if e.Op == OpDial && e.Kind == KindTimeout {
			e.Limit, e.LimitValue = LimitConnect, b.ep.cfg.ConnectTimeout
		}
	}
	b.err = e
	b.release()
	return e
}

// release gives back everything but the error.
func (b *netHTTPBody) release() {
	if b.cancel == nil {
		return
	}
	b.mu.Lock()
	if b.timer != nil {
		b.timer.Stop()
	}
	b.mu.Unlock()
	if b.out != nil {
		b.out.detach()
	}
	b.cancel(nil)
	b.cancel = nil
	if b.resp != nil {
		b.resp.Body.Close()
	}
	b.dropBuf()
	b.ep.n.active.Add(-1)
}

func (b *netHTTPBody) dropBuf() {
	if b.buf != nil {
		wire.PutBuf(b.buf)
		b.buf = nil
	}
}

// fill waits for bytes; net/http needs a buffer for it.
func (b *netHTTPBody) fill() {
	for b.r == b.w && b.err == nil {
		if b.pending != nil {
			// An engine that sees the connection close may end its answer in a regular
			// way, and net/http may still read it.
			if b.pending == io.EOF && b.ctx.Err() == nil && !b.limitPassed() {
				b.err = io.EOF
				b.release()
			} else {
				_ = b.fail(OpBody, b.pending)
			}
			return
		}
		if b.buf == nil {
			b.buf = wire.GetBuf()
		}
		var n int
		n, b.pending = b.resp.Body.Read(b.buf[:])
		b.r, b.w = 0, n
		if n > 0 {
			b.first = true
			if b.limits.StreamIdle > 0 || b.limits.FirstByte > 0 {
				b.arm(OpBody)
			}
		}
	}
}

func (b *netHTTPBody) Next() ([]byte, error) {
	b.fill()
	if b.r == b.w {
		return nil, b.err
	}
	p := b.buf[b.r:b.w]
	b.r = b.w
	return p, nil
}

func (b *netHTTPBody) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b.fill()
	if b.r == b.w {
		return 0, b.err
	}
	n := copy(p, b.buf[b.r:b.w])
	b.r += n
	return n, nil
}

func (b *netHTTPBody) Buffered() int { return b.w - b.r }

func (b *netHTTPBody) Done() bool { return b.err != nil || b.pending != nil }

func (b *netHTTPBody) WaitReadable() error {
	b.fill()
	if b.r < b.w {
		return nil
	}
	return b.err
}

// RequestSent implements Body.
func (b *netHTTPBody) RequestSent() bool { return b.out == nil || b.out.sent() }

func (b *netHTTPBody) Trailer(name string) string {
	if b.resp == nil || b.err != io.EOF {
		return ""
	}
	return b.resp.Trailer.Get(name)
}

func (b *netHTTPBody) Close() error {
	if b.err == nil {
		b.err = &Error{Op: OpBody, Kind: KindShutdown, Addr: b.ep.addr, Sent: true, Err: net.ErrClosed}
		b.r, b.w = 0, 0
	}
	b.release()
	return nil
}

// segments is a request's body. net/http may still read it after it returned an
// error; detach waits for that and ends it, so that the caller may have its bytes
// back.
type segments struct {
	mu       sync.Mutex
	segs     [][]byte // guarded by mu; nil once detached
	detached bool
	whole    bool // read to the end; net/http reads again only before an answer
}

func (s *segments) sent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole || s.detached
}

func (s *segments) detach() {
	s.mu.Lock()
	s.segs, s.detached = nil, true
	s.mu.Unlock()
}

type segmentReader struct {
	s      *segments
	i, off int
}

func (r *segmentReader) Read(p []byte) (int, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	if r.s.detached {
		return 0, net.ErrClosed
	}
	n := 0
	for r.i < len(r.s.segs) && n < len(p) {
		c := copy(p[n:], r.s.segs[r.i][r.off:])
		n += c
		r.off += c
		if r.off == len(r.s.segs[r.i]) {
			r.i, r.off = r.i+1, 0
		}
	}
	r.s.whole = r.s.whole || r.i == len(r.s.segs)
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (r *segmentReader) Close() error { return nil }
