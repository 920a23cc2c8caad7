package fleet

import (
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// A rank that comes to a fleet, or comes back to it, is given a share of what it would
// get otherwise until it is warm (worker_warmup_secs): after it was unhealthy, wedged,
// drained, not ready by its source, or its breaker open, and when another engine runs at
// its address. What the share means for choosing is the gate's business.
//
// Ranks that come within startTogether of the fleet's first are not new: the router is.

// startTogether is how long after the first rank others are taken to have come with it.
const startTogether = 5 * time.Second

// warmth is where a rank is in its warm-up. Guarded by Fleet.mu.
type warmth struct {
	inUse bool              // it is a candidate at the gate
	came  bool              // it was one before
	until admission.Instant // the end of its warm-up; 0: it is warm
	event *event            // that end
}

// nextStateLocked is the state that the gate is to know of r. It begins the warm-up of a
// rank that becomes a candidate, and ends that of one that is none any more.
func (f *Fleet) nextStateLocked(r *Rank) admission.RankState {
	s := f.gateStateLocked(r)
	m := &r.warmth
	inUse := r.worker.inGate && s.Healthy && !s.Draining && s.Breaker != admission.BreakerOpen
	switch {
	case !inUse:
		f.endWarmUpLocked(r)
	case !m.inUse, s.Breaker == admission.BreakerClosed && r.state.Breaker == admission.BreakerHalfOpen:
		f.beginWarmUpLocked(r)
	}
	m.inUse = inUse
	if m.until != 0 {
		s.Share = uint16(1000*f.cfg.Fleet.WorkerWarmupShare + 0.5)
	}
	return s
}

// beginWarmUpLocked begins the warm-up of r anew.
func (f *Fleet) beginWarmUpLocked(r *Rank) {
	m, now := &r.warmth, f.clock.Now()
	cameFirst := !m.came && f.comesWithTheRouterLocked(r, now)
	m.came = true
	length := f.cfg.Fleet.WorkerWarmup
	if length <= 0 || cameFirst {
		return
	}
	m.until = now.Add(length)
	if m.event == nil {
		m.event = newEvent(func(admission.Instant) { f.warm(r) })
	}
	f.sched.set(m.event, m.until)
}

// comesWithTheRouterLocked reports whether r, which is new, is one of the ranks that are
// there because the router has started. One that was removed and came again is not.
func (f *Fleet) comesWithTheRouterLocked(r *Rank, now admission.Instant) bool {
	if f.startRanks == nil {
		f.startRanks, f.firstInUse = map[string]bool{}, now
	}
	if now.Sub(f.firstInUse) > startTogether {
		clear(f.startRanks)
		return false
	}
	if f.startRanks[r.id] {
		return false
	}
	f.startRanks[r.id] = true
	return true
}

func (f *Fleet) endWarmUpLocked(r *Rank) {
	r.warmth.until = 0
	f.sched.drop(r.warmth.event)
}

// warm ends the warm-up of r when its time is over.
func (f *Fleet) warm(r *Rank) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := r.worker
	if w.removed || f.closed || !slices.Contains(w.Ranks(), r) || r.warmth.until == 0 || f.clock.Now() < r.warmth.until {
		return
	}
	r.warmth.until = 0
	var changes []admission.Change
	f.applyStatesLocked(w, &changes)
	if len(changes) > 0 {
		f.gate.Apply(changes...)
	}
}

// inheritWarmthLocked makes the ranks of w as warm as those of the registration that it
// replaces: whoever is registered with other settings was there all the time.
func (f *Fleet) inheritWarmthLocked(w *Worker) {
	before := w.heirOf
	if len(before) == 0 {
		return
	}
	for i, r := range w.Ranks() {
		o, m := before[min(i, len(before)-1)], &r.warmth
		m.inUse, m.came, m.until = o.warmth.inUse, o.warmth.came, o.warmth.until
		if m.until != 0 {
			m.event = newEvent(func(admission.Instant) { f.warm(r) })
			f.sched.set(m.event, m.until)
		}
	}
}
