package node

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// Clock is the time of a member, and of its gate. It counts the time during which the
// machine was suspended, where the system can tell: a keeper that was suspended for longer
// than its lease has to know it before it decides anything. Make one with NewClock.
//
// The clock of [time.Now] does not count it on Linux. To ask for the one that does is a
// system call, which is too dear for each step of a request. A suspend shows, though, in
// the time of day, which is at hand: when that has moved against the clock of the process,
// for whatever reason, the system is asked.
type Clock struct {
	// immutable
	origin time.Time
	boot   func() (time.Duration, bool) // time since the machine started, suspends included
	now    func() (monotonic time.Duration, wall int64)
	since  time.Duration // boot at the origin

	asleep atomic.Int64 // time in suspends since origin
	gap    atomic.Int64 // wall less monotonic, when boot was asked last
	mu     sync.Mutex
	base   time.Duration // boot less monotonic, at the origin; guarded by mu
	known  bool          // boot works; guarded by mu
}

// NewClock returns a clock that starts now.
func NewClock() *Clock {
	c := &Clock{origin: time.Now(), boot: bootTime}
	c.now = func() (time.Duration, int64) {
		t := time.Now()
		return t.Sub(c.origin), t.UnixNano()
	}
	c.start()
	return c
}

func (c *Clock) start() {
	m, wall := c.now()
	c.gap.Store(wall - int64(m))
	c.base, c.known = c.ahead()
	c.since = c.base
}

// moved is how far the time of day may move against the clock of the process before the
// system is asked for suspends. A shorter one does not matter.
const moved = int64(time.Millisecond)

// Now returns the time since the clock was made.
func (c *Clock) Now() admission.Instant {
	m, wall := c.now()
	if gap := wall - int64(m); gap-c.gap.Load() > moved || c.gap.Load()-gap > moved {
		c.ask(gap)
	}
	return admission.Instant(int64(m) + c.asleep.Load())
}

// ask finds out how long the machine was suspended.
func (c *Clock) ask(gap int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		c.gap.Store(gap)
		return
	}
	ahead, ok := c.ahead()
	if !ok {
		return // it is asked again
	}
	if slept := int64(ahead - c.base); slept > c.asleep.Load()+moved {
		c.asleep.Store(slept)
	}
	c.gap.Store(gap)
}

// ahead is how far the clock with suspends is ahead of the one without. The process may
// lose the processor between reading the two, so that the closest of some pairs counts.
func (c *Clock) ahead() (ahead time.Duration, ok bool) {
	best := time.Duration(1<<63 - 1)
	for range 5 {
		before, _ := c.now()
		b, works := c.boot()
		after, _ := c.now()
		if !works {
			return 0, false
		}
		if after-before < best {
			best, ahead = after-before, b-before
		}
		if best < 50*time.Microsecond {
			break
		}
	}
	return ahead, true
}

// SinceBoot is the time from the start of the machine to t, suspends included, where the
// system tells: the same for all processes.
func (c *Clock) SinceBoot(t admission.Instant) time.Duration { return c.since + time.Duration(t) }

// AfterFunc is time.AfterFunc: timers do not run while the machine is suspended, and are
// late by that.
func (c *Clock) AfterFunc(d time.Duration, f func()) (stop func() bool) {
	return time.AfterFunc(d, f).Stop
}
