package http1

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/internal/heap"
	"github.com/sluice-router/sluice/internal/list"
	"github.com/sluice-router/sluice/internal/mono"
)

// waiting finds the connection to evict when files run short, among those that wait for
// their client and have no running request. There are two kinds:
//
//	newcomers  have never sent a whole head. They are a list in the order of their
//	           accept; what they send in the meantime does not matter.
//	others     wait for the next request, for its head, for bytes of a body that is
//	           read or discarded, or for the client to take bytes of an answer.
//	           They are a heap by their last progress.
//
// Both are updated lazily. A connection does nothing here when it makes progress, and
// only reads a flag when it begins to wait; the search reorders what it meets:
// a newcomer that has sent its head goes over to the others, one of those that has made
// progress gets its new place, and one with a request under way is taken off until it
// waits again. Each of these steps is O(log n) and is paid for by one event of that
// connection, so a search costs O(log n) in the mean.
type waiting struct {
	// atomic
	silent  atomic.Int64 // connections that have not sent a whole head
	heads   atomic.Int64 // connections that have sent their first head, ever
	leaving atomic.Int64 // evicted connections that have not ended yet

	mu sync.Mutex
	// guarded by mu
	newcomers list.List[*conn]
	others    heap.Heap[*conn] // the one with the smallest key first
}

// Where a connection is in waiting, guarded by waiting.mu.
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
	unlisted atomic.Bool  // it must call relist when it begins to wait
	last     atomic.Bool  // it is closed after the current request

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

// add adds an accepted connection.
func (w *waiting) add(c *conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.key = c.since.Load()
	w.appendLocked(c)
	w.silent.Add(1)
}

// remove removes a connection that has ended.
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

// mostlySilent reports whether the connections that have not sent a whole head, without
// the one just accepted, outnumber the others that can be evicted.
func (w *waiting) mostlySilent() bool {
	silent := int(w.silent.Load()) - 1
	w.mu.Lock()
	defer w.mu.Unlock()
	return silent > 0 && silent > w.newcomers.Len()-1-silent+w.others.Len()
}

// minAges are how long a connection must have waited before it may be evicted.
type minAges struct{ newcomer, other time.Duration }

const (
	// minIdle is the ordinary one: the request of a new connection is probably on its
	// way, and so are further bytes of one that has just sent some.
	minIdle = time.Second
	// anyAge is any age.
	anyAge = time.Duration(0)
)

// maxSpared is how many connections one search skips because they have unread bytes.
const maxSpared = 8

// victim picks the connection to evict and sets its state, so that it cannot begin a
// request any more, or returns nil. It picks the oldest newcomer, else the one of the
// others that has made no progress for longest, but never except. soon reports that files
// will be free soon: connections were skipped that have unread bytes, or that run a
// request and are closed after it.
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
			c.last.Store(true) // a client that pipelines many requests may never wait
			soon = true
			// The connection reads unlisted after it has changed its state.
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
