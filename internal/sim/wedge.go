package sim

// schedStats is what a scheduler reports.
type schedStats struct {
	counts    []rankCounts
	stats     Stats
	generated int64
	steps     int64
}

// Wedge stops the scheduler alone, which is how engines mostly hang: the server reads
// requests and answers information routes, nothing is computed, and what the scheduler
// reports stays as it is. vLLM's /health knows nothing of it, SGLang's fails.
func (w *Worker) Wedge() {
	s := w.scheduled()
	w.lastReport.CompareAndSwap(nil, &s)
	w.sched.shut()
}

// Unwedge lets a wedged scheduler go on.
func (w *Worker) Unwedge() {
	w.sched.open()
	w.lastReport.Store(nil)
}

// scheduled is what the scheduler reports now.
func (w *Worker) scheduled() schedStats {
	if s := w.lastReport.Load(); s != nil {
		return *s
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return schedStats{append([]rankCounts(nil), w.counts...), w.stats, w.generated.Load(), w.steps.Load()}
}
