package events

import (
	"fmt"
	"time"
)

// A stream may have faults: messages that are no batches, batches that cannot be used, losses
// that are not repaired, restarts. Of each the rank is told, and that is all. But a stream
// that has had maxFaults, of which each is forgiven after faultFor, is Degraded, and its
// connection is closed: it keeps nothing that is right for long, and reading it may be all
// that a processor does. It is Live again when half of them are forgiven.
const (
	maxFaults = 16
	faultFor  = time.Second
)

// faults is how many faults were of late, as the time when all of them are forgiven.
type faults struct{ forgiven time.Time }

// add takes one more. What is beyond twice maxFaults is not counted.
func (f *faults) add(now time.Time) {
	if f.forgiven.Before(now) {
		f.forgiven = now
	}
	if n := f.count(now); n < 2*maxFaults {
		f.forgiven = f.forgiven.Add(faultFor)
	}
}

func (f *faults) count(now time.Time) int {
	return int(max(f.forgiven.Sub(now)+faultFor-1, 0) / faultFor)
}

// many reports whether there were so many that the stream is not to be relied on, and doubtful
// whether that is so still if it was.
func (f *faults) many(now time.Time) bool     { return f.count(now) >= maxFaults }
func (f *faults) doubtful(now time.Time) bool { return f.count(now) > maxFaults/2 }

// fault counts a fault of the stream.
func (s *Stream) fault(err error) {
	s.faults.add(time.Now())
	s.lastFault = err
}

// bad is for faults whose error the stream tells.
func (s *Stream) bad(err error) {
	s.failed(err)
	s.fault(err)
}

// tooMany is an error if a fault has come, and there were many of them.
func (s *Stream) tooMany() error {
	err := s.lastFault
	s.lastFault = nil
	if now := time.Now(); err != nil && s.faults.many(now) {
		s.silent = true
		return fmt.Errorf("%d faults in a short time, the last: %w", s.faults.count(now), err)
	}
	return nil
}
