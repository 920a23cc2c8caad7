package http1

import (
	"errors"
	"net/http"
	"syscall"
	"time"

	"github.com/sluice-router/sluice/internal/mono"
)

// CloseIdle closes up to n connections that wait for their client, and returns how
// many: the oldest of those that have never sent a whole head, then those that have made
// no progress for longest, in a head, in a body, or between requests. One whose handler
// has called Running on its answer is never closed. One that has not sent a head yet must
// have been silent for a second, unless such connections prove not to send any.
func (s *Server) CloseIdle(n int) (closed int) {
	least := minAges{newcomer: minIdle}
	if mono.Now() < mono.Instant(s.silentUntil.Load()) {
		least.newcomer = anyAge
	}
	for closed < n {
		if ok, _ := s.closeOne(least, nil); !ok {
			break
		}
		closed++
	}
	return closed
}

// Leaving is how many connections were told to close and have not ended yet.
func (s *Server) Leaving() int64 { return s.waiting.leaving.Load() }

// closeOne closes one connection, but not except; see waiting.victim.
func (s *Server) closeOne(least minAges, except *conn) (closed, soon bool) {
	c, soon := s.waiting.victim(least, except)
	if c == nil {
		return false, soon
	}
	// Its goroutine wakes up and closes it: to close it here would wait for that.
	past := time.Unix(1, 0)
	_ = c.sock.SetDeadline(past) // a closed connection has no reads
	if s.Evicted != nil {
		s.Evicted()
	}
	return true, false
}

const (
	// pollInterval is how often it is looked whether there is room.
	pollInterval = 2 * time.Millisecond
	// silentPolls is at how many looks in a row none of the newcomers has sent a whole
	// head, when they are taken for such as never will. They are counted because on a
	// busy machine a time passes without anybody having had a chance. busyLooks holds if
	// a good part, the goodPart-th, of those that have come of late have sent one: it is
	// a burst of clients then, on a machine that is busy with it. againLooks holds once
	// newcomers were found silent, until some are not.
	silentPolls      = 20
	silentPollsAgain = 8
	silentPollsBusy  = 40
	activePolls      = 3 // looks that find first heads, until newcomers are no more silent
	activeShare      = 4
	recentWindow     = time.Second
	// maxWait is how long one may wait for newcomers in all; a patienceShare-th of the
	// time that passes is added, up to that.
	maxWait   = time.Second
	waitShare = 8
	// minSilentBatch is how many connections are closed without looking again whether
	// newcomers send a head, at first. It grows fourfold each time that they did not.
	minSilentBatch = 32
	maxSilentBatch = 1 << 12
	silentFor      = time.Second
	// maxLeaving is how many connections may be about to close while further ones are
	// accepted, and leaveTime how long that is waited for.
	maxLeaving     = 8
	maxLeavingWait = 50 * time.Millisecond
)

// newcomerStats is what the accepting goroutine knows of newcomers.
type newcomerStats struct {
	left  int // connections to be closed without another look, until the time of silentUntil
	next  int // how many that is the next time
	spent time.Duration
	at    mono.Instant // when spent was right

	accepts int64 // so far
	// marks are counts of accepts and first heads, the last one and the one before: so
	// what came since the latter came of late.
	marks [2]struct{ accepts, heads int64 }
	mark  mono.Instant
}

// accepted counts an accept.
func (h *newcomerStats) accepted(now mono.Instant, heads int64) {
	h.accepts++
	if passed := now.Sub(h.mark); passed >= recentWindow {
		h.mark = now
		h.marks[0] = h.marks[1]
		h.marks[1].accepts, h.marks[1].heads = h.accepts, heads
		if passed >= 2*recentWindow {
			h.marks[0] = h.marks[1]
		}
	}
}

// silentPollLimit is how many silentPollLimit in a row find nothing until newcomers are taken for silent.
func (h *newcomerStats) silentPollLimit(heads int64) int {
	if h.next > minSilentBatch {
		return silentPollsAgain
	}
	if (heads-h.marks[0].heads)*activeShare > h.accepts-h.marks[0].accepts {
		return silentPollsBusy
	}
	return silentPolls
}

// makeRoom is called with each connection that was accepted. It is false if the
// connection is one too many and is to be closed without a word.
//
// What is accepted has its file already, of the reserve that is left beyond Full. So a
// victim is chosen at leisure and closes itself: nobody waits for that.
func (s *Server) makeRoom(c *conn) bool {
	if s.Crowded == nil {
		return true
	}
	s.newcomers.accepted(mono.Now(), s.waiting.heads.Load())
	if !s.Crowded() {
		return true
	}
	if ok, _ := s.closeOne(minAges{minIdle, minIdle}, c); ok || !s.Full() || s.waitForRoom(c) {
		for end := mono.Now().Add(maxLeavingWait); s.waiting.leaving.Load() > maxLeaving && mono.Now() < end; {
			time.Sleep(pollInterval / 2)
		}
		return true
	}
	if s.refusing.Add(1) > maxRefusing {
		s.refusing.Add(-1)
		return false
	}
	c.overLimit = true
	return true
}

// waitForRoom makes room where all connections are fresh. If most have had a request,
// the one of these is closed that has made no progress for longest. Newcomers may be
// clients whose requests are on their way, or connections that will never send any: while
// first heads come the next connections wait in the kernel, for so long as patience lasts,
// and when none comes the oldest is closed whatever its age. It is false if there is none
// to close: running requests have all there is.
func (s *Server) waitForRoom(c *conn) bool {
	now := mono.Now()
	h := &s.newcomers
	if now >= mono.Instant(s.silentUntil.Load()) {
		h.left, h.next = 0, minSilentBatch
	}
	if h.left > 0 {
		h.left--
		if ok, _ := s.closeOne(minAges{}, c); ok {
			s.silentUntil.Store(int64(now.Add(silentFor))) // it goes on
			return true
		}
	}
	h.spent, h.at = max(h.spent-now.Sub(h.at)/waitShare, 0), now
	defer func() { h.spent, h.at = h.spent+mono.Now().Sub(now), mono.Now() }()
	for quiet, progress, heads := 0, 0, s.waiting.heads.Load(); ; quiet++ {
		if !s.waiting.mostlySilent() {
			ok, soon := s.closeOne(minAges{newcomer: minIdle}, c)
			if ok || !soon && s.waiting.silent.Load() <= 1 {
				return ok || !s.Full()
			}
		}
		silent := quiet >= h.silentPollLimit(heads)
		spent := h.spent + mono.Now().Sub(now)
		if silent || spent >= maxWait {
			ok, soon := s.closeOne(minAges{}, c)
			if ok && silent {
				s.silentUntil.Store(int64(mono.Now().Add(silentFor)))
				h.left, h.next = h.next, min(4*h.next, maxSilentBatch)
			}
			if ok || !soon || spent >= 2*maxWait {
				return ok || !s.Full()
			}
		}
		time.Sleep(pollInterval)
		if ok, _ := s.closeOne(minAges{minIdle, minIdle}, c); ok || !s.Full() || s.isClosed() {
			return true
		}
		if n := s.waiting.heads.Load(); n != heads {
			// At first these are only of those that came last.
			if heads, quiet, progress = n, 0, progress+1; progress >= activePolls {
				h.next = minSilentBatch
			}
		}
	}
}

// maxRefusing is how many connections are told at one time that there are too many.
const maxRefusing = 8

// TooManyConnections is what a connection is told that is one too many.
func TooManyConnections() *Problem {
	return &Problem{Status: http.StatusServiceUnavailable, Connections: true,
		Message: "the router has almost as many connections as the system lets it have (ulimit -n), and none of them is idle; try again shortly"}
}

// NoRequestYet is what a connection is told that is closed before it has sent a request.
func NoRequestYet() *Problem {
	return &Problem{Status: http.StatusServiceUnavailable, Connections: true, Unasked: true,
		Message: "the router has almost as many connections as the system lets it have (ulimit -n), and this one had not sent a request; try again shortly"}
}

// outOfFiles tells an error of accepting that closing another connection mends.
func outOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// ErrEvicted is why a body cannot be read, or an answer not be written, whose
// connection was closed for others because its client made no progress.
var ErrEvicted = errors.New("the connection was closed to make room for others")

// evicted tells whether the connection was closed for others.
func (c *conn) evicted() bool { return c.state.Load() == stateEvicted }

// parkReading is called by who reads, before it parkReading. The connection can be closed for others
// then, unless its request runs.
func (c *conn) parkReading() {
	if c.progress {
		c.progress = false
		c.since.Store(int64(mono.Now()))
	}
	c.parked = c.park(stateWaits) || c.parked // it may wake up for nothing
}

// parkWriting is called by who writes, before it waits. What it returns is for goesOn.
func (c *conn) parkWriting() (parked bool) {
	c.since.Store(int64(mono.Now()))
	return c.park(stateStalled)
}

func (c *conn) park(state int32) (parked bool) {
	if c.state.Load() == stateActive && !c.running {
		parked = c.state.CompareAndSwap(stateActive, state)
	}
	if c.unlisted.Load() { // looked at last: see waiting.otherLocked
		c.srv.waiting.relist(c)
	}
	return parked
}

// unpark is called after a wait for which the connection was parked. It is false if the
// connection was closed meanwhile.
func (c *conn) unpark(state int32) bool { return c.state.CompareAndSwap(state, stateActive) }

// endEvicted ends a connection that was closed for others while it waited for a request.
// One that has not sent any is told why. One between two is not: its client may be about
// to send the next, and would take this for the answer.
func (c *conn) endEvicted() {
	if !c.sentHead.Load() {
		c.x.beginRefusal()
		c.answer(NoRequestYet())
	}
}

// evictedWriteTimeout is how long a write may wait on a connection that makes room for others.
const evictedWriteTimeout = 5 * time.Millisecond
