package fleet

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// A pair of a prefill and a decode rank may fail to hand KV cache over although
// each works with others: a link, a version, a handshake gone wrong. Neither
// rank's breaker is to blame, so the pair is: it is barred at the gate for a
// while, and tried again.
const (
	// pairFailures in a row, the first not older than pairWindow, bar a pair.
	pairFailures = 3
	pairWindow   = 2 * time.Minute
	// firstQuarantine is how long it is barred at first. A pair that fails again after it
	// is barred for twice as long, up to maxCoolOff.
	firstQuarantine = time.Minute
	maxQuarantine   = 10 * time.Minute
	// maxPairs bounds the pairs that are suspected or barred. The gate bars 64.
	maxPairs       = 1024
	maxQuarantined = 64
)

type pairKey struct{ p, d *Rank }

// pair is a pair under suspicion.
type pair struct {
	key           pairKey
	failures      int
	first         admission.Instant // failure of those in a row
	quarantined   bool
	quarantinedAt admission.Instant // of being barred
	until         admission.Instant // end of being barred, or of the suspicion
	duration      time.Duration     // the last, 0: it was never barred
	event         *event            // at until
}

// quarantine is the table of suspected pairs.
type quarantine struct {
	tracked atomic.Int32 // the size of pairs
	total   atomic.Int64 // pairs barred so far

	mu sync.Mutex // below Fleet.mu
	// guarded by mu
	pairs       map[pairKey]*pair
	quarantined int
}

// ReportTransferFailure tells that a prefill and a decode rank failed to hand KV
// cache over, without either one to blame. It charges no breaker; a pair that
// fails so several times in a row, while another pair could serve, is barred at
// the gate for a minute or more.
func (f *Fleet) ReportTransferFailure(p, d *Rank) {
	if f.cfg.CircuitBreaker.Disabled || p == nil || d == nil {
		return
	}
	now := f.clock.Now()
	f.mu.Lock()
	if f.closed || p.worker.removed || d.worker.removed || !f.otherPairLocked(p, d) {
		f.mu.Unlock()
		return
	}
	x := f.countFailureLocked(now, p, d)
	f.mu.Unlock()
	if x != nil {
		f.log.Warn("pair is barred: it keeps failing to hand KV cache over", "prefill", p.id, "decode", d.id,
			"failures", x.failures, "for", x.duration)
	}
}

// ReportPairSuccess tells that p handed KV cache over to d. It costs an atomic
// load as long as no pair is under suspicion.
func (f *Fleet) ReportPairSuccess(p, d *Rank) {
	q := &f.quarantine
	if q.tracked.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	// One that is barred stays so: what ends now began before.
	if x := q.pairs[pairKey{p, d}]; x != nil && !x.quarantined {
		f.sched.drop(x.event)
		q.dropLocked(x)
	}
}

// otherPairLocked tells whether there is another pair with one of the two that could
// serve in its place.
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

// canPair tells whether the gate would pair the two at all. It needs Fleet.mu.
func canPair(p, d *Rank) bool {
	return p.facts.PairGroup == d.facts.PairGroup && slices.ContainsFunc(p.facts.Models, func(m string) bool {
		return slices.Contains(d.facts.Models, m)
	})
}

// countFailureLocked counts a failure and returns the pair if that bars it.
func (f *Fleet) countFailureLocked(now admission.Instant, p, d *Rank) (barred *pair) {
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
	if x.quarantined {
		return nil // it began before
	}
	if now.Sub(x.first) >= pairWindow && x.duration == 0 {
		x.failures, x.first = 0, now
	}
	x.failures++
	if x.failures < pairFailures && x.duration == 0 || q.quarantined >= maxQuarantined {
		x.until = now.Add(pairWindow)
		f.sched.set(x.event, x.until)
		return nil
	}
	x.duration = min(max(2*x.duration, firstQuarantine), maxQuarantine)
	x.quarantined, x.quarantinedAt, x.until = true, now, now.Add(x.duration)
	q.quarantined++
	q.total.Add(1)
	f.gate.Apply(admission.Change{Op: admission.BarPair, Rank: p.adm, Other: d.adm})
	f.sched.set(x.event, x.until)
	told := *x
	return &told
}

// dropLocked forgets a pair. It needs q.mu.
func (q *quarantine) dropLocked(x *pair) {
	if q.pairs[x.key] != x {
		return
	}
	if x.quarantined {
		q.quarantined--
	}
	delete(q.pairs, x.key)
	q.tracked.Store(int32(len(q.pairs)))
}

// pairDue ends a bar, after which the pair is on trial: its first failure bars it
// again. It ends a suspicion that nothing came of.
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
		f.gate.Apply(admission.Change{Op: admission.UnbarPair, Rank: x.key.p.adm, Other: x.key.d.adm})
	} else {
		q.dropLocked(x)
	}
	q.mu.Unlock()
	f.mu.Unlock()
	if ended {
		f.log.Info("pair is no longer barred", "prefill", x.key.p.id, "decode", x.key.d.id)
	}
}

// forgetPairsLocked forgets the pairs of ranks that are going.
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

// liftQuarantineLocked ends the bars of w's pairs at the gate.
func (f *Fleet) liftQuarantineLocked(w *Worker, changes *[]admission.Change) {
	q := &f.quarantine
	if q.tracked.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, x := range q.pairs {
		if x.quarantined && (x.key.p.worker == w || x.key.d.worker == w) {
			*changes = append(*changes, admission.Change{Op: admission.UnbarPair, Rank: x.key.p.adm, Other: x.key.d.adm})
		}
	}
}

// restoreQuarantineLocked bars the pairs of ranks that were registered at the gate anew; the
// gate forgot them with the earlier registration.
func (f *Fleet) restoreQuarantineLocked(ranks []*Rank, changes *[]admission.Change) {
	q := &f.quarantine
	if q.tracked.Load() == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, x := range q.pairs {
		if x.quarantined && (slices.Contains(ranks, x.key.p) || slices.Contains(ranks, x.key.d)) {
			*changes = append(*changes, admission.Change{Op: admission.BarPair, Rank: x.key.p.adm, Other: x.key.d.adm})
		}
	}
}

// QuarantinedPair is a pair that is barred, in Info of both of its workers.
type QuarantinedPair struct {
	Prefill string `json:"prefill"`
	Decode  string `json:"decode"`
	// ForSeconds is how long it is still barred.
	ForSeconds float64 `json:"for_secs"`
}

// quarantinedLocked are the barred pairs of w.
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
