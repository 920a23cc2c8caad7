package fleet

import (
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// Serving is one rank that serves a model, in whatever role.
type Serving struct {
	Worker *Worker
	Rank   *Rank
	// Ready: it could be given work now.
	Ready bool

	adm *admission.Rank
}

// Load is the number of calls that the rank has from this router, those beside
// the gate included.
func (s *Serving) Load() int {
	l := s.Worker.fleet.gate.RankStats(s.adm)
	return l.PrefillLegs + l.PendingDecode + l.ActiveDecode + int(s.Rank.beside.Load())
}

// Serving returns the ranks of a pool in the order of registration: those that are
// down included, draining ones not. Where nobody is known to serve it, these are
// the ranks of workers that have not told what they serve.
func (f *Fleet) Serving(pool string) []Serving {
	f.mu.Lock()
	defer f.mu.Unlock()
	if found := f.servingLocked(func(w *Worker) bool { return slices.Contains(w.models, pool) }); len(found) > 0 {
		return found
	}
	return f.servingLocked(func(w *Worker) bool {
		return len(w.models) == 0 || slices.Equal(w.models, []string{""})
	})
}

func (f *Fleet) servingLocked(serves func(*Worker) bool) (found []Serving) {
	for _, w := range f.workers {
		if w.draining || !w.inGate || !serves(w) {
			continue
		}
		for _, r := range w.Ranks() {
			s := r.state
			found = append(found, Serving{
				Worker: w, Rank: r, adm: r.adm,
				Ready: s.Healthy && !s.Draining && s.Breaker != admission.BreakerOpen,
			})
		}
	}
	return found
}

// BeginBeside counts a call that the gate does not know of; end is to be called at
// its end.
func (r *Rank) BeginBeside() (end func()) {
	r.beside.Add(1)
	return func() { r.beside.Add(-1) }
}
