package dispatch

import (
	"net/http"

	"github.com/sluice-router/sluice/admission"
)

// retryable tells whether another attempt may help after f, and whether it may
// start without a pause. A request that fails everywhere must not be carried to
// everyone, and a client's own fault is the same everywhere.
func (x *exchange) retryable(f *failure) (again, atOnce bool) {
	rule := blames[f.blame()].again
	if rule == againByRoute {
		return x.serving().routeElsewhere(f), true
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
