package dispatch

import (
	"errors"
	"net/http"

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
	// blameSlow: a time limit passed while the engine worked, or it ended its work itself.
	blameSlow
	// blameLate: decode was too late while its prefill had not finished.
	blameLate
	// blameBusy: the engine has no room: 503.
	blameBusy
	// blameLink: the hand-off between two ranks broke, and neither owns it.
	blameLink
	// blameLost: the worker was declared dead, which is known already.
	blameLost
	// blameWedged: the rank's scheduler was found to make no progress. The fleet sends it
	// nothing more, so that its breaker need not know.
	blameWedged
	// blameRank: the worker does not have the rank any more that it was asked for.
	blameRank
	// blameRoute: the worker does not have the route.
	blameRoute
	// blameModel: the worker serves another model now.
	blameModel
)

// chargeRule is what a failure means for the rank's breaker.
type chargeRule int

const (
	chargeNone chargeRule = iota
	// chargeShown: it is the rank's failure, but no matter of its breaker.
	chargeShown
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
	againNever     againRule = iota
	againPaused              // after a pause, as the budget allows
	againOnce                // the same, once for a request
	againAtOnce              // without a pause, whatever the budget
	againElsewhere           // the same, but not where it has failed before
	againByRoute             // at another worker that may have the route
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
	blameWedged:    {chargeShown, againAtOnce},
	blameRank:      {chargeNone, againPaused},
	blameRoute:     {chargeNone, againByRoute},
	blameModel:     {chargeNone, againElsewhere},
}

// blame tells whose doing f is.
func (f *failure) blame() blame {
	switch {
	case f.noRoute:
		return blameRoute
	case f.rank == nil, f.secondary, f.clientLeft, f.ours:
		return blameNobody
	case f.noModel:
		return blameModel
	case f.workerDead:
		return blameLost
	case f.wedged:
		return blameWedged
	case f.transfer:
		return blameLink
	case f.rankMissing:
		return blameRank
	case f.unproven:
		return blameLate
	}
	switch f.status {
	case 0:
	case http.StatusInternalServerError:
		return blameError
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		if f.ended {
			return blameSlow
		}
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
	if ue != nil && ue.Kind == upstream.KindTooLarge {
		return blameOther // another attempt would end in the same way
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
