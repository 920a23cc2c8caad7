package http1

import (
	"net/http"

	"github.com/sluice-router/sluice/internal/wire"
)

// FreeHead is the largest head, in bytes, whose memory is not counted: the size of the
// buffer that each connection may have.
const FreeHead = wire.BufSize

// holdHead counts n bytes for the head that is being read or served, in place of what was
// counted before. It returns false if Server.Reserve refuses them.
func (c *conn) holdHead(n int) bool {
	if n <= FreeHead {
		n = 0
	}
	switch more := n - c.held; {
	case more > 0 && c.srv.Reserve != nil && !c.srv.Reserve(more):
		return false
	case more < 0 && c.srv.Release != nil:
		c.srv.Release(-more)
	}
	c.held = n
	return true
}

// NoMemoryForHead is the answer to a head for which Server.Reserve returned false.
func NoMemoryForHead() *Problem {
	return &Problem{Status: http.StatusServiceUnavailable,
		Message: "the memory for requests (--max-buffered-bytes) is in use, and this request's head does not fit; try again shortly"}
}
