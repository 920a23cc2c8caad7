package discovery

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/text"
	"github.com/sluice-router/sluice/internal/workerurl"
)

// Fleet is what the manager asks of the fleet.
type Fleet interface {
	// Reconcile makes the workers of one source those of specs. The error joins one for
	// each that was left out.
	Reconcile(ctx context.Context, source string, specs []fleet.Declared) error
	// Fails reports whether a worker does not get requests because its checks fail, or
	// whether there is no such worker. url is canonical.
	Fails(url string) bool
	// Owned is the number of registered workers that a source owns.
	Owned(source string) int
	// HeldOut returns the workers that a source declares and that are kept out, because
	// they were removed by request.
	HeldOut(source string) []string
}

// Options of a Manager.
type Options struct {
	Fleet Fleet
	// Hold is the longest time for which a suspicious drop is held back; zero: no drop is.
	Hold time.Duration
	// Log takes what changes. Nil: none.
	Log *slog.Logger
}

const (
	// maxWorkers bounds the workers of one reading.
	maxWorkers = 10_000
	// maxText bounds each text of a source in log and status, in bytes.
	maxText = 500
	// holdReads is how often a suspicious drop must be read to be put in force before
	// Options.Hold. Readings that follow each other faster than holdPause count as one: a
	// source that reports several times while it restarts has said one thing.
	holdReads = 3
	holdPause = 500 * time.Millisecond
	// holdLook is how often the workers that are held are looked at: one that fails its
	// checks goes at once.
	holdLook = 2 * time.Second
	// reconcileEvery is how long a reading that comes again unchanged is not compared with
	// the fleet.
	reconcileEvery = 30 * time.Second
	// closeWait is how long Close waits for sources.
	closeWait = 5 * time.Second
)

// Manager runs sources and puts in force what they report. All methods are safe for
// concurrent use.
//
// A reading is suspicious if it is empty while the source had workers, or drops more than
// half of more than three. What it drops is held back then: until the drop was read three
// times, or for Options.Hold. A worker that fails its checks goes at once. While a drop is
// held, other workers that go are held with it.
type Manager struct {
	// immutable
	opts   Options
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// guarded by mu
	sources []*state
	closed  bool
}

// NewManager makes a manager without sources. Close it.
func NewManager(o Options) *Manager {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m := &Manager{opts: o}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	return m
}

// Run starts a source. It returns at once; the source runs until Close.
func (m *Manager) Run(s Source) {
	st := m.state(s.Name())
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.wg.Add(1)
	m.mu.Unlock()
	go func() {
		defer m.wg.Done()
		s.Run(m.ctx, func(r Reading) { st.take(r) })
	}()
}

// Take takes a reading of a source that does not run by itself. It returns when it is in
// force.
func (m *Manager) Take(source string, r Reading) { m.state(source).take(r) }

// Close ends all sources and waits for them, but not for ever: one may hang in a file
// system. What is in force stays.
func (m *Manager) Close() {
	m.mu.Lock()
	m.closed = true
	sources := m.sources
	m.mu.Unlock()
	m.cancel()
	ended := make(chan struct{})
	go func() {
		m.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(closeWait):
		m.opts.Log.Warn("a source of workers does not end; it is left alone", "after", closeWait)
	}
	for _, s := range sources {
		s.close()
	}
}

// state finds or makes the state of a source.
func (m *Manager) state(name string) *state {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sources {
		if s.name == name {
			return s
		}
	}
	s := &state{m: m, name: name, log: m.opts.Log.With("source", name)}
	s.status.Name, s.status.State = name, StateWaiting
	m.sources = append(m.sources, s)
	return s
}

// state is what is known of one source.
type state struct {
	// immutable
	m    *Manager
	name string
	log  *slog.Logger

	mu sync.Mutex
	// guarded by mu
	closed     bool
	current    []entry          // in force, held ones included
	last       []entry          // of the last good reading
	workers    []fleet.Declared // of that, as it came
	whole      bool             // what is in force is that, without problems
	reconciled time.Time        // when it was put in force last
	hold       *hold            // nil: nothing is held
	failing    bool
	logged     time.Time // when a failure was logged last
	warnings   []string  // of the last good reading
	told       []string  // the warnings that were logged

	statusMu sync.Mutex
	// guarded by statusMu
	status Status
}

// entry is a worker that a source declares.
type entry struct {
	key string // its URL, canonical if it is one
	fleet.Declared
}

// hold is a suspicious drop that is not in force yet.
type hold struct {
	since, counted time.Time
	reads          int
	timer          *time.Timer
}

func (s *state) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.endHold()
}

func (s *state) endHold() {
	if s.hold != nil {
		s.hold.timer.Stop()
		s.hold = nil
	}
}

// take takes a reading of the source.
func (s *state) take(r Reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	now := time.Now()
	if r.Err != nil {
		s.failed(now, r.Err)
		return
	}
	if s.failing {
		s.failing = false
		s.log.Info("source can be read again")
	}
	warnings := clipAll(r.Warnings)
	if n := len(r.Workers) - maxWorkers; n > 0 {
		warnings = append(warnings, fmt.Sprintf("it declares %d workers; the last %d are left out", len(r.Workers), n))
		r.Workers = r.Workers[:maxWorkers]
	}
	same := s.settled(now, r.Workers, warnings)
	if !same {
		s.last, s.workers = entries(r.Workers), r.Workers
	}
	s.statusMu.Lock()
	s.status.lastSuccess, s.status.err, s.status.Readings = now, nil, s.status.Readings+1
	s.statusMu.Unlock()
	if !same {
		s.warnings = warnings
		s.putInForce(now, true)
	}
}

// settled reports whether a reading is the one that is in force, whole. Now and then it is
// put in force again in any case: the fleet changes by other hands too.
func (s *state) settled(now time.Time, workers []fleet.Declared, warnings []string) bool {
	return s.whole && now.Sub(s.reconciled) < reconcileEvery && len(workers) > 0 && len(workers) == len(s.workers) && &workers[0] == &s.workers[0] &&
		slices.Equal(warnings, s.warnings)
}

func entries(workers []fleet.Declared) []entry {
	list := make([]entry, len(workers))
	for i, w := range workers {
		key := w.URL
		if u, err := workerurl.Parse(w.URL); err == nil {
			key = u.String()
		}
		list[i] = entry{key, w}
	}
	return list
}

func clipAll(texts []string) []string {
	texts = slices.Clone(texts[:min(len(texts), MaxWarnings)])
	for i := range texts {
		texts[i] = text.Clip(texts[i], maxText)
	}
	return texts
}

// failed takes a reading that failed. It is logged when it begins and when its text
// changes, at most once a minute.
func (s *state) failed(now time.Time, err error) {
	what := text.Clip(err.Error(), maxText)
	s.statusMu.Lock()
	news := s.status.err == nil || *s.status.err != what && now.Sub(s.logged) > time.Minute
	s.status.err, s.status.Failures = &what, s.status.Failures+1
	s.statusMu.Unlock()
	s.failing = true
	if news {
		s.logged = now
		s.log.Warn("source cannot be read; its last workers stay", "error", what, "workers", len(s.current))
	}
}

// putInForce brings the fleet in line with the last good reading. read: it is a new one.
func (s *state) putInForce(now time.Time, read bool) {
	if s.m.ctx.Err() != nil {
		return // what is in force stays
	}
	next, held := s.last, s.dropped()
	switch {
	case len(held) == 0:
		s.release("the workers are declared again")
	case s.hold == nil && !s.suspicious(len(held)):
		held = nil
	default:
		held = s.holdBack(now, read, held)
	}
	if len(held) > 0 {
		next = slices.Concat(next, held)
	}
	specs := make([]fleet.Declared, len(next))
	for i := range next {
		specs[i] = next[i].Declared
	}
	err := s.m.opts.Fleet.Reconcile(s.m.ctx, s.name, specs)
	s.current, s.reconciled, s.whole = next, now, err == nil && len(held) == 0
	s.describe(held, slices.Concat(s.warnings, problems(err)))
}

// dropped are the workers in force that the last reading does not declare. One that has
// been declared as leaving is not expected any more.
func (s *state) dropped() (list []entry) {
	if len(s.current) == 0 {
		return nil
	}
	declared := make(map[string]bool, len(s.last))
	for _, e := range s.last {
		declared[e.key] = true
	}
	for _, e := range s.current {
		if !declared[e.key] && !e.Leaving {
			list = append(list, e)
			declared[e.key] = true
		}
	}
	return list
}

// suspicious reports whether a reading that drops so many workers is held back.
func (s *state) suspicious(dropped int) bool {
	had := 0
	for _, e := range s.current {
		if !e.Leaving {
			had++
		}
	}
	return len(s.last) == 0 || had > 3 && 2*dropped > had
}

// holdBack decides which of the dropped workers stay for now.
func (s *state) holdBack(now time.Time, read bool, dropped []entry) (held []entry) {
	for _, e := range dropped {
		if !s.m.opts.Fleet.Fails(e.key) {
			held = append(held, e)
		}
	}
	h := s.hold
	switch {
	case len(held) == 0 || s.m.opts.Hold <= 0:
		s.release("they fail their checks")
		return nil
	case h == nil:
		h = &hold{since: now, counted: now, reads: 1}
		h.timer = time.AfterFunc(s.pause(h, now), s.look)
		s.hold = h
		s.log.Warn("source drops suspiciously many workers: the drop is held back, they stay for now",
			"dropped", len(dropped), "held", len(held), "declared", len(s.last), "until", h.since.Add(s.m.opts.Hold).UTC().Format(time.RFC3339), "or_reads", holdReads)
		return held
	case read && now.Sub(h.counted) >= holdPause:
		h.reads, h.counted = h.reads+1, now
	}
	if h.reads >= holdReads || now.Sub(h.since) >= s.m.opts.Hold {
		s.endHold()
		s.log.Warn("source's drop of workers is put in force", "workers", len(held), "after", now.Sub(h.since).Round(time.Millisecond), "reads", h.reads)
		return nil
	}
	return held
}

// release ends the hold because nothing is left to be held.
func (s *state) release(why string) {
	if s.hold != nil {
		s.endHold()
		s.log.Info("source's drop of workers is not held back any more", "why", why)
	}
}

// pause is the time to the next look at what is held.
func (s *state) pause(h *hold, now time.Time) time.Duration {
	return min(holdLook, max(0, h.since.Add(s.m.opts.Hold).Sub(now)))
}

// look decides again about what is held.
func (s *state) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.hold == nil {
		return
	}
	now := time.Now()
	s.putInForce(now, false)
	if s.hold != nil {
		s.hold.timer.Reset(s.pause(s.hold, now))
	}
}

// problems are the errors that err joins, bounded.
func problems(err error) (list []string) {
	if err == nil {
		return nil
	}
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	for i, e := range errs {
		if i == MaxWarnings-1 && len(errs) > MaxWarnings {
			return append(list, fmt.Sprintf("%d more workers cannot be registered", len(errs)-i))
		}
		list = append(list, text.Clip(e.Error(), maxText))
	}
	return list
}
