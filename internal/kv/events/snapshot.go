package events

import (
	"sync/atomic"
	"time"
)

// Snapshot is what a stream has seen so far. Counters never go back.
type Snapshot struct {
	State State
	// Partial: what was stored before the first event that was seen is not known, so that less
	// may be known than the engine holds.
	Partial bool
	// Lag is how old the last live batch was when it came, by the two clocks.
	Lag time.Duration
	// LastEvent is when the last live batch came; zero: none did.
	LastEvent time.Time
	// LastError is what was last wrong: why the stream was Degraded, something was missed or
	// could not be read. It stays when all is well again.
	LastError string

	Batches, Events uint64
	// BadEvents could not be used, or only in part; SkippedEvents are of an unknown type, of
	// another rank or of a cache elsewhere; BadMessages are no batches at all.
	BadEvents, SkippedEvents, BadMessages uint64
	Duplicates                            uint64
	// Gaps are jumps of the sequence. Unfilled is how often something was missed for good, so
	// that the rank was cleared.
	Gaps, Unfilled uint64
	// Replays are those asked for, Replayed the batches they brought.
	Replays, Replayed uint64
	Connects          uint64
	// Clears are those told to the sink, for whatever reason; Restarts are restarts of the
	// engine.
	Clears, Restarts uint64
}

// counters are what a Snapshot is made of.
type counters struct {
	batches, events, badEvents, skippedEvents, badMessages, duplicates atomic.Uint64
	gaps, unfilled, replays, replayed, connects, clears, restarts      atomic.Uint64
	live, partial                                                      atomic.Bool
	lag, lastEvent                                                     atomic.Int64 // nanoseconds
	// expected is when Expect was called first since the last event; 0: it was not.
	expected  atomic.Int64
	lastError atomic.Pointer[string]
}

func (c *counters) failed(err error) {
	text := err.Error()
	c.lastError.Store(&text)
}

// Snapshot returns what the stream has seen. It is safe for concurrent use.
func (s *Stream) Snapshot() Snapshot {
	c := &s.counters
	snap := Snapshot{
		Partial: c.partial.Load(), Lag: time.Duration(c.lag.Load()),
		Batches: c.batches.Load(), Events: c.events.Load(),
		BadEvents: c.badEvents.Load(), SkippedEvents: c.skippedEvents.Load(), BadMessages: c.badMessages.Load(),
		Duplicates: c.duplicates.Load(),
		Gaps:       c.gaps.Load(), Unfilled: c.unfilled.Load(),
		Replays: c.replays.Load(), Replayed: c.replayed.Load(),
		Connects: c.connects.Load(), Clears: c.clears.Load(), Restarts: c.restarts.Load(),
	}
	if c.live.Load() {
		snap.State = Live
	}
	if t := c.lastEvent.Load(); t != 0 {
		snap.LastEvent = time.Unix(0, t)
	}
	if e := c.lastError.Load(); e != nil {
		snap.LastError = *e
	}
	return snap
}
