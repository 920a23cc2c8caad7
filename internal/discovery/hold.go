package discovery

import (
	"slices"
	"time"

	"github.com/sluice-router/sluice/internal/fleet"
)

// What a reading drops does not always go at once.
//
// A drop is suspicious if the reading is empty while the source had workers, or if it drops
// more than half of more than three. It is held back then: until it was read three times,
// or for Options.Hold. A worker that fails its checks goes at once. While a drop is held,
// other workers that go are held with it, each for readings and a time of its own.
//
// A source that replaces its workers drops the former ones when it declares the new ones,
// which have not been seen yet. The former ones stay until the new ones are ready, or for
// Options.Hold, where nobody else serves what they serve.

const (
	// holdReads is how often a suspicious drop must be read to be put in force before
	// Options.Hold. Readings that follow each other faster than holdPause count as one: a
	// source that reports several times while it restarts has said one thing.
	holdReads = 3
	holdPause = 500 * time.Millisecond
	// holdLook is how often the workers that are held are looked at: one that fails its
	// checks goes at once. awaitLook is how often it is looked whether new ones are ready.
	holdLook  = 2 * time.Second
	awaitLook = 250 * time.Millisecond
)

// hold is a suspicious drop that is not in force yet: the workers that are held back, by
// key. Each of them is judged by the readings that lacked it, so that a source that goes
// back and forth between two sets loses neither.
type hold map[string]*lack

// lack is for how long, and in how many readings in a row, a worker has been missing.
type lack struct {
	since, counted time.Time
	reads          int
}

// putInForce brings the fleet in line with the last good reading. read: it is a new one.
func (s *state) putInForce(now time.Time, read bool) {
	if s.m.ctx.Err() != nil {
		return // what is in force stays
	}
	fresh, going := s.dropped()
	held := s.heldBack(now, read, fresh)
	kept := make(map[string]bool, len(held))
	for _, e := range held {
		kept[e.key] = true
	}
	for _, e := range fresh {
		if !kept[e.key] {
			going = append(going, e)
		}
	}
	stay := slices.Concat(held, s.await(now, held, going))
	next := slices.Concat(s.last, stay)
	err := s.reconcile(next)
	s.current, s.reconciled, s.whole = next, now, err == nil && len(stay) == 0
	s.describe(stay, slices.Concat(s.warnings, problems(err)))
	s.schedule(now)
}

func (s *state) reconcile(list []entry) error {
	specs := make([]fleet.Declared, len(list))
	for i := range list {
		specs[i] = list[i].Declared
	}
	return s.m.opts.Fleet.Reconcile(s.m.ctx, s.name, specs)
}

// dropped are the workers in force that the last reading does not declare: fresh ones, and
// those that others were awaited for before. One that has been declared as leaving is not
// expected any more.
func (s *state) dropped() (fresh, awaited []entry) {
	declared := make(map[string]bool, len(s.last))
	for _, e := range s.last {
		declared[e.key] = true
		delete(s.awaited, e.key)
	}
	for _, e := range s.current {
		if declared[e.key] || e.Leaving {
			continue
		}
		declared[e.key] = true
		if _, ok := s.awaited[e.key]; ok {
			awaited = append(awaited, e)
		} else {
			fresh = append(fresh, e)
		}
	}
	return fresh, awaited
}

// heldBack are those of the dropped workers that are held back because the drop is
// suspicious.
func (s *state) heldBack(now time.Time, read bool, dropped []entry) (held []entry) {
	if len(dropped) == 0 {
		s.release("the workers are declared again")
		return nil
	}
	if s.m.opts.Hold <= 0 || s.hold == nil && !s.suspicious(len(dropped)) {
		return nil
	}
	h, before := make(hold, len(dropped)), s.hold
	var believed *lack
	going := 0
	for _, e := range dropped {
		if s.m.opts.Fleet.Fails(e.key) {
			continue
		}
		l := before[e.key]
		switch {
		case l == nil:
			l = &lack{since: now, counted: now, reads: 1}
		case read && now.Sub(l.counted) >= holdPause:
			l.reads, l.counted = l.reads+1, now
		}
		if l.reads >= holdReads || now.Sub(l.since) >= s.m.opts.Hold {
			going, believed = going+1, l
			continue
		}
		h[e.key] = l
		held = append(held, e)
	}
	if going > 0 {
		s.log.Warn("source's drop of workers is put in force", "workers", going, "after", now.Sub(believed.since).Round(time.Millisecond), "reads", believed.reads)
	}
	switch {
	case len(held) > 0 && before == nil:
		s.log.Warn("source drops suspiciously many workers: the drop is held back, they stay for now",
			"dropped", len(dropped), "held", len(held), "declared", len(s.last), "until", now.Add(s.m.opts.Hold).UTC().Format(time.RFC3339), "or_reads", holdReads)
	case len(held) == 0 && going == 0:
		s.release("they fail their checks")
	}
	if s.hold = h; len(held) == 0 {
		s.hold = nil
	}
	return held
}

// suspicious reports whether a reading that drops so many workers is held back.
func (s *state) suspicious(dropped int) bool {
	had := 0
	for _, e := range s.current {
		if _, awaited := s.awaited[e.key]; !e.Leaving && !awaited {
			had++
		}
	}
	return len(s.last) == 0 || had > 3 && 2*dropped > had
}

// release ends the hold because nothing is left to be held.
func (s *state) release(why string) {
	if s.hold != nil {
		s.hold = nil
		s.log.Info("source's drop of workers is not held back any more", "why", why)
	}
}

// await decides which of the workers that are about to go stay until others can take over
// from them.
func (s *state) await(now time.Time, held, going []entry) (stay []entry) {
	if len(going) == 0 || s.m.opts.Hold <= 0 {
		clear(s.awaited)
		return nil
	}
	if s.declaresNew() {
		// The fleet must know the new ones to say what they may take over.
		_ = s.reconcile(slices.Concat(s.last, held, going)) // the next one tells the same
	}
	keys := make([]string, len(going))
	for i, e := range going {
		keys[i] = e.key
	}
	needed := map[string]bool{}
	for _, key := range s.m.opts.Fleet.Awaited(s.name, keys) {
		needed[key] = true
	}
	began := len(s.awaited) == 0
	for _, e := range going {
		since, ok := s.awaited[e.key]
		if !ok {
			since = now
		}
		if !needed[e.key] || now.Sub(since) >= s.m.opts.Hold {
			delete(s.awaited, e.key)
			continue
		}
		s.awaited[e.key] = since
		stay = append(stay, e)
	}
	if began && len(stay) > 0 {
		s.log.Info("source replaces workers: the former ones stay until the new ones are ready", "workers", len(stay), "at_most", s.m.opts.Hold)
	}
	return stay
}

// declaresNew reports whether the last reading has a worker that is not in force.
func (s *state) declaresNew() bool {
	known := make(map[string]bool, len(s.current))
	for _, e := range s.current {
		known[e.key] = true
	}
	return slices.ContainsFunc(s.last, func(e entry) bool { return !known[e.key] && !e.Leaving })
}

// schedule sets the time of the next look at what stays for now.
func (s *state) schedule(now time.Time) {
	pause := time.Duration(-1)
	if s.hold != nil {
		pause = holdLook
		for _, l := range s.hold {
			pause = min(pause, max(0, l.since.Add(s.m.opts.Hold).Sub(now)))
		}
	}
	if len(s.awaited) > 0 && (pause < 0 || pause > awaitLook) {
		pause = awaitLook
	}
	switch {
	case pause < 0:
	case s.timer == nil:
		s.timer = time.AfterFunc(pause, s.look)
	default:
		s.timer.Reset(pause)
	}
}

// look decides again about what stays for now.
func (s *state) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.hold == nil && len(s.awaited) == 0 {
		return
	}
	s.putInForce(time.Now(), false)
}
