package nethttp

import (
	"container/list"
	"time"

	"github.com/sluice-router/sluice/internal/mono"
)

// Closing connections for others when files run short: the oldest of those that have
// never sent a whole head, then those that have made no progress for longest, in a
// head, in a body, between requests, or in taking an answer. One whose handler has
// called Running on its answer is never closed.

const (
	// restTime is how long a connection must have waited to be closed for another one
	// in ordinary times: the request of one that was just made is on its way.
	restTime = time.Second
	// atOnce is any age.
	atOnce = time.Duration(0)
	// lookAgain is how often it is looked whether there is room, patientLooks how many
	// times for one connection, hurryTime how long nobody is waited for after no first
	// head came meanwhile.
	lookAgain    = 2 * time.Millisecond
	patientLooks = 10
	hurryTime    = time.Second
	// maxRefusing is how many connections are told at one time that there are too many.
	maxRefusing = 8
	// maxLeaving is how many may be on their way out before the next one is accepted,
	// which waits for that up to leaveTime.
	maxLeaving = 16
	leaveTime  = 100 * time.Millisecond
	// maxSpared is how many connections one search spares because bytes of theirs have
	// come that were not read yet: their requests are on their way.
	maxSpared = 8
	// lastWords is how long a write may wait on a connection that makes room for others.
	lastWords = 5 * time.Millisecond
)

// past is a deadline that ends what waits.
var past = time.Unix(1, 0)

// listLocked puts a connection into one of the two lists.
func (s *Server) listLocked(c *conn, l *list.List, now mono.Instant) {
	s.unlistLocked(c)
	c.list, c.elem, c.key = l, l.PushBack(c), now
}

// unlistLocked takes a connection off its list, if it is on one.
func (s *Server) unlistLocked(c *conn) {
	if c.list != nil {
		c.list.Remove(c.elem)
		c.list, c.elem = nil, nil
	}
}

// CloseIdle closes up to n connections that wait for their client, and returns how
// many.
func (s *Server) CloseIdle(n int) (closed int) {
	for closed < n && s.closeOne(s.patience(), atOnce, nil) {
		closed++
	}
	return closed
}

// patience is how old a connection must be that is closed before its first head.
func (s *Server) patience() time.Duration {
	if mono.Now() < mono.Instant(s.silentUntil.Load()) {
		return atOnce
	}
	return restTime
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
	spare := func(c *conn) {
		spares++
		c.key = now
		c.list.MoveToBack(c.elem)
	}
	for e := s.newcomers.Front(); e != nil && spares < maxSpared; e = s.newcomers.Front() {
		c := e.Value.(*conn)
		if c == except || now.Sub(c.key) < newcomer {
			break
		}
		if !c.unread() {
			return c
		}
		spare(c)
	}
	for range s.others.Len() {
		if spares >= maxSpared {
			return nil
		}
		e := s.others.Front()
		c := e.Value.(*conn)
		since := mono.Instant(c.since.Load())
		switch {
		case since > c.key: // it has made progress
			c.key = since
			s.others.MoveToBack(e)
		case now.Sub(c.key) < other:
			return nil
		case !c.stalls.Load() && c.unread():
			spare(c)
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
	if !s.closeOne(s.patience(), restTime, c) && s.Full() && !s.waitForRoom(c) {
		return false
	}
	for end := mono.Now().Add(leaveTime); s.leaving.Load() > maxLeaving && mono.Now() < end; {
		time.Sleep(lookAgain / 2)
	}
	return true
}

// waitForRoom makes room where all connections are fresh. These may be clients whose
// requests are on their way, or such as never send any: they get a moment, and then
// the oldest is closed whatever its age. It is false if there is none to close.
func (s *Server) waitForRoom(c *conn) bool {
	heads := s.heads.Load()
	for range patientLooks {
		time.Sleep(lookAgain)
		if s.closeOne(restTime, restTime, c) || !s.Full() {
			return true
		}
	}
	if !s.closeOne(atOnce, atOnce, c) {
		return !s.Full()
	}
	if s.heads.Load() == heads {
		s.silentUntil.Store(int64(mono.Now().Add(hurryTime)))
	}
	return true
}
