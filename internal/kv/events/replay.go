package events

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"
)

// Bounds of one replay beside Options.ReplayTimeout. Engines keep 10,000 batches by default.
const (
	maxReplayBatches = 50_000
	maxReplayBytes   = 512 << 20
)

// Between two replays a stream waits ten times as long as the first one took, so that a
// publisher with many gaps is not kept busy by replays. If that is more than maxReplayWait,
// the rank is cleared instead. The replay at a connection, which may be of all that the
// engine keeps, does not count: connections have pauses of their own.
const (
	replayRest    = 10
	maxReplayWait = time.Second
	replayRetry   = 50 * time.Millisecond // before the second attempt
)

var (
	errNoReplay  = errors.New("no replay endpoint")
	errRestarted = errors.New("the engine has restarted")
	errTooSoon   = errors.New("the last replay took long and was not long ago")
)

// replay is what to ask the engine for.
type replay struct {
	// until: batches before it are wanted; endMark: all that there are.
	until uint64
	// verify: the last batch that was applied is asked for first and must be the same one.
	verify bool
}

// ask asks the engine for what comes from s.next on, and applies it. What it brought, s.next
// tells, also after an error.
func (s *Stream) ask(ctx context.Context, r replay) error {
	if s.replay == "" {
		return errNoReplay
	}
	wait := time.Until(s.nextReplay)
	if wait > maxReplayWait {
		s.failed(errTooSoon)
		return errTooSoon
	}
	if wait > 0 && !sleep(ctx, wait) {
		return ctx.Err()
	}
	s.replays.Add(1)
	began, connecting := time.Now(), r.until == endMark
	limit, cancel := context.WithTimeout(ctx, s.opts.ReplayTimeout)
	defer cancel()
	err := s.askOnce(limit, r)
	if err != nil && !errors.Is(err, errRestarted) && sleep(limit, replayRetry) {
		err = s.askOnce(limit, r) // from where the first attempt has come to
	}
	switch {
	case err != nil && limit.Err() != nil && errors.Is(err, net.ErrClosed): // closed for the time limit
		err = fmt.Errorf("not done in %v", s.opts.ReplayTimeout)
	case err != nil && limit.Err() != nil:
		err = fmt.Errorf("not done in %v: %w", s.opts.ReplayTimeout, err)
	}
	if !connecting {
		s.nextReplay = time.Now().Add(replayRest * time.Since(began))
	}
	if err != nil {
		err = fmt.Errorf("replay from %s: %w", s.replay, err)
		s.failed(err)
	}
	return err
}

func (s *Stream) askOnce(ctx context.Context, r replay) error {
	z, end, err := s.connect(ctx, s.replay, "DEALER", "ROUTER")
	if err != nil {
		return err
	}
	defer end()
	from := s.next
	if r.verify {
		from--
	}
	if err := z.write(flagMore, nil); err != nil {
		return err
	}
	if err := z.write(0, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return err
	}
	total, last, begun := 0, uint64(0), false
	for n := 0; s.next < r.until; n++ {
		parts, err := z.next(s.opts.ReplayTimeout)
		if errors.Is(err, errIdle) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		} else if err != nil {
			return err
		}
		seq, payload, ok := reply(parts)
		switch {
		case !ok:
			return fmt.Errorf("reply %d is malformed", n)
		case seq == endMark && r.verify:
			return errRestarted
		case seq == endMark:
			return nil
		}
		if total += len(payload); n >= maxReplayBatches || total > maxReplayBytes {
			return fmt.Errorf("more than %d batches or %d bytes", maxReplayBatches, maxReplayBytes)
		}
		if r.verify && seq >= from {
			r.verify = false
			if seq == from {
				if !s.saw(seq, payload) {
					return errRestarted
				}
				continue
			}
		}
		rewound := begun && seq <= last
		last, begun = seq, true
		switch {
		case seq >= r.until:
			return nil
		case seq < s.next && (!rewound || s.saw(seq, payload)):
			s.duplicates.Add(1)
			continue
		case seq < s.next: // what came until now was from before a restart
			s.restarted(seq)
		case seq > s.next: // the engine does not have the ones before any more
			s.lose()
		}
		s.replayed.Add(1)
		s.apply(seq, payload, false)
	}
	return nil
}

// reply reads a reply of a replay: an empty frame, the topic (not from all versions), the
// sequence number, the batch.
func reply(parts [][]byte) (seq uint64, payload []byte, ok bool) {
	n := len(parts)
	if n != 3 && n != 4 || len(parts[0]) != 0 || len(parts[n-2]) != 8 {
		return 0, nil, false
	}
	return binary.BigEndian.Uint64(parts[n-2]), parts[n-1], true
}
