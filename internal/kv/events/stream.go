package events

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"net"
	"strconv"
	"time"
)

// Options configure a Stream. Only Endpoint or Subscribe is required.
type Options struct {
	// Endpoint is where the engine publishes its events, Replay where it repeats those that
	// were missed; without Replay a gap clears the rank. Both are "tcp://HOST:PORT".
	Endpoint, Replay string
	// Subscribe, if not nil, is how events are come by that the engine pushes over its
	// connections for requests; Endpoint, Replay and Topic mean nothing then. It is called
	// again after each end of a subscription.
	Subscribe func(context.Context) (Subscription, error)
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
	// Load is called, by the goroutine of Run, with each record of load that comes with pushed
	// events of the rank. May be nil.
	Load func(*Load)
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

// Pauses between two connections, which are drawn at random up to them.
const (
	minPause  = 100 * time.Millisecond
	maxPause  = 5 * time.Second
	steadyFor = 30 * time.Second // a connection that lasted so long is followed by minPause
	// noSourcesPause is the pause after an engine said that it tells no events.
	noSourcesPause = time.Minute
)

// maxTopic is how long a topic may be, so that a subscription is one short frame.
const maxTopic = 250 // bytes

// endMark is the sequence number that ends a replay, and that a publisher may send when it
// ends. No batch has it.
const endMark = math.MaxUint64

// remembered is how many of the last batches are known by their contents.
const remembered = 1 << 10

var (
	errSilent      = errors.New("the engine served requests, but no event came")
	errNotRepeated = errors.New("the engine does not repeat them")
)

// Stream follows the events of one rank.
//
// One goroutine, that of Run, does all of it. While it reads a replay, live events wait in the
// socket, which the engine's own queue stands behind: what does not fit is dropped there, and
// found as the next gap.
type Stream struct {
	opts             Options
	endpoint, replay string // host:port

	// owned by Run
	sink  Sink
	state State
	// known: next is the sequence number of the batch that comes next. Else the first that
	// comes is taken, and nothing is held.
	known bool
	next  uint64
	// seen has a hash of each of the last batches, at its sequence number modulo the length.
	seen []uint64
	seed maphash.Seed
	// held: the sink may hold something.
	held bool
	// silent: the stream was Degraded for its silence or its faults, and only an event ends
	// that.
	silent bool
	// used: the batch that is being applied had something to tell.
	used      bool
	faults    faults
	lastFault error // since tooMany was called; nil: none
	// snapshot is the part of a pushed snapshot that comes next; nil: none is under way.
	snapshot *snapshotPart
	// afterSnapshot: the last batch was the end of a snapshot.
	afterSnapshot bool
	// nextReplay is when the engine may be asked for a replay again.
	nextReplay time.Time

	counters
}

// New makes a stream. It fails if an endpoint cannot be used, such as one of ipc.
func New(o Options) (*Stream, error) {
	s := &Stream{opts: o, seed: maphash.MakeSeed()}
	var err error
	if o.Subscribe == nil {
		if s.endpoint, err = address(o.Endpoint); err != nil {
			return nil, err
		}
	}
	if o.Subscribe == nil && o.Replay != "" {
		if s.replay, err = address(o.Replay); err != nil {
			return nil, err
		}
	}
	if len(o.Topic) > maxTopic {
		return nil, fmt.Errorf("topic of %d bytes: at most %d are allowed", len(o.Topic), maxTopic)
	}
	if s.opts.Silent <= 0 {
		s.opts.Silent = DefaultSilent
	}
	if s.opts.ReplayTimeout <= 0 {
		s.opts.ReplayTimeout = DefaultReplayTimeout
	}
	if s.opts.Emptied == nil {
		s.opts.Emptied = func() {}
	}
	if s.opts.Dial == nil {
		// A peer whose host is gone is noticed in half a minute.
		d := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}}
		s.opts.Dial = d.DialContext
	}
	return s, nil
}

// address is the "host:port" of an endpoint.
func address(endpoint string) (string, error) {
	host, port, err := splitEndpoint(endpoint)
	if err != nil {
		return "", err
	}
	if anyHost(host) {
		return "", fmt.Errorf("endpoint %.100q: %q is no host to connect to", endpoint, host)
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

// Run follows the stream until ctx ends, and tells sink, which holds nothing at first and is
// Degraded. It connects again whenever it must. When it returns, nothing of it is left, and
// the sink was told that it is Degraded. It may be called once.
func (s *Stream) Run(ctx context.Context, sink Sink) {
	s.sink = sink
	s.seen = make([]uint64, remembered)
	defer s.become(Degraded)
	pause := minPause
	for {
		began := time.Now()
		follow := s.follow
		if s.opts.Subscribe != nil {
			follow = s.followPushed
		}
		err := follow(ctx)
		if ctx.Err() != nil {
			return
		}
		s.failed(err)
		s.become(Degraded)
		if time.Since(began) > steadyFor {
			pause = minPause
		}
		if errors.Is(err, ErrNoSources) {
			pause = noSourcesPause
		}
		if !sleep(ctx, pause/2+rand.N(pause/2)) {
			return
		}
		pause = max(min(2*pause, maxPause), minPause)
	}
}

// sleep reports false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// become tells the sink of a state if it is another one.
func (s *Stream) become(st State) {
	if s.state != st {
		s.state = st
		s.live.Store(st == Live)
		s.sink.State(st)
	}
}

// connect makes a ZMTP connection. end must be called when it is not needed any more.
func (s *Stream) connect(ctx context.Context, address, self string, peers ...string) (z *zconn, end func(), err error) {
	dialing, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	c, err := s.opts.Dial(dialing, "tcp", address)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	c.SetDeadline(time.Now().Add(connectTimeout))
	if z, err = handshake(c, self, peers...); err != nil {
		stop()
		c.Close()
		return nil, nil, fmt.Errorf("%s: %w", address, err)
	}
	return z, func() { stop(); z.close() }, nil
}

// follow connects and reads until that fails.
func (s *Stream) follow(ctx context.Context) error {
	z, end, err := s.connect(ctx, s.endpoint, "SUB", "PUB", "XPUB")
	if err != nil {
		return err
	}
	defer end()
	if err := z.subscribe(s.opts.Topic); err != nil {
		return err
	}
	s.connects.Add(1)
	s.resync(ctx)
	if err := s.tooMany(); err != nil {
		return err
	}
	s.expected.Store(0)
	if !s.silent && ctx.Err() == nil {
		s.become(Live)
	}
	for {
		parts, err := z.next(s.opts.Silent / 4)
		switch {
		case err == nil:
			s.message(ctx, parts)
			if err := s.tooMany(); err != nil {
				return err
			}
		case !errors.Is(err, errIdle):
			return fmt.Errorf("%s: %w", s.endpoint, err)
		}
		if t := s.expected.Load(); t != 0 && time.Now().UnixNano()-t > int64(s.opts.Silent) {
			s.silent = true
			return errSilent
		}
	}
}

// message takes a live message: topic, sequence number, batch.
func (s *Stream) message(ctx context.Context, parts [][]byte) {
	if len(parts) != 3 || len(parts[1]) != 8 || !bytes.HasPrefix(parts[0], []byte(s.opts.Topic)) {
		s.badMessages.Add(1)
		s.bad(fmt.Errorf("%s: a message of %d frames that is no batch of topic %q: the first is %.40q", s.endpoint, len(parts), s.opts.Topic, parts[0]))
		return
	}
	seq, payload := binary.BigEndian.Uint64(parts[1]), parts[2]
	switch {
	case seq == endMark: // the publisher ends
		s.restarted(0)
		return
	case !s.known:
		s.known, s.next = true, seq
		s.partial.Store(seq > 0)
	case seq < s.next && s.saw(seq, payload):
		s.duplicates.Add(1)
		return
	case seq < s.next: // it counts anew; a replay might be of before
		s.restarted(seq)
	case seq > s.next:
		s.gaps.Add(1)
		s.catchUp(ctx, seq)
	}
	s.apply(seq, payload, true)
}

// resync finds out, on a new connection, what was missed before it.
func (s *Stream) resync(ctx context.Context) {
	err := errNoReplay
	switch {
	case s.replay == "":
		if !s.known {
			return // the first connection: nothing is held
		}
	case !s.known || s.next == 0:
		s.known, s.next = true, 0
		err = s.ask(ctx, replay{until: endMark})
	default:
		// The last batch that was seen is asked for as well: another engine, or none, has it
		// if the engine has restarted.
		err = s.ask(ctx, replay{until: endMark, verify: true})
		if errors.Is(err, errRestarted) {
			s.restarted(0)
			err = s.ask(ctx, replay{until: endMark})
		}
	}
	if err != nil && ctx.Err() == nil {
		s.lose()
		s.known = false
	}
}

// catchUp asks for the batches before seq. If it does not get them all, the rank is cleared,
// and seq is the next.
func (s *Stream) catchUp(ctx context.Context, seq uint64) {
	err := s.ask(ctx, replay{until: seq})
	if s.next < seq { // whatever the error is
		s.bad(fmt.Errorf("%d batches from number %d on were missed: %w", seq-s.next, s.next, cmp.Or(err, errNotRepeated)))
		s.lose()
		s.next = seq
	}
}

// lose tells that what the sink holds cannot be relied on.
func (s *Stream) lose() {
	s.unfilled.Add(1)
	s.partial.Store(true)
	if s.held {
		s.held = false
		s.clears.Add(1)
		s.sink.Cleared()
	}
}

// restarted tells that the engine has restarted, and that seq is the next batch that is known
// of it.
func (s *Stream) restarted(seq uint64) {
	s.restarts.Add(1)
	s.fault(errRestarted)
	s.next = seq
	s.emptied()
	s.partial.Store(seq > 0)
}

// saw reports whether a batch is one of the last that were applied.
func (s *Stream) saw(seq uint64, payload []byte) bool {
	return s.next-seq <= remembered && s.seen[seq%remembered] == s.hash(seq, payload)
}

func (s *Stream) hash(seq uint64, payload []byte) uint64 {
	return maphash.Bytes(s.seed, payload) ^ seq*0x9e3779b97f4a7c15
}

// apply takes the batch that is next.
func (s *Stream) apply(seq uint64, payload []byte, live bool) {
	s.next = seq + 1
	s.seen[seq%remembered] = s.hash(seq, payload)
	s.used = false
	d := decoders.Get().(*decoder)
	got := d.decode(payload, s.opts.Rank, s)
	decoders.Put(d)
	s.batches.Add(1)
	s.events.Add(uint64(got.events))
	s.badEvents.Add(uint64(got.bad))
	s.skippedEvents.Add(uint64(got.skipped))
	if got.broken {
		// What was in its lost part may have been removals.
		s.badMessages.Add(1)
		s.bad(fmt.Errorf("%s: batch %d cannot be read to its end", s.endpoint, seq))
		s.lose()
		return
	}
	if !s.used && got.bad > 0 {
		s.bad(fmt.Errorf("%s: nothing in batch %d can be used", s.endpoint, seq))
	}
	if live && !got.foreign {
		s.heard(got.time)
	}
}

// heard tells that a live batch was applied that the engine made at a time, in seconds since
// 1970; 0: not known.
func (s *Stream) heard(made float64) {
	now := time.Now()
	if made > 0 {
		s.lag.Store(int64(max(0, float64(now.UnixNano())-made*1e9)))
	}
	if !s.used {
		return // no sign of what is to be followed
	}
	s.lastEvent.Store(now.UnixNano())
	s.expected.Store(0)
	if s.silent && s.faults.doubtful(now) {
		return
	}
	s.silent = false
	s.become(Live)
}

// stored, removed and emptied are told by the decoder.

func (s *Stream) stored(e *Stored) {
	s.used = s.used || len(e.Tokens) > 0 && InGPU(e.Medium)
	s.held = true
	s.sink.Stored(e)
}

func (s *Stream) removed(e *Removed) {
	s.used = s.used || InGPU(e.Medium)
	s.sink.Removed(e)
}

func (s *Stream) emptied() {
	s.used = true
	s.held = false
	s.partial.Store(false)
	s.clears.Add(1)
	s.opts.Emptied()
	s.sink.Cleared()
}

// Expect tells that a prefill that began then has ended, and that the engine must have stored
// a block in it: its prompt was longer than what the cache held of it. If no event that can be
// used came since it began, and none comes within Options.Silent, the rank is Degraded until one does. It is
// safe for concurrent use and cheap.
func (s *Stream) Expect(began time.Time) {
	if s.lastEvent.Load() < began.UnixNano() {
		s.expected.CompareAndSwap(0, time.Now().UnixNano())
	}
}
