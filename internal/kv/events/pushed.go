package events

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Subscription is a stream of batches that an engine pushes. Next belongs to one goroutine.
type Subscription interface {
	// Next returns the next batch, valid until the next call. It ends when the context of
	// Subscribe does, or Close is called. The error wraps ErrNoSources if the engine says that
	// it tells no events.
	Next() (*Batch, error)
	// Close may be called by any goroutine, more than once.
	Close()
}

// Batch is what a subscription brings at once.
type Batch struct {
	Seq uint64
	// Time is the engine's clock when it made the batch, in seconds since 1970; 0: not told.
	Time float64
	// Rank is the data-parallel rank that it is of.
	Rank int
	// Raw is the batch as it came.
	Raw []byte
	// LoadOnly: it has no events, and the number of the batch before it.
	LoadOnly bool
	// Load is how much the engine has to do; nil: not told.
	Load *Load
	// Snapshot is set in a part of a snapshot of the whole cache.
	Snapshot *SnapshotPart
	Events   []Event
	// Bad counts events that could not be used, or only in part, Skipped those of no interest.
	Bad, Skipped int
	// Broken: it could not be read to its end.
	Broken bool
}

// Load is how much an engine has to do, as it tells with its events. -1: not told.
type Load struct {
	Running, Waiting int64 // requests
	// WaitingTokens are the prompt tokens to compute of those that wait, UsedTokens those that
	// the KV cache holds for requests.
	WaitingTokens, UsedTokens int64
	// Usage is the part of the KV cache that is in use, from 0 to 1.
	Usage float64
	// Age is how old these numbers were when they were sent.
	Age time.Duration
}

// SnapshotPart is a part's place in a snapshot: Index of Count, from 0. What was stored before
// may be missing if Partial is set.
type SnapshotPart struct {
	Index, Count uint32
	Partial      bool
}

// Event is one of its two members; with none of them the cache is empty.
type Event struct {
	Stored  *Stored
	Removed *Removed
}

// snapshotPart is the part that comes next.
type snapshotPart struct{ index, count uint32 }

// acceptedAfter is how long a subscription must last to be taken for accepted, where no batch
// says so. An idle engine may send none.
const acceptedAfter = 2 * time.Second

var (
	errSnapshot = errors.New("parts of a snapshot of the cache are missing")
	errPushed   = errors.New("the engine does not repeat events that it pushes")
)

// followPushed subscribes and reads until that fails.
func (s *Stream) followPushed(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sub, err := s.opts.Subscribe(ctx)
	if err != nil {
		return err
	}
	s.connects.Add(1)
	s.snapshot, s.afterSnapshot = nil, false
	if s.known { // nothing of what was missed comes again
		s.lose()
		s.known = false
	}
	if err := s.tooMany(); err != nil {
		sub.Close()
		return err
	}
	s.expected.Store(0)
	reader := newPushReader(sub)
	defer reader.end()
	tick := time.NewTicker(min(s.opts.Silent/4, acceptedAfter))
	defer tick.Stop()
	began, accepted := time.Now(), false
	for {
		select {
		case got := <-reader.items:
			if got.err != nil {
				return got.err
			}
			accepted = true
			if !s.silent {
				s.become(Live)
			}
			s.pushed(got.batch)
			reader.resume <- struct{}{}
			if err := s.tooMany(); err != nil {
				return err
			}
		case <-tick.C:
			if !accepted && time.Since(began) >= acceptedAfter {
				if accepted = true; !s.silent {
					s.become(Live)
				}
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		if t := s.expected.Load(); t != 0 && time.Now().UnixNano()-t > int64(s.opts.Silent) {
			s.silent = true
			return errSilent
		}
	}
}

// pushReader reads a subscription on a goroutine of its own, one batch at a time.
type pushReader struct {
	sub    Subscription
	items  chan pushItem
	resume chan struct{}
	stop   chan struct{}
	done   chan struct{}
}

type pushItem struct {
	batch *Batch
	err   error
}

func newPushReader(sub Subscription) *pushReader {
	r := &pushReader{sub: sub, items: make(chan pushItem), resume: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{})}
	go r.run()
	return r
}

func (r *pushReader) run() {
	defer close(r.done)
	for {
		batch, err := r.sub.Next()
		select {
		case r.items <- pushItem{batch, err}:
		case <-r.stop:
			return
		}
		if err != nil {
			return
		}
		select {
		case <-r.resume:
		case <-r.stop:
			return
		}
	}
}

// end closes the subscription and waits for the goroutine.
func (r *pushReader) end() {
	close(r.stop)
	r.sub.Close()
	<-r.done
}

// pushed takes a batch. What was missed is not repeated, so that a gap clears the rank.
func (s *Stream) pushed(b *Batch) {
	foreign := s.opts.Rank != AnyRank && b.Rank != s.opts.Rank
	if b.Load != nil && s.opts.Load != nil && !foreign {
		s.opts.Load(b.Load)
	}
	if b.LoadOnly {
		return
	}
	if foreign {
		s.skippedEvents.Add(uint64(len(b.Events) + b.Bad + b.Skipped))
		return
	}
	if b.Snapshot != nil {
		s.pushedSnapshot(b)
		return
	}
	if s.snapshot != nil {
		s.snapshot = nil
		s.bad(fmt.Errorf("batch %d: %w", b.Seq, errSnapshot))
		s.lose()
	}
	after := s.afterSnapshot
	s.afterSnapshot = false
	switch {
	case !s.known:
		s.known = true
		s.partial.Store(b.Seq > 0)
	case after: // how a snapshot counts is not told
	case b.Seq < s.next && s.saw(b.Seq, b.Raw):
		s.duplicates.Add(1)
		return
	case b.Seq < s.next:
		s.restarted(b.Seq)
	case b.Seq > s.next:
		s.gaps.Add(1)
		s.bad(fmt.Errorf("%d batches from number %d on were missed: %w", b.Seq-s.next, s.next, errPushed))
		s.lose()
	}
	s.applyPushed(b)
}

// pushedSnapshot takes a part of a snapshot, of which the first says that the cache is empty.
func (s *Stream) pushedSnapshot(b *Batch) {
	p := b.Snapshot
	want := s.snapshot
	s.snapshot = nil
	switch {
	case p.Index == 0:
		if s.held {
			s.held = false
			s.clears.Add(1)
			s.sink.Cleared()
		}
		s.partial.Store(p.Partial)
	case want == nil || p.Index != want.index || p.Count != want.count:
		s.bad(fmt.Errorf("part %d of %d: %w", p.Index, p.Count, errSnapshot))
		s.lose()
		return
	}
	for len(b.Events) > 0 && b.Events[0] == (Event{}) { // said already, and no news of the engine
		b.Events = b.Events[1:]
	}
	s.known = true
	s.applyPushed(b)
	if p.Index+1 < p.Count {
		s.snapshot = &snapshotPart{p.Index + 1, p.Count}
	} else {
		s.afterSnapshot = true
	}
}

// applyPushed takes the batch that is next.
func (s *Stream) applyPushed(b *Batch) {
	s.next = b.Seq + 1
	s.seen[b.Seq%remembered] = s.hash(b.Seq, b.Raw)
	s.used = false
	for _, e := range b.Events {
		switch {
		case e.Stored != nil:
			s.stored(e.Stored)
		case e.Removed != nil:
			s.removed(e.Removed)
		default:
			s.emptied()
		}
	}
	s.batches.Add(1)
	s.events.Add(uint64(len(b.Events) + b.Bad + b.Skipped))
	s.badEvents.Add(uint64(b.Bad))
	s.skippedEvents.Add(uint64(b.Skipped))
	if b.Broken {
		// What was in its lost part may have been removals.
		s.badMessages.Add(1)
		s.bad(fmt.Errorf("batch %d cannot be read to its end", b.Seq))
		s.lose()
		return
	}
	if !s.used && b.Bad > 0 {
		s.bad(fmt.Errorf("nothing in batch %d can be used", b.Seq))
	}
	s.heard(b.Time)
}
