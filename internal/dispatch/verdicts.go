package dispatch

import (
	"net/http"
	"slices"
	"sync"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
)

// verdicts are the charges of one request. What its legs did wrong is kept until the
// request is over, because only then is it known whether the engines were at fault or
// the request: one at which every engine drops the connection must not close the
// fleet for all others. It charges a rank at most once.
//
//   - Refused connections are charged at once.
//   - Another failure is proven when another attempt is served.
//   - It is dropped, and all others of the request with it, when another rank fails in
//     the same way, and when the request turns out to be the client's fault.
//   - Else nobody else could tell, and it counts as unproven.
//
// The same holds for reports of a broken hand-off, which count against the pair of
// ranks: engines tell of it with the status that any other error of theirs has.
//
// It is empty, and costs nothing, until a leg fails.
type verdicts struct {
	x  *request // immutable
	mu sync.Mutex
	// guarded by mu
	open    []charge
	links   []link
	charged []*fleet.Rank
	guilty  bool // the request is
	settled bool
}

type charge struct {
	rank *fleet.Rank
	way  way
}

// link is a hand-off between two ranks that was reported to be broken.
type link struct {
	prefill, decode *fleet.Rank
	way             way
}

// report takes the end of a leg into account, for the worker's meter and, in the end,
// for the rank's breaker.
func (v *verdicts) report(rank *fleet.Rank, f *failure) {
	if rank == nil {
		return
	}
	if f == nil {
		if v.x.attempts > 1 {
			v.drop(rank) // it does serve the request
		}
		v.serves(rank)
		return
	}
	rule := blames[f.blame()].charge
	if rule == chargeNone {
		if f.transfer && f.status >= 500 {
			noteFailed(rank, f) // charged to the pair; see reportLink
		} else {
			rank.NoteLeg(fleet.LegOther)
		}
		return
	}
	noteFailed(rank, f)
	if rule == chargeShown {
		return
	}
	if !v.x.call.Passing {
		rank.CheckSoon()
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case rule == chargeAtOnce:
		v.chargeLocked(rank, fleet.Proven)
	case v.guilty:
	case v.settled: // a prefill leg that outlived the request
		v.chargeLocked(rank, fleet.Unproven)
	default:
		w := f.way()
		if v.failedElsewhereLocked(w, rank, rank) {
			v.blameRequestLocked()
		} else if !slices.ContainsFunc(v.open, func(c charge) bool { return c.rank == rank }) {
			v.open = append(v.open, charge{rank, w})
		}
	}
}

// noteFailed counts a leg that failed by its engine's doing, and how.
func noteFailed(rank *fleet.Rank, f *failure) {
	rank.NoteLeg(fleet.LegFailed)
	rank.NoteFailure(f.summary(), f.cause())
}

// reportLink takes into account how the hand-off between two ranks went; f is nil if
// it went well.
func (v *verdicts) reportLink(pr, dr *fleet.Rank, f *failure) {
	if f == nil {
		if v.x.attempts > 1 {
			v.mu.Lock()
			v.links = slices.DeleteFunc(v.links, func(l link) bool { return l.prefill == pr && l.decode == dr })
			v.mu.Unlock()
		}
		v.x.d.fleet.ReportPairSuccess(pr, dr)
		return
	}
	if !f.transfer {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	w := f.way()
	if v.guilty || v.settled {
		return
	}
	if v.failedElsewhereLocked(w, pr, dr) {
		v.blameRequestLocked()
		return
	}
	v.links = append(v.links, link{pr, dr, w})
}

// failedElsewhereLocked reports whether the request has failed in the same way where
// neither of two ranks had to do with it alone: at another rank, or between another
// pair. It needs verdicts.mu.
func (v *verdicts) failedElsewhereLocked(w way, a, b *fleet.Rank) bool {
	return slices.ContainsFunc(v.open, func(c charge) bool { return c.way == w && c.rank != a && c.rank != b }) ||
		slices.ContainsFunc(v.links, func(l link) bool {
			return l.way == w && (l.prefill != a || l.decode != b) && (a != b || l.decode != b && l.prefill != b)
		})
}

// blameRequestLocked drops what is open: the request is at fault. It needs verdicts.mu.
func (v *verdicts) blameRequestLocked() {
	v.guilty, v.open, v.links = true, nil, nil
}

// requestFailed reports whether the request itself turned out to be at fault.
func (v *verdicts) requestFailed() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.guilty
}

// drop forgets what is open against a rank.
func (v *verdicts) drop(rank *fleet.Rank) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open = slices.DeleteFunc(v.open, func(c charge) bool { return c.rank == rank })
}

// settle decides what is still open, once the request is over. last is its failure,
// nil if it was served.
func (v *verdicts) settle(last *failure) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.settled = true
	how := fleet.Proven
	if last != nil {
		how = fleet.Unproven
		// The client's own fault was told by an engine that could read the request, and
		// a limit of ours passes everywhere.
		if last.ours || last.status >= 400 && last.status < 500 && last.status != http.StatusTooManyRequests {
			v.open, v.links = nil, nil
		}
	}
	for _, l := range v.links {
		v.x.d.fleet.ReportTransferFailure(l.prefill, l.decode, how)
	}
	for _, c := range v.open {
		v.chargeLocked(c.rank, how)
	}
	v.open, v.links = nil, nil
}

// chargeLocked charges a rank, once for the request. It needs verdicts.mu.
func (v *verdicts) chargeLocked(rank *fleet.Rank, how fleet.Charge) {
	if slices.Contains(v.charged, rank) {
		return
	}
	v.charged = append(v.charged, rank)
	if v.x.call.Passing {
		rank.ReportRouteFailure(v.x.pattern(), how)
		return
	}
	// What could go nowhere else is no measure of a rank beside its peers.
	if how == fleet.Unproven && v.pinsWorker() {
		return
	}
	rank.ReportFailure(how, v.x.ticket.Hints[admission.DecodeLeg].Key)
}

// pinsWorker tells whether the client has named a worker.
func (v *verdicts) pinsWorker() bool {
	h := v.x.call.Header
	return h.Get(HeaderTargetWorker) != "" || h.Get(HeaderTargetDecode) != ""
}

// serves tells the rank's breaker, and its worker's meter, of a leg that went well.
func (v *verdicts) serves(rank *fleet.Rank) {
	rank.NoteLeg(fleet.LegOK)
	if v.x.call.Passing {
		rank.ReportRouteSuccess(v.x.pattern())
		return
	}
	rank.ReportSuccess()
}
