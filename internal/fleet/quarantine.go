package fleet

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// KV transfers of a pair of a prefill and a decode rank may fail although each works
// with others: a link, a version, a failed handshake. Neither rank is charged, so
// no breaker opens. Instead the pair is quarantined at the gate for a while,
// and then tried again.
const (
	// pairFailures in a row, the first not older than pairWindow, quarantine a pair.
	pairFailures = 3
	pairWindow   = 2 * time.Minute
	// firstQuarantine is the duration of a pair's first quarantine. A pair that fails
	// again afterwards is quarantined for twice as long, up to maxQuarantine.
	firstQuarantine = time.Minute
	maxQuarantine   = 10 * time.Minute
	// maxPairs bounds the pairs that are tracked, maxQuarantined those in quarantine:
	// the gate's limit.
	maxPairs       = 1024
	maxQuarantined = 64
)

type pairKey struct{ p, d *Rank }

// pair is a tracked pair: one with recent failures.
type pair struct {
	key           pairKey
	failures      int
	first         admission.Instant // failure of those in a row
	quarantined   bool
	quarantinedAt admission.Instant
	until         admission.Instant // end of the quarantine, or of being tracked
	duration      time.Duration     // of the last quarantine; 0: there was none
	event         *event            // at until

	prefill, decode suspicion // what is held against its ranks
}

// quarantine is the table of pairs with recent failures.
type quarantine struct {
	tracked atomic.Int32 // the size of pairs
	total   atomic.Int64 // pairs quarantined so far

	mu sync.Mutex // below Fleet.mu
	// guarded by mu
	pairs       map[pairKey]*pair
	quarantined int
}

// ReportTransferFailure records that a KV transfer from p to d failed. It is proven if
// another pair then served the request, and unproven if nobody could tell. A pair that
// fails several times in a row, while another pair could serve, is quarantined at the
// gate for a minute or more; unproven failures do that only while no other pair fails,
// because else it is the requests. A rank may also be charged for it later; see
// ReportPairSuccess.
func (f *Fleet) ReportTransferFailure(p, d *Rank, how Charge) {
	if f.cfg.CircuitBreaker.Disabled || p == nil || d == nil {
		return
	}
	now := f.clock.Now()
	f.mu.Lock()
	if f.closed || p.worker.removed || d.worker.removed || !f.otherPairLocked(p, d) {
		f.mu.Unlock()
		return
	}
	x := f.countFailureLocked(now, p, d, how)
	f.mu.Unlock()
	if x != nil {
		f.log.Warn("pair is quarantined: KV transfers between its workers keep failing", "prefill", p.id, "decode", d.id,
			"failures", x.failures, "for", x.duration)
	}
}

// ReportPairSuccess records that a KV transfer from p to d succeeded. Failures of others with
// them are those others' then: a rank that fails with partners of more than one worker
// which succeed with others, and itself succeeds with none, is at fault, and its
// breaker is charged. It costs an atomic load as long as no pair is tracked.
func (f *Fleet) ReportPairSuccess(p, d *Rank) {
	q := &f.quarantine
	if q.tracked.Load() == 0 {
		return
	}
	q.mu.Lock()
	atFault := q.clearLocked(p, d)
	// A quarantine is not ended early: the request that succeeded began before it.
	if x := q.pairs[pairKey{p, d}]; x != nil && !x.quarantined {
		f.sched.drop(x.event)
		q.dropLocked(x)
	}
	q.mu.Unlock()
	for _, r := range atFault {
		r.ReportFailure(Proven, 0)
	}
}

// otherPairLocked reports whether another pair that includes p or d could serve
// instead.
func (f *Fleet) otherPairLocked(p, d *Rank) bool {
	for _, w := range f.workers {
		if !w.inGate || w.draining {
			continue
		}
		for _, r := range w.Ranks() {
			if !r.state.Healthy || r == p || r == d {
				continue
			}
			switch w.role {
			case admission.RolePrefill:
				if canPair(r, d) {
					return true
				}
			case admission.RoleDecode:
				if canPair(p, r) {
					return true
				}
			}
		}
	}
	return false
}

// canPair reports whether the gate would pair the two at all. The caller must hold Fleet.mu.
func canPair(p, d *Rank) bool {
	return p.facts.PairGroup == d.facts.PairGroup && slices.ContainsFunc(p.facts.Models, func(m string) bool {
		return slices.Contains(d.facts.Models, m)
	})
}

// countFailureLocked counts a failure. It returns a copy of the pair if it is
// quarantined now.
func (f *Fleet) countFailureLocked(now admission.Instant, p, d *Rank, how Charge) (quarantined *pair) {
	q := &f.quarantine
	q.mu.Lock()
	defer q.mu.Unlock()
	x := q.pairs[pairKey{p, d}]
	if x == nil {
		if len(q.pairs) >= maxPairs {
			return nil
		}
		x = &pair{key: pairKey{p, d}, first: now}
		x.event = newEvent(func(now admission.Instant) { f.pairDue(x, now) })
		if q.pairs == nil {
			q.pairs = map[pairKey]*pair{}
		}
		q.pairs[x.key] = x
		q.tracked.Store(int32(len(q.pairs)))
	}
	if how == Proven {
		x.suspectLocked(now)
	}
	if x.quarantined {
		return nil // the request began before the quarantine
	}
	if now.Sub(x.first) >= pairWindow && x.duration == 0 {
		x.failures, x.first = 0, now
	}
	x.failures++
	enough := x.failures >= pairFailures || x.duration > 0
	if how == Unproven {
		enough = x.failures >= 2*pairFailures && len(q.pairs) == 1
	}
	if !enough || q.quarantined >= maxQuarantined {
		x.until = now.Add(pairWindow)
		f.sched.set(x.event, x.until)
		return nil
	}
	x.duration = min(max(2*x.duration, firstQuarantine), maxQuarantine)
	x.quarantined, x.quarantinedAt, x.until = true, now, now.Add(x.duration)
	q.quarantined++
	q.total.Add(1)
	f.gate.Apply(admission.Change{Op: admission.QuarantinePair, Rank: p.adm, Other: d.adm})
	f.sched.set(x.event, x.until)
	pairCopy := *x
	return &pairCopy
}

// dropLocked forgets a pair. The caller must hold q.mu.
func (q *quarantine) dropLocked(x *pair) {
	if q.pairs[x.key] != x {
		return
	}
	if x.quarantined {
		q.quarantined--
	}
	delete(q.pairs, x.key)
	x.forgetLocked()
	q.tracked.Store(int32(len(q.pairs)))
}

// pairDue ends a quarantine, after which the pair is on trial: its first failure
// quarantines it again. A pair without further failures is no longer tracked.
func (f *Fleet) pairDue(x *pair, now admission.Instant) {
	f.mu.Lock()
	q := &f.quarantine
	q.mu.Lock()
	if f.closed || q.pairs[x.key] != x || x.until > now {
		q.mu.Unlock()
		f.mu.Unlock()
		return
	}
	ended := x.quarantined
	if ended {
		q.quarantined--
		x.quarantined, x.failures, x.first = false, 0, now
		x.until = now.Add(maxQuarantine)
		f.sched.set(x.event, x.until)
		f.gate.Apply(admission.Change{Op: admission.EndQuarantine, Rank: x.key.p.adm, Other: x.key.d.adm})
	} else {
		q.dropLocked(x)
	}
	q.mu.Unlock()
	f.mu.Unlock()
	if ended {
		f.log.Info("pair is no longer quarantined", "prefill", x.key.p.id, "decode", x.key.d.id)
	}
}

// forgetPairsLocked stops tracking the pairs of ranks that are being removed.
func (f *Fleet) forgetPairsLocked(ranks []*Rank) {
	q := &f.quarantine
	if q.tracked.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, x := range q.pairs {
		if slices.Contains(ranks, x.key.p) || slices.Contains(ranks, x.key.d) {
			f.sched.drop(x.event)
			q.dropLocked(x)
		}
	}
}

// liftQuarantineLocked ends the quarantine of w's pairs at the gate.
func (f *Fleet) liftQuarantineLocked(w *Worker, changes *[]admission.Change) {
	q := &f.quarantine
	if q.tracked.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, x := range q.pairs {
		if x.quarantined && (x.key.p.worker == w || x.key.d.worker == w) {
			*changes = append(*changes, admission.Change{Op: admission.EndQuarantine, Rank: x.key.p.adm, Other: x.key.d.adm})
		}
	}
}

// restoreQuarantineLocked quarantines the pairs of ranks that were registered at the
// gate anew; the gate dropped the quarantine with the earlier registration.
func (f *Fleet) restoreQuarantineLocked(ranks []*Rank, changes *[]admission.Change) {
	q := &f.quarantine
	if q.tracked.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, x := range q.pairs {
		if x.quarantined && (slices.Contains(ranks, x.key.p) || slices.Contains(ranks, x.key.d)) {
			*changes = append(*changes, admission.Change{Op: admission.QuarantinePair, Rank: x.key.p.adm, Other: x.key.d.adm})
		}
	}
}

// QuarantinedPair is a quarantined pair, in Info of both of its workers.
type QuarantinedPair struct {
	Prefill string `json:"prefill"`
	Decode  string `json:"decode"`
	// ForSeconds is the time that is left of its quarantine.
	ForSeconds float64 `json:"for_secs"`
}

// quarantinedLocked returns the quarantined pairs of w.
func (f *Fleet) quarantinedLocked(w *Worker, now admission.Instant) (list []QuarantinedPair) {
	q := &f.quarantine
	if q.tracked.Load() == 0 {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, x := range q.pairs {
		if x.quarantined && (x.key.p.worker == w || x.key.d.worker == w) {
			left := x.until.Sub(now).Round(time.Millisecond).Seconds()
			list = append(list, QuarantinedPair{Prefill: x.key.p.id, Decode: x.key.d.id, ForSeconds: max(left, 0)})
		}
	}
	slices.SortFunc(list, func(a, b QuarantinedPair) int {
		if c := strings.Compare(a.Prefill, b.Prefill); c != 0 {
			return c
		}
		return strings.Compare(a.Decode, b.Decode)
	})
	return list
}
