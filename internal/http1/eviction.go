package http1

import (
	"errors"
	"net/http"
	"syscall"
	"time"

	"github.com/sluice-router/sluice/internal/mono"
)

// CloseIdle evicts up to n connections that wait for their client, and returns how many:
// first the oldest of those that have never sent a whole head, then those that have made
// no progress for longest, in a head, in a body, or between requests. A connection whose
// handler has called Running is never evicted. One that has not sent a head yet must have
// been silent for a second, unless such connections have proven to be a flood.
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

// Leaving is the number of evicted connections that have not ended yet.
func (s *Server) Leaving() int64 { return s.waiting.leaving.Load() }

// closeOne evicts one connection, but not except; see waiting.victim.
func (s *Server) closeOne(least minAges, except *conn) (closed, soon bool) {
	c, soon := s.waiting.victim(least, except)
	if c == nil {
		return false, soon
	}
	// The deadline wakes up its goroutine, which closes it.
	past := time.Unix(1, 0)
	_ = c.sock.SetDeadline(past) // a closed connection has no reads
	if s.Evicted != nil {
		s.Evicted()
	}
	return true, false
}

const (
	// pollInterval is how often waitForRoom checks whether there is room.
	pollInterval = 2 * time.Millisecond
	// silentPolls is after how many polls in a row without a first head of any new
	// connection these are taken for silent: connections that never send one. Polls are
	// counted rather than time, because on a busy machine time passes in which no
	// goroutine had a chance to run. silentPollsBusy applies if at least 1/activeShare of
	// the connections accepted within recentWindow have sent a head: then it is a burst of
	// clients, on a machine that is busy with it. silentPollsAgain applies once new
	// connections were found silent, until activePolls polls have seen first heads.
	silentPolls      = 20
	silentPollsAgain = 8
	silentPollsBusy  = 40
	activePolls      = 3 // polls that see first heads, until new connections are not taken for silent
	activeShare      = 4
	recentWindow     = time.Second
	// maxWait bounds the time that the accept loop waits for heads of new connections. The
	// budget recovers at 1/waitShare of the time that passes.
	maxWait   = time.Second
	waitShare = 8
	// minSilentBatch is how many connections are evicted without waiting again for heads,
	// after new connections were first found silent. The batch grows fourfold, up to
	// maxSilentBatch, each time that they are found silent again. silentFor is how long
	// that finding holds.
	minSilentBatch = 32
	maxSilentBatch = 1 << 12
	silentFor      = time.Second
	// maxLeaving is how many evicted connections may still be open while further ones are
	// accepted, and maxLeavingWait how long the accept loop waits for that.
	maxLeaving     = 8
	maxLeavingWait = 50 * time.Millisecond
)

// newcomerStats is what the accepting goroutine knows about new connections.
type newcomerStats struct {
	left  int           // of the current batch of evictions without waiting; valid until silentUntil
	next  int           // size of the next batch
	spent time.Duration // waited, less what has recovered; see maxWait
	at    mono.Instant  // when spent was updated

	accepts int64 // so far
	// marks are the counts of accepts and first heads at mark and before that: the
	// difference to marks[0] is what happened within the last one or two recentWindows.
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

// silentPollLimit is how many polls in a row without a first head mean that new
// connections are silent.
func (h *newcomerStats) silentPollLimit(heads int64) int {
	if h.next > minSilentBatch {
		return silentPollsAgain
	}
	if (heads-h.marks[0].heads)*activeShare > h.accepts-h.marks[0].accepts {
		return silentPollsBusy
	}
	return silentPolls
}

// makeRoom is called with each accepted connection. It returns false if there is no room
// for the connection and it is to be closed without an answer.
//
// An accepted connection already has its file, from the reserve beyond Full. So nobody
// waits until an evicted connection is closed by its goroutine.
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

// waitForRoom makes room when no connection has been idle for minIdle. If most have had a
// request, it evicts the one of these that has made no progress for longest. Otherwise new
// connections may be clients whose requests are on their way, or a flood of connections
// that never send any: as long as first heads arrive, and maxWait allows, the next
// connections wait in the kernel's queue; when none arrives, the oldest is evicted
// whatever its age. It returns false if there is none to evict: running requests have all
// files.
func (s *Server) waitForRoom(c *conn) bool {
	now := mono.Now()
	h := &s.newcomers
	if now >= mono.Instant(s.silentUntil.Load()) {
		h.left, h.next = 0, minSilentBatch
	}
	if h.left > 0 {
		h.left--
		if ok, _ := s.closeOne(minAges{}, c); ok {
			s.silentUntil.Store(int64(now.Add(silentFor))) // the flood goes on
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
			// The first polls may only see heads of the connections accepted last.
			if heads, quiet, progress = n, 0, progress+1; progress >= activePolls {
				h.next = minSilentBatch
			}
		}
	}
}

// maxRefusing is how many connections are refused with 503 at one time; more are closed
// without an answer.
const maxRefusing = 8

// TooManyConnections is the answer to a new connection for which there is no room.
func TooManyConnections() *Problem {
	return &Problem{Status: http.StatusServiceUnavailable, Connections: true,
		Message: "the router has almost as many connections as the system lets it have (ulimit -n), and none of them is idle; try again shortly"}
}

// NoRequestYet is the answer to a connection that is evicted before it has sent a request.
func NoRequestYet() *Problem {
	return &Problem{Status: http.StatusServiceUnavailable, Connections: true, Unasked: true,
		Message: "the router has almost as many connections as the system lets it have (ulimit -n), and this one had not sent a request; try again shortly"}
}

// OutOfFiles reports whether closing another connection would let accept succeed.
func OutOfFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// ErrEvicted is the error of reading a body or writing an answer after the connection was
// evicted, because its client made no progress.
var ErrEvicted = errors.New("the connection was closed to make room for others")

// evicted reports whether the connection was evicted.
func (c *conn) evicted() bool { return c.state.Load() == stateEvicted }

// parkReading is called by the reader before it waits. From then on the connection can be
// evicted, unless its request runs.
func (c *conn) parkReading() {
	if c.progress {
		c.progress = false
		c.since.Store(int64(mono.Now()))
	}
	c.parked = c.park(stateWaits) || c.parked // after a spurious wake-up it is parked already
}

// parkWriting is called by the writer before it waits. If it returns true, unpark must be
// called after the wait.
func (c *conn) parkWriting() (parked bool) {
	c.since.Store(int64(mono.Now()))
	return c.park(stateStalled)
}

func (c *conn) park(state int32) (parked bool) {
	if c.state.Load() == stateActive && !c.running {
		parked = c.state.CompareAndSwap(stateActive, state)
	}
	if c.unlisted.Load() { // read after the state was set: see waiting.otherLocked
		c.srv.waiting.relist(c)
	}
	return parked
}

// unpark is called after a wait for which the connection was parked. It returns false if
// the connection was evicted meanwhile.
func (c *conn) unpark(state int32) bool { return c.state.CompareAndSwap(state, stateActive) }

// endEvicted ends a connection that was evicted while it waited for a request. It answers
// if the connection has not sent any request. Between two requests it does not: the client
// may be about to send the next one, and would take this for its answer.
func (c *conn) endEvicted() {
	if !c.sentHead.Load() {
		c.x.beginRefusal()
		c.answer(NoRequestYet())
	}
}

// evictedWriteTimeout bounds a write on an evicted connection.
const evictedWriteTimeout = 5 * time.Millisecond
