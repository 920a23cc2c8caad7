package fleet

import (
	"sync"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/heap"
)

// event is something that happens at a time: a check, the end of an open
// breaker, the next look at a draining worker.
type event struct {
	// immutable
	run func(now admission.Instant) // must not block

	// guarded by schedule.mu
	at  admission.Instant
	pos int // in the heap, -1: not scheduled
}

func newEvent(run func(now admission.Instant)) *event { return &event{run: run, pos: -1} }

// Before and SetIndex are of heap.Element.
func (e *event) Before(o *event) bool { return e.at < o.at }
func (e *event) SetIndex(i int)       { e.pos = i }

// schedule runs events when they are due, one after the other, on one
// goroutine.
type schedule struct {
	// immutable
	clock admission.Clock
	wake  chan struct{} // has room for one
	stop  chan struct{}
	done  chan struct{}

	mu sync.Mutex
	// guarded by mu
	h heap.Heap[*event]
}

func newSchedule(clock admission.Clock) *schedule {
	return &schedule{
		clock: clock, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
}

// set makes e run at the given time and not at one it was set to before.
func (s *schedule) set(e *event, at admission.Instant) {
	s.mu.Lock()
	e.at = at
	if e.pos >= 0 {
		s.h.Fix(e.pos)
	} else {
		s.h.Push(e)
	}
	first := s.h.First() == e
	s.mu.Unlock()
	if first {
		s.nudge()
	}
}

// advance makes e run earlier than it would, if it is to run at all.
func (s *schedule) advance(e *event, at admission.Instant) {
	s.mu.Lock()
	sooner := e.pos >= 0 && e.at > at
	if sooner {
		e.at = at
		s.h.Fix(e.pos)
	}
	first := sooner && s.h.First() == e
	s.mu.Unlock()
	if first {
		s.nudge()
	}
}

// drop makes e not run. It may be running.
func (s *schedule) drop(e *event) {
	if e == nil {
		return
	}
	s.mu.Lock()
	if e.pos >= 0 {
		s.h.Remove(e.pos)
	}
	s.mu.Unlock()
}

func (s *schedule) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *schedule) loop() {
	defer close(s.done)
	for {
		now := s.clock.Now()
		next, more := s.runDue(now)
		stopTimer := func() bool { return false }
		if more {
			stopTimer = s.clock.AfterFunc(max(next.Sub(s.clock.Now()), 0), s.nudge)
		}
		select {
		case <-s.wake:
			stopTimer()
		case <-s.stop:
			stopTimer()
			return
		}
	}
}

// runDue runs what is due and returns when the next is.
func (s *schedule) runDue(now admission.Instant) (next admission.Instant, more bool) {
	for {
		s.mu.Lock()
		if s.h.Len() == 0 || s.h.First().at > now {
			if more = s.h.Len() > 0; more {
				next = s.h.First().at
			}
			s.mu.Unlock()
			return next, more
		}
		e := s.h.Pop()
		s.mu.Unlock()
		e.run(now)
	}
}

// close ends the loop and waits for it.
func (s *schedule) close() {
	close(s.stop)
	<-s.done
}
