package fleet

import (
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
)

// reportCounts is for how many intervals a report counts.
const reportCounts = 3

// loadReading is a question for the load of a worker that was sent.
type loadReading struct {
	ranks  []*Rank
	active []int64 // their active blocks when it was sent
}

// loadDueLocked tells whether the load of w is to be read now; check: a check of it has just
// succeeded, so that a connection is open. In large fleets the load of a worker without
// requests from this router is not worth a request while nothing is decided by it, unless
// it tells one process from the next.
func (f *Fleet) loadDueLocked(w *Worker, now admission.Instant, check bool) bool {
	d, interval := w.Dialect(), f.cfg.Health.LoadMonitor
	pause := interval
	if check && d.LoadsIdentify() {
		pause = min(pause, f.cfg.Health.Interval)
	}
	switch {
	case w.readsLoad, w.Facts().noLoads, d.LoadsPath() == "":
		return false
	case interval > 0 && now.Sub(w.loadAskedAt) < pause*4/5:
		return false
	case !f.readsSeldomLocked(w):
		return true
	}
	return check && d.LoadsIdentify()
}

// loadPause is the pause between two readings of the load. Those that are no more frequent
// than checks go with these.
func (f *Fleet) loadPause() time.Duration {
	d := f.cfg.Health.LoadMonitor
	if d >= f.cfg.Health.Interval && !f.cfg.Health.Disabled {
		d += d / 5
	}
	return d
}

// readsSeldomLocked tells whether w is idle in a fleet so large that its load is not asked
// for, as nothing is decided by it.
func (f *Fleet) readsSeldomLocked(w *Worker) bool {
	return f.idlePauseLocked(w) > 0 && (f.cfg.Health.LoadMonitor <= 0 || !f.gate.UsesReports(w.role))
}

// loadTimeDue reads the load of w, unless that was done with a check.
func (f *Fleet) loadTimeDue(w *Worker, now admission.Instant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.removed || f.closed {
		return
	}
	pause := f.loadPause()
	if f.watchesLegs() && f.readsSeldomLocked(w) {
		pause = max(pause, f.idlePauseLocked(w)) // keepWatch brings it forward
	}
	f.sched.set(w.loadEvent, f.gatheredLocked(w, now.Add(f.jitterLocked(pause))))
	if w.draining || !w.health.healthy || !w.Facts().read || !f.loadDueLocked(w, now, false) {
		return
	}
	w.readsLoad, w.loadAskedAt = true, now
	f.readers.start(w.loadLost, func() {
		facts := w.Facts()
		if f.readLoad(w, facts) {
			f.seemsReplaced(w, facts)
		}
	})
}

// readLoad reads the load of w, for which readsLoad was set. It tells whether w seems to be
// another engine than the one that the facts are of.
func (f *Fleet) readLoad(w *Worker, facts *Facts) (stale bool) {
	q := f.askLoad(w)
	l, never := f.prober.loads(w.ctx, w, w.Dialect())
	f.storeLoads(w, l, q)
	f.mu.Lock()
	w.readsLoad = false
	f.mu.Unlock()
	return never || l != nil && facts.loadsDiffer(l)
}

// askLoad notes what is booked on w now.
func (f *Fleet) askLoad(w *Worker) (q loadReading) {
	q.ranks = w.Ranks()
	q.active = make([]int64, len(q.ranks))
	if f.cfg.Health.LoadMonitor <= 0 || w.role == admission.RolePrefill {
		return q
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range q.ranks {
		if w.inGate {
			q.active[i] = r.activeBlocksLocked()
		}
	}
	return q
}

// storeLoads keeps an answer about the load of w and reports it to the gate.
func (f *Fleet) storeLoads(w *Worker, l *loads, q loadReading) {
	if l == nil {
		return
	}
	l.at = f.clock.Now()
	w.loads.Store(l)
	if l.CountsExternal && w.role == admission.RoleDecode && w.transfers.read(l.External) {
		f.logTransfers(w)
	}
	if f.cfg.Health.LoadMonitor <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.removed || f.closed {
		return
	}
	f.sched.set(w.reportEnd, l.at.Add(reportCounts*f.cfg.Health.LoadMonitor))
	if w.loadLost {
		w.loadLost = false
		f.log.Info("worker reports its load again", "worker", w.url, "id", w.id)
	}
	var changes []admission.Change
	for i, r := range w.Ranks() {
		if i >= len(q.ranks) || q.ranks[i] != r {
			continue // it was registered since; the next reading is of it
		}
		p := reportOf(r, l)
		if p != (admission.RankReport{}) {
			p.ActiveBlocks = q.active[i]
		}
		if p == r.reported && p.Requests == 0 {
			continue
		}
		r.reported = p
		changes = append(changes, admission.Change{Op: admission.SetReport, Rank: r.adm, Report: p})
	}
	if w.inGate && len(changes) > 0 {
		f.gate.Apply(changes...)
	}
}

// reportOf is what an answer says of a rank; the zero report if it says nothing of it.
func reportOf(r *Rank, l *loads) admission.RankReport {
	one, ok := rankLoad(&l.Loads, r.dp)
	if !ok {
		return admission.RankReport{}
	}
	return admission.RankReport{Requests: one.Running + one.Waiting, Waiting: one.Waiting, KVTokens: one.UsedTokens, Usage: one.Usage}
}

// appendReport adds the report of a rank that is being registered, if there is one that
// counts. Nothing is booked on it yet.
func (f *Fleet) appendReport(r *Rank, changes *[]admission.Change) {
	r.reported = admission.RankReport{}
	if l := r.worker.loads.Load(); l != nil && f.counts(l, f.clock.Now()) {
		r.reported = reportOf(r, l)
	}
	if r.reported != (admission.RankReport{}) {
		*changes = append(*changes, admission.Change{Op: admission.SetReport, Rank: r.adm, Report: r.reported})
	}
}

// counts tells whether a report is young enough for something to be decided by it.
func (f *Fleet) counts(l *loads, now admission.Instant) bool {
	d := f.cfg.Health.LoadMonitor
	return d > 0 && now.Sub(l.at) < reportCounts*d
}

// reportEnds takes the reports of w back, which are too old.
func (f *Fleet) reportEnds(w *Worker, now admission.Instant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	l := w.loads.Load()
	if w.removed || f.closed || l != nil && f.counts(l, now) {
		return
	}
	var changes []admission.Change
	f.dropReportsLocked(w, &changes)
	if len(changes) > 0 {
		f.gate.Apply(changes...)
	}
	// Not one that fails its checks, or that was not asked since: idle, in a large fleet.
	if w.health.healthy && !w.health.failing() && !w.draining && !w.loadLost && !w.Facts().noLoads && l != nil && w.loadAskedAt > l.at {
		w.loadLost = true
		f.log.Warn("worker does not report its load any more: its bookings alone count", "worker", w.url, "id", w.id, "path", w.Dialect().LoadsPath())
	}
}

// dropReportsLocked takes back what the engine of w reported.
func (f *Fleet) dropReportsLocked(w *Worker, changes *[]admission.Change) {
	for _, r := range w.Ranks() {
		if r.reported == (admission.RankReport{}) {
			continue
		}
		r.reported = admission.RankReport{}
		if w.inGate {
			*changes = append(*changes, admission.Change{Op: admission.SetReport, Rank: r.adm})
		}
	}
}

// loadUnknownLocked says why the load of w, which is healthy, is not known; empty: it is, or
// it is not asked for.
func (w *Worker) loadUnknownLocked() string {
	facts, path := w.Facts(), w.Dialect().LoadsPath()
	switch {
	case w.fleet.cfg.Health.LoadMonitor <= 0 || !facts.read || !w.health.healthy:
		return ""
	case path == "":
		return "it speaks " + w.Backend() + ", in which engines do not report their load: what others send to it is not seen"
	case facts.noLoads:
		return "it does not report its load (" + engine.PathOnly(path) + "): what others send to it is not seen, and only its bookings count"
	case w.loadLost:
		return "it has not answered " + engine.PathOnly(path) + " for long: what others send to it is not seen, and only its bookings count"
	}
	return ""
}

// seemsReplaced has all facts of w read with the next check, which starts soon, if they are
// still these: it seems to be another engine.
func (f *Fleet) seemsReplaced(w *Worker, facts *Facts) {
	now := f.clock.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.Facts() != facts || w.removed || w.draining {
		return
	}
	w.maybeReplaced = true
	f.sched.advance(w.event, max(now, w.factsReadAt.Add(f.cfg.Health.Interval/2)))
}
