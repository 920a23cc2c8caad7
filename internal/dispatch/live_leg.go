package dispatch

import (
	"time"

	"github.com/sluice-router/sluice/internal/fleet"
)

// liveLeg is what the calls of one attempt to one rank share: they end with the request,
// with the rank's worker, and when the liveLeg is ended.
type liveLeg struct {
	rank  *fleet.Rank
	ctx   legContext
	watch fleet.Watch
}

// begin ties the leg to its request and to the worker. It may be called again for
// another rank, after unwatch.
func (l *liveLeg) begin(request *legContext, rank *fleet.Rank, leg fleet.Leg) {
	l.rank = rank
	if l.ctx.parent == nil {
		l.ctx.follow(request)
	}
	rank.Watch(&l.watch, &l.ctx, leg)
}

// revocable lets the gate end a prefill leg whose slot it needs back, which happens to
// members of a cluster that hear nothing of the others any more.
func (x *request) revocable(l *liveLeg) {
	if !x.d.cfg.Cluster.Enabled() {
		return
	}
	// Not in the gate's goroutine, which has locks.
	x.ticket.OnRevoke(func() { go l.ctx.end(errRevoked) })
}

// revokedRetry is what the client of a request is told to wait that was ended so.
const revokedRetry = time.Second

// lost tells whether the leg was ended because of its engine.
func (l *liveLeg) lost() bool {
	cause := l.ctx.ended()
	return cause == errRankWedged || cause == errWorkerDead
}

// unwatch forgets the worker: the calls are over.
func (l *liveLeg) unwatch() { l.watch.Stop() }

// mediaTokens is what a part of a prompt that is no text is taken for, in tokens: the time
// to fetch it counts too.
const mediaTokens = 4096

// watched is what the fleet is told of a leg, so that a long prompt is no hang.
func (x *request) watched(kind fleet.LegKind) fleet.Leg {
	t := &x.ticket
	n := t.PromptTokens
	if kind != fleet.LegDecode {
		// What is taken to be cached may be gone.
		n -= t.CachedTokens - t.CachedTokens/4
	}
	if p := x.call.Peeked; p != nil && (x.call.Passing || n <= 0) {
		n = max(n, int64(len(p.Body)/4))
	} else if p != nil {
		n += int64(p.MediaParts) * mediaTokens
	}
	return fleet.Leg{Kind: kind, Tokens: n}
}

// over forgets the worker and the request.
func (l *liveLeg) over() {
	l.unwatch()
	l.ctx.unfollow()
}
