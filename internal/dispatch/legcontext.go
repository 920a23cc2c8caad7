package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"
)

// legContext ends one leg. It is a context without what a leg does not need:
// no values, no deadline, no children, no channel unless somebody asks for it;
// and it may end for several reasons, of which the first counts. Two of them lie
// inside each attempt, so an attempt costs no contexts of its own.
type legContext struct {
	mu sync.Mutex
	// guarded by mu
	cause error         // set once; the context is over then
	done  chan struct{} // made when it is asked for
	fns   [2]*func()    // to be called at the end
	more  []*func()     // beyond two
}

// end ends the leg with a cause. Later calls do nothing.
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
	fns, more := c.fns, c.more
	c.fns, c.more = [2]*func(){}, nil
	c.mu.Unlock()
	for _, f := range fns {
		if f != nil {
			(*f)()
		}
	}
	for _, f := range more {
		(*f)()
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
	p := &f
	switch {
	case c.fns[0] == nil:
		c.fns[0] = p
	case c.fns[1] == nil:
		c.fns[1] = p
	default:
		c.more = append(c.more, p)
	}
	c.mu.Unlock()
	return func() bool { return c.remove(p) }
}

func (c *legContext) remove(p *func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.fns {
		if c.fns[i] == p {
			c.fns[i] = nil
			return true
		}
	}
	for i := range c.more {
		if c.more[i] == p {
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

// ended returns the cause, nil while the leg goes on.
func (c *legContext) ended() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// follow ends the legs when ctx does, until the returned function is called.
func follow(ctx context.Context, legs ...*legContext) (stop func() bool) {
	return context.AfterFunc(ctx, func() {
		cause := context.Cause(ctx)
		if cause == nil {
			cause = errors.New("BUG: a context ended without a cause")
		}
		for _, c := range legs {
			c.end(cause)
		}
	})
}
