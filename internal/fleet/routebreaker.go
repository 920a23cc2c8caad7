package fleet

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-router/sluice/admission"
)

// routeBreakers are the breakers of a rank's pass-through routes (embeddings, rerank,
// tokenize …), one for each route: a failure of one says nothing about chat, so it
// must neither close the rank nor another of these routes. The gate does not know
// them; the code that chooses a rank asks Rank.RouteOpen.
type routeBreakers struct {
	some atomic.Bool // a failure was ever counted

	mu     sync.Mutex
	routes map[string]*breaker // guarded by mu
}

// maxRouteBreakers bounds the routes of a rank; there are fewer.
const maxRouteBreakers = 32

// RouteOpen reports whether the rank's breaker of a pass-through route is open, so
// that its requests should go to other ranks, where there are any.
func (r *Rank) RouteOpen(route string) bool {
	if !r.routes.some.Load() {
		return false
	}
	r.routes.mu.Lock()
	b := r.routes.routes[route]
	r.routes.mu.Unlock()
	if b == nil {
		return false
	}
	b.elapse(r.worker.fleet.clock.Now(), false)
	s, _ := b.get()
	return s == admission.BreakerOpen
}

// AnyRouteFailed reports whether any pass-through request ever failed by an engine's
// fault; before that, RouteOpen is false everywhere.
func (f *Fleet) AnyRouteFailed() bool { return f.anyRouteFailed.Load() }

// ReportRouteSuccess and ReportRouteFailure are ReportSuccess and ReportFailure for
// a route that passes through.
func (r *Rank) ReportRouteSuccess(route string) {
	if !r.routes.some.Load() {
		return
	}
	r.routes.mu.Lock()
	b := r.routes.routes[route]
	r.routes.mu.Unlock()
	if b != nil {
		b.success(r.worker.fleet.clock.Now)
	}
}

// ReportRouteFailure counts a failure of a route; see ReportRouteSuccess.
func (r *Rank) ReportRouteFailure(route string, c Charge) {
	f := r.worker.fleet
	if f.cfg.CircuitBreaker.Disabled {
		return
	}
	q := &r.routes
	q.mu.Lock()
	b := q.routes[route]
	if b == nil && len(q.routes) < maxRouteBreakers {
		if q.routes == nil {
			q.routes = map[string]*breaker{}
		}
		b = &breaker{opts: &f.cfg.CircuitBreaker}
		q.routes[route] = b
		q.some.Store(true)
		f.anyRouteFailed.Store(true)
	}
	q.mu.Unlock()
	if now := f.clock.Now(); b != nil && b.failure(now, c, 0) && b.open(now, false) {
		why := []any{"rank", r.id, "route", route, "state", admission.BreakerOpen.String(), "failures", f.cfg.CircuitBreaker.FailureThreshold}
		if l := r.lastFailure.Load(); l != nil {
			why = append(why, "cause", l.detail)
		}
		f.log.Warn("circuit breaker of a route changed state", why...)
	}
}
