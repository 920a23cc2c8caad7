package http1

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/internal/heap"
	"github.com/sluice-router/sluice/internal/list"
	"github.com/sluice-router/sluice/internal/mono"
)

// waiting finds the connection to close when files run short: among those that wait
// for their client, without a request that runs. There are two kinds:
//
//	newcomers  have never sent a whole head. They are a list in the order of their
//	           accept, whatever they send in the meantime.
//	others     wait for the next request, for its head, for bytes of a body that is
//	           read or thrown away, or for the client to take bytes of an answer.
//	           They are a heap by their last progress.
//
// Both are kept lazily. A connection does nothing here when it makes progress, and
// only looks at a flag when it begins to wait; the search puts what it meets in order:
// a newcomer that has sent its head goes over to the others, one of those that has made
// progress gets its new place, and one with a request under way is taken off until it
// waits again. Each of these steps is O(log n) and is paid for by one event of that
// connection, so a search costs O(log n) in the mean.
type waiting struct {
	// atomic
	silent  atomic.Int64 // connections that have not sent a whole head
	heads   atomic.Int64 // first heads that have come
	leaving atomic.Int64 // connections that were told to close and have not ended yet

	mu sync.Mutex
	// guarded by mu
	newcomers list.List[*conn]
	others    heap.Heap[*conn] // the one with the smallest key first
}

// Places of a connection in waiting, guarded by its mu.
const (
	nowhere int8 = iota
	amongNewcomers
	amongOthers
	gone // for good
)

// waitState is what waiting keeps in a connection.
type waitState struct {
	// atomic
	since    atomic.Int64 // a mono.Instant: of its last progress, as far as it waited after that
	unlisted atomic.Bool  // it is to be listed when it begins to wait
	last     atomic.Bool  // it ends with the request it carries

	// guarded by waiting.mu
	where int8
	node  list.Node[*conn] // in the list of newcomers
	key   int64            // since, when the connection was last put in order
	index int              // in the heap of others
}

// Before implements heap.Element.
func (c *conn) Before(o *conn) bool { return c.key < o.key }

// SetIndex implements heap.Element.
func (c *conn) SetIndex(i int) { c.index = i }

// add takes in a connection that was accepted.
func (w *waiting) add(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.key = c.since.Load()
	w.appendLocked(c)
	w.silent.Add(1)
}

// remove forgets a connection that is over.
func (w *waiting) remove(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takeLocked(c)
	c.where = gone
	if !c.sentHead.Load() {
		w.silent.Add(-1)
	}
}

// firstHead is called by a connection that has sent its first whole head.
func (w *waiting) firstHead(c *conn) {
	c.sentHead.Store(true)
	w.silent.Add(-1)
	w.heads.Add(1)
}

// relist is called by a connection that begins to wait and is unlisted.
func (w *waiting) relist(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.relistLocked(c)
}

func (w *waiting) relistLocked(c *conn) {
	if c.where == nowhere {
		c.unlisted.Store(false)
		w.pushLocked(c)
	}
}

func (w *waiting) appendLocked(c *conn) {
	c.where, c.node.Value = amongNewcomers, c
	w.newcomers.PushBack(&c.node)
}

func (w *waiting) pushLocked(c *conn) {
	c.where, c.key = amongOthers, c.since.Load()
	w.others.Push(c)
}

// takeLocked takes a connection off the list or the heap.
func (w *waiting) takeLocked(c *conn) {
	switch c.where {
	case amongNewcomers:
		w.newcomers.Remove(&c.node)
	case amongOthers:
		w.others.Remove(c.index)
	}
	c.where = nowhere
}

// mostlySilent tells whether more connections have not sent a whole head yet, beside
// the one that was just accepted, than can be closed of the others.
func (w *waiting) mostlySilent() bool {
	silent := int(w.silent.Load()) - 1
	w.mu.Lock()
	defer w.mu.Unlock()
	return silent > 0 && silent > w.newcomers.Len()-1-silent+w.others.Len()
}

// minAges are how long a connection must have waited to be closed for another one.
type minAges struct{ newcomer, other time.Duration }

const (
	// minIdle is that of ordinary times: the request of a connection that was just
	// made is on its way, and so are the bytes of one that has just sent some.
	minIdle = time.Second
	// anyAge is any age.
	anyAge = time.Duration(0)
)

// maxSpared is how many connections one search spares because bytes of theirs have
// come that they have not read yet.
const maxSpared = 8

// victim picks the connection that is to be closed, which cannot begin a request any
// more then, or returns nil: first the oldest newcomer, then the other one that has made
// no progress for longest. Never picked is except. soon tells that there are some whose
// bytes have come but were not read yet, so that they are about to make progress, or that
// end with the request they carry: those that are met with one under way do.
func (w *waiting) victim(least minAges, except *conn) (c *conn, soon bool) {
	now := mono.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	spares := 0
	for n := w.newcomers.First(); n != nil && n.Value != except && spares < maxSpared; n = w.newcomers.First() {
		c := n.Value
		state := c.state.Load()
		switch {
		case c.sentHead.Load():
			w.takeLocked(c)
			w.pushLocked(c)
		case state >= stateClosed:
			w.takeLocked(c)
		case now.Sub(mono.Instant(c.key)) < least.newcomer:
			return w.otherLocked(now, least.other, spares)
		case c.unreadBytes():
			spares++
			w.takeLocked(c)
			c.key = int64(now)
			w.appendLocked(c)
		case c.state.CompareAndSwap(state, stateEvicted):
			w.takeLocked(c)
			w.leaving.Add(1)
			return c, false
		}
	}
	return w.otherLocked(now, least.other, spares)
}

func (w *waiting) otherLocked(now mono.Instant, least time.Duration, spares int) (c *conn, soon bool) {
	soon = spares > 0
	for w.others.Len() > 0 && spares < maxSpared {
		c := w.others.First()
		state, since := c.state.Load(), c.since.Load()
		switch {
		case state >= stateClosed:
			w.takeLocked(c)
		case state == stateActive:
			w.takeLocked(c)
			c.unlisted.Store(true)
			c.last.Store(true) // one that sends many requests at once may never wait
			soon = true
			// It looks at unlisted after it has changed its state.
			if c.state.Load() != stateActive {
				w.relistLocked(c)
			}
		case since != c.key:
			c.key = since
			w.others.Fix(0)
		case now.Sub(mono.Instant(since)) < least:
			return nil, soon
		case state != stateStalled && c.unreadBytes():
			spares++
			soon = true
			c.since.CompareAndSwap(since, int64(now))
		case c.state.CompareAndSwap(state, stateEvicted):
			w.takeLocked(c)
			w.leaving.Add(1)
			return c, false
		}
	}
	return nil, soon
}
