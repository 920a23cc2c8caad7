package nethttp

import (
	"time"

	"github.com/sluice-router/sluice/internal/list"
	"github.com/sluice-router/sluice/internal/mono"
)

// Closing connections for others when files run short: the oldest of those that have
// never sent a whole head, then those that have made no progress for longest, in a
// head, in a body, between requests, or in taking an answer. One whose handler has
// called Running on its answer is never closed.

const (
	// minIdle is how long a connection must have waited to be closed for another one
	// in ordinary times: the request of one that was just made is on its way.
	minIdle = time.Second
	// anyAge is any age.
	anyAge = time.Duration(0)
	// pollInterval is how often it is looked whether there is room, patientLooks how many
	// times for one connection, hurryTime how long nobody is waited for after no first
	// head came meanwhile.
	pollInterval = 2 * time.Millisecond
	maxPolls     = 10
	silentFor    = time.Second
	// maxRefusing is how many connections are told at one time that there are too many.
	maxRefusing = 8
	// maxLeaving is how many may be on their way out before the next one is accepted,
	// which waits for that up to leaveTime.
	maxLeaving     = 16
	maxLeavingWait = 100 * time.Millisecond
	// maxSpared is how many connections one search spares because bytes of theirs have
	// come that were not read yet: their requests are on their way.
	maxSpared = 8
	// evictedWriteTimeout is how long a write may wait on a connection that makes room for others.
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

// CloseIdle closes up to n connections that wait for their client, and returns how
// many.
func (s *Server) CloseIdle(n int) (closed int) {
	for closed < n && s.closeOne(s.newcomerAge(), anyAge, nil) {
		closed++
	}
	return closed
}

// newcomerAge is how old a connection must be that is closed before its first head.
func (s *Server) newcomerAge() time.Duration {
	if mono.Now() < mono.Instant(s.silentUntil.Load()) {
		return anyAge
	}
	return minIdle
}

// Leaving is how many connections were told to close and have not ended yet.
func (s *Server) Leaving() int64 { return s.leaving.Load() }

// closeOne closes one connection, but not except, that has waited so long: newcomer
// for its first head, other for anything else.
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

// makeRoom is called with each connection that was accepted. It is false if the
// connection is one too many.
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

// waitForRoom makes room where all connections are fresh. These may be clients whose
// requests are on their way, or such as never send any: they get a moment, and then
// the oldest is closed whatever its age. It is false if there is none to close.
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
