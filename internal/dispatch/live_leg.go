package dispatch

import "github.com/sluice-router/sluice/internal/fleet"

// liveLeg is what the calls of one attempt to one rank share: they end with the request,
// with the rank's worker, and when the liveLeg is ended.
type liveLeg struct {
	rank *fleet.Rank
	ctx  legContext
	dead fleet.Watch
}

// begin ties the leg to its request and to the worker. It may be called again for
// another rank, after unwatch.
func (l *liveLeg) begin(request *legContext, rank *fleet.Rank) {
	l.rank = rank
	if l.ctx.parent == nil {
		l.ctx.follow(request)
	}
	rank.Watch(&l.dead, &l.ctx)
}

// unwatch forgets the worker: the calls are over.
func (l *liveLeg) unwatch() { l.dead.Stop() }

// over forgets the worker and the request.
func (l *liveLeg) over() {
	l.unwatch()
	l.ctx.unfollow()
}
