package nethttp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/internal/http1"
	"github.com/sluice-router/sluice/internal/list"
	"github.com/sluice-router/sluice/internal/mono"
)

// conn is one client's connection as net/http sees it. net/http reads and writes from
// the goroutine that serves it; while a handler runs, also from one that waits for the
// client's end.
type conn struct {
	// immutable
	srv  *Server
	sock *net.TCPConn

	// atomic
	since     atomic.Int64 // a mono.Instant: when bytes last came
	evicted   atomic.Bool  // closed to make room for others
	begun     atomic.Bool  // bytes of a head have come
	answering atomic.Bool  // from the handler's begin until the answer is out
	running   atomic.Bool  // the handler has called Running
	inBody    atomic.Bool  // the handler waits for bytes of its request's body
	writing   atomic.Bool  // bytes are written, or wait for that
	aborted   atomic.Bool  // the answer is cut off
	last      atomic.Bool  // nothing more is read: it ends with the answer under way
	limited   atomic.Bool  // the handler has set a deadline for writes

	// owned by the goroutine that serves the connection
	// ahead are bytes that came behind a request. net/http has one goroutine read at a
	// time.
	ahead      []byte
	fresh      bool // nothing was read yet
	refused    bool // Refuse was called
	head       int  // bytes read since the last request, mostly of the next head
	headMemory http1.HeadMemory

	// guarded by srv.mu
	sentHead bool             // it has sent a whole head
	node     list.Node[*conn] // in newcomers or others, if in any
	key      mono.Instant     // since, when it was last put in order
}

// tlsHandshake is the first byte of a client that tries to speak TLS.
const tlsHandshake = 0x16

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	if err := c.stopped(); err != nil {
		return 0, err
	}
	var n int
	var err error
	switch {
	case c.answering.Load() && len(p) == 1: // bodies are read into larger buffers
		return c.readAhead(p)
	case len(c.ahead) > 0:
		n = copy(p, c.ahead)
		if c.ahead = c.ahead[n:]; len(c.ahead) == 0 {
			c.ahead = nil
		}
	default:
		n, err = c.sock.Read(p)
	}
	if n > 0 {
		c.since.Store(int64(mono.Now()))
		if c.answering.Load() {
			return n, err
		}
		c.begun.Store(true)
		if c.fresh && p[0] == tlsHandshake {
			c.refuse(&http1.Problem{Status: http.StatusBadRequest,
				Message: "this port speaks plain HTTP, not TLS: use http://, or a proxy in front that terminates TLS"})
			return 0, io.EOF
		}
		c.fresh = false
		c.head += n
		if !c.holdHead(c.head) {
			c.refuse(http1.NoMemoryForHead())
			return 0, io.EOF
		}
		return n, err
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if stop := c.stopped(); stop != nil {
			return 0, stop
		}
		if c.begun.Load() && !c.answering.Load() {
			c.refuse(&http1.Problem{Status: http.StatusRequestTimeout, Message: "the request's head did not come within " + c.srv.HeaderTimeout.String()})
		}
	}
	return n, err
}

// maxAhead is how much of what lies behind a request is read while that is under way.
const maxAhead = 16 << 10

// readAhead is the read by which net/http waits for the client's end while a handler
// runs: a single byte, after which it would look no further. So that the end behind a
// few bytes is noticed too, these are kept for later and the wait goes on.
func (c *conn) readAhead(p []byte) (int, error) {
	for room := p; len(c.ahead) < maxAhead; {
		n, err := c.sock.Read(room)
		c.ahead = append(c.ahead, room[:n]...)
		switch {
		case err == nil:
			if len(room) == 1 {
				room = make([]byte, 1<<10)
			}
			continue
		case len(c.ahead) == 0 || !errors.Is(err, os.ErrDeadlineExceeded):
			return 0, err
		}
		break // the answer is out: what has come is served next
	}
	n := copy(p, c.ahead)
	c.ahead = c.ahead[n:]
	return n, nil
}

// errOver ends reads of a connection that ends with the answer under way. It is not
// io.EOF: behind that net/http waits for the client's end, as after a whole body.
var errOver = errors.New("the connection ends with this answer")

// stopped returns why nothing more must be read, or nil.
func (c *conn) stopped() error {
	switch {
	case c.last.Load():
		return errOver
	case c.evicted.Load() && c.answering.Load():
		return http1.ErrEvicted
	case c.evicted.Load():
		// A connection that has not sent any request gets an answer. One between two
		// requests does not: its client may be about to send the next one, and would take
		// this for its answer.
		c.srv.mu.Lock()
		met := c.sentHead
		c.srv.mu.Unlock()
		if !met && !c.refused {
			c.refuse(http1.NoRequestYet())
		}
		return io.EOF
	case c.inBody.Load() && c.srv.Base.Err() != nil:
		return os.ErrDeadlineExceeded
	}
	return nil
}

// Write implements net.Conn. What is written while no handler runs is net/http's own
// answer to a malformed request.
func (c *conn) Write(p []byte) (int, error) {
	if !c.answering.Load() {
		if !c.refused && !c.evicted.Load() {
			c.refuse(problemOf(p, c.srv.MaxHeaderBytes))
		}
		return len(p), nil
	}
	switch {
	case c.evicted.Load():
		_ = c.sock.SetWriteDeadline(time.Now().Add(evictedWriteTimeout)) // fails only if closed, as the write will
	case !c.limited.Load():
		_ = c.sock.SetWriteDeadline(time.Now().Add(c.srv.WriteTimeout))
	}
	parked := !c.running.Load() && c.park()
	c.writing.Store(true)
	n, err := c.sock.Write(p)
	c.writing.Store(false)
	if parked && !c.unpark() && err != nil {
		err = http1.ErrEvicted
	}
	return n, err
}

// park makes the connection evictable while it waits for its client. It returns false if
// it was already, or must not be.
func (c *conn) park() bool {
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.node.Listed() || c.evicted.Load() || c.running.Load() {
		return false
	}
	s.listLocked(c, &s.others, mono.Now())
	return true
}

// unpark makes the connection not evictable. It returns false if it was evicted
// meanwhile.
func (c *conn) unpark() bool {
	c.srv.mu.Lock()
	defer c.srv.mu.Unlock()
	c.srv.unlistLocked(c)
	return !c.evicted.Load()
}

// begin is called with each whole head. It returns false if the connection was evicted
// meanwhile.
func (c *conn) begin() bool {
	c.answering.Store(true)
	c.head = 0
	s := c.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.sentHead {
		c.sentHead = true
		s.heads.Add(1)
	}
	s.unlistLocked(c)
	return !c.evicted.Load()
}

// becomeIdle is called when an answer was sent and another request may follow.
func (c *conn) becomeIdle() {
	c.holdHead(0)
	if c.last.Load() {
		c.linger()
	}
	c.running.Store(false)
	c.limited.Store(false)
	c.begun.Store(false)
	c.answering.Store(false)
	c.since.Store(int64(mono.Now()))
	c.park()
}

func (c *conn) holdHead(n int) bool { return c.headMemory.Hold(n, c.srv.Reserve, c.srv.Release) }

const (
	// lingerTime and lingerBytes bound what is read from a client after it was refused:
	// if bytes are unread at a close, the kernel sends a reset, which may destroy the
	// answer on its way.
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 256 << 10
)

// refuse answers a malformed request. The connection must be closed afterwards.
func (c *conn) refuse(p *http1.Problem) {
	c.refused = true
	var w refusal
	w.header = http.Header{}
	c.srv.Refuse(&w, p)
	limit := c.srv.WriteTimeout
	if c.evicted.Load() {
		limit = evictedWriteTimeout
	}
	_ = c.sock.SetWriteDeadline(time.Now().Add(limit)) // fails only if closed, as the write will
	if w.send(c.sock) == nil {
		c.linger()
	}
}

// linger closes the connection for writing and reads a moment longer.
func (c *conn) linger() {
	if c.sock.CloseWrite() != nil || c.evicted.Load() {
		return
	}
	_ = c.sock.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, c.sock, lingerBytes)
}

// refusal is an answer outside of net/http's handlers.
type refusal struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (w *refusal) Header() http.Header         { return w.header }
func (w *refusal) Write(p []byte) (int, error) { return w.body.Write(p) }
func (w *refusal) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
}

func (w *refusal) send(to io.Writer) error {
	w.header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	w.header.Del("Content-Length") // told below
	r := http.Response{
		StatusCode: w.status, ProtoMajor: 1, ProtoMinor: 1, Close: true,
		Header: w.header, ContentLength: int64(w.body.Len()), Body: io.NopCloser(&w.body),
	}
	var whole bytes.Buffer
	if err := r.Write(&whole); err != nil {
		return err
	}
	_, err := to.Write(whole.Bytes())
	return err
}

// problemOf parses net/http's own answer to a malformed request: a status line, and in
// the body the status again and perhaps a reason after a colon.
func problemOf(answer []byte, maxHead int) *http1.Problem {
	line, rest, _ := strings.Cut(string(answer), "\r\n")
	p := &http1.Problem{Status: http.StatusBadRequest, Message: "the request is malformed"}
	if f := strings.Fields(line); len(f) > 1 {
		if n, err := strconv.Atoi(f[1]); err == nil && n >= 400 && n < 600 {
			p.Status = n
		}
	}
	switch p.Status {
	case http.StatusRequestHeaderFieldsTooLarge:
		return http1.HeadTooLarge(maxHead)
	case http.StatusExpectationFailed:
		p.Message = "the only supported expectation is 100-continue"
	case http.StatusNotImplemented:
		p.Message = "the only supported transfer coding is chunked"
	case http.StatusHTTPVersionNotSupported:
		p.Message = "the supported version of HTTP is 1.1"
	default:
		_, body, _ := strings.Cut(rest, "\r\n\r\n")
		if _, reason, ok := strings.Cut(body, ": "); ok {
			p.Message = "the request is malformed: " + reason
		}
	}
	return p
}

// cut closes the connection whatever is under way. It sends a reset: an answer that ends
// with its connection must not look complete.
func (c *conn) cut() {
	_ = c.sock.SetLinger(0)
	_ = c.sock.Close()
}

// Close implements net.Conn.
func (c *conn) Close() error {
	if c.last.Load() && c.answering.Load() && !c.aborted.Load() {
		c.linger()
	}
	return c.sock.Close()
}

// CloseWrite is what net/http closes with where bytes may lie unread.
func (c *conn) CloseWrite() error { return c.sock.CloseWrite() }

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return c.sock.LocalAddr() }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return c.sock.RemoteAddr() }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn. Read looks at evicted first, which is set before
// the deadline that wakes it up.
func (c *conn) SetReadDeadline(t time.Time) error { return c.sock.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.limited.Store(!t.IsZero())
	return c.sock.SetWriteDeadline(t)
}
