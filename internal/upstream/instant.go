package upstream

import "time"

// instant is a moment by the monotonic clock: nanoseconds since the program began.
// It takes a third of a time.Time's room, and reading it half of time.Now's time.
// Zero stands for none.
type instant int64

var began = time.Now()

func clock() instant { return instant(time.Since(began)) }

// add returns the moment d later.
func (i instant) add(d time.Duration) instant { return i + instant(d) }

// sub returns how long after j it is.
func (i instant) sub(j instant) time.Duration { return time.Duration(i - j) }

// time is i for those who want a time.Time; none is the zero one.
func (i instant) time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return began.Add(time.Duration(i))
}
