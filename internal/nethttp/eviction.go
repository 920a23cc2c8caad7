package nethttp

import (
	"time"

	"github.com/sluice-router/sluice/internal/list"
	"github.com/sluice-router/sluice/internal/mono"
)

// Eviction of connections when files run short: first the oldest of those that have never
// sent a whole head, then those that have made no progress for longest, in a head, in a
// body, between requests, or in taking an answer. A connection whose handler has called
// Running is never evicted.

const (
	// minIdle is how long a connection must ordinarily have waited before it may be
	// evicted: the request of a new one is on its way.
	minIdle = time.Second
	// anyAge is any age.
	anyAge = time.Duration(0)
	// pollInterval is how often waitForRoom checks for room, maxPolls how many times for
	// one connection, silentFor how long it does not wait after no first head arrived
	// meanwhile.
	pollInterval = 2 * time.Millisecond
	maxPolls     = 10
	silentFor    = time.Second
	// maxRefusing is how many connections are refused with 503 at one time; more are
	// closed without an answer.
	maxRefusing = 8
	// maxLeaving is how many evicted connections may still be open before the next one is
	// accepted, which waits for that up to maxLeavingWait.
	maxLeaving     = 16
	maxLeavingWait = 100 * time.Millisecond
	// maxSpared is how many connections one search skips because they have unread bytes:
	// their requests are on their way.
	maxSpared = 8
	// evictedWriteTimeout bounds a write on an evicted connection.
	evictedWriteTimeout = 5 * time.Millisecond
)

// past is a deadline that ends what waits.
var past = time.Unix(1, 0)

// listLocked puts a connection into one of the two lists.
func (s *Server) listLocked(c *conn, l *list.List[*conn], now mono.Instant) {
	s.unlistLocked(c)
	c.node.Value, c.key = c, now
	l.PushBack(&c.node)
}

// unlistLocked takes a connection off its list, if it is on one.
func (s *Server) unlistLocked(c *conn) {
	_ = s.newcomers.Remove(&c.node) || s.others.Remove(&c.node)
}

// CloseIdle evicts up to n connections that wait for their client, and returns how many.
func (s *Server) CloseIdle(n int) (closed int) {
	for closed < n && s.closeOne(s.newcomerAge(), anyAge, nil) {
		closed++
	}
	return closed
}

// newcomerAge is how long a connection without a first head must have waited before it
// may be evicted.
func (s *Server) newcomerAge() time.Duration {
	if mono.Now() < mono.Instant(s.silentUntil.Load()) {
		return anyAge
	}
	return minIdle
}

// Leaving is the number of evicted connections that have not ended yet.
func (s *Server) Leaving() int64 { return s.leaving.Load() }

// closeOne evicts one connection, but not except, that has waited for at least newcomer
// for its first head, or at least other for anything else.
func (s *Server) closeOne(newcomer, other time.Duration, except *conn) bool {
	s.mu.Lock()
	c := s.victimLocked(newcomer, other, except)
	if c != nil {
		s.unlistLocked(c)
		c.evicted.Store(true)
		s.leaving.Add(1)
	}
	s.mu.Unlock()
	if c == nil {
		return false
	}
	_ = c.sock.SetDeadline(past) // its goroutine wakes up and closes it
	if s.Evicted != nil {
		s.Evicted()
	}
	return true
}

func (s *Server) victimLocked(newcomer, other time.Duration, except *conn) *conn {
	now := mono.Now()
	spares := 0
	spare := func(c *conn, l *list.List[*conn]) {
		spares++
		s.listLocked(c, l, now)
	}
	for n := s.newcomers.First(); n != nil && spares < maxSpared; n = s.newcomers.First() {
		c := n.Value
		if c == except || now.Sub(c.key) < newcomer {
			break
		}
		if !c.unread() {
			return c
		}
		spare(c, &s.newcomers)
	}
	for range s.others.Len() {
		if spares >= maxSpared {
			return nil
		}
		c := s.others.First().Value
		since := mono.Instant(c.since.Load())
		switch {
		case since > c.key: // it has made progress
			s.listLocked(c, &s.others, since)
		case now.Sub(c.key) < other:
			return nil
		case !c.writing.Load() && c.unread():
			spare(c, &s.others)
		default:
			return c
		}
	}
	return nil
}

// makeRoom is called with each accepted connection. It returns false if there is no room
// for it.
func (s *Server) makeRoom(c *conn) bool {
	if s.Crowded == nil || !s.Crowded() {
		return true
	}
	if !s.closeOne(s.newcomerAge(), minIdle, c) && s.Full() && !s.waitForRoom(c) {
		return false
	}
	for end := mono.Now().Add(maxLeavingWait); s.leaving.Load() > maxLeaving && mono.Now() < end; {
		time.Sleep(pollInterval / 2)
	}
	return true
}

// waitForRoom makes room when all connections are new. They may be clients whose requests
// are on their way, or connections that never send any: they get a moment, and then the
// oldest is evicted whatever its age. It returns false if there is none to evict.
func (s *Server) waitForRoom(c *conn) bool {
	heads := s.heads.Load()
	for range maxPolls {
		time.Sleep(pollInterval)
		if s.closeOne(minIdle, minIdle, c) || !s.Full() {
			return true
		}
	}
	if !s.closeOne(anyAge, anyAge, c) {
		return !s.Full()
	}
	if s.heads.Load() == heads {
		s.silentUntil.Store(int64(mono.Now().Add(silentFor)))
	}
	return true
}
