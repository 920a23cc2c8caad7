package events

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pusher is an engine that pushes batches to whoever subscribes.
type pusher struct {
	mu     sync.Mutex
	refuse error
	subs   []*pushed
}

// pushed is a subscription.
type pushed struct {
	ctx    context.Context
	ready  chan any // *Batch or error
	closed chan struct{}
	once   sync.Once
}

func (p *pusher) subscribe(ctx context.Context) (Subscription, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse != nil {
		return nil, p.refuse
	}
	s := &pushed{ctx: ctx, ready: make(chan any, 100), closed: make(chan struct{})}
	p.subs = append(p.subs, s)
	return s, nil
}

func (s *pushed) Next() (*Batch, error) {
	select {
	case v := <-s.ready:
		if err, ok := v.(error); ok {
			return nil, err
		}
		return v.(*Batch), nil
	case <-s.closed:
		return nil, net.ErrClosed
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

func (s *pushed) Close() { s.once.Do(func() { close(s.closed) }) }

// pushStory runs a stream of pushed events in virtual time. send pushes to its last
// subscription, told compares what the sink was told since.
func pushStory(t *testing.T, rank int, f func(p *pusher, s *Stream, send func(...any), told func(string))) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p, r := &pusher{}, &recorder{}
		s, err := New(Options{Subscribe: p.subscribe, Rank: rank, Emptied: func() { r.add("emptied") }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); s.Run(ctx, r) }()
		synctest.Wait()
		f(p, s, func(list ...any) {
			p.mu.Lock()
			last := p.subs[len(p.subs)-1]
			p.mu.Unlock()
			for _, v := range list {
				last.ready <- v
			}
			synctest.Wait()
		}, func(want string) {
			t.Helper()
			if got := strings.ReplaceAll(r.take(), "\n", "; "); got != want {
				t.Errorf("told %q, want %q", got, want)
			}
		})
		cancel()
		<-done
	})
}

func stores(seq uint64, hashes ...uint64) *Batch {
	tokens := make([]uint32, 2*len(hashes))
	return &Batch{Seq: seq, Raw: fmt.Append(nil, seq, hashes), Events: []Event{{Stored: &Stored{Hashes: hashes, Tokens: tokens, BlockSize: 2}}}}
}

func removes(seq, hash uint64) *Batch {
	return &Batch{Seq: seq, Raw: fmt.Append(nil, "r", seq, hash), Events: []Event{{Removed: &Removed{Hashes: []uint64{hash}}}}}
}

func clears(seq uint64) *Batch { return &Batch{Seq: seq, Raw: []byte("c"), Events: []Event{{}}} }

func TestPushedEventsAreFollowed(t *testing.T) {
	pushStory(t, AnyRank, func(_ *pusher, s *Stream, send func(...any), told func(string)) {
		send(&Batch{LoadOnly: true})
		told("live")
		send(stores(0, 1), removes(1, 1), stores(2, 2, 3))
		told("stored [1] of 2: [0 0]; removed [1]; stored [2 3] of 2: [0 0 0 0]")
		send(&Batch{LoadOnly: true, Seq: 2}, stores(3, 4))
		told("stored [4] of 2: [0 0]")
		send(clears(4))
		told("emptied; cleared")
		if n := s.Snapshot(); n.State != Live || n.Partial || n.Batches != 5 || n.Gaps != 0 || n.LastError != "" {
			t.Errorf("%+v", n)
		}
	})
}

func TestLoadComesWithPushedEvents(t *testing.T) {
	var loads []int64
	synctest.Test(t, func(t *testing.T) {
		p, r := &pusher{}, &recorder{}
		s, err := New(Options{Subscribe: p.subscribe, Rank: 0, Load: func(l *Load) { loads = append(loads, l.Running) }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx, r)
		synctest.Wait()
		with := stores(0, 1)
		with.Load = &Load{Running: 2}
		for _, b := range []*Batch{{LoadOnly: true, Load: &Load{Running: 1}}, with, {LoadOnly: true, Rank: 1, Load: &Load{Running: 9}}, stores(1, 2)} {
			p.subs[0].ready <- b
		}
		synctest.Wait()
	})
	if !slices.Equal(loads, []int64{1, 2}) {
		t.Errorf("told of loads with %d running requests", loads)
	}
}

func TestIdleEngineThatPushesNothingIsLive(t *testing.T) {
	pushStory(t, AnyRank, func(_ *pusher, s *Stream, _ func(...any), told func(string)) {
		told("")
		time.Sleep(3 * time.Second)
		told("live")
		time.Sleep(24 * time.Hour)
		told("")
	})
}

func TestPushedEventsThatBeginInTheMiddleArePartial(t *testing.T) {
	pushStory(t, AnyRank, func(_ *pusher, s *Stream, send func(...any), told func(string)) {
		send(stores(7, 1))
		told("live; stored [1] of 2: [0 0]")
		if n := s.Snapshot(); !n.Partial || n.Gaps != 0 {
			t.Errorf("%+v", n)
		}
	})
}

func TestGapOfPushedEventsClears(t *testing.T) {
	pushStory(t, AnyRank, func(_ *pusher, s *Stream, send func(...any), told func(string)) {
		send(stores(0, 1), stores(2, 2))
		told("live; stored [1] of 2: [0 0]; cleared; stored [2] of 2: [0 0]")
		send(stores(3, 3))
		told("stored [3] of 2: [0 0]")
		if n := s.Snapshot(); n.Gaps != 1 || n.Unfilled != 1 || !n.Partial {
			t.Errorf("%+v", n)
		}
	})
}

func TestRestartOfAnEngineThatPushes(t *testing.T) {
	pushStory(t, AnyRank, func(_ *pusher, s *Stream, send func(...any), told func(string)) {
		send(stores(0, 1), stores(1, 2), stores(1, 2))
		told("live; stored [1] of 2: [0 0]; stored [2] of 2: [0 0]")
		send(stores(0, 9)) // counts anew
		told("emptied; cleared; stored [9] of 2: [0 0]")
		if n := s.Snapshot(); n.Restarts != 1 || n.Duplicates != 1 {
			t.Errorf("%+v", n)
		}
	})
}

func TestLostSubscriptionClearsAndIsRenewed(t *testing.T) {
	pushStory(t, AnyRank, func(p *pusher, s *Stream, send func(...any), told func(string)) {
		send(stores(0, 1), errors.New("DATA_LOSS: a gap that could not be filled"))
		told("live; stored [1] of 2: [0 0]; degraded")
		time.Sleep(time.Second)
		told("cleared")
		send(stores(9, 2))
		told("live; stored [2] of 2: [0 0]")
		if n := s.Snapshot(); n.Connects != 2 || !strings.Contains(n.LastError, "DATA_LOSS") {
			t.Errorf("%+v", n)
		}
	})
}

func TestEngineThatPushesNoEventsIsAskedSeldom(t *testing.T) {
	pushStory(t, AnyRank, func(p *pusher, s *Stream, send func(...any), told func(string)) {
		send(fmt.Errorf("%w: not enabled", ErrNoSources))
		told("") // never live
		p.mu.Lock()
		p.subs = nil
		p.mu.Unlock()
		time.Sleep(29 * time.Second)
		p.mu.Lock()
		n := len(p.subs)
		p.mu.Unlock()
		if n != 0 {
			t.Errorf("it was asked %d times in 29 s", n)
		}
		time.Sleep(40 * time.Second)
		send(stores(0, 1)) // now it does
		told("live; stored [1] of 2: [0 0]")
	})
}

func TestPushedSnapshot(t *testing.T) {
	part := func(i, n uint32, seq uint64, list ...Event) *Batch {
		return &Batch{Seq: seq, Raw: fmt.Append(nil, "s", i), Snapshot: &SnapshotPart{Index: i, Count: n}, Events: list}
	}
	block := func(h uint64) Event { return stores(0, h).Events[0] }
	for _, counts := range []uint64{0, 1} { // whether the parts of a snapshot are counted
		pushStory(t, AnyRank, func(_ *pusher, s *Stream, send func(...any), told func(string)) {
			send(part(0, 2, 50, Event{}, block(1)), part(1, 2, 50+counts, block(2)))
			told("live; stored [1] of 2: [0 0]; stored [2] of 2: [0 0]")
			send(stores(51+counts, 3))
			told("stored [3] of 2: [0 0]")
			if n := s.Snapshot(); n.Gaps != 0 || n.Partial || n.Restarts != 0 {
				t.Errorf("%+v", n)
			}
			send(part(0, 1, 60, Event{}, block(7))) // all anew; that is no news of the engine's cache
			told("cleared; stored [7] of 2: [0 0]")
		})
	}
	for name, broken := range map[string][]any{
		"a part is missing":  {part(0, 3, 1, Event{}, block(1)), part(2, 3, 3, block(3))},
		"it begins late":     {stores(0, 1), part(1, 3, 1, block(3))},
		"it is not finished": {part(0, 3, 1, Event{}, block(1)), &Batch{Seq: 2, Raw: []byte("x")}},
	} {
		pushStory(t, AnyRank, func(_ *pusher, s *Stream, send func(...any), told func(string)) {
			send(broken...)
			told("live; stored [1] of 2: [0 0]; cleared")
			if n := s.Snapshot(); !strings.Contains(n.LastError, "snapshot") {
				t.Errorf("%s: %+v", name, n)
			}
		})
	}
}

func TestPushedBatchesOfOtherRanksAreIgnored(t *testing.T) {
	pushStory(t, 1, func(_ *pusher, s *Stream, send func(...any), told func(string)) {
		mine := stores(0, 1)
		mine.Rank = 1
		next := stores(1, 2)
		next.Rank = 1
		send(mine, stores(0, 8), stores(1, 9), next)
		told("live; stored [1] of 2: [0 0]; stored [2] of 2: [0 0]")
	})
}

func TestPushedBatchThatCannotBeReadToItsEndClears(t *testing.T) {
	pushStory(t, AnyRank, func(_ *pusher, s *Stream, send func(...any), told func(string)) {
		broken := stores(1, 2)
		broken.Broken = true
		send(stores(0, 1), broken)
		told("live; stored [1] of 2: [0 0]; stored [2] of 2: [0 0]; cleared")
	})
}

func TestSilentPusherIsDegraded(t *testing.T) {
	pushStory(t, AnyRank, func(p *pusher, s *Stream, send func(...any), told func(string)) {
		send(&Batch{LoadOnly: true})
		told("live")
		s.Expect(time.Now())
		for range 8 { // records of load are no events
			time.Sleep(2 * time.Second)
			send(&Batch{LoadOnly: true})
		}
		told("degraded")
		send(stores(0, 1))
		told("stored [1] of 2: [0 0]; live")
	})
}

func TestManyFaultsOfAPusher(t *testing.T) {
	pushStory(t, AnyRank, func(p *pusher, s *Stream, send func(...any), told func(string)) {
		for i := range 40 {
			p.mu.Lock()
			last := p.subs[len(p.subs)-1]
			p.mu.Unlock()
			select {
			case last.ready <- stores(uint64(i*10), 1):
			default:
			}
			synctest.Wait()
		}
		if n := s.Snapshot(); n.State != Degraded {
			t.Errorf("%+v", n)
		}
	})
}
