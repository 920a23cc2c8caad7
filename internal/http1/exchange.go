package http1

import (
	"net/http"
	"net/url"
)

// exchange is the request under way on a connection with its answer. Its parts are
// used again for the next one.
type exchange struct {
	c    *conn
	req  *http.Request
	url  url.URL
	body body
	resp response
	// values is what the header's values lie in.
	values [16]string
	// refused: the bytes were no request.
	refused bool
}

func (x *exchange) init(c *conn) {
	x.c = c
	x.req = (&http.Request{}).WithContext(c.ctx)
	x.req.Header = make(http.Header, 16)
	x.body.c = c
	x.resp.c, x.resp.header = c, make(http.Header, 16)
}

// begin takes a request's head. What is wrong with it is returned.
func (x *exchange) begin(head string) *Problem {
	r := x.req
	h, p := x.parse(head)
	if p != nil {
		return p
	}
	r.RemoteAddr = x.c.remote
	r.ContentLength, r.TransferEncoding = h.length, nil
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
	x.resp.begin(head{close: true})
}

// reset forgets the request and its answer.
func (x *exchange) reset() {
	r := x.req
	clear(r.Header)
	clear(x.values[:])
	r.URL, r.Body, r.Method, r.Host, r.RequestURI = nil, nil, "", "", ""
	x.url = url.URL{}
	x.resp.reset()
}

// free gives back what is borrowed.
func (x *exchange) free() { x.resp.free() }
