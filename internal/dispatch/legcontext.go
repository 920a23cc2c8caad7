package dispatch

import (
	"context"
	"sync"
	"time"
)

// legContext ends one leg. It is a context without what a leg does not need: no
// values, no deadline, no channel unless somebody asks for it; and it may end for
// several reasons, of which the first counts. Those of a request's legs follow the
// one of the request. All of them lie inside what they belong to, so that a request
// costs no contexts of its own.
type legContext struct {
	mu sync.Mutex
	// guarded by mu
	cause  error         // set once; the context is over then
	done   chan struct{} // made when it is asked for
	fn     func()        // to be called at the end
	fnID   uint32
	lastID uint32      // of fn and more
	more   []endFunc   // beyond one
	first  *legContext // of those that follow this one

	// parent is who is followed. Owned by who follows and stops that.
	parent *legContext
	next   *legContext // of the parent's followers; guarded by the parent's mu
}

// endFunc is a function to be called at the end. Functions cannot be compared, so
// that each has an id. The one that there mostly is lies in the context itself.
type endFunc struct {
	f  func()
	id uint32
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
	fn, more := c.fn, c.more
	c.fn, c.more = nil, nil
	c.mu.Unlock()
	if fn != nil {
		fn()
	}
	for i := range more {
		more[i].f()
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

// unfollow makes c go its own way; it may be ended once more if the parent ends at
// this moment. It may be called any number of times.
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

// WorkerDead implements fleet.Watcher's callback.
func (c *legContext) WorkerDead() { c.end(errWorkerDead) }

// AfterFunc calls f once the context has ended, in the goroutine that ended it:
// f must be short. If it has ended already, f gets a goroutine of its own. The
// returned function stops that and tells whether it did.
// Package context and upstream find this method by its name.
func (c *legContext) AfterFunc(f func()) func() bool {
	c.mu.Lock()
	if c.cause != nil {
		c.mu.Unlock()
		// Not here: package context asks with the child's lock held, which f
		// takes.
		go f()
		return func() bool { return false }
	}
	c.lastID++
	id := c.lastID
	if c.fn == nil {
		c.fn, c.fnID = f, id
	} else {
		c.more = append(c.more, endFunc{f, id})
	}
	c.mu.Unlock()
	return func() bool { return c.remove(id) }
}

func (c *legContext) remove(id uint32) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fn != nil && c.fnID == id {
		c.fn = nil
		return true
	}
	for i := range c.more {
		if c.more[i].id == id {
			c.more = append(c.more[:i], c.more[i+1:]...)
			return true
		}
	}
	return false
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
