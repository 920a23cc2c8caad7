package http1

import (
	"context"
	"sync"
)

// connContext is the context of a connection's requests. It ends with its parent,
// with the client, or with the connection; context.Cause tells which.
type connContext struct {
	context.Context
	cancel context.CancelCauseFunc
	stop   func() bool // ends watching Context

	mu sync.Mutex
	// guarded by mu
	ended bool
	fns   []*func() // empty slots are nil
	fns0  [4]*func()
}

func newConnContext(parent context.Context) *connContext {
	c := &connContext{}
	c.Context, c.cancel = context.WithCancelCause(parent)
	c.fns = c.fns0[:0]
	c.stop = context.AfterFunc(c.Context, c.run)
	return c
}

// end ends the context with a cause, if it has not ended.
func (c *connContext) end(cause error) { c.cancel(cause) }

// close ends the context without calling the functions of AfterFunc.
func (c *connContext) close() {
	c.stop()
	c.cancel(errConnClosed)
}

// run calls the functions of AfterFunc.
func (c *connContext) run() {
	c.mu.Lock()
	fns := c.fns
	c.fns, c.ended = nil, true
	c.mu.Unlock()
	for _, f := range fns {
		if f != nil {
			(*f)()
		}
	}
}

// AfterFunc calls f in a goroutine of its own or of the context's once that has
// ended; f must be short. stop keeps that from happening and tells whether it did.
// Package dispatch looks for this method; package context does not get to it, as it
// recognises its own context inside.
func (c *connContext) AfterFunc(f func()) (stop func() bool) {
	p := &f
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		go f()
		return func() bool { return false }
	}
	i := 0
	for i < len(c.fns) && c.fns[i] != nil {
		i++
	}
	if i == len(c.fns) {
		c.fns = append(c.fns, nil)
	}
	c.fns[i] = p
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i := range c.fns {
			if c.fns[i] == p {
				c.fns[i] = nil
				return true
			}
		}
		return false
	}
}
