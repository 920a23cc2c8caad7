package fleet

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// applyAllLocked brings the gate in line with what is known: w after something
// about it changed, and those whose place depends on the others. News are to be logged.
func (f *Fleet) applyAllLocked(w *Worker, changes *[]admission.Change) (news []pairingNews) {
	return f.applyAllOfLocked([]*Worker{w}, changes)
}

// applyAllOfLocked is applyAllLocked for several workers that changed, none if
// workers only went.
func (f *Fleet) applyAllOfLocked(ws []*Worker, changes *[]admission.Change) (news []pairingNews) {
	f.applyOwnLocked(ws, changes)
	return f.applyOthersLocked(ws, changes)
}

// applySoonLocked is applyAllOfLocked for changes that come one by one from many workers:
// in a large fleet the pass over all workers is made a moment later, once for all changes
// until then. What concerns ws themselves is in force at once.
func (f *Fleet) applySoonLocked(ws []*Worker, changes *[]admission.Change) (news []pairingNews) {
	if len(f.workers) < largeFleet {
		return f.applyAllOfLocked(ws, changes)
	}
	f.applyOwnLocked(ws, changes)
	if !f.othersDue {
		f.othersDue = true
		f.sched.set(f.others, f.clock.Now().Add(othersPause))
	}
	return nil
}

const (
	// largeFleet is from how many workers on a pass over all of them, some microseconds
	// for each, is not made for every change of one.
	largeFleet = 64
	// othersPause is how much later it is made.
	othersPause = 20 * time.Millisecond
)

// applyOthers makes the pass over all workers that applySoonLocked has put off.
func (f *Fleet) applyOthers(admission.Instant) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.othersDue = false
	if f.closed {
		return
	}
	var changes []admission.Change
	news := f.applyOthersLocked(nil, &changes)
	if len(changes) > 0 {
		f.gate.Apply(changes...)
	}
	f.logPairing(news)
}

// applyOwnLocked applies workers that changed.
func (f *Fleet) applyOwnLocked(ws []*Worker, changes *[]admission.Change) {
	alone := !f.anyNamedLocked()
	f.kinds = f.kindsLocked()
	var offers connectorsByModel
	for _, w := range ws {
		if w.inheritsConnector() {
			if offers == nil {
				offers = f.prefillConnectorsLocked()
			}
			w.inheritConnectorLocked(offers)
		}
		f.applyLocked(w, alone, changes)
	}
}

// applyOthersLocked applies the workers but ws whose place depends on the others, and
// brings in line what is known of all together.
func (f *Fleet) applyOthersLocked(ws []*Worker, changes *[]admission.Change) (news []pairingNews) {
	alone := !f.anyNamedLocked()
	f.noteKindsLocked()
	f.kinds = f.kindsLocked()
	for _, w := range ws {
		w.applied = true
	}
	var offers connectorsByModel
	for _, o := range f.workers {
		if o.draining || o.applied {
			continue
		}
		adopted := false
		if o.inheritsConnector() {
			if offers == nil {
				offers = f.prefillConnectorsLocked()
			}
			adopted = o.inheritConnectorLocked(offers)
		}
		if adopted || o.modelUnknown || f.kinds != nil {
			f.applyLocked(o, alone, changes)
		}
	}
	for _, w := range ws {
		w.applied = false
	}
	f.publishModelsLocked()
	return f.pairingLocked()
}

// applyLocked works out what of w the gate must learn. alone: no worker tells what
// it serves, so that one that does not either serves whatever is asked for.
func (f *Fleet) applyLocked(w *Worker, alone bool, changes *[]admission.Change) {
	if w.draining {
		f.applyStatesLocked(w, changes)
		return
	}
	models := w.ownNames()
	w.modelUnknown = len(models) == 0
	w.modelProblem = cmp.Or(w.roleProblem(), w.modelProblemLocked(alone), f.kindProblemLocked(w))
	dps := 1
	if f.cfg.Fleet.DPAware {
		if dps = w.spec.Load().DPSize; dps == 0 {
			dps = max(w.Facts().DPSize, 1)
		}
	}
	ranks := w.Ranks()
	// Not registered at the gate are workers that were never healthy and whose model is
	// unknown, and those whose model or role may be another one than requests would expect.
	in := w.modelProblem == "" && (!w.modelUnknown || w.health.everHealthy)
	facts := w.rankFacts(models)
	if len(ranks) == dps && w.inGate == in && slices.Equal(models, w.models) {
		f.applyFactsLocked(w, facts, changes)
		f.applyStatesLocked(w, changes)
		return
	}
	f.unregisterLocked(w, changes)
	if len(ranks) != dps {
		for _, r := range ranks {
			f.sched.drop(r.event)
			f.sched.drop(r.warmth.event)
		}
		f.forgetPairsLocked(ranks)
		f.dropFromIndexLocked(ranks)
		ranks = make([]*Rank, dps)
		for i := range ranks {
			if dps == 1 {
				ranks[i] = newRank(w, -1, 1)
			} else {
				ranks[i] = newRank(w, i, dps)
			}
		}
		w.ranks.Store(&ranks)
		f.inheritWarmthLocked(w)
		f.inheritHangsLocked(w)
	}
	w.models, w.inGate = models, in
	defer func() { f.restoreQuarantineLocked(ranks, changes) }()
	for _, r := range ranks {
		r.state = f.nextStateLocked(r)
		r.facts = facts
		r.facts.Capacity = r.Capacity()
		r.adm = admission.NewRank(admission.RankSpec{
			ID: r.id, Worker: w.url, Role: w.role, Models: models, PairGroup: facts.PairGroup,
			Topology: facts.Topology, Labels: facts.Labels, Adapters: facts.Adapters, Capacity: r.facts.Capacity,
			Limits: facts.Limits, Priority: facts.Priority,
			State: r.state, Data: r,
		})
		if in {
			*changes = append(*changes, admission.Change{Op: admission.AddRank, Rank: r.adm})
			r.caches.registered.Store(r.adm)
			f.appendReport(r, changes)
		}
	}
}

// rankFacts are what the gate is to know of each rank of the worker, without its
// capacity.
func (w *Worker) rankFacts(models []string) admission.RankAttributes {
	spec := w.spec.Load()
	return admission.RankAttributes{
		Models: models, PairGroup: w.pairGroup(), Topology: spec.TopologyDomain, Labels: spec.Labels, Adapters: w.adapters(),
		Limits:   admission.RankLimits{PrefillSlots: int(spec.PrefillMaxInflight), Running: spec.MaxRunningRequests},
		Priority: priorityOf(spec),
	}
}

// applyFactsLocked passes changed facts of ranks that stay registered to the gate.
func (f *Fleet) applyFactsLocked(w *Worker, facts admission.RankAttributes, changes *[]admission.Change) {
	for _, r := range w.Ranks() {
		facts.Capacity = r.Capacity()
		if facts.Capacity == r.facts.Capacity && facts.PairGroup == r.facts.PairGroup && facts.Topology == r.facts.Topology &&
			facts.Limits == r.facts.Limits && facts.Priority == r.facts.Priority &&
			slices.Equal(facts.Adapters, r.facts.Adapters) && maps.Equal(facts.Labels, r.facts.Labels) {
			continue // its models are those that it has
		}
		r.facts = facts
		if w.inGate {
			*changes = append(*changes, admission.Change{Op: admission.SetAttributes, Rank: r.adm, Attributes: facts})
		}
	}
}

// unregisterLocked takes the ranks of w out of the gate. Holds on them stay
// where they are.
func (f *Fleet) unregisterLocked(w *Worker, changes *[]admission.Change) {
	f.pruneOldRanksLocked(w)
	if !w.inGate {
		return
	}
	w.inGate = false
	for _, r := range w.Ranks() {
		*changes = append(*changes, admission.Change{Op: admission.RemoveRank, Rank: r.adm})
		r.caches.registered.Store(nil)
		// A grant may come before the change is applied, so that a rank which has
		// no hold now is kept as well.
		w.oldRanks = append(w.oldRanks, r.adm)
	}
}

// pruneOldRanksLocked drops earlier registrations whose requests have ended.
func (f *Fleet) pruneOldRanksLocked(w *Worker) {
	w.oldRanks = slices.DeleteFunc(w.oldRanks, func(r *admission.Rank) bool { return idle(f.gate.RankStats(r)) })
}

func idle(s admission.RankStats) bool {
	return s.PrefillSlots == 0 && s.PrefillLegs == 0 && s.PendingDecode == 0 && s.ActiveDecode == 0
}

// requestsLocked is the number of legs that are booked on w.
func (f *Fleet) requestsLocked(w *Worker) int {
	n := 0
	count := func(r *admission.Rank) {
		s := f.gate.RankStats(r)
		n += s.PrefillLegs + s.PendingDecode + s.ActiveDecode
	}
	for _, r := range w.oldRanks {
		count(r)
	}
	if w.inGate {
		for _, r := range w.Ranks() {
			count(r.adm)
		}
	}
	return n
}

func (f *Fleet) gateStateLocked(r *Rank) admission.RankState {
	b, _ := r.breaker.get()
	return admission.RankState{
		Healthy: r.worker.health.healthy && r.worker.notReady == "" && !r.worker.withheldLocked() && !r.worker.textHeldLocked() && !r.wedged.Load(), Draining: r.worker.draining || r.worker.drained,
		Breaker: b, Probes: r.breaker.probes(),
	}
}

// applyStatesLocked passes changed states of ranks to the gate.
func (f *Fleet) applyStatesLocked(w *Worker, changes *[]admission.Change) {
	if !w.inGate {
		return
	}
	for _, r := range w.Ranks() {
		if s := f.nextStateLocked(r); s != r.state {
			r.state = s
			*changes = append(*changes, admission.Change{Op: admission.SetState, Rank: r.adm, State: s})
		}
	}
}

// breakerChanged hands the state of a rank's breaker to the gate. An open one is
// probed when its time has come: no request is needed for that. why is for the log, keys
// and values.
func (f *Fleet) breakerChanged(r *Rank, why ...any) {
	f.mu.Lock()
	w := r.worker
	if w.removed || f.closed || !slices.Contains(w.Ranks(), r) {
		f.mu.Unlock()
		return
	}
	state, until := r.breaker.get()
	if state == admission.BreakerOpen {
		if r.event == nil {
			r.event = newEvent(func(now admission.Instant) { f.openIsOver(r, now) })
		}
		f.sched.set(r.event, until)
	} else {
		f.sched.drop(r.event)
	}
	var changes []admission.Change
	f.applyStatesLocked(w, &changes)
	if len(changes) > 0 {
		f.gate.Apply(changes...)
	}
	f.mu.Unlock()
	f.log.Warn("circuit breaker changed state", append([]any{"rank", r.id, "state", state.String()}, why...)...)
}
