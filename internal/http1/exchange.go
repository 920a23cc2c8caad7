package http1

import (
	"net/http"
	"net/url"
)

// exchange is the request under way on a connection with its answer. Its parts are
// used again for the next one.
type exchange struct {
	c   *conn
	req *http.Request
	// blank is what a request begins as: handlers leave more in it than can be seen
	// from here.
	blank  http.Request
	header http.Header
	url    url.URL
	body   body
	resp   response
	// values is what the header's values lie in.
	values [16]string
	// refused: the bytes were no request.
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

// begin takes a request's head. What is wrong with it is returned.
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

// beginRefusal prepares the answer to what is no request.
func (x *exchange) beginRefusal() {
	x.refused = true
	x.body.begin(head{})
	x.resp.begin(head{close: true, method: x.req.Method})
}

// manyNames is how many names a header's map may have grown to and still be kept
// for the next request: it never shrinks.
const manyNames = 32

// reset forgets the request and its answer.
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

// free gives back what is borrowed.
func (x *exchange) free() { x.resp.free() }
