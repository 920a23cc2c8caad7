package events

import (
	"strings"
	"testing"
	"time"
)

// What a publisher says may be of no use although it never ceases: what the rank was sent is
// the better guide then, and to read it all is a waste.
func TestAStreamOfFaultsIsDegraded(t *testing.T) {
	for name, send := range map[string]func(e *engine){
		"no batches":       func(e *engine) { e.sendAll([]byte(e.topic)) },
		"cut batches":      func(e *engine) { seq, b := e.make(storedEvent(1)); e.send(seq, b[:len(b)-3]) },
		"unusable events":  func(e *engine) { e.publish(list{"BlockStored", 5}) },
		"gaps":             func(e *engine) { e.make(); e.publish(storedEvent(1)) },
		"restarts":         func(e *engine) { e.send(0, batchOf(storedEvent(1))); e.send(0, batchOf(storedEvent(2))) },
		"ends":             func(e *engine) { e.send(endMark, nil) },
		"other publishers": func(e *engine) { e.send(1<<40, batchOf(storedEvent(1))); e.send(7, batchOf(storedEvent(2))) },
	} {
		t.Run(name, func(t *testing.T) {
			story(t, false, func(s *setup) {
				s.run()
				s.engine.publish(storedEvent(1))
				s.take()
				for range maxFaults - 1 { // not so often
					send(&s.engine)
					time.Sleep(2 * faultFor)
				}
				if told := s.take(); strings.Contains(told, "degraded") {
					t.Fatalf("degraded for faults that come now and then: %s", told)
				}
				for range 1000 {
					send(&s.engine)
					time.Sleep(10 * time.Millisecond)
				}
				if told := s.take(); strings.Count(told, "degraded") != 1 || strings.Contains(told, "live") {
					t.Errorf("told: %s", told)
				}
				if snap := s.stream.Snapshot(); snap.State != Degraded || snap.Connects > 10 || !strings.Contains(snap.LastError, " faults in a short time, the last: ") {
					t.Errorf("%+v", snap)
				}
				// It is well again, and its events have come for a while.
				time.Sleep(2 * maxFaults * faultFor)
				s.engine.start()
				for range 2 * maxFaults {
					s.engine.publish(storedEvent(1))
					time.Sleep(faultFor)
				}
				if told := s.take(); !strings.Contains(told, "live") || strings.Contains(told, "degraded") {
					t.Errorf("told: %s", told)
				}
			})
		})
	}
}

// An engine whose blocks are told in a way that is not known, or without their tokens, tells
// nothing that could be followed.
func TestEventsOfNoUseAreNoSignOfLife(t *testing.T) {
	for name, event := range map[string]list{
		"unknown":        {"BlocksStored", list{1}},
		"elsewhere":      {"BlockStored", list{1}, nil, list{1, 2}, 2, nil, "CPU"},
		"without tokens": {"BlockStored", list{1}, nil, list{}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, false, func(s *setup) {
				s.run()
				s.stream.Expect(time.Now())
				for range 10 {
					s.engine.publish(event)
					time.Sleep(DefaultSilent / 5)
				}
				if told := s.take(); s.stream.Snapshot().State != Degraded {
					t.Errorf("told: %s", told)
				}
				s.engine.publish(storedEvent(1))
				if told := s.take(); !strings.HasSuffix(told, "live") {
					t.Errorf("told: %s", told)
				}
			})
		})
	}
}

func TestCommandsWithoutEndAreAFault(t *testing.T) {
	commands := func(n int) error {
		z, err := handshake(newWire(spoken("PUB", func(p peer) {
			for range n {
				p.frame(flagCommand, []byte("\x04HINT"))
			}
			p.message([]byte("a"))
		})), "SUB", "PUB")
		if err != nil {
			t.Fatal(err)
		}
		for err = errIdle; err == errIdle; {
			_, err = z.next(time.Second)
		}
		return err
	}
	if err := commands(maxPerSec); err != nil {
		t.Error(err)
	}
	if err := commands(maxPerSec + 1); err == nil || !strings.Contains(err.Error(), "commands in a second") {
		t.Error(err)
	}
}

// Peers that begin large messages together have a bound together, which they give back.
func TestLargeMessagesOfAllPeersAreBounded(t *testing.T) {
	const size = 8 << 20
	var open []*zconn
	var failed error
	for failed == nil && len(open) < 2*maxLarge/size {
		z, err := handshake(newWire(spoken("PUB", func(p peer) { p.message(make([]byte, size)) })), "SUB", "PUB")
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, z)
		_, failed = z.next(time.Second)
	}
	if failed == nil || !strings.Contains(failed.Error(), "from all engines together") || len(open) < maxLarge/size/3 {
		t.Errorf("%d of %d bytes each, then %v", len(open), size, failed)
	}
	for _, z := range open {
		z.close()
	}
	if n := large.Load(); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}
