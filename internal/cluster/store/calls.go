package store

import (
	"context"
	"fmt"
	"sync"
)

// Calls lets one call after another use a connection, each within CallLimit. The stores
// have one, so that a connection which failed can be dropped without harm to others: there
// is about one call a second.
type Calls struct {
	turn  chan struct{} // holds one value while a call runs
	open  context.Context
	close context.CancelFunc
	once  sync.Once
}

// NewCalls returns a Calls that is ready to use.
func NewCalls() *Calls {
	c := &Calls{turn: make(chan struct{}, 1)}
	c.open, c.close = context.WithCancel(context.Background())
	return c
}

// Do runs f when no other call runs. Its context ends with ctx, after CallLimit or when
// the Calls are closed.
func (c *Calls) Do(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, CallLimit, errSilent)
	defer cancel()
	stop := context.AfterFunc(c.open, cancel)
	defer stop()
	select {
	case <-ctx.Done():
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	}
	if c.open.Err() != nil {
		return errClosed
	}
	if ctx.Err() != nil {
		return Ended(ctx)
	}
	return f(ctx)
}

var errSilent = fmt.Errorf("no answer within %s: %w", CallLimit, context.DeadlineExceeded)

// Ended makes ErrUnavailable of a context that has ended, with why it did.
func Ended(ctx context.Context) error { return Unavailable(context.Cause(ctx)) }

// Close ends the call that runs, waits for its end, and makes later ones fail. Then it
// calls last, the first time only.
func (c *Calls) Close(last func()) {
	c.once.Do(func() {
		c.close()
		c.turn <- struct{}{}
		last()
		<-c.turn
	})
}
