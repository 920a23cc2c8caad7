package http1

import (
	"errors"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/sluice-router/sluice/internal/wire"
)

// maxVictims is how many idle connections one look through all of them finds, so
// that a flood of new ones does not cost a look each.
const maxVictims = 64

// victim is a connection that may be closed, unless it has done something since.
type victim struct {
	c     *conn
	since int64
}

// restTime is how long a connection must have waited to be closed for another one: the
// request of one that was just made is on its way.
const restTime = time.Second

// CloseIdle closes up to n connections, of those without a request under way the ones
// that have waited longest: for their first, for the next, or for the rest of a head.
// It returns how many it closed; they may be counted a moment longer.
func (s *Server) CloseIdle(n int) (closed int) {
	s.evicting.Lock()
	defer s.evicting.Unlock()
	for closed < n {
		if len(s.victims) == 0 {
			if s.victims = s.findVictims(); len(s.victims) == 0 {
				return closed
			}
		}
		v := s.victims[0]
		s.victims = s.victims[1:]
		if v.c.since.Load() == v.since && v.c.closeWaiting() {
			closed++
		}
	}
	return closed
}

// findVictims returns the connections that have waited longest, those first.
func (s *Server) findVictims() []victim {
	before := time.Now().Add(-restTime).UnixNano()
	var all []victim
	s.mu.Lock()
	for c := range s.conns {
		since := c.since.Load()
		if state := c.state.Load(); since < before && state != stateActive && state != stateClosed {
			all = append(all, victim{c, since})
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b victim) int { return int(min(max(a.since-b.since, -1), 1)) })
	if len(all) > maxVictims {
		all = slices.Clone(all[:maxVictims]) // the rest must not be held by them
	}
	return all
}

// makeRoom is called with each connection that was accepted. It is false if the
// connection is one too many and is to be closed without a word.
//
// Where none can be closed, the next ones wait in the kernel: those that have just come
// are answered in a moment, and those that stay silent have soon waited long enough. If
// neither happens, requests under way have all there is, and new ones are refused.
func (s *Server) makeRoom(c *conn) bool {
	if s.Crowded == nil || !s.Crowded() || s.CloseIdle(1) > 0 || !s.Full() {
		return true
	}
	for wait := time.Now().Add(restTime); time.Now().After(s.stuckUntil) && time.Now().Before(wait); {
		time.Sleep(fullPause)
		if s.CloseIdle(1) > 0 || !s.Full() || s.isClosed() {
			return true
		}
	}
	if time.Now().After(s.stuckUntil) {
		s.stuckUntil = time.Now().Add(restTime)
	}
	if s.refusing.Add(1) > maxRefusing {
		s.refusing.Add(-1)
		return false
	}
	c.refuseAll = true
	return true
}

// fullPause is how often it is looked whether there is room again.
const fullPause = 5 * time.Millisecond

// maxRefusing is how many connections are told at one time that there are too many.
const maxRefusing = 8

// tooMany is what a connection is told that is one too many.
func tooMany() *Problem {
	return &Problem{Status: http.StatusServiceUnavailable, Connections: true,
		Message: "the router has almost as many connections as the system lets it have (ulimit -n), and none of them is idle; try again shortly"}
}

// outOfFiles tells an error of accepting that closing another connection mends.
func outOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// waitsSince notes that the connection waits from now on.
func (c *conn) waitsSince(now time.Time) { c.since.Store(now.UnixNano()) }

// closeWaiting closes the connection if no request is under way on it.
func (c *conn) closeWaiting() bool {
	return c.closeIf(stateIdle) || c.closeIf(stateNew) || c.closeIf(stateHead)
}

// freeHead is how long a head may be that is not counted, in bytes: as long as the
// buffer that each connection may have.
const freeHead = wire.BufSize

// holdHead counts n bytes for the head that is read or served. It is false if there is
// no room for them.
func (c *conn) holdHead(n int) bool {
	if n <= freeHead {
		n = 0
	}
	switch more := n - c.held; {
	case more > 0 && c.srv.Reserve != nil && !c.srv.Reserve(more):
		return false
	case more < 0 && c.srv.Release != nil:
		c.srv.Release(-more)
	}
	c.held = n
	return true
}

// headFull is what a client is told whose head has no room.
func headFull() *Problem {
	return &Problem{Status: http.StatusServiceUnavailable,
		Message: "the router holds as much of requests as it may (--max-buffered-bytes), and this request's head has no room; try again shortly"}
}
