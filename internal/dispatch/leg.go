package dispatch

import "github.com/sluice-router/sluice/internal/fleet"

// leg is what the calls of one attempt to one rank share: they end with the request,
// with the rank's worker, and when the leg is ended.
type leg struct {
	rank *fleet.Rank
	ctx  legContext
	dead fleet.Watch
}

// begin ties the leg to its request and to the worker. It may be called again for
// another rank, after unwatch.
func (l *leg) begin(request *legContext, rank *fleet.Rank) {
	l.rank = rank
	if l.ctx.parent == nil {
		l.ctx.follow(request)
	}
	rank.Watch(&l.dead, &l.ctx)
}

// unwatch forgets the worker: the calls are over.
func (l *leg) unwatch() { l.dead.Stop() }

// over forgets the worker and the request.
func (l *leg) over() {
	l.unwatch()
	l.ctx.unfollow()
}
