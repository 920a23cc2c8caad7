package dispatch

import (
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

// errClientWrite is the failure of a write to the client: it left, or does not
// read.
var errClientWrite = errors.New("cannot write to the client")

// clientWriter is the way to the client: its status, the answer's bytes, and a
// comment now and then while an event stream is silent.
//
// mu is held for each write, because comments are written by a timer's
// goroutine. The fields that only the handler changes are read by it without mu.
type clientWriter struct {
	x         *request
	rc        http.ResponseController
	timeout   time.Duration
	keepAlive time.Duration // zero: no comments

	// begun: some of the answer was sent, more than comments: no attempt can
	// follow. Changed by the handler.
	begun bool
	// status is what the answer begins with. Zero: 200.
	status int

	mu sync.Mutex
	// guarded by mu; the handler also reads them without it when no timer runs, once
	// stopKeepAlive has returned.
	committed bool // a status was sent
	sse       bool // the answer has the form of an event stream
	boundary  bool // the stream is between events: a comment may stand here
	lastWrite mono.Instant
	writeBy   mono.Instant // the write deadline in force
	timer     *time.Timer
	stopped   bool
	// owed is when the client must have heard something, as the engine spoke and nothing
	// of it was passed: see owe. Zero: nothing is owed.
	owed mono.Instant

	// scan follows the stream that is being relayed, if one is. Owned by the
	// handler.
	scan *openai.EventScanner
}

func (c *clientWriter) init(x *request) {
	c.x, c.rc, c.timeout = x, *http.NewResponseController(x.w), x.d.cfg.Timeouts.ClientWrite
	c.boundary = true
	if x.call.Peeked.Stream && !x.call.Passing {
		c.keepAlive = x.d.cfg.Server.SSEKeepalive
	}
}

// startKeepAlive begins to write comments: the request has been sent to an
// engine.
func (c *clientWriter) startKeepAlive() {
	if c.keepAlive <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = false
	if c.lastWrite == 0 {
		c.lastWrite = mono.Now()
	}
	if c.timer == nil {
		c.timer = time.AfterFunc(c.keepAlive, c.tick)
	} else {
		c.timer.Reset(c.keepAlive)
	}
}

// stopKeepAlive returns when no comment is being written and none will be.
func (c *clientWriter) stopKeepAlive() {
	if c.keepAlive <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.timer != nil {
		c.timer.Stop()
	}
}

// comment is a line of its own without an empty line behind it: that would be an
// empty event to one widely used client (theopenco/llmgateway#2334).
const comment = ": keep-alive\n"

// ping is the Messages API's own sign of life.
const ping = "event: ping\ndata: {\"type\":\"ping\"}\n\n"

func (c *clientWriter) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			c.x.logPanic("a keep-alive comment", p) // the request ends without comments
		}
	}()
	if c.stopped {
		return
	}
	// It may have waited for mu, behind a sign that the handler wrote meanwhile: what
	// counts is what is due now.
	now := mono.Now()
	next := c.dueLocked()
	if now >= next {
		if c.boundary && (c.sse || !c.committed) {
			if c.signLocked() != nil {
				return // the handler learns it from its own write, or from its context
			}
		}
		// Inside an event nothing is due before the next write, which makes it later.
		now = mono.Now()
		next = now.Add(c.keepAlive)
	}
	c.timer.Reset(max(next.Sub(now), time.Millisecond))
}

// dueLocked is when the next sign of life is due.
func (c *clientWriter) dueLocked() mono.Instant {
	due := c.lastWrite.Add(c.keepAlive)
	if c.owed != 0 {
		due = min(due, c.owed)
	}
	return due
}

// signLocked writes a sign of life, after which another attempt may still follow.
func (c *clientWriter) signLocked() error {
	if !c.committed {
		c.sse = true
		c.x.setHeader("Content-Type", typeEventStream)
		c.commitLocked(nil, -1)
	}
	sign := []byte(comment)
	if c.x.call.Route.Shape() == openai.ShapeAnthropic {
		sign = []byte(ping) // what clients of that API know
	}
	if _, err := c.writeLocked(sign); err != nil {
		return err
	}
	err := c.flushLocked()
	c.lastWrite = mono.Now() // a client that reads slowly may have taken its time
	return err
}

// echoDelay is how much longer than the engine a client's stream may be silent.
const echoDelay = time.Second

// echo tells the client that the engine spoke, though nothing that it said can be
// passed. Where the client heard something just now, it is told echoDelay later.
func (c *clientWriter) echo() *failure {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.boundary || c.committed && !c.sse {
		return nil
	}
	if silent := mono.Now().Sub(c.lastWrite); c.committed && silent < echoDelay {
		if c.keepAlive > echoDelay {
			c.oweLocked(echoDelay - silent)
		}
		return nil
	}
	if err := c.signLocked(); err != nil {
		return unwritten(err)
	}
	return nil
}

// owe is echo for what may be passed shortly: the sign is written if nothing was
// until echoDelay is over.
func (c *clientWriter) owe() {
	if c.keepAlive <= echoDelay {
		return // it is soon enough, or not wanted
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.oweLocked(echoDelay)
}

func (c *clientWriter) oweLocked(within time.Duration) {
	if c.owed == 0 && !c.stopped && c.timer != nil {
		c.owed = mono.Now().Add(within)
		c.timer.Reset(within)
	}
}

// begin sends the client its status and the engine's headers, unless a comment
// has done so. From here on no attempt can follow. sse tells whether the answer is an
// event stream, scan follows it; may be nil. It does nothing and returns false where a
// comment has begun an event stream and the answer is none.
func (c *clientWriter) begin(resp *upstream.Response, length int, sse bool, scan *openai.EventScanner) bool {
	if c.begun {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.committed && c.sse && !sse {
		return false
	}
	c.begun, c.sse, c.scan = true, sse, scan
	if !c.committed {
		c.commitLocked(resp, length)
	}
	return true
}

// hasCommitted tells whether a status was sent, while the timer may run.
func (c *clientWriter) hasCommitted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.committed
}

func (c *clientWriter) commitLocked(resp *upstream.Response, length int) {
	c.committed = true
	if resp != nil {
		c.x.copyResponseHeader(resp)
		c.x.setDecodeHeader()
	}
	if c.sse {
		// Proxies in front must not collect events.
		h := c.x.w.Header()
		if h["Cache-Control"] == nil {
			c.x.setHeader("Cache-Control", "no-cache")
		}
		if h["X-Accel-Buffering"] == nil {
			c.x.setHeader("X-Accel-Buffering", "no")
		}
	}
	if length >= 0 {
		c.x.setHeader("Content-Length", strconv.Itoa(length))
	}
	if c.status == 0 {
		c.status = http.StatusOK
	}
	c.x.w.WriteHeader(c.status)
}

// write sends b. boundary tells whether a comment may follow it.
func (c *clientWriter) write(b []byte, boundary bool) *failure {
	n, err := c.writeAt(b, boundary)
	c.x.call.Record.Bytes += int64(n)
	if err != nil {
		return unwritten(err)
	}
	return nil
}

func (c *clientWriter) writeAt(b []byte, boundary bool) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.boundary = boundary
	return c.writeLocked(b)
}

// unwritten is the failure of a write to a client. Inlined, it would double the
// frames that lie under every flush.
//
//go:noinline
func unwritten(err error) *failure {
	return &failure{clientLeft: true, reason: reasonClientGone, err: errors.Join(errClientWrite, err)}
}

func (c *clientWriter) writeLocked(b []byte) (int, error) {
	c.owed = 0
	if c.timeout > 0 || c.keepAlive > 0 {
		now := mono.Now()
		c.lastWrite = now
		// Setting a deadline is not free: once in a quarter of it.
		if c.timeout > 0 && c.writeBy.Sub(now) < c.timeout-c.timeout/4 {
			c.writeBy = now.Add(c.timeout)
			_ = c.rc.SetWriteDeadline(c.writeBy.Time()) // not every writer has one
		}
	}
	return c.x.w.Write(b)
}

func (c *clientWriter) flush() *failure {
	if err := c.flushed(); err != nil {
		return unwritten(err)
	}
	return nil
}

func (c *clientWriter) flushed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flushLocked()
}

func (c *clientWriter) flushLocked() error {
	if err := c.rc.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// errorEvent ends an event stream with an error event; json is its data. It tells
// whether the client was sent it.
func (c *clientWriter) errorEvent(json []byte) bool {
	var b []byte
	if c.x.call.Route.Shape() == openai.ShapeAnthropic {
		b = append(b, "event: error\n"...)
	}
	b = append(b, "data: "...)
	b = append(b, json...)
	return c.lastEvent(append(b, "\n\n"...))
}

// lastEvent ends an event stream with an event. The one that the stream broke off
// in is closed first. It tells whether the client was sent it.
func (c *clientWriter) lastEvent(event []byte) bool {
	var b []byte
	if c.scan != nil && c.begun {
		b = c.scan.AppendClose(b)
	}
	return c.write(append(b, event...), true) == nil && c.flush() == nil
}
