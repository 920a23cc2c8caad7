package fleet

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/list"
)

// liveness is the time from one death of a worker to the next, with the legs that run
// there. It is shared by the registrations that follow each other without a gap.
type liveness struct {
	progressed atomic.Bool // bytes came since it was last looked at

	mu sync.Mutex
	// guarded by mu
	over bool
	legs list.List[*Watch]

	// immutable
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func newLiveness() *liveness {
	l := &liveness{}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// end notifies all listeners that the worker is dead.
func (l *liveness) end(cause error) {
	l.cancel(cause)
	l.mu.Lock()
	l.over = true
	listeners := make([]LegListener, 0, l.legs.Len())
	for n := l.legs.First(); n != nil; n = l.legs.First() {
		listeners = append(listeners, n.Value.who)
		l.legs.Remove(n)
	}
	l.mu.Unlock()
	for _, listener := range listeners {
		listener.WorkerDead()
	}
}

// LegListener is notified when a leg is to end because of its engine. Its methods must
// not block; the first call counts.
type LegListener interface {
	// WorkerDead: the worker does not answer any more.
	WorkerDead()
	// RankWedged: the rank's scheduler makes no progress.
	RankWedged()
}

// LegKind is what a leg is for.
type LegKind uint8

const (
	// LegWhole is a whole request on one rank: prompt and answer.
	LegWhole LegKind = iota
	// LegPrefill computes a prompt, and sends nothing before its end.
	LegPrefill
	// LegDecode gets the KV cache of a prompt from another rank.
	LegDecode
)

// Leg is what the fleet must know of a leg to tell a hang from a long prompt.
type Leg struct {
	Kind LegKind
	// Tokens are those of its prompt that are to be computed, or transferred.
	Tokens int64
	// Waits: it cannot advance before another leg has ended; see Watch.Awaited.
	Waits bool
}

// Watch is a leg's registration with its worker, from when it is sent to when it is
// over. It is cheaper than a function on Alive's context, which matters since every
// leg has one.
type Watch struct {
	// immutable between Watch and Stop
	watched *liveness
	rank    *Rank
	who     LegListener
	leg     Leg
	start   admission.Instant

	// since is when the engine could begin with it: its start, or the end of the leg that
	// it waited for; waiting: not yet. begun is when it was begun to be answered, 1 where
	// the time does not matter, 0: not yet.
	since, begun atomic.Int64

	node list.Node[*Watch] // guarded by watched.mu
}

const waiting = -1

// Watch notifies who when the rank's worker is found dead or the rank wedged, at once if
// it is so now. w must not be in use; Stop ends it.
func (r *Rank) Watch(w *Watch, who LegListener, leg Leg) {
	l, now := r.worker.liveness.Load(), r.worker.fleet.clock.Now()
	w.watched, w.rank, w.who, w.leg, w.start = l, r, who, leg, now
	w.begun.Store(0)
	if w.since.Store(int64(now)); leg.Waits {
		w.since.Store(waiting)
	}
	w.node.Value = w
	l.mu.Lock()
	over := l.over
	if !over {
		l.legs.PushBack(&w.node)
	}
	l.mu.Unlock()
	switch {
	case over:
		who.WorkerDead()
	case r.wedged.Load():
		who.RankWedged()
	}
	r.worker.keepWatch(now)
}

// Stop ends the watch; the listener may be notified once more if the worker dies at
// this moment.
func (w *Watch) Stop() {
	l := w.watched
	if l == nil {
		return
	}
	l.mu.Lock()
	if w.node.Listed() {
		l.legs.Remove(&w.node)
		w.rank.pace.take(w)
	}
	l.mu.Unlock()
}

// Awaited tells that what the leg waited for has ended: from now on its engine can
// advance it.
func (w *Watch) Awaited() {
	if w.watched != nil {
		w.since.CompareAndSwap(waiting, int64(w.rank.worker.fleet.clock.Now()))
	}
}

// Begun tells that the engine has done with the leg's prompt: its answer has begun, or
// the leg has ended well.
func (w *Watch) Begun() {
	if w.watched == nil || w.begun.Load() != 0 {
		return
	}
	at := admission.Instant(1)
	if w.leg.paced() {
		at = max(at, w.rank.worker.fleet.clock.Now())
	}
	w.begun.Store(int64(at))
}

// paced tells whether the leg's time tells how fast its rank computes prompts.
func (l *Leg) paced() bool { return l.Kind != LegDecode && l.Tokens >= leastPaced }

// pace is how fast a rank computes prompts, learned from those that it has computed:
// two sums, of which old parts count less and less. It is guarded by liveness.mu.
type pace struct {
	last            admission.Instant // when a prompt was last done
	tokens, seconds float64
	assumed         bool // nothing was computed yet: they are of a prompt that was taken away
}

const (
	// leastPaced is the shortest prompt to learn from: the time of shorter ones tells of
	// other things.
	leastPaced = 512
	paceMemory = 0.9 // what is kept of the sums with each further prompt
)

// take learns from a leg that is over.
func (p *pace) take(w *Watch) {
	begun := admission.Instant(w.begun.Load())
	if begun == 0 || !w.leg.paced() {
		return
	}
	// While others were computed before it, it waited for them.
	from := max(w.start, p.last)
	if took := begun.Sub(from).Seconds(); took > 0 {
		if p.assumed {
			*p = pace{last: p.last}
		}
		p.tokens, p.seconds = paceMemory*p.tokens+float64(w.leg.Tokens), paceMemory*p.seconds+took
		p.last = begun
	}
}

// assume takes into account that a rank which was taken for wedged, and came back by itself
// after so long, may have been computing a prompt all that time. It counts until the rank
// is seen to compute one: without it a slow engine would be taken for wedged with each
// long prompt, and never be seen to finish one.
func (p *pace) assume(tokens int64, took time.Duration) {
	if tokens >= leastPaced && took > 0 && (p.seconds == 0 || p.assumed) {
		p.tokens, p.seconds, p.assumed = float64(tokens), took.Seconds(), true
	}
}

// rate is in tokens per second; 0: nothing was learned.
func (p *pace) rate() float64 {
	if p.seconds <= 0 {
		return 0
	}
	return p.tokens / p.seconds
}
