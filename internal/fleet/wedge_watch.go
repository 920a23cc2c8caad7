package fleet

import (
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// looksIn is how many looks at the progress of a worker's legs there are within the
// setting.
const (
	looksIn   = 8
	leastLook = 20 * time.Millisecond
	mostLook  = 500 * time.Millisecond
)

func lookPause(setting time.Duration) time.Duration {
	return min(max(setting/looksIn, leastLook), mostLook)
}

// keepWatch has the progress of the worker's legs looked at as long as it has some.
func (w *Worker) keepWatch(now admission.Instant) {
	if w.watched.Load() {
		return
	}
	f := w.fleet
	if f.watchesLegs() && w.watched.CompareAndSwap(false, true) {
		f.sched.set(w.watchEvent, now.Add(lookPause(f.cfg.Health.Wedge)))
		f.sched.advance(w.loadEvent, now.Add(f.loadPause()))
	}
}

// watchesLegs tells whether the progress of legs is looked at.
func (f *Fleet) watchesLegs() bool { return f.cfg.Health.Wedge > 0 && !f.cfg.Health.Disabled }

// watchDue looks at the progress of w's legs.
func (f *Fleet) watchDue(w *Worker, now admission.Instant) {
	setting := f.cfg.Health.Wedge
	pause := lookPause(setting)
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return
	}
	// A router that stood still itself, with its machine perhaps, has seen no progress for
	// its own sake.
	stalled := w.lookAt != 0 && now.Sub(w.lookAt) > pause+setting/2
	suspects, unknown := false, w.unknownEngine()
	var n notices
	if !f.allAdvancedLocked(w) {
		f.lookLocked(w)
	}
	for _, r := range w.looked {
		h := &r.hang
		switch moved := r.advanced.Swap(false); {
		case moved:
			f.progressLocked(r, now, "bytes come")
		case h.state == wedged:
			f.endStreamsLocked(r, now, setting, &n)
		case h.under.legs == 0, unknown:
			h.calm(now)
		case stalled:
			h.progress(now)
		default:
			before := h.state
			if soon := h.judge(now, setting, r.paceRate(), w.Dialect().SchedulerPath() != ""); soon > 0 && h.under.unbegun > 0 {
				pause = min(pause, max(soon, leastLook))
			}
			suspects = suspects || h.state == suspect && before != suspect
			if h.state == wedged && before != wedged {
				f.wedgedLocked(r, now, &n)
			} else if h.state == suspect && !h.told && now.Sub(h.since) >= slowAnswer {
				h.told = true
				f.log.Warn("rank is suspect: its scheduler may hang", "rank", r.id, "why", h.why)
			}
		}
	}
	f.askLocked(w, suspects)
	w.lookAt = 0
	if w.legsLeft() {
		w.lookAt = now
		f.sched.set(w.watchEvent, now.Add(pause))
	} else {
		w.watched.Store(false)
		if w.legsLeft() && w.watched.CompareAndSwap(false, true) { // one came meanwhile
			f.sched.set(w.watchEvent, now.Add(pause))
		}
	}
	f.mu.Unlock()
	n.send()
}

// unknownEngine tells whether nothing proves what engine a worker for whole requests runs.
// What a slow health route means there is not known; it is the health checks' business.
func (w *Worker) unknownEngine() bool {
	return w.role == admission.RoleRegular && w.setBackend() == "" && w.Facts().Backend == ""
}

// allAdvancedLocked tells whether there is nothing to look at closely.
func (f *Fleet) allAdvancedLocked(w *Worker) bool {
	for _, r := range w.looked {
		if !r.advanced.Load() || r.hang.state != advancing {
			return false
		}
	}
	return len(w.looked) > 0 && len(w.looked) == len(w.Ranks())
}

// legsLeft tells whether w has legs, without those of registrations before and after it,
// with which it shares its liveness.
func (w *Worker) legsLeft() bool {
	l := w.liveness.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := l.legs.First(); n != nil; n = n.Next() {
		if n.Value.rank.worker == w {
			return true
		}
	}
	return false
}

func (r *Rank) paceRate() float64 {
	l := r.worker.liveness.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	return r.pace.rate()
}

// paceAssume has a rank that came back taken for one that computes as slowly as that.
func (r *Rank) paceAssume(tokens int64, took time.Duration) {
	l := r.worker.liveness.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	r.pace.assume(tokens, took)
}

// lookLocked works out what each rank of w has to do: its own, and earlier ones that still
// have legs.
func (f *Fleet) lookLocked(w *Worker) {
	setting, probed := f.cfg.Health.Wedge, w.Dialect().SchedulerPath() != ""
	w.looks++
	ranks := w.Ranks()
	defer func() { w.looked = ranks }()
	for _, r := range ranks {
		r.hang.look, r.hang.under = w.looks, legsUnderWay{}
	}
	l := w.liveness.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	for n := l.legs.First(); n != nil; n = n.Next() {
		r := n.Value.rank
		if r.worker != w {
			continue // of the registration before, which looks for itself
		}
		if r.hang.look != w.looks {
			r.hang.look, r.hang.under = w.looks, legsUnderWay{}
			ranks = append(slices.Clip(ranks), r)
		}
		r.hang.under.add(n.Value, probed)
	}
	for n := l.legs.First(); n != nil; n = n.Next() {
		leg := n.Value
		// What came long after the last progress has not delayed it.
		if h := &leg.rank.hang; leg.rank.worker == w && leg.start <= max(h.last, h.under.oldest).Add(setting) {
			h.under.addTokens(leg)
		}
	}
}

// notices are legs to be told that their rank is wedged. It is done without a lock.
type notices []LegListener

func (n notices) send() {
	for _, who := range n {
		who.RankWedged()
	}
}

// addLegsLocked adds the legs of a rank: those that are not begun to be answered, or
// those that are.
func (n *notices) addLegsLocked(r *Rank, begun bool) (legs int) {
	l := r.worker.liveness.Load()
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := l.legs.First(); at != nil; at = at.Next() {
		leg := at.Value
		if leg.rank != r || (leg.begun.Load() != 0) != begun || begun && leg.leg.Kind == LegPrefill {
			continue
		}
		legs++
		*n = append(*n, leg.who)
	}
	return legs
}

// wedgedLocked takes a rank that was found wedged out of service, and its requests from
// it that are not begun to be answered.
func (f *Fleet) wedgedLocked(r *Rank, now admission.Instant, n *notices) {
	h := &r.hang
	h.streamsEnded = false
	h.total++
	h.heldTokens, h.heldSince = h.under.longest, max(h.last, h.under.oldest)
	r.wedged.Store(true)
	moved := n.addLegsLocked(r, false)
	f.applyWedgeLocked(r, now)
	f.log.Warn("rank is wedged: it gets no requests until its scheduler answers", "rank", r.id, "why", h.why,
		"requests_moved", moved, "streams", h.under.begun)
}

// applyWedgeLocked tells the gate.
func (f *Fleet) applyWedgeLocked(r *Rank, now admission.Instant) {
	if r.worker.removed {
		return
	}
	var changes []admission.Change
	f.applyStatesLocked(r.worker, &changes)
	if r.wedged.Load() {
		f.halfOpenLastLocked(now, &changes)
	}
	if len(changes) > 0 {
		f.gate.Apply(changes...)
	}
}

// endStreamsLocked ends the streams of a wedged rank once they have waited long enough.
func (f *Fleet) endStreamsLocked(r *Rank, now admission.Instant, setting time.Duration, n *notices) {
	h := &r.hang
	if now.Sub(h.since) < streamGraceOf*setting {
		return
	}
	ended := n.addLegsLocked(r, true)
	if ended > 0 && !h.streamsEnded {
		f.log.Warn("the streams of a wedged rank are ended", "rank", r.id, "streams", ended)
	}
	h.streamsEnded = true
}

// progressLocked takes a sign of progress of a rank into account.
func (f *Fleet) progressLocked(r *Rank, now admission.Instant, why string) {
	h := &r.hang
	was, told, since := h.state, h.told, h.since
	h.progress(now)
	switch {
	case was == wedged:
		r.paceAssume(h.heldTokens, now.Sub(h.heldSince))
		r.wedged.Store(false)
		f.applyWedgeLocked(r, now)
		f.log.Info("rank is no longer wedged", "rank", r.id, "why", why, "after", now.Sub(since).Round(time.Millisecond))
	case told:
		f.log.Info("rank is no longer suspect", "rank", r.id, "why", why, "after", now.Sub(since).Round(time.Millisecond))
	}
}

// forgetHangsLocked ends all suspicions against w: another process is there now.
func (f *Fleet) forgetHangsLocked(w *Worker, now admission.Instant) {
	for _, r := range w.Ranks() {
		r.hang.heldTokens = 0
		if r.hang.state != advancing {
			f.progressLocked(r, now, "the engine is another process")
		}
	}
}

// ages are, in seconds, how long the rank has made no progress, and the ages of its oldest
// legs, as of the last look.
func (r *Rank) ages(now admission.Instant) (quiet, prefill, decode float64) {
	h := &r.hang
	secs := func(d time.Duration) float64 { return max(d, 0).Round(time.Millisecond).Seconds() }
	if h.state == wedged || !r.advanced.Load() {
		quiet = secs(h.quiet(now))
	}
	if h.under.prefills > 0 {
		prefill = secs(now.Sub(h.under.oldestPrefill))
	}
	if h.under.decodes > 0 {
		decode = secs(now.Sub(h.under.oldestDecode))
	}
	return quiet, prefill, decode
}

// inheritHangsLocked takes over what was found out about the ranks of a registration
// that w replaces, of the same engine.
func (f *Fleet) inheritHangsLocked(w *Worker) {
	ranks, before := w.Ranks(), w.heirOf
	if w.heirOf = nil; len(ranks) != len(before) {
		return
	}
	for i, r := range ranks {
		if o := before[i]; o.hang.state == wedged {
			r.hang.state, r.hang.since, r.hang.why, r.hang.total = wedged, o.hang.since, o.hang.why, o.hang.total
			r.wedged.Store(true)
		}
	}
	w.looked = ranks
	f.askLocked(w, false)
}

// wedgedLocked tells whether all ranks of w are wedged.
func (w *Worker) wedgedLocked() bool {
	ranks := w.Ranks()
	return len(ranks) > 0 && !slices.ContainsFunc(ranks, func(r *Rank) bool { return r.hang.state != wedged })
}

// Lost tells whether what is sent to the rank now would be taken back at once: its worker
// is dead, or it is wedged.
func (r *Rank) Lost() bool { return r.wedged.Load() || r.Alive().Err() != nil }
