package node

import (
	"testing"
	"time"
)

// A clock that is told what the system's clocks say.
func fakeClock() (c *Clock, monotonic, boot *time.Duration, wall *int64) {
	monotonic, boot, wall = new(time.Duration), new(time.Duration), new(int64)
	*boot, *wall = time.Hour, 1e18
	c = &Clock{
		boot: func() (time.Duration, bool) { return *boot, true },
		now:  func() (time.Duration, int64) { return *monotonic, *wall },
	}
	c.start()
	return c, monotonic, boot, wall
}

// The time in which the machine was suspended counts, at the first look at the clock.
func TestTheClockCountsSuspends(t *testing.T) {
	c, monotonic, boot, wall := fakeClock()
	pass := func(d, asleep time.Duration) {
		*monotonic += d
		*boot += d + asleep
		*wall += int64(d + asleep)
	}
	pass(time.Second, 0)
	if now := time.Duration(c.Now()); now != time.Second {
		t.Fatalf("%v after a second", now)
	}
	pass(time.Second, time.Minute)
	if now := time.Duration(c.Now()); now != 62*time.Second {
		t.Fatalf("%v after two seconds and a minute of sleep", now)
	}
	pass(time.Second, 0)
	if now := time.Duration(c.Now()); now != 63*time.Second {
		t.Fatalf("%v a second later", now)
	}
}

// A time of day that is set, forward or back, changes nothing.
func TestTheClockIgnoresTheTimeOfDay(t *testing.T) {
	c, monotonic, boot, wall := fakeClock()
	for i, step := range []time.Duration{time.Hour, -3 * time.Hour, time.Millisecond * 5} {
		*monotonic += time.Second
		*boot += time.Second
		*wall += int64(time.Second + step)
		if now, want := time.Duration(c.Now()), time.Duration(i+1)*time.Second; now != want {
			t.Fatalf("%v in place of %v after %v", now, want, step)
		}
	}
}

// Where the system does not tell of suspends, the clock of the process is all there is.
func TestTheClockWithoutTheSystems(t *testing.T) {
	c, monotonic, _, wall := fakeClock()
	c.boot = func() (time.Duration, bool) { return 0, false }
	c.start()
	*monotonic, *wall = time.Second, *wall+int64(time.Hour)
	if now := time.Duration(c.Now()); now != time.Second {
		t.Fatalf("%v after a second", now)
	}
}

// The clock of this machine runs, and not back.
func TestTheClockRuns(t *testing.T) {
	c := NewClock()
	last := c.Now()
	for range 1000 {
		now := c.Now()
		if now < last {
			t.Fatalf("%v after %v", now, last)
		}
		last = now
	}
	fired := make(chan struct{})
	c.AfterFunc(time.Millisecond, func() { close(fired) })
	<-fired
	if c.Now() <= last {
		t.Fatal("it stands still")
	}
}

func BenchmarkClock(b *testing.B) {
	c := NewClock()
	for b.Loop() {
		c.Now()
	}
}
