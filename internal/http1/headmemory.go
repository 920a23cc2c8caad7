package http1

import (
	"net/http"

	"github.com/sluice-router/sluice/internal/wire"
)

// FreeHead is the largest head, in bytes, whose memory is not counted: the size of the
// buffer that each connection may have.
const FreeHead = wire.BufSize

// HeadMemory is what is counted for the head of a connection's current request.
type HeadMemory struct{ held int }

// Hold counts n bytes for the head, in place of what was counted before; 0: none. It
// returns false, and counts what it did before, if reserve refuses them. Both functions
// may be nil.
func (m *HeadMemory) Hold(n int, reserve func(bytes int) bool, release func(bytes int)) bool {
	if n <= FreeHead {
		n = 0
	}
	switch more := n - m.held; {
	case more > 0 && reserve != nil && !reserve(more):
		return false
	case more < 0 && release != nil:
		release(-more)
	}
	m.held = n
	return true
}

func (c *conn) holdHead(n int) bool { return c.headMemory.Hold(n, c.srv.Reserve, c.srv.Release) }

// NoMemoryForHead is the answer to a head for which Server.Reserve returned false.
func NoMemoryForHead() *Problem {
	return &Problem{Status: http.StatusServiceUnavailable,
		Message: "the memory for requests (--max-buffered-bytes) is in use, and this request's head does not fit; try again shortly"}
}
