package discovery

import (
	"slices"
	"time"
)

// The states of a source.
const (
	StateWaiting = "waiting" // not read yet
	StateOK      = "ok"
	StateHolding = "holding" // a suspicious drop is held back
	StateFailing = "failing" // the last reading failed; the last good one is in force
)

// Status is one source as GET /workers describes it.
type Status struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// Declared are the workers that it declares, held ones included, Workers those of them
	// that are registered and its own.
	Declared int `json:"declared"`
	Workers  int `json:"workers"`
	// LastSuccess is when it was last read, nil before that.
	LastSuccess    *time.Time `json:"last_success,omitempty"`
	LastSuccessAge float64    `json:"last_success_age_secs,omitempty"`
	// Readings and Failures count the readings that succeeded and that failed.
	Readings uint64 `json:"readings"`
	Failures uint64 `json:"failures"`
	// Error is why the last reading failed.
	Error string `json:"error,omitempty"`
	// Held are workers that it has dropped and that stay for now, the first maxHeldNames of
	// them; HeldCount is their number, HeldUntil when the last of them goes at the latest.
	Held      []string   `json:"held,omitempty"`
	HeldCount int        `json:"held_count"`
	HeldUntil *time.Time `json:"held_until,omitempty"`
	// HeldOut are workers that it declares and that were removed by request.
	HeldOut []string `json:"held_out,omitempty"`
	// Warnings are about what it declares and what could not be registered.
	Warnings []string `json:"warnings,omitempty"`

	lastSuccess time.Time
	err         *string
}

// maxHeldNames bounds the lists of workers in a Status.
const maxHeldNames = 20

// describe keeps what became of a reading, and logs its warnings once.
func (s *state) describe(held []entry, warnings []string) {
	warnings = slices.Compact(warnings)
	warnings = warnings[:min(len(warnings), 2*MaxWarnings)]
	for _, w := range warnings {
		if !slices.Contains(s.told, w) {
			s.log.Warn("source has a warning", "about", w)
		}
	}
	s.told = warnings
	s.statusMu.Lock()
	defer s.statusMu.Unlock()
	st := &s.status
	st.Declared, st.Warnings = len(s.current), warnings
	st.Held, st.HeldCount, st.HeldUntil = nil, len(held), nil
	for _, e := range held[:min(len(held), maxHeldNames)] {
		st.Held = append(st.Held, e.key)
	}
	var until time.Time
	later := func(since time.Time) {
		if at := since.Add(s.m.opts.Hold).UTC().Round(time.Second); at.After(until) {
			until = at
		}
	}
	for _, l := range s.hold {
		later(l.since)
	}
	for _, since := range s.awaited {
		later(since)
	}
	if len(held) > 0 {
		st.HeldUntil = &until
	}
}

// snapshot is the status now.
func (s *state) snapshot(now time.Time) Status {
	s.statusMu.Lock()
	st := s.status
	s.statusMu.Unlock()
	if !st.lastSuccess.IsZero() {
		at := st.lastSuccess.UTC().Round(time.Millisecond)
		st.LastSuccess, st.LastSuccessAge = &at, max(0, now.Sub(st.lastSuccess).Round(time.Millisecond).Seconds())
		st.State = StateOK
	}
	if st.HeldCount > 0 {
		st.State = StateHolding
	}
	if st.err != nil {
		st.State, st.Error = StateFailing, *st.err
	}
	st.Workers = s.m.opts.Fleet.Owned(s.name)
	st.HeldOut = s.m.opts.Fleet.HeldOut(s.name)
	st.HeldOut = st.HeldOut[:min(len(st.HeldOut), maxHeldNames)]
	return st
}

// Status describes all sources in the order in which they were started.
func (m *Manager) Status() []Status {
	m.mu.Lock()
	sources := slices.Clone(m.sources)
	m.mu.Unlock()
	now := time.Now()
	list := make([]Status, len(sources))
	for i, s := range sources {
		list[i] = s.snapshot(now)
	}
	return list
}
