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
	// Awaited returns those of urls, workers of a source that are about to go, that serve
	// what nobody else can serve now, while a worker of the source that has not been seen
	// yet may.
	Awaited(source string, urls []string) []string
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
	// reconcileEvery is how long a reading that comes again unchanged is not compared with
	// the fleet.
	reconcileEvery = 30 * time.Second
	// closeWait is how long Close waits for sources.
	closeWait = 5 * time.Second
)

// Manager runs sources and puts in force what they report. All methods are safe for
// concurrent use.
//
// hold.go has the rules for what a reading drops.
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
	st.runs = true
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
	s := &state{m: m, name: name, log: m.opts.Log.With("source", name), awaited: map[string]time.Time{}}
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
	runs bool // it is a Source, not the configuration; set before the first reading

	mu sync.Mutex
	// guarded by mu
	closed     bool
	current    []entry              // in force, held ones included
	last       []entry              // of the last good reading
	workers    []fleet.Declared     // of that, as it came
	whole      bool                 // what is in force is that, without problems
	reconciled time.Time            // when it was put in force last
	hold       hold                 // the suspicious drop that is held back; nil: none is
	awaited    map[string]time.Time // workers that stay until others can take over, by key: since when
	timer      *time.Timer          // to the next look at those that stay; nil at first
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

func (s *state) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
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
		s.last, s.workers = s.keepLeftOut(entries(r.Workers), r.LeftOut), r.Workers
	}
	s.statusMu.Lock()
	s.status.lastSuccess, s.status.err, s.status.Readings = now, nil, s.status.Readings+1
	first := s.status.Readings == 1
	s.statusMu.Unlock()
	if first && s.runs && len(r.Workers) == 0 {
		// A selector or a name with a typo is no failure: nothing else would tell.
		s.log.Warn("source was read and declares no workers: if there should be some, look at its file, names or selectors")
	}
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

// keepLeftOut adds to what a reading declares the workers in force that it had to leave out.
func (s *state) keepLeftOut(list []entry, leftOut []string) []entry {
	if len(leftOut) == 0 {
		return list
	}
	keep := make(map[string]bool, len(leftOut))
	for _, u := range leftOut {
		keep[canonical(u)] = true
	}
	for _, e := range list {
		delete(keep, e.key)
	}
	for _, e := range s.current {
		if keep[e.key] {
			list = append(list, e)
		}
	}
	return list
}

// canonical is a URL in the spelling that the fleet knows, or as it is if it is none.
func canonical(url string) string {
	if u, err := workerurl.Parse(url); err == nil {
		return u.String()
	}
	return url
}

func entries(workers []fleet.Declared) []entry {
	list := make([]entry, len(workers))
	for i, w := range workers {
		list[i] = entry{canonical(w.URL), w}
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
