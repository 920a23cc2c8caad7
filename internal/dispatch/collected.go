package dispatch

import (
	"errors"
	"net/http"
	"time"

	"github.com/sluice-router/sluice/internal/openai"
)

// freeAnswer is how much of an answer may be collected that is not counted, in bytes.
const freeAnswer = 16 << 10

// errNoRoom is why an answer is collected no further: requests hold all that they may.
var errNoRoom = errors.New("no memory is left for its answer (--max-buffered-bytes)")

// collected counts the memory of one answer that is collected, as it grows. It is given
// back at the end of the request, as the answer may be needed until then.
type collected struct {
	x *exchange
	n int // counted
}

// hold tells whether there is room for an answer of n bytes.
func (c *collected) hold(n int) bool {
	if n <= freeAnswer || n <= c.n || c.x.call.Memory == nil {
		return true
	}
	// What append makes of it is a quarter more.
	more := n + n/4 - c.n
	if !c.x.call.Memory.ReserveMemory(more) {
		return false
	}
	c.n += more
	c.x.answers.Add(int64(more))
	return true
}

// noRoom is the failure of an answer that there is no room for. It is no engine's.
func (x *exchange) noRoom() *failure {
	e := &openai.Error{Status: http.StatusServiceUnavailable, Type: "server_error", Code: reasonBufferFull, RetryAfter: time.Second,
		Message: "the router holds as much of requests and answers as it may (--max-buffered-bytes), and the answer has no room; try again shortly"}
	return &failure{reason: reasonBufferFull, local: e, err: errNoRoom}
}
