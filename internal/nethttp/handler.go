package nethttp

import (
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/sluice-router/sluice/internal/http1"
)

// maxDiscard is how much of a body that the handler left unread is read to keep the
// connection, in bytes, and discardTime how long that may take.
const (
	maxDiscard  = 256 << 10
	discardTime = 5 * time.Second
)

// handle answers one request that net/http has read the head of.
func (s *Server) handle(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(connKey{}).(*conn)
	out := &response{ResponseWriter: w, c: c}
	// Whether a chunked request also had a Content-Length cannot be seen, and HTTP/1.0 has
	// one request per connection: nothing behind these is taken for another request.
	if len(r.TransferEncoding) > 0 || !r.ProtoAtLeast(1, 1) {
		w.Header().Set("Connection", "close")
	}
	var p *http1.Problem
	switch {
	case !c.begin():
		p = http1.TooManyConnections()
	case !c.holdHead(headSize(r)):
		p = http1.NoMemoryForHead()
	default:
		p = problem(r)
	}
	if p != nil {
		w.Header().Set("Connection", "close")
		s.Refuse(out, p)
		return
	}
	in := &body{ReadCloser: r.Body, c: c, ended: r.Body == nil || r.Body == http.NoBody, expects: r.Header.Get("Expect") != ""}
	if !in.ended {
		// Answers must not wait for the rest of a body. net/http looks at the type of its
		// request's body later, so the handler gets a copy.
		_ = http.NewResponseController(w).EnableFullDuplex()
		r = r.WithContext(r.Context())
		r.Body = in
	}
	defer func() {
		v := recover()
		if v != nil || !in.discard(out) {
			// net/http may go on behind a body that it could not read to its end.
			c.last.Store(!in.ended)
		}
		if v == nil {
			return
		}
		c.aborted.Store(true)
		if v != http.ErrAbortHandler {
			s.Report("panic in a handler", fmt.Sprintf("%v\n%s", v, debug.Stack()))
		}
		if !r.ProtoAtLeast(1, 1) {
			_ = c.sock.SetLinger(0) // without a reset the answer would look complete
		}
		panic(http.ErrAbortHandler)
	}()
	s.Handler.ServeHTTP(out, r)
}

// headSize is about how much memory a head takes, in bytes.
func headSize(r *http.Request) int {
	n := len(r.RequestURI)
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return n
}

// problem refuses what net/http accepts and package http1 does not.
func problem(r *http.Request) *http1.Problem {
	bad := func(what string) *http1.Problem {
		return &http1.Problem{Status: http.StatusBadRequest, Message: what}
	}
	switch {
	case r.ProtoMajor != 1:
		return &http1.Problem{Status: http.StatusHTTPVersionNotSupported, Message: "the supported version of HTTP is 1.1"}
	case r.Method == http.MethodConnect:
		return bad("CONNECT is not supported")
	case strings.ContainsAny(r.Host, "\"#/<>?@\\^`{|} "):
		return bad("the Host header is malformed")
	}
	for _, b := range []byte(r.Host) { // of an absolute target it is unescaped
		if b >= 0x7f {
			return bad("the host is malformed")
		}
	}
	for _, b := range []byte(r.RequestURI) {
		if b <= ' ' || b >= 0x7f || b == '#' {
			return bad("the request's target is malformed")
		}
	}
	switch u := r.URL; {
	case strings.HasPrefix(r.RequestURI, "/"), r.RequestURI == "*" && r.Method == http.MethodOptions:
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil:
	default:
		return bad("the request's target is malformed")
	}
	return nil
}

// response is the answer to the current request.
type response struct {
	http.ResponseWriter
	c     *conn
	wrote bool
}

// WriteHeader implements http.ResponseWriter. Informational answers are not sent.
func (w *response) WriteHeader(status int) {
	if w.wrote || status < 200 {
		return
	}
	w.wrote = true
	if h := w.Header(); h["Content-Type"] == nil {
		h["Content-Type"] = nil // net/http would guess one
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError is what http.ResponseController calls.
func (w *response) FlushError() error {
	if !w.wrote {
		w.WriteHeader(http.StatusOK)
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Running marks the request as running: its connection is not evicted any more. It is
// called by the handler's goroutine, after the body was read.
func (w *response) Running() {
	w.c.running.Store(true)
	w.c.unpark()
}

// body is a request's body.
type body struct {
	io.ReadCloser
	c     *conn
	ended bool
	// expects: the client waits for 100 Continue before it sends the body.
	expects bool
	// broken: a read failed, possibly by its deadline.
	broken bool
}

// discard flushes the answer and reads the rest of the body. It returns false if that
// would take more than maxDiscard or discardTime, and the connection must be closed
// instead. It must not be left to net/http, which would read the rest after it has stopped
// its background read; the end of a body starts that again, and it panics.
func (b *body) discard(w *response) bool {
	if b.ended {
		return true
	}
	if b.expects || b.broken || w.FlushError() != nil {
		return false
	}
	_ = b.c.sock.SetReadDeadline(time.Now().Add(discardTime)) // fails only if closed, as the read will
	_, err := io.CopyN(io.Discard, b, maxDiscard)
	return b.ended && err == io.EOF
}

// trailerCutOff is what net/http says of a body that is cut off in its trailer; elsewhere
// that is io.ErrUnexpectedEOF.
const trailerCutOff = "http: unexpected EOF reading trailer"

// Read implements io.Reader. While it waits, the connection can be evicted.
func (b *body) Read(p []byte) (int, error) {
	b.expects = false
	b.c.park()
	b.c.inBody.Store(true)
	n, err := b.ReadCloser.Read(p)
	b.c.inBody.Store(false)
	if err != nil && err.Error() == trailerCutOff {
		err = io.ErrUnexpectedEOF
	}
	b.broken = err != nil && err != io.EOF
	if err == io.EOF && !b.ended {
		b.ended = true
		if !b.c.unpark() {
			err = http1.ErrEvicted
		}
	}
	return n, err
}
