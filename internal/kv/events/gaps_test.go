package events

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestAGapIsFilledBeforeTheBatchThatShowsIt(t *testing.T) {
	for _, old := range []bool{false, true} {
		story(t, true, func(s *setup) {
			s.engine.old = old
			s.run()
			s.engine.publish(storedEvent(0))
			for i := 1; i < 4; i++ {
				s.engine.make(storedEvent(i))
			}
			s.engine.asked()
			s.take()
			s.engine.publish(storedEvent(4))
			s.told("stored [1] of 2: [1 2]\nstored [2] of 2: [1 2]\nstored [3] of 2: [1 2]\nstored [4] of 2: [1 2]")
			if asked := s.engine.asked(); !reflect.DeepEqual(asked, []uint64{1}) {
				t.Errorf("asked for %d", asked)
			}
			s.counted(func(n Snapshot) []uint64 {
				return []uint64{n.Gaps, n.Unfilled, n.Replays, n.Replayed, n.Clears, n.Duplicates}
			},
				1, 0, 2, 3, 0, 0)
		})
	}
}

func TestAGapThatCannotBeFilledClears(t *testing.T) {
	const unfilled = "cleared\nstored [3] of 2: [1 2]"
	for _, c := range []struct {
		name   string
		none   bool // no replay endpoint
		answer func(e *engine, p peer, start uint64)
		want   string
	}{
		{"no replay", true, nil, unfilled},
		{"only the end mark", false, func(e *engine, p peer, _ uint64) { e.reply(p, endMark, nil) }, unfilled},
		{"no answer", false, func(_ *engine, p peer, _ uint64) { _, _ = p.read() }, unfilled},
		{"closed at once", false, func(*engine, peer, uint64) {}, unfilled},
		{"it stops half-way", false, func(e *engine, p peer, start uint64) {
			if start == 1 {
				e.reply(p, 1, batchOf(storedEvent(1)))
			}
			_, _ = p.read()
		}, "stored [1] of 2: [1 2]\n" + unfilled},
		{"it closes half-way, both times", false, func(e *engine, p peer, start uint64) {
			e.reply(p, 0, batchOf(storedEvent(0)))
			if start == 1 {
				e.reply(p, 1, batchOf(storedEvent(1)))
			}
		}, "stored [1] of 2: [1 2]\n" + unfilled},
		{"it closes half-way, and the second attempt brings the rest", false, func(e *engine, p peer, start uint64) {
			e.reply(p, start, batchOf(storedEvent(int(start))))
		}, "stored [1] of 2: [1 2]\nstored [2] of 2: [1 2]\nstored [3] of 2: [1 2]"},
		{"malformed", false, func(_ *engine, p peer, _ uint64) { p.message(nil, []byte("x")) }, unfilled},
		{"a reply of one frame", false, func(_ *engine, p peer, _ uint64) { p.message(number(1)) }, unfilled},
		{"nine frames", false, func(_ *engine, p peer, _ uint64) { p.message(make([][]byte, 9)...) }, unfilled},
		{"five frames", false, func(_ *engine, p peer, _ uint64) { p.message(nil, nil, nil, number(1), batchOf(storedEvent(1))) }, unfilled},
		{"a short sequence number", false, func(_ *engine, p peer, _ uint64) { p.message(nil, []byte("123"), nil) }, unfilled},
		{"the older ones for ever", false, func(e *engine, p peer, _ uint64) {
			for e.reply(p, 0, nil) == nil {
			}
		}, unfilled},
		{"a hole in it", false, func(e *engine, p peer, _ uint64) {
			e.reply(p, 2, batchOf(storedEvent(2)))
			_, _ = p.read()
		}, "cleared\nstored [2] of 2: [1 2]\nstored [3] of 2: [1 2]"},
		{"a broken batch in it", false, func(e *engine, p peer, _ uint64) {
			e.reply(p, 1, []byte("\x93"))
			e.reply(p, 2, batchOf(storedEvent(2)))
		}, "cleared\nstored [2] of 2: [1 2]\nstored [3] of 2: [1 2]"},
		{"it goes on past the gap", false, func(e *engine, p peer, _ uint64) {
			for i := 1; i < 10; i++ {
				e.reply(p, uint64(i), batchOf(storedEvent(i)))
			}
		}, "stored [1] of 2: [1 2]\nstored [2] of 2: [1 2]\nstored [3] of 2: [1 2]"},
		{"what comes after the gap alone, and of another time", false, func(e *engine, p peer, _ uint64) {
			e.reply(p, 1<<63, batchOf(storedEvent(5)))
		}, unfilled},
	} {
		t.Run(c.name, func(t *testing.T) {
			story(t, !c.none, func(s *setup) {
				s.run()
				s.engine.publish(storedEvent(0))
				s.told("live\nstored [0] of 2: [1 2]")
				if c.answer != nil {
					s.engine.answerReplays(func(p peer, start uint64) { c.answer(&s.engine, p, start) })
				}
				s.engine.make(storedEvent(1))
				s.engine.make(storedEvent(2))
				began := time.Now()
				s.engine.publish(storedEvent(3))
				time.Sleep(DefaultReplayTimeout - time.Since(began)) // the longest that it may take
				s.told(c.want)
				if e := s.stream.Snapshot().LastError; strings.Contains(c.want, unfilled) != strings.Contains(e, "from number") {
					t.Errorf("error %q", e)
				}
				s.engine.publish(storedEvent(4))
				s.told("stored [4] of 2: [1 2]") // without a gap, and once
			})
		})
	}
}

// vLLM answers a replay between two waits for events, and a long history takes its time.
func TestAGapSoonAfterASlowReplayAtConnectionIsFilled(t *testing.T) {
	story(t, true, func(s *setup) {
		right := s.engine.onReplay
		s.engine.onReplay = func(p peer, start uint64) {
			time.Sleep(500 * time.Millisecond)
			s.engine.reply(p, endMark, nil)
		}
		s.run()
		s.engine.publish(storedEvent(0))
		time.Sleep(time.Second)
		s.engine.answerReplays(right)
		s.engine.make(storedEvent(1))
		s.take()
		s.engine.publish(storedEvent(2))
		s.told("stored [1] of 2: [1 2]\nstored [2] of 2: [1 2]")
	})
}

func TestAPublisherWithManyGapsIsNotKeptBusyByReplays(t *testing.T) {
	story(t, true, func(s *setup) {
		s.run()
		s.engine.publish(storedEvent(0))
		s.engine.asked()
		s.engine.answerReplays(func(p peer, _ uint64) { _, _ = p.read() }) // never
		for range 15 {
			s.engine.make()
			s.engine.publish(storedEvent(1))
			time.Sleep(1500 * time.Millisecond) // sooner they were too many faults
		}
		if n := len(s.engine.asked()); n > 1 {
			t.Errorf("asked for %d replays in 25 seconds", n)
		}
		time.Sleep(time.Minute)
		s.engine.answerReplays(nil)
		s.engine.make()
		s.engine.publish(storedEvent(2))
		if n := len(s.engine.asked()); n != 1 {
			t.Error("not asked again")
		}
	})
}
