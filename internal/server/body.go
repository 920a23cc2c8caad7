package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-router/sluice/internal/http1"
	"github.com/sluice-router/sluice/internal/openai"
)

// bodyProblem is why a body could not be read, and the answer to that.
type bodyProblem struct {
	reason string
	answer *openai.Error // nil: the client disconnected
}

// checkLength checks the headers that describe the body. more is false if there is
// nothing to read.
func (q *request) checkLength() (more bool, p *bodyProblem) {
	if enc := contentEncoding(q.r.Header); enc != "" {
		return false, &bodyProblem{reasonEncoding, unsupportedEncoding(enc)}
	}
	if q.r.ContentLength > q.maxBody {
		return false, q.tooLarge()
	}
	if q.r.ContentLength == 0 {
		q.bodyDone = true
		return false, nil
	}
	return true, nil
}

// readBody reads the body whole into a buffer.
func (q *request) readBody() *bodyProblem {
	s, n := q.s, q.r.ContentLength
	if more, p := q.checkLength(); !more {
		return p
	}
	// The announced length gets addresses only; memory is taken as bytes arrive.
	most := n
	if n < 0 {
		most = q.maxBody + 1
	}
	var ok bool
	if q.buf, ok = s.buffers.get(pageBytes, min(most, maxPromised)); !ok {
		return &bodyProblem{reasonBufferFull, openai.BufferFull(s.cfg.Server.MaxBufferedBytes)}
	}
	q.bodyBegun = true
	in := deadlineReader{q: q, rc: http.NewResponseController(q.raw)}
	for {
		if p := q.grow(most); p != nil {
			return p
		}
		m, err := in.read(q.buf.b[q.length:q.buf.room])
		q.length += m
		if int64(q.length) > q.maxBody {
			return q.tooLarge()
		}
		switch {
		case err == io.EOF:
			q.bodyDone = true
			s.buffers.shrink(&q.buf, q.length)
			return nil
		case err != nil:
			return in.problem(err)
		}
	}
}

// readSmall reads a body without counting its memory in buffers.
func (q *request) readSmall() ([]byte, *bodyProblem) {
	if more, p := q.checkLength(); !more {
		return nil, p
	}
	q.bodyBegun = true
	in := deadlineReader{q: q, rc: http.NewResponseController(q.raw)}
	body := make([]byte, 0, 1<<10)
	for {
		body = slices.Grow(body, 1)
		m, err := in.read(body[len(body):cap(body)])
		body = body[:len(body)+m]
		q.length = len(body)
		if int64(q.length) > q.maxBody {
			return nil, q.tooLarge()
		}
		switch {
		case err == io.EOF:
			q.bodyDone = true
			return body, nil
		case err != nil:
			return nil, in.problem(err)
		}
	}
}

func (q *request) tooLarge() *bodyProblem {
	e := openai.RequestTooLarge(q.maxBody)
	if q.maxBody != q.s.cfg.Server.MaxPayloadSize {
		e.Message = fmt.Sprintf("the request body is larger than %d bytes", q.maxBody)
	}
	return &bodyProblem{reasonTooLarge, e}
}

// maxStep is the most memory a body gets before it is filled, in bytes.
const maxStep = 1 << 20

// grow makes room for the next read: four times what was read, at most maxStep more,
// never more than the body can have. It does nothing while the buffer is less than half
// full.
func (q *request) grow(most int64) *bodyProblem {
	have := int64(q.length)
	want := max(min(max(4*have, pageBytes), have+maxStep, most), have+1)
	if left := q.buf.room - have; left > 0 && (left >= most-have || left >= (want-have)/2) {
		return nil
	}
	whole := min(most, maxPromised)
	if have >= maxPromised/2 {
		whole = most // that much was really sent
	}
	if !q.s.buffers.grow(&q.buf, q.length, want, whole) {
		return &bodyProblem{reasonBufferFull, openai.BufferFull(q.s.cfg.Server.MaxBufferedBytes)}
	}
	return nil
}

// contentEncoding is the encoding of a body, "" for identity.
func contentEncoding(h http.Header) string {
	for _, v := range h["Content-Encoding"] {
		if v = strings.TrimSpace(v); v != "" && !strings.EqualFold(v, "identity") {
			return v
		}
	}
	return ""
}

// deadlineReader reads a body under two limits: --client-body-timeout-secs for each
// read, and --request-timeout-secs for the whole request.
type deadlineReader struct {
	q  *request
	rc *http.ResponseController
}

func (d *deadlineReader) read(p []byte) (int, error) {
	by := time.Now().Add(d.q.s.cfg.Timeouts.ClientBody)
	if total := d.q.s.cfg.Timeouts.Request; total > 0 {
		by = earlier(by, d.q.call.Arrived.Add(total))
	}
	_ = d.rc.SetReadDeadline(by) // not every writer has one
	return d.q.r.Body.Read(p)
}

func (d *deadlineReader) problem(err error) *bodyProblem {
	if d.q.s.base.Err() != nil {
		return &bodyProblem{reasonDraining, openai.Draining()}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t := &d.q.s.cfg.Timeouts
		if t.Request > 0 && time.Since(d.q.call.Arrived) >= t.Request {
			return &bodyProblem{reasonBodyTimeout, bodyTotalTimeout(t.Request)}
		}
		return &bodyProblem{reasonBodyTimeout, bodyTimeout(t.ClientBody)}
	}
	if errors.Is(err, http1.ErrEvicted) {
		d.q.out.Header().Set(headerConnection, "close")
		return &bodyProblem{reasonTooManyFiles, bodyEvicted()}
	}
	var ne net.Error
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || errors.As(err, &ne) {
		return &bodyProblem{reason: reasonClientGone}
	}
	return &bodyProblem{reasonBadRequest, openai.InvalidRequest("", "the request body's transfer coding is broken").WithCause(err)}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

const (
	// keepAfter is the most bytes of an unread body that are read to keep the
	// connection.
	keepAfter = 256 << 10
	// drainTime and drainIdle bound how long the rest of a refused body is read
	// and discarded, so that the client gets to reading its answer.
	drainTime = 20 * time.Second
	drainIdle = 5 * time.Second
	// drainBeyond is how many bytes are drained, beyond the limit on bodies.
	drainBeyond = 64 << 20
	drainBuffer = 32 << 10
)

// refuse answers a request whose body may not have been read. An ordinary client
// reads the answer only once it has sent all of its body, and sees a connection error
// instead if the connection is closed before that. So the answer is sent first, and then
// the rest of the body is read and discarded, within bounds. A client that waits for
// "100 Continue" does not get it.
func (q *request) refuse(e *openai.Error, reason string) {
	q.reason = reason
	if e.Code != "" {
		q.reason = e.Code // the same in the log, in metrics and in the answer
	}
	q.refusal, q.err = e, e.Cause
	if q.bodyDone || q.r.Body == nil || q.r.Body == http.NoBody {
		q.write(e)
		return
	}
	rc := http.NewResponseController(q.raw)
	waiting := !q.bodyBegun && q.r.Header.Get("Expect") != ""
	left := q.r.ContentLength
	if left < 0 || left > keepAfter || waiting {
		q.out.Header().Set(headerConnection, "close")
	}
	q.write(e)
	if waiting {
		return
	}
	_ = rc.Flush()
	q.drain(rc)
}

// drain reads and discards the rest of the body, within bounds.
func (q *request) drain(rc *http.ResponseController) {
	b := make([]byte, drainBuffer)
	end := time.Now().Add(drainTime)
	for left := q.s.cfg.Server.MaxPayloadSize + drainBeyond; left > 0; {
		now := time.Now()
		if !now.Before(end) || q.s.base.Err() != nil {
			return
		}
		if rc.SetReadDeadline(earlier(end, now.Add(drainIdle))) != nil {
			return
		}
		n, err := q.r.Body.Read(b)
		left -= int64(n)
		if err != nil {
			q.bodyDone = err == io.EOF
			return
		}
	}
}
