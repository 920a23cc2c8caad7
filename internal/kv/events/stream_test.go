package events

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestAStreamIsFollowed(t *testing.T) {
	story(t, false, func(s *setup) {
		s.run()
		s.told("live") // an engine that does nothing says nothing
		s.engine.publish(storedEvent(1, 2))
		s.engine.publish(removedEvent(2), storedEvent(3))
		s.told("stored [1 2] of 2: [1 2 3 4]\nremoved [2]\nstored [3] of 2: [1 2]")
		time.Sleep(24 * time.Hour)
		s.engine.publish(list{"AllBlocksCleared"})
		s.told("cleared")
		if s.emptied != 1 {
			t.Error("it was not told that the engine's cache is empty")
		}
		snap := s.stream.Snapshot()
		if snap.State != Live || snap.Partial || snap.Batches != 3 || snap.Events != 4 || snap.Connects != 1 || snap.Gaps != 0 || snap.LastError != "" {
			t.Errorf("%+v", snap)
		}
	})
}

func TestTheLagIsMeasured(t *testing.T) {
	story(t, false, func(s *setup) {
		s.run()
		send := func(clock float64) time.Duration {
			seq, _ := s.engine.make()
			s.engine.send(seq, pack(list{clock, list{}, 0}))
			return s.stream.Snapshot().Lag.Round(time.Millisecond)
		}
		now := float64(time.Now().UnixNano()) / 1e9
		if lag := send(now - 2); lag != 2*time.Second {
			t.Errorf("lag %v, want 2 s", lag)
		}
		if lag := send(now + 2); lag != 0 { // its clock is ahead
			t.Errorf("lag %v, want 0", lag)
		}
	})
}

func TestARouterThatComesLaterLearnsByReplay(t *testing.T) {
	for _, old := range []bool{false, true} {
		story(t, true, func(s *setup) {
			s.engine.old = old
			s.engine.make(storedEvent(1))
			s.engine.make(storedEvent(2))
			s.run()
			s.told("stored [1] of 2: [1 2]\nstored [2] of 2: [1 2]\nlive")
			s.engine.publish(removedEvent(1))
			s.told("removed [1]")
			if snap := s.stream.Snapshot(); snap.Partial || snap.Replays != 1 || snap.Replayed != 2 {
				t.Errorf("%+v", snap)
			}
		})
	}
}

func TestWithoutWhatWasBeforeTheRankIsPartial(t *testing.T) {
	t.Run("no replay", func(t *testing.T) {
		story(t, false, func(s *setup) {
			for range 5000 {
				s.engine.make(storedEvent(1))
			}
			s.run()
			s.engine.publish(storedEvent(2))
			s.told("live\nstored [2] of 2: [1 2]")
			if !s.stream.Snapshot().Partial {
				t.Error("not said to be partial")
			}
			s.engine.publish(list{"AllBlocksCleared"}) // from now on all is known
			if s.stream.Snapshot().Partial {
				t.Error("said to be partial")
			}
		})
	})
	t.Run("the engine has forgotten the first ones", func(t *testing.T) {
		story(t, true, func(s *setup) {
			for i := range 10 {
				s.engine.make(storedEvent(i))
			}
			s.engine.forget(8)
			s.run()
			s.told("stored [8] of 2: [1 2]\nstored [9] of 2: [1 2]\nlive")
			if !s.stream.Snapshot().Partial {
				t.Error("not said to be partial")
			}
		})
	})
}

func TestDuplicatesAreIgnored(t *testing.T) {
	story(t, true, func(s *setup) {
		s.run()
		for i := range 5 {
			s.engine.publish(storedEvent(i))
		}
		s.take()
		for i := range 5 {
			s.engine.send(uint64(i), s.engine.log[i])
		}
		s.told("")
		s.counted(func(n Snapshot) []uint64 { return []uint64{n.Duplicates, n.Restarts} }, 5, 0)
	})
}

func TestARestartedEngineIsAnEmptyCache(t *testing.T) {
	restarts := func(n Snapshot) []uint64 { return []uint64{n.Restarts, n.Clears} }
	t.Run("the sequence begins anew on the same connection", func(t *testing.T) {
		story(t, false, func(s *setup) {
			s.run()
			s.engine.publish(storedEvent(1))
			s.engine.publish(storedEvent(2))
			s.take()
			s.engine.start()
			s.engine.publish(storedEvent(3))
			s.told("cleared\nstored [3] of 2: [1 2]")
			s.counted(restarts, 1, 1)
			if s.emptied != 1 {
				t.Error("it was not told that the engine's cache is empty")
			}
		})
	})
	t.Run("the sequence goes back", func(t *testing.T) {
		story(t, true, func(s *setup) {
			s.run()
			for range 5 {
				s.engine.publish(storedEvent(1))
			}
			s.take()
			s.engine.start()
			s.engine.make(storedEvent(10))
			s.engine.make(storedEvent(11))
			s.engine.publish(storedEvent(12))
			s.told("cleared\nstored [12] of 2: [1 2]")
			s.counted(restarts, 1, 1)
			if asked := s.engine.asked(); len(asked) != 1 { // after the connection
				t.Errorf("asked for %d: what is repeated may be of before", asked)
			}
		})
	})
	for _, c := range []struct {
		name   string
		before int
		want   string
	}{
		{"it has done less than the one before", 5, "live\ncleared"},
		{"it has done more than the one before", 1, "live\ncleared"},
		{"the one before had done nothing", 0, "live"},
	} {
		t.Run(c.name, func(t *testing.T) {
			story(t, true, func(s *setup) {
				s.run()
				want := ""
				for range c.before {
					s.engine.publish(storedEvent(1))
				}
				s.take()
				s.engine.stop()
				s.told("degraded")
				s.engine.start()
				s.engine.make(storedEvent(7))
				s.engine.make(storedEvent(8))
				time.Sleep(maxPause)
				if c.before > 0 {
					want = "cleared\n"
				}
				s.told(want + "stored [7] of 2: [1 2]\nstored [8] of 2: [1 2]\nlive")
			})
		})
	}
	t.Run("in the middle of a replay", func(t *testing.T) {
		story(t, true, func(s *setup) {
			s.engine.answerReplays(func(p peer, _ uint64) {
				for _, seq := range []int{0, 1, 2, 0, 1} {
					s.engine.reply(p, uint64(seq), batchOf(storedEvent(seq), storedEvent(10+len(s.engine.log))))
					s.engine.make()
				}
				s.engine.reply(p, endMark, nil)
			})
			s.run()
			s.told("stored [0] of 2: [1 2]\nstored [10] of 2: [1 2]\nstored [1] of 2: [1 2]\nstored [11] of 2: [1 2]\n" +
				"stored [2] of 2: [1 2]\nstored [12] of 2: [1 2]\ncleared\n" +
				"stored [0] of 2: [1 2]\nstored [13] of 2: [1 2]\nstored [1] of 2: [1 2]\nstored [14] of 2: [1 2]\nlive")
			s.counted(restarts, 1, 1)
		})
	})
	t.Run("the publisher says that it ends", func(t *testing.T) {
		story(t, false, func(s *setup) {
			s.run()
			s.engine.publish(storedEvent(1))
			s.engine.sendAll([]byte(s.engine.topic), number(endMark), nil)
			s.told("live\nstored [1] of 2: [1 2]\ncleared")
		})
	})
}

func TestAfterALostConnection(t *testing.T) {
	t.Run("what was missed is replayed", func(t *testing.T) {
		story(t, true, func(s *setup) {
			s.run()
			s.engine.publish(storedEvent(0))
			s.engine.publish(storedEvent(1))
			s.engine.asked()
			s.engine.disconnect()
			s.engine.make(removedEvent(0))
			time.Sleep(maxPause)
			s.told("live\nstored [0] of 2: [1 2]\nstored [1] of 2: [1 2]\ndegraded\nremoved [0]\nlive")
			if asked := s.engine.asked(); !reflect.DeepEqual(asked, []uint64{1}) {
				t.Errorf("asked for %d", asked)
			}
			s.engine.publish(storedEvent(3))
			s.told("stored [3] of 2: [1 2]")
			s.counted(func(n Snapshot) []uint64 { return []uint64{n.Connects, n.Clears, n.Restarts, n.Gaps} }, 2, 0, 0, 0)
		})
	})
	t.Run("nothing was missed", func(t *testing.T) {
		story(t, true, func(s *setup) {
			s.run()
			s.engine.publish(storedEvent(0))
			s.engine.disconnect()
			time.Sleep(maxPause)
			s.told("live\nstored [0] of 2: [1 2]\ndegraded\nlive")
		})
	})
	t.Run("the engine has forgotten what was missed", func(t *testing.T) {
		story(t, true, func(s *setup) {
			s.run()
			s.engine.publish(storedEvent(0))
			s.engine.disconnect()
			for i := 1; i < 10; i++ {
				s.engine.make(storedEvent(i))
			}
			s.engine.forget(9)
			s.take()
			time.Sleep(maxPause)
			s.told("cleared\nstored [9] of 2: [1 2]\nlive")
		})
	})
	t.Run("without replay nothing is known", func(t *testing.T) {
		story(t, false, func(s *setup) {
			s.run()
			s.engine.publish(storedEvent(0))
			s.take()
			s.engine.disconnect()
			time.Sleep(maxPause)
			s.told("degraded\ncleared\nlive")
			s.engine.publish(storedEvent(1))
			s.told("stored [1] of 2: [1 2]")
			if s.emptied != 0 {
				t.Error("the engine's cache is not empty")
			}
		})
	})
	t.Run("the replay does not answer", func(t *testing.T) {
		story(t, true, func(s *setup) {
			s.run()
			s.engine.publish(storedEvent(0))
			s.take()
			s.engine.answerReplays(func(p peer, _ uint64) { _, _ = p.read() })
			s.engine.disconnect()
			time.Sleep(maxPause + DefaultReplayTimeout)
			s.told("degraded\ncleared\nlive")
			if e := s.stream.Snapshot().LastError; !strings.Contains(e, "replay from worker:6557: not done in 5s") {
				t.Error(e)
			}
		})
	})
}

// Sequence numbers that no engine sends clear the rank and are then forgotten.
func TestSequenceNumbersOfALiar(t *testing.T) {
	story(t, false, func(s *setup) {
		s.run()
		ev := batchOf(storedEvent(1))
		s.engine.send(0, ev)
		s.engine.send(1<<63+5, ev)
		s.engine.send(1<<63+6, ev)
		s.told("live\nstored [1] of 2: [1 2]\ncleared\nstored [1] of 2: [1 2]\nstored [1] of 2: [1 2]")
		s.engine.send(2, ev)
		s.told("cleared\nstored [1] of 2: [1 2]")
		s.engine.send(endMark-1, ev)
		s.engine.send(0, ev)
		s.told("cleared\nstored [1] of 2: [1 2]\ncleared\nstored [1] of 2: [1 2]")
	})
}

func TestMessagesThatAreNoBatches(t *testing.T) {
	story(t, false, func(s *setup) {
		s.run()
		topic, ev := []byte(s.engine.topic), batchOf(storedEvent(1))
		s.engine.publish(storedEvent(1))
		s.take()
		s.engine.sendAll(topic)
		s.engine.sendAll(topic, number(1))
		s.engine.sendAll(topic, number(1), ev, ev)
		s.engine.sendAll(topic, []byte("123"), ev)
		s.engine.sendAll([]byte("another"), number(1), ev)
		s.told("")
		s.counted(func(n Snapshot) []uint64 { return []uint64{n.BadMessages, n.Batches, n.Connects} }, 5, 1, 1)
		if e := s.stream.Snapshot().LastError; e != `worker:5557: a message of 3 frames that is no batch of topic "kv@": the first is "another"` {
			t.Error(e)
		}
		s.engine.publish(storedEvent(2)) // none of them counted
		s.told("stored [2] of 2: [1 2]")

		// A batch that ends too early may have lost removals.
		seq, payload := s.engine.make(storedEvent(3), removedEvent(1))
		s.engine.send(seq, payload[:len(payload)-8])
		s.told("stored [3] of 2: [1 2]\ncleared")
		s.engine.publish(storedEvent(4))
		s.told("stored [4] of 2: [1 2]")
	})
}

func TestBatchesOfOtherRanksAreIgnored(t *testing.T) {
	story(t, false, func(s *setup) {
		s.opts.Rank = 2
		s.run()
		s.engine.publish(storedEvent(1))
		s.engine.publish(storedEvent(1))
		s.told("live")
		s.counted(func(n Snapshot) []uint64 { return []uint64{n.Batches, n.SkippedEvents, n.Gaps} }, 2, 2, 0)
	})
}

func TestASilentStreamIsDegraded(t *testing.T) {
	story(t, false, func(s *setup) {
		s.run()
		s.engine.publish(storedEvent(1))
		s.take()
		s.stream.Expect(time.Now().Add(-time.Second)) // its event has come
		time.Sleep(time.Hour)
		s.told("")

		s.stream.Expect(time.Now())
		time.Sleep(DefaultSilent - time.Second)
		s.told("")
		time.Sleep(DefaultSilent)
		if !strings.HasPrefix(s.take(), "degraded") {
			t.Fatal("not degraded")
		}
		if e := s.stream.Snapshot().LastError; e != errSilent.Error() {
			t.Error(e)
		}
		time.Sleep(time.Hour) // a new connection alone proves nothing
		s.told("")
		s.engine.publish(storedEvent(2))
		s.told("stored [2] of 2: [1 2]\nlive")
	})
}

func TestAMessageMayBeSlow(t *testing.T) {
	story(t, false, func(s *setup) {
		s.run()
		time.Sleep(time.Hour)
		payload := batchOf(storedEvent(1))
		for _, p := range s.engine.peers() {
			p.frame(flagMore, []byte(s.engine.topic))
			time.Sleep(messageTimeout / 3)
			p.frame(flagMore, number(0))
			time.Sleep(messageTimeout / 3)
			p.frame(0, payload)
		}
		s.told("live\nstored [1] of 2: [1 2]")
	})
}

func TestEventsOfOtherRanksAreNoSignOfLife(t *testing.T) {
	story(t, false, func(s *setup) {
		s.opts.Rank = 2
		s.run()
		s.stream.Expect(time.Now())
		for range 10 {
			time.Sleep(DefaultSilent / 5)
			s.engine.publish(storedEvent(1))
		}
		s.told("live\ndegraded")
	})
}

// An engine that sends heartbeats only is silent as well.
func TestHeartbeatsAreNoEvents(t *testing.T) {
	story(t, false, func(s *setup) {
		s.run()
		s.stream.Expect(time.Now())
		for range 60 {
			for _, p := range s.engine.peers() {
				p.frame(flagCommand, []byte("\x04HINT"))
			}
			time.Sleep(DefaultSilent / 20)
		}
		s.told("live\ndegraded")
	})
}

func TestConnectionsAreTriedAgain(t *testing.T) {
	story(t, false, func(s *setup) {
		s.engine.down = true
		s.run()
		time.Sleep(10 * time.Minute)
		s.told("")
		s.engine.mu.Lock()
		dials := s.engine.dials
		s.engine.down = false
		s.engine.mu.Unlock()
		if dials < 120 || dials > 300 {
			t.Errorf("%d attempts in ten minutes", dials)
		}
		if e := s.stream.Snapshot().LastError; !strings.Contains(e, "refused") {
			t.Error(e)
		}
		time.Sleep(maxPause)
		s.told("live")
	})
}

func TestEndpointsThatCannotBeUsed(t *testing.T) {
	for _, e := range []string{"", "ipc:///tmp/x", "inproc://x", "5557", "tcp://worker", "tcp://worker:0", "tcp://worker:70000", "tcp://*:5557",
		"tcp://:5557", "tcp://a@b:5557", "tcp://[::]:5557"} {
		if _, err := New(Options{Endpoint: e}); err == nil {
			t.Errorf("%q is taken", e)
		}
		if e == "" {
			continue
		}
		if _, err := New(Options{Endpoint: atEvents, Replay: e}); err == nil {
			t.Errorf("%q is taken for replays", e)
		}
	}
	if _, err := New(Options{Endpoint: atEvents, Topic: strings.Repeat("x", 300)}); err == nil {
		t.Error("a long topic is taken")
	}
	if s, err := New(Options{Endpoint: "tcp://[::1]:5557"}); err != nil || s.endpoint != "[::1]:5557" {
		t.Error(err)
	}
}
