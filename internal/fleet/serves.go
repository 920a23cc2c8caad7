package fleet

import "slices"

// Serves tells whether the worker is in the gate's pool of that name.
func (w *Worker) Serves(pool string) bool {
	w.fleet.mu.Lock()
	defer w.fleet.mu.Unlock()
	if len(w.models) == 0 {
		return pool == ""
	}
	return slices.Contains(w.models, pool)
}
