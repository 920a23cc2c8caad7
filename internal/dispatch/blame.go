package dispatch

import (
	"errors"
	"net/http"
	"slices"
	"sync"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/upstream"
)

// blame is whose doing a failure is.
type blame int

const (
	// blameNobody: the client's fault (4xx), its leaving, a limit of the router's own,
	// what a model said, the echo of another leg's failure, the router's end.
	blameNobody blame = iota
	// blameUnreached: nothing was sent, because the engine refuses connections or
	// cannot be found.
	blameUnreached
	// blameBroken: a reset, a cut, an answer that is none or given up, 502, 504.
	blameBroken
	// blameError: the engine's 500, which is also how engines report that a KV transfer
	// broke.
	blameError
	// blameOther: its other 5xx.
	blameOther
	// blameSlow: a time limit passed while the engine worked.
	blameSlow
	// blameLate: decode was too late while its prefill had not finished.
	blameLate
	// blameBusy: the engine has no room: 503.
	blameBusy
	// blameLink: the hand-off between two ranks broke, and neither owns it.
	blameLink
	// blameLost: the worker was declared dead, which is known already.
	blameLost
	// blameRoute: the worker does not have the route.
	blameRoute
)

// chargeRule is what a failure means for the rank's breaker.
type chargeRule int

const (
	chargeNone chargeRule = iota
	// chargeAtOnce: no request can be at fault.
	chargeAtOnce
	// chargeInTheEnd: the request may be at fault. The rest of it decides: see
	// verdicts.
	chargeInTheEnd
)

// againRule is whether another attempt may help, as long as the client has been
// sent nothing.
type againRule int

const (
	againNever   againRule = iota
	againPaused            // after a pause, as the budget allows
	againOnce              // the same, once for a request
	againAtOnce            // without a pause, whatever the budget
	againByRoute           // at another worker that may have the route
)

// blames has the consequences of each.
var blames = [...]struct {
	charge chargeRule
	again  againRule
}{
	blameNobody:    {chargeNone, againNever},
	blameUnreached: {chargeAtOnce, againPaused},
	blameBroken:    {chargeInTheEnd, againPaused},
	blameError:     {chargeInTheEnd, againOnce},
	blameOther:     {chargeInTheEnd, againNever},
	blameSlow:      {chargeInTheEnd, againNever},
	blameLate:      {chargeNone, againNever},
	blameBusy:      {chargeNone, againPaused},
	blameLink:      {chargeNone, againOnce},
	blameLost:      {chargeNone, againAtOnce},
	blameRoute:     {chargeNone, againByRoute},
}

// blame tells whose doing f is.
func (f *failure) blame() blame {
	switch {
	case f.noRoute:
		return blameRoute
	case f.rank == nil, f.echo, f.gone, f.ours:
		return blameNobody
	case f.dead:
		return blameLost
	case f.transfer:
		return blameLink
	case f.unproven:
		return blameLate
	}
	switch f.status {
	case 0:
	case http.StatusInternalServerError:
		return blameError
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return blameBroken
	case http.StatusServiceUnavailable:
		if f.gaveUp {
			return blameBroken
		}
		return blameBusy
	case http.StatusNotImplemented:
		return blameNobody
	default:
		if f.status > 500 {
			return blameOther
		}
		return blameNobody
	}
	if f.local != nil && f.local.Status < 500 {
		return blameNobody
	}
	var ue *upstream.Error
	if asUpstream(f.err, &ue) && (ue.Kind == upstream.KindRefused || ue.Kind == upstream.KindUnreachable ||
		ue.Kind == upstream.KindResolve || ue.Kind == upstream.KindTLS || ue.Limit == upstream.LimitConnect) {
		return blameUnreached
	}
	switch f.reason {
	case reasonUpstreamTime:
		return blameSlow
	case reasonUpstream, reasonBrokenOff:
		return blameBroken
	}
	return blameOther
}

// way is how a leg failed. Two failures of one request in the same way on different
// ranks are the request's own doing.
type way struct {
	status int
	kind   upstream.Kind // where there is no status
	reason string        // where there is neither
}

func (f *failure) way() way {
	if f.status != 0 {
		return way{status: f.status}
	}
	var ue *upstream.Error
	if errors.As(f.err, &ue) {
		switch ue.Kind {
		case upstream.KindReset, upstream.KindClosed:
			return way{kind: upstream.KindReset} // which of the two it is, is chance
		}
		return way{kind: ue.Kind}
	}
	return way{reason: f.reason}
}

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
// It is empty, and costs nothing, until a leg fails.
type verdicts struct {
	mu sync.Mutex
	// guarded by mu
	open    []charge
	charged []*fleet.Rank
	guilty  bool // the request is
	settled bool
}

type charge struct {
	rank *fleet.Rank
	way  way
}

// report takes the end of a leg into account, for the worker's meter and, in the end,
// for the rank's breaker.
func (x *exchange) report(rank *fleet.Rank, f *failure) {
	if rank == nil {
		return
	}
	if f == nil {
		if x.attempts > 1 {
			x.verdicts.drop(rank) // it does serve the request
		}
		x.serves(rank)
		return
	}
	rule := blames[f.blame()].charge
	if rule == chargeNone {
		rank.NoteLeg(fleet.LegOther)
		return
	}
	rank.NoteLeg(fleet.LegFailed)
	if !x.call.Passing {
		rank.CheckSoon()
	}
	v := &x.verdicts
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case rule == chargeAtOnce:
		x.chargeLocked(rank, fleet.Proven)
	case v.guilty:
	case v.settled: // a prefill leg that outlived the request
		x.chargeLocked(rank, fleet.Unproven)
	default:
		w, known := f.way(), false
		for _, c := range v.open {
			if c.rank == rank {
				known = true
			} else if c.way == w {
				v.guilty, v.open = true, nil
				return
			}
		}
		if !known {
			v.open = append(v.open, charge{rank, w})
		}
	}
}

// drop forgets what is open against a rank.
func (v *verdicts) drop(rank *fleet.Rank) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open = slices.DeleteFunc(v.open, func(c charge) bool { return c.rank == rank })
}

// settle decides what is still open, once the request is over. last is its failure,
// nil if it was served.
func (x *exchange) settle(last *failure) {
	v := &x.verdicts
	v.mu.Lock()
	defer v.mu.Unlock()
	v.settled = true
	how := fleet.Proven
	if last != nil {
		how = fleet.Unproven
		// The client's own fault was told by an engine that could read the request, and
		// a limit of ours passes everywhere.
		if last.ours || last.status >= 400 && last.status < 500 && last.status != http.StatusTooManyRequests {
			v.open = nil
		}
	}
	for _, c := range v.open {
		x.chargeLocked(c.rank, how)
	}
	v.open = nil
}

// chargeLocked charges a rank, once for the request. It needs verdicts.mu.
func (x *exchange) chargeLocked(rank *fleet.Rank, how fleet.Charge) {
	v := &x.verdicts
	if slices.Contains(v.charged, rank) {
		return
	}
	v.charged = append(v.charged, rank)
	if x.call.Passing {
		rank.ReportRouteFailure(x.pattern(), how)
		return
	}
	// What could go nowhere else is no measure of a rank beside its peers.
	if how == fleet.Unproven && x.bound() {
		return
	}
	rank.ReportFailure(how, x.ticket.Hints[admission.DecodeLeg].Key)
}

// bound tells whether the client has named a worker.
func (x *exchange) bound() bool {
	h := x.call.Header
	return h.Get(HeaderTargetWorker) != "" || h.Get(HeaderTargetDecode) != ""
}

// serves tells the rank's breaker, and its worker's meter, of a leg that went well.
func (x *exchange) serves(rank *fleet.Rank) {
	rank.NoteLeg(fleet.LegOK)
	if x.call.Passing {
		rank.ReportRouteSuccess(x.pattern())
		return
	}
	rank.ReportSuccess()
}

// retryable tells whether another attempt may help after f, and whether it may
// start without a pause. A request that fails everywhere must not be carried to
// everyone, and a client's own fault is the same everywhere.
func (x *exchange) retryable(f *failure) (again, atOnce bool) {
	rule := blames[f.blame()].again
	if rule == againByRoute {
		return x.routeElsewhere(f), true
	}
	if rule == againNever || x.out.begun || x.attempts > x.d.maxRetries() {
		return false, false
	}
	if rule == againAtOnce {
		return true, true
	}
	if rule == againOnce && f.status == http.StatusInternalServerError {
		if x.retried500 {
			return false, false
		}
		x.retried500 = true
	}
	return x.d.budget.take(), false
}

// prepareRetry excludes who failed, in its role only; both after a hand-off that
// broke without either owning it.
func (x *exchange) prepareRetry(f *failure) {
	t := &x.ticket
	t.Retry = true
	switch {
	case f.transfer && t.Prefill != nil:
		t.Exclude.Add(admission.PrefillLeg, t.Prefill)
		t.Exclude.Add(admission.DecodeLeg, t.Decode)
	case f.leg == admission.PrefillLeg:
		t.Exclude.Add(admission.PrefillLeg, t.Prefill)
	default:
		t.Exclude.Add(admission.DecodeLeg, t.Decode)
	}
}
