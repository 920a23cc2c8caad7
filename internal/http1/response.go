package http1

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/internal/wire"
)

// framing is how a client finds the end of an answer.
type framing uint8

const (
	undecided framing = iota // until it is flushed or whole
	noBody
	byLength
	byChunks
	untilEnd // of the connection: HTTP/1.0
)

// response is the answer to the current request. Only one goroutine at a time may write
// or flush.
//
// What is to be sent lies in b: the head, room for what is only known later (the
// framing, the size of the chunk), and the body's bytes since the last flush.
type response struct {
	c      *conn
	header http.Header

	headRequest bool // a HEAD: the head alone is sent
	old         bool // the request's HTTP is 1.0
	closing     bool // the connection ends with this answer
	wrote       bool // WriteHeader was called
	framing     framing
	left        int64 // bytes to come of a body with a Content-Length
	whole       bool  // all of it was sent
	deadline    time.Time
	err         error // of a write; sticky

	buf  *[wire.BufSize]byte // the pooled buffer behind b; nil: none
	b    []byte
	head int // bytes of an unsent head at the start of b
	body int // where the body begins in b
}

// gap is the space between head and body in b, for the longest framing header, the end
// of the head, and the size of a chunk.
const gap = len(chunkedLines) + maxSizeLine

const (
	chunkedLines = "Transfer-Encoding: chunked\r\n\r\n"
	maxSizeLine  = 16 + 2
	chunkEnd     = "\r\n"
	lastChunk    = "0\r\n\r\n"
)

func (w *response) begin(h head) {
	w.headRequest, w.old, w.closing = h.method == http.MethodHead, h.old, h.close
}

// reset prepares for the next answer.
func (w *response) reset() {
	if len(w.header) > manyNames {
		w.header = make(http.Header, 16)
	}
	clear(w.header)
	w.free()
	*w = response{c: w.c, header: w.header}
}

// free returns the buffer to its pool.
func (w *response) free() {
	if w.buf != nil {
		wire.PutBuf(w.buf)
	}
	w.buf, w.b, w.head, w.body = nil, nil, 0, 0
}

// Header implements http.ResponseWriter. What is changed after WriteHeader is not
// sent.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. Informational answers are not sent.
// It panics if status is not from 100 to 999.
func (w *response) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("http1: %d is not an HTTP status", status))
	}
	if w.wrote || status < 200 {
		return
	}
	w.wrote = true
	if b := &w.c.x.body; b.expects {
		// The client may or may not send its body after this answer.
		b.expects, w.closing = false, true
	}
	w.borrow()
	w.framing = undecided
	length, told := w.length()
	switch {
	case status == http.StatusNoContent || status == http.StatusNotModified:
		w.framing, told = noBody, told && status == http.StatusNotModified
	case w.headRequest:
		w.framing = noBody
	case told:
		w.framing, w.left = byLength, length
	}
	w.closing = w.closing || w.c.srv.draining.Load() || w.c.last.Load() || hasClose(w.header["Connection"])
	w.b = w.appendHead(w.b[:0], status, told)
	if w.framing == undecided {
		w.head = len(w.b)
		w.b = append(w.b, zeros[:gap]...)
	} else {
		w.b = append(w.b, "\r\n"...)
		w.head = len(w.b)
	}
	w.body = len(w.b)
}

var zeros [gap]byte

func (w *response) borrow() {
	if w.b == nil {
		w.buf = wire.GetBuf()
		w.b = w.buf[:0]
	}
}

// length is the Content-Length that the handler set.
func (w *response) length() (int64, bool) {
	v := w.header["Content-Length"]
	if len(v) != 1 {
		return 0, false
	}
	n, err := wire.ParseLength([]byte(v[0]))
	return n, err == nil
}

func hasClose(values []string) bool {
	for _, v := range values {
		if wire.HasToken([]byte(v), "close") {
			return true
		}
	}
	return false
}

// appendHead appends the status line and the header, without the empty line.
func (w *response) appendHead(b []byte, status int, tellLength bool) []byte {
	b = appendStatus(b, status)
	for name, values := range w.header {
		if !wire.ValidToken(name) || framingHeader(name) && !(tellLength && name == "Content-Length") {
			continue
		}
		for _, v := range values {
			b = append(b, name...)
			b = append(b, ": "...)
			b = appendValue(b, v)
			b = append(b, "\r\n"...)
		}
	}
	if _, set := w.header["Date"]; !set {
		b = append(b, "Date: "...)
		b = append(b, date()...)
		b = append(b, "\r\n"...)
	}
	if w.closing {
		b = append(b, "Connection: close\r\n"...)
	}
	return b
}

// framingHeader reports whether name, in any case, is a header that only the server
// itself writes.
func framingHeader(name string) bool {
	switch len(name) {
	case len("Connection"), len("Content-Length"), len("Transfer-Encoding"):
		switch textproto.CanonicalMIMEHeaderKey(name) {
		case "Connection", "Content-Length", "Transfer-Encoding":
			return true
		}
	}
	return false
}

func appendStatus(b []byte, status int) []byte {
	if status == http.StatusOK {
		return append(b, "HTTP/1.1 200 OK\r\n"...)
	}
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	text := http.StatusText(status)
	if text == "" {
		text = "status code " + strconv.Itoa(status)
	}
	b = append(b, text...)
	return append(b, "\r\n"...)
}

// appendValue appends a header's value, with control characters replaced by spaces.
func appendValue(b []byte, v string) []byte {
	if wire.ValidValue(v) {
		return append(b, trim(v)...)
	}
	for _, c := range []byte(trim(v)) {
		if c < ' ' && c != '\t' || c == 0x7f {
			c = ' '
		}
		b = append(b, c)
	}
	return b
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	switch {
	case w.err != nil:
		return 0, w.err
	case len(p) == 0:
		return 0, nil
	case w.framing == noBody:
		if w.headRequest {
			return len(p), nil
		}
		return 0, http.ErrBodyNotAllowed
	case w.framing == byLength && int64(len(p)) > w.left:
		return 0, http.ErrContentLength
	}
	if w.framing == byLength {
		w.left -= int64(len(p))
	}
	w.room()
	if len(w.b)+len(p)+len(chunkEnd)+len(lastChunk) <= cap(w.b) {
		w.b = append(w.b, p...)
		return len(p), nil
	}
	if err := w.send(p, false); err != nil {
		return 0, err
	}
	return len(p), nil
}

// room takes a new buffer after a flush.
func (w *response) room() {
	if w.b != nil {
		return
	}
	w.borrow()
	if w.framing == byChunks {
		w.b = append(w.b, zeros[:maxSizeLine]...)
	}
	w.body = len(w.b)
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError is what http.ResponseController calls.
func (w *response) FlushError() error {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	if w.err != nil || w.b == nil {
		return w.err
	}
	return w.send(nil, false)
}

// finish sends what is left. It reports whether the answer is complete.
func (w *response) finish() bool {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	if w.err != nil {
		return false
	}
	if w.b != nil || w.framing == byChunks {
		w.room()
		if w.send(nil, true) != nil {
			return false
		}
	}
	w.whole = w.framing != byLength || w.left == 0
	return w.whole
}

// send sends b, then more, and returns the buffer to its pool. last: this is the end of
// the answer.
func (w *response) send(more []byte, last bool) error {
	size := len(w.b) - w.body + len(more)
	if w.framing == undecided {
		switch {
		case last:
			w.framing = byLength
		case w.old:
			w.framing = untilEnd
		default:
			w.framing = byChunks
		}
		w.closeGap(size)
	} else if w.framing == byChunks {
		w.b = w.b[w.sizeLine(w.body, size):]
	}
	var end string
	if w.framing == byChunks {
		switch {
		case size > 0 && last:
			end = chunkEnd + lastChunk
		case size > 0:
			end = chunkEnd
		case last:
			end = lastChunk
		}
	}
	vec := w.c.vec0[:0]
	if len(more) == 0 {
		w.b = append(w.b, end...)
	}
	if len(w.b) > 0 {
		vec = append(vec, w.b)
	}
	if len(more) > 0 {
		vec = append(vec, more)
		if end != "" {
			vec = append(vec, chunkEndBytes)
		}
	}
	if len(vec) > 0 {
		w.err = w.c.write(vec, w.writeBy())
		clear(w.c.vec0[:])
	}
	w.free()
	if w.err != nil {
		w.c.ctx.end(ErrClientGone)
	}
	return w.err
}

var chunkEndBytes = []byte(chunkEnd)

// closeGap writes the framing header and the end of the head into the gap, and moves the
// head up to them.
func (w *response) closeGap(size int) {
	at := w.body
	if w.framing == byChunks {
		at = w.sizeLine(at, size)
	}
	var lines [gap]byte
	l := lines[:0]
	switch w.framing {
	case byChunks:
		l = append(l, chunkedLines...)
	case byLength:
		l = append(l, "Content-Length: "...)
		l = strconv.AppendInt(l, int64(size), 10)
		l = append(l, "\r\n\r\n"...)
	case untilEnd:
		l = append(l, "\r\n"...)
	}
	at -= len(l)
	copy(w.b[at:], l)
	at -= w.head
	copy(w.b[at:], w.b[:w.head])
	w.b = w.b[at:]
}

// sizeLine writes a chunk's size line so that it ends at at, and returns where it begins.
// It writes none for size 0, which would mark the last chunk.
func (w *response) sizeLine(at, size int) int {
	if size == 0 {
		return at
	}
	at -= len(chunkEnd)
	copy(w.b[at:], chunkEnd)
	for n := size; n > 0; n >>= 4 {
		at--
		w.b[at] = "0123456789abcdef"[n&15]
	}
	return at
}

// writeBy is the deadline of a write that has to wait.
func (w *response) writeBy() time.Time {
	if w.deadline.IsZero() {
		return time.Now().Add(w.c.srv.WriteTimeout)
	}
	return w.deadline
}

// sayContinue sends 100 Continue.
func (w *response) sayContinue() error {
	if w.wrote {
		return nil
	}
	err := w.c.write([][]byte{[]byte("HTTP/1.1 100 Continue\r\n\r\n")}, w.writeBy())
	if err != nil {
		w.err = err
	}
	return err
}

// SetReadDeadline bounds the reads of the body; see http.ResponseController.
func (w *response) SetReadDeadline(t time.Time) error {
	w.c.x.body.deadline = t
	return nil
}

// SetWriteDeadline bounds the writes that follow; see http.ResponseController.
func (w *response) SetWriteDeadline(t time.Time) error {
	w.deadline = t
	return nil
}

// Running marks the request as running: its connection is not evicted any more. It is
// called by the handler's goroutine, after the body was read.
func (w *response) Running() { w.c.running = true }

// EnableFullDuplex does nothing: it is always on. See http.ResponseController.
func (w *response) EnableFullDuplex() error { return nil }

// stamp is the Date header of one second.
type stamp struct {
	second int64
	text   string
}

var lastStamp atomic.Pointer[stamp]

// date is the time in the form of the Date header.
func date() string {
	now := time.Now()
	s := lastStamp.Load()
	if s == nil || s.second != now.Unix() {
		s = &stamp{now.Unix(), now.UTC().Format(http.TimeFormat)}
		lastStamp.Store(s)
	}
	return s.text
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
