package fleet

import (
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
)

const (
	// checkedLately is at least for how long a health check tells of now (longer where
	// checks are rarer), legLately for how long a request that was served does.
	checkedLately = 15 * time.Second
	legLately     = 10 * time.Second
)

// tellTrials tells the cluster of which ranks it has changed what came lately of trying
// them. It costs requests nothing: it reads what they leave behind for the breakers.
func (m *membership) tellTrials(now admission.Instant) {
	f := m.f
	var list []cluster.RankTrial
	f.mu.Lock()
	seen := 0
	idle := time.Duration(len(f.workers)) * time.Second / maxIdleCheckRate
	lately := max(checkedLately, 3*f.cfg.Health.Interval, 2*idle)
	for _, w := range f.workers {
		checks := w.checkTrialLocked(now, lately)
		for _, r := range w.Ranks() {
			t := cluster.RankTrial{ID: r.id, Checks: checks, Legs: r.legTrial(now)}
			if was, ok := m.trials[r.id]; !ok || was != t {
				m.trials[r.id] = t
				list = append(list, t)
			}
			seen++
		}
	}
	if len(m.trials) > 2*seen+64 {
		m.trials = map[string]cluster.RankTrial{} // of ranks that went: those that are there are told once more
	}
	f.mu.Unlock()
	if len(list) > 0 {
		m.to.Tried(list)
	}
}

// checkTrialLocked is what came lately of checks of w.
func (w *Worker) checkTrialLocked(now admission.Instant, lately time.Duration) cluster.Trial {
	h := &w.fleet.cfg.Health
	last := admission.Instant(w.lastCheck.Load())
	if h.Disabled || !w.health.everHealthy && w.health.attempts == 0 || now.Sub(last) > lately {
		return cluster.Untried
	}
	switch {
	case !w.health.healthy:
		return cluster.Failed
	case w.health.failures == 0 && !w.health.suspect:
		return cluster.Succeeded
	}
	return cluster.Untried // it is not known yet
}

// legTrial is what came lately of requests to r.
func (r *Rank) legTrial(now admission.Instant) cluster.Trial {
	b := &r.breaker
	if state, _ := b.get(); state == admission.BreakerOpen || r.wedged.Load() {
		return cluster.Failed
	}
	if at := admission.Instant(b.good.Load()); at != 0 && now.Sub(at) <= legLately {
		return cluster.Succeeded
	}
	return cluster.Untried
}
