package dispatch

import (
	"context"
	"errors"
	"time"
)

// requestContext ends one request: with the client's own context, or when the
// request's time is over. The waits of the request see it, and its legs follow it.
type requestContext struct {
	legContext
	client   context.Context
	unlisten func() bool // stops following client; nil if that never ends

	// limits has the request's own time; nil if it has none.
	limits *deadlines
	limit  deadline
}

// afterFuncer is a context that calls functions at its end by itself. Package
// context knows the method too, but makes a context and a channel for each call.
type afterFuncer interface {
	AfterFunc(f func()) (stop func() bool)
}

// begin makes c end with client. stop must be called in the end.
func (c *requestContext) begin(client context.Context) {
	c.client = client
	if client.Err() != nil {
		c.clientEnded() // now, and not soon
		return
	}
	if a, ok := client.(afterFuncer); ok {
		c.unlisten = a.AfterFunc(c.clientEnded)
	} else if client.Done() != nil {
		c.unlisten = context.AfterFunc(client, c.clientEnded)
	}
}

// endBy makes c end at a time, too.
func (c *requestContext) endBy(limits *deadlines, at time.Time) {
	c.limits = limits
	limits.add(&c.limit, &c.legContext, at)
}

// stop removes c's deadline and its tie to the client, without ending c.
func (c *requestContext) stop() {
	if c.unlisten != nil {
		c.unlisten()
	}
	if c.limits != nil {
		c.limits.remove(&c.limit)
	}
}

func (c *requestContext) clientEnded() {
	cause := context.Cause(c.client)
	if cause == nil {
		cause = errors.New("BUG: a context ended without a cause")
	}
	c.end(cause)
}
