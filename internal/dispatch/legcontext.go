package dispatch

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/upstream"
)

// legContext ends one leg. It is a context without what a leg does not need: no
// values, no deadline, no channel unless somebody asks for it; and it may end for
// several reasons, of which the first counts. Those of a request's legs follow the
// one of the request. All of them lie inside what they belong to, so that a request
// costs no contexts of its own.
type legContext struct {
	mu sync.Mutex
	// guarded by mu
	cause    error               // set once; the context is over then
	done     chan struct{}       // made when it is asked for
	listener upstream.Listener   // to be told of the end; there mostly is one
	more     []upstream.Listener // beyond one
	first    *legContext         // of those that follow this one

	// parent is who is followed. Owned by who follows and stops that.
	parent *legContext
	next   *legContext // of the parent's followers; guarded by the parent's mu
}

// end ends the context, and those that follow it, with a cause. Later calls do
// nothing.
func (c *legContext) end(cause error) {
	c.mu.Lock()
	if c.cause != nil {
		c.mu.Unlock()
		return
	}
	c.cause = cause
	if c.done != nil {
		close(c.done)
	}
	listener, more := c.listener, c.more
	c.listener, c.more = nil, nil
	c.mu.Unlock()
	if listener != nil {
		listener.ContextEnded()
	}
	for _, l := range more {
		l.ContextEnded()
	}
	for child := c.popFollower(); child != nil; child = c.popFollower() {
		child.end(cause)
	}
}

// popFollower takes one off the list, so that none is ended with a lock held.
func (c *legContext) popFollower() *legContext {
	c.mu.Lock()
	defer c.mu.Unlock()
	child := c.first
	if child != nil {
		c.first, child.next = child.next, nil
	}
	return child
}

// follow ends c when parent ends, at once if it has, until unfollow is called.
func (c *legContext) follow(parent *legContext) {
	c.parent = parent
	parent.mu.Lock()
	cause := parent.cause
	if cause == nil {
		c.next, parent.first = parent.first, c
	}
	parent.mu.Unlock()
	if cause != nil {
		c.end(cause)
	}
}

// unfollow detaches c from its parent; c may still end once if the parent ends
// concurrently. It may be called any number of times.
func (c *legContext) unfollow() {
	p := c.parent
	if p == nil {
		return
	}
	c.parent = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	for at := &p.first; *at != nil; at = &(*at).next {
		if *at == c {
			*at, c.next = c.next, nil
			return
		}
	}
}

// WorkerDead implements fleet.LegListener.
func (c *legContext) WorkerDead() { c.end(errWorkerDead) }

// RankWedged implements fleet.LegListener.
func (c *legContext) RankWedged() { c.end(errRankWedged) }

// Notify implements upstream.Notifier. l is told in the goroutine that ends the
// context.
func (c *legContext) Notify(l upstream.Listener) {
	if !c.add(l) {
		l.ContextEnded()
	}
}

// add tells whether l is going to be told; it is not if the context has ended.
func (c *legContext) add(l upstream.Listener) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.cause != nil:
		return false
	case c.listener == nil:
		c.listener = l
	default:
		c.more = append(c.more, l)
	}
	return true
}

// Forget implements upstream.Notifier.
func (c *legContext) Forget(l upstream.Listener) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.listener == l {
		c.listener = nil
		return true
	}
	for i := range c.more {
		if c.more[i] == l {
			c.more = append(c.more[:i], c.more[i+1:]...)
			return true
		}
	}
	return false
}

// afterFunc is a function as a listener. It is known by its address.
type afterFunc struct{ f func() }

func (a *afterFunc) ContextEnded() { a.f() }

// AfterFunc calls f once the context has ended, in the goroutine that ended it:
// f must be short. If it has ended already, f gets a goroutine of its own. The
// returned function stops that and tells whether it did.
// Package context finds this method by its name.
func (c *legContext) AfterFunc(f func()) func() bool {
	a := &afterFunc{f}
	if !c.add(a) {
		// Not here: package context asks with the child's lock held, which f
		// takes.
		go f()
		return func() bool { return false }
	}
	return func() bool { return c.Forget(a) }
}

// Deadline implements context.Context: there is none.
func (c *legContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements context.Context: there are none.
func (c *legContext) Value(any) any { return nil }

// Done implements context.Context.
func (c *legContext) Done() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done == nil {
		c.done = make(chan struct{})
		if c.cause != nil {
			close(c.done)
		}
	}
	return c.done
}

// Err implements context.Context.
func (c *legContext) Err() error {
	if c.ended() != nil {
		return context.Canceled
	}
	return nil
}

// ended returns the cause, nil while the context goes on. It is what
// context.Cause, which knows only contexts of its own, would return.
func (c *legContext) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}
