package admission

import (
	"math"
	"time"
)

// decisions tell callers what became of their requests, and when to come again.
type decisions struct {
	queues    *queues
	limits    *Limits
	slotRanks *int // prefill ranks with slots of their own
	healthInt time.Duration
	early     earlyEvidence
	arriving  *Ticket // in the step under way: its caller sees what became of it
}

// refuseFull refuses a request that there is no place for in its class's queue
// or in the router's.
func (ds *decisions) refuseFull(now Instant, t *Ticket, q *classQueue, pair bool, lack Resource, out *[]*Ticket) bool {
	kind, current, limit := q.limit(t)
	why := ClassQueueFull
	if kind == LimitNone {
		why = QueueFull
		switch bytes := ds.queues.waitingSize + t.size(); {
		case ds.queues.waiting >= ds.limits.QueueSize:
			kind, current, limit = LimitRequests, int64(ds.queues.waiting), int64(ds.limits.QueueSize)
		case ds.limits.MaxWaitingBytes > 0 && bytes > ds.limits.MaxWaitingBytes:
			kind, current, limit = LimitBytes, ds.queues.waitingSize, ds.limits.MaxWaitingBytes
		default:
			return false
		}
	}
	if !pair && (q.class.never || ds.limits.QueueSize <= 0) {
		ds.refuse(now, t, NoWorkers, ResourceWorker, 0, out)
		return true
	}
	ds.refuse(now, t, why, q.lackFor(lack), limit, out)
	t.refusal.LimitKind, t.refusal.Current = kind, current
	return true
}

// refuseLate refuses a request whose deadline has passed.
func (ds *decisions) refuseLate(now Instant, t *Ticket, kind LimitKind, lack Resource, limit int64, out *[]*Ticket) {
	ds.refuse(now, t, DeadlineExceeded, lack, limit, out)
	t.refusal.LimitKind = kind
}

func (ds *decisions) decide(t *Ticket, s ticketState, out *[]*Ticket) {
	t.state = s
	if t != ds.arriving {
		*out = append(*out, t)
	}
}

func (ds *decisions) refuse(now Instant, t *Ticket, why Reason, lack Resource, limit int64, out *[]*Ticket) {
	if why == NoWorkers && t.Target.lacksShare() {
		why = GateUnavailable
	}
	if t.Retry && why != Draining {
		why = RetryRefused // the client is owed the failure of the attempt before
	}
	q := t.queue()
	depth := ds.queues.waiting
	if why != QueueFull {
		depth = q.n
	}
	t.refusal = &Refusal{
		Reason: why, Resource: lack, Class: t.class.Name, Limit: limit, Depth: depth, Waited: t.waited,
		PrefillSlots: ds.limits.PrefillSlots > 0 || *ds.slotRanks > 0,
		RetryAfter:   ds.retryAfter(now, t, why, lack, depth),
	}
	ds.decide(t, stateRefused, out)
}

// retryAfter is when the queue, at its pace, will have served those who wait and
// one more.
func (ds *decisions) retryAfter(now Instant, t *Ticket, why Reason, lack Resource, depth int) time.Duration {
	secs := 5.0
	q := t.queue()
	switch why {
	case NoWorkers:
		secs = ds.healthInt.Seconds()
	case Draining, GateUnavailable:
		secs = 1
	default:
		var r float64
		switch {
		case why == QueueFull:
			r = ds.queues.totalPace(now, q, t.legOf(lack))
		case why == ClassQueueFull && q.class.never:
			depth, r = 0, releases(t, lack).perSecond(now, ds.queues.start)
		default:
			r = q.pace.perSecond(now, ds.queues.start, t.legOf(lack))
		}
		if r > 0 {
			secs = float64(depth+1) / r
		} else if h := q.head(); h != nil && h.bound() != never {
			secs = h.bound().Sub(now).Seconds()
		} else if end := ds.queues.deadlines.next(); why == QueueFull && end != never {
			secs = end.Sub(now).Seconds() // waiters of other queues fill the router's
		}
	}
	return wholeSeconds(secs)
}

// wholeSeconds is what a client is told to wait: from a second to a minute.
func wholeSeconds(secs float64) time.Duration {
	return time.Duration(min(max(math.Ceil(secs), 1), 60)) * time.Second
}

// releases counts the ends of what t lacks.
func releases(t *Ticket, lack Resource) *rateMeter {
	return &t.Target.model.pools[t.Target.role(t.legOf(lack))].released
}

// earlyEvidence is what a prediction has to rest on.
type earlyEvidence struct {
	// admissions of the class in the last half minute.
	admissions uint64
	// stretch of time in which somebody of the class waited without a break. The
	// count alone may be low because few came: after light load it says nothing of
	// how fast a burst is served.
	stretch time.Duration
}

var defaultEvidence = earlyEvidence{admissions: paceEvidence, stretch: leastStretch}
