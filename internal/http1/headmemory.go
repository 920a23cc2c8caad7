package http1

import (
	"net/http"

	"github.com/sluice-router/sluice/internal/wire"
)

// FreeHead is how long a head may be that is not counted, in bytes: as long as the
// buffer that each connection may have.
const FreeHead = wire.BufSize

// holdHead counts n bytes for the head that is read or served. It is false if there is
// no room for them.
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

// NoMemoryForHead is what a client is told whose head has no room.
func NoMemoryForHead() *Problem {
	return &Problem{Status: http.StatusServiceUnavailable,
		Message: "the router holds as much of requests as it may (--max-buffered-bytes), and this request's head has no room; try again shortly"}
}
