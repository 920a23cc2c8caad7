package http1

import (
	"net/http"
	"net/url"
)

// exchange is the current request of a connection and its answer. It is reused for the
// next request.
type exchange struct {
	c   *conn
	req *http.Request
	// blank is the initial value of each request: handlers may leave state in unexported
	// fields.
	blank  http.Request
	header http.Header
	url    url.URL
	body   body
	resp   response
	// values backs the header's values.
	values [16]string
	// refused: the bytes were not a valid request.
	refused bool
}

func (x *exchange) init(c *conn) {
	x.c = c
	x.header = make(http.Header, 16)
	x.req = (&http.Request{Header: x.header, RemoteAddr: c.remote}).WithContext(c.ctx)
	x.blank = *x.req
	x.body.c = c
	x.resp.c, x.resp.header = c, make(http.Header, 16)
}

// begin parses a request's head and prepares its answer, or returns what is wrong with
// it.
func (x *exchange) begin(head string) *Problem {
	h, p := x.parse(head)
	if p != nil {
		return p
	}
	r := x.req
	r.ContentLength = h.length
	if h.chunked {
		r.ContentLength, r.TransferEncoding = -1, chunkedCoding
	}
	x.body.begin(h)
	r.Body = http.NoBody
	if h.chunked || h.length > 0 {
		r.Body = &x.body
	}
	r.Close = h.close
	x.resp.begin(h)
	return nil
}

var chunkedCoding = []string{"chunked"}

// beginRefusal prepares the answer to a malformed request.
func (x *exchange) beginRefusal() {
	x.refused = true
	x.body.begin(head{})
	x.resp.begin(head{close: true, method: x.req.Method})
}

// manyNames is the largest number of names in a header's map that is kept for the next
// request: a map never shrinks.
const manyNames = 32

// reset clears the request and its answer.
func (x *exchange) reset() {
	if len(x.header) > manyNames {
		x.header = make(http.Header, 16)
		x.blank.Header = x.header
	}
	clear(x.header)
	clear(x.values[:])
	*x.req = x.blank
	x.url = url.URL{}
	x.body.begin(head{})
	x.resp.reset()
}

// free returns pooled buffers.
func (x *exchange) free() { x.resp.free() }
