package dispatch

import (
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/upstream"
)

// RetryOptions bound further attempts. Names and defaults of the options are the
// public router's.
type RetryOptions struct {
	// Max is the most attempts after the first; zero turns retries off.
	Max int
	// Initial and Longest bound the pause before an attempt, Multiplier makes it
	// grow, Jitter (0–1) spreads it.
	Initial, Longest time.Duration
	Multiplier       float64
	Jitter           float64
}

// backoff is the pause before attempt n+1, n ≥ 1.
func (o *RetryOptions) backoff(n int) time.Duration {
	d := float64(o.Initial) * math.Pow(max(o.Multiplier, 1), float64(n-1))
	d = min(d, float64(max(o.Longest, 0)))
	d *= 1 + o.Jitter*(2*rand.Float64()-1)
	return time.Duration(max(d, 0))
}

// retryable tells whether another attempt may help after f, and whether it may
// start without a pause.
//
// Before any byte reached the client: after transport errors, after an engine's
// 502, 503 and 504, and once after its 500, which is how engines report a broken
// KV transfer. A request that fails everywhere must not be carried to everyone,
// and a client's own fault is the same everywhere.
func (x *exchange) retryable(f *failure) (again, atOnce bool) {
	o := &x.d.opts.Retry
	if f.noRoute {
		return x.routeElsewhere(f), true
	}
	if x.out.begun || f.gone || f.rank == nil || x.attempts > o.Max {
		return false, false
	}
	if f.dead {
		return true, true
	}
	switch f.status {
	case 0:
		if f.local == nil || f.local.Status >= 500 && !isConnectLevel(f) {
			return false, false
		}
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
	case http.StatusInternalServerError:
		if x.retried500 {
			return false, false
		}
		x.retried500 = true
	default:
		return false, false
	}
	return x.d.budget.take(), false
}

// isConnectLevel tells transport errors from limits that passed while an engine
// worked: to wait as long again elsewhere helps nobody.
func isConnectLevel(f *failure) bool {
	if f.reason == reasonUpstreamTime {
		var ue *upstream.Error
		return asUpstream(f.err, &ue) && ue.Limit == upstream.LimitConnect
	}
	return f.reason == reasonUpstream || f.reason == reasonBrokenOff
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

// pause waits for d. It tells whether it did, because ctx may end first.
func pause(ctx *requestContext, d time.Duration) bool {
	if d <= 0 {
		return ctx.ended() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// retryBudget keeps retries a fraction of requests over the whole router, so
// that a fleet that is failing is not hit with a multiple of its load.
type retryBudget struct {
	mu     sync.Mutex
	tokens float64 // guarded by mu
}

const (
	// budgetRatio is the retries earned by one request.
	budgetRatio = 0.2
	// budgetMax is the most retries in a row without requests between; a router
	// starts with as many.
	budgetMax = 100
)

func newRetryBudget() *retryBudget { return &retryBudget{tokens: budgetMax} }

func (b *retryBudget) earn() {
	b.mu.Lock()
	b.tokens = min(b.tokens+budgetRatio, budgetMax)
	b.mu.Unlock()
}

func (b *retryBudget) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
