package upstream

import (
	"context"
	"strings"
	"time"
)

// Field is one header line.
type Field struct {
	Name, Value string
}

// Header is an ordered list of header lines. It is small and cheap to build: no
// map, no canonical spelling; names are sent as given and compared without case.
type Header []Field

// Add appends a line.
func (h *Header) Add(name, value string) { *h = append(*h, Field{name, value}) }

// Get returns the first value of name, or "".
func (h Header) Get(name string) string {
	for i := range h {
		if strings.EqualFold(h[i].Name, name) {
			return h[i].Value
		}
	}
	return ""
}

// Limits bounds a request in time. Zero means no limit. A limit that passes
// gives an *[Error] of kind [KindTimeout] that names the limit and its value.
type Limits struct {
	// Header runs from when a connection is at hand until the whole head of the
	// response is in; the time to send the request counts.
	Header time.Duration
	// FirstByte runs from when a connection is at hand until the first byte of
	// the response's body.
	FirstByte time.Duration
	// StreamIdle is the longest silence of the engine within a response's body.
	StreamIdle time.Duration
	// Total runs from the call of Do, dialing included, to the end of the body.
	Total time.Duration
}

// Listener is notified when a context ends.
type Listener interface {
	// ContextEnded is called at most once for each Notify. It must not block.
	ContextEnded()
}

// Notifier is a context that notifies listeners of its end without allocating, where
// context.AfterFunc allocates several times. Do uses it.
type Notifier interface {
	context.Context
	// Notify calls l when the context ends, at once if it has.
	Notify(l Listener)
	// Forget removes l. It returns false if l was called, or is being called.
	Forget(l Listener) bool
}

// Request is one request to an engine. It is only read, and not kept after the
// response is finished.
type Request struct {
	Method string
	// Path begins with "/" and carries the query, both as they are to appear on
	// the wire. It is put behind the base URL's path, once.
	Path string
	// AtRoot leaves the base URL's path out: Path counts from the host's root.
	AtRoot bool
	// Header is sent as it is, in order, except for names that belong to the
	// connection and are this package's business: Host, Content-Length,
	// Transfer-Encoding, Connection, Keep-Alive, Proxy-Connection, TE, Trailer,
	// Upgrade, Expect; and Authorization when the endpoint has a key. A name that
	// is no token or a value with a control character is an error.
	Header Header
	// Body is sent as one body, segment after segment, without being copied. The
	// caller keeps the segments unchanged until Do failed, Next returned an error
	// (io.EOF included) or Close returned. Empty for no body.
	Body   [][]byte
	Limits Limits
}

// Response is the answer to a request, its body still to be read.
type Response struct {
	Status int
	// ContentLength is what the engine announced, -1 if it announced nothing.
	// For an answer to HEAD it is the length that a GET would have had.
	ContentLength int64
	// Reused: the answer came over a connection used before.
	Reused bool
	// Ended: the status is the engine's own word that it ended what it had begun, by a
	// deadline or of itself. Another attempt would do all of it again.
	Ended bool
	// Body is never nil. The caller must read it to its end or call Close.
	Body Body

	// head holds the header lines, "Name: value" each ended by LF (CR before it
	// or not), already checked. Values are substrings of it.
	head string
}

// NewResponse makes an answer of something else than HTTP/1.1: contentLength is -1
// where it is not known. Names and values of header must be those that HTTP allows.
func NewResponse(status int, header Header, contentLength int64, body Body) *Response {
	var head strings.Builder
	for _, f := range header {
		head.WriteString(f.Name + ": " + f.Value + "\n")
	}
	return &Response{Status: status, ContentLength: contentLength, Body: body, head: head.String()}
}

// Get returns the first value of the header name, or "".
func (r *Response) Get(name string) string {
	return getLine(r.head, name)
}

// Values returns all values of the header name, nil if there is none.
func (r *Response) Values(name string) []string {
	var out []string
	eachLine(r.head, func(n, v string) bool {
		if strings.EqualFold(n, name) {
			out = append(out, v)
		}
		return true
	})
	return out
}

// Each calls f for every header line in the order of the wire, names spelled as
// the engine spelled them, until f returns false.
func (r *Response) Each(f func(name, value string) bool) {
	eachLine(r.head, f)
}

// Body is the payload of a response. Its methods belong to one goroutine at a
// time; to end it from another one, cancel the context given to Do.
type Body interface {
	// Next returns the next piece of payload as it lies in the connection's
	// buffer, valid until the next call of any method but Buffered and Done. It
	// waits if there is none yet, holding no buffer meanwhile. A piece is never
	// empty, and a piece and an error never come together. At the end of the body
	// it returns io.EOF, and the connection is free for the next request from then
	// on; any other error is an *Error and means that the body is not whole. Errors
	// are sticky.
	Next() ([]byte, error)
	// Read implements io.Reader; unlike Next it copies.
	Read(p []byte) (int, error)
	// Buffered is how many bytes of payload Next can return without a system
	// call. A relay flushes when it is 0.
	Buffered() int
	// Done reports that the end of the body or its failure is known already: Next
	// will return all that is Buffered and then its error without waiting. A
	// relay needs no flush then, the end of the answer brings one.
	Done() bool
	// WaitReadable returns when Next need not wait any more: there is payload, an
	// end or an error. It may return early. Until then no buffer is held. Its
	// error is the one Next will return.
	WaitReadable() error
	// RequestSent reports that the request's segments are not read any more, so that
	// the caller may reuse them before the response is finished.
	RequestSent() bool
	// Trailer returns the first value of a trailer field, after io.EOF.
	Trailer(name string) string
	// Close ends the response. If the body was not read to its end, the
	// connection is closed at once, which tells the engine to stop. It may be
	// called more than once.
	Close() error
}

// eachLine calls f with the name and value of every line of a checked head.
func eachLine(head string, f func(name, value string) bool) {
	for len(head) > 0 {
		var line string
		line, head, _ = strings.Cut(head, "\n")
		i := strings.IndexByte(line, ':')
		if i < 0 {
			continue
		}
		if !f(line[:i], strings.Trim(line[i+1:], " \t\r")) {
			return
		}
	}
}

func getLine(head, name string) string {
	for len(head) > 0 {
		var line string
		line, head, _ = strings.Cut(head, "\n")
		if len(line) > len(name) && line[len(name)] == ':' && strings.EqualFold(line[:len(name)], name) {
			return strings.Trim(line[len(name)+1:], " \t\r")
		}
	}
	return ""
}
