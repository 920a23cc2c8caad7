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
}

// Serving returns the ranks of a pool in the order of registration: those that are
// down included, draining ones not. Where nobody is known to serve it, these are
// the ranks of workers that have not reported what they serve.
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
				Worker: w, Rank: r,
				Ready: s.Healthy && !s.Draining && s.Breaker != admission.BreakerOpen,
			})
		}
	}
	return found
}

// HasRank reports whether a worker of the role has the data-parallel rank n, counted
// from 0: one that serves the pool, or the one at a URL. It is true as well while no
// worker of the role is known to serve the pool.
func (f *Fleet) HasRank(pool, url string, role admission.Role, n int) bool {
	none := true
	for _, s := range f.Serving(pool) {
		w := s.Worker
		if w.role != role || url != "" && w.url != url {
			continue
		}
		if none = false; n < len(w.Ranks()) {
			return true
		}
	}
	return none
}

// Serves reports whether the worker is in the gate's pool of that name.
func (w *Worker) Serves(pool string) bool {
	w.fleet.mu.Lock()
	defer w.fleet.mu.Unlock()
	if len(w.models) == 0 {
		return pool == ""
	}
	return slices.Contains(w.models, pool)
}
