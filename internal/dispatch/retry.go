package dispatch

import (
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/config"
)

// backoff is the pause before attempt n+1, n ≥ 1.
func backoff(o *config.Retry, n int) time.Duration {
	d := float64(o.InitialBackoff) * math.Pow(max(o.BackoffMultiplier, 1), float64(n-1))
	d = min(d, float64(o.MaxBackoff))
	d *= 1 + o.JitterFactor*(2*rand.Float64()-1)
	return time.Duration(max(d, 0))
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
