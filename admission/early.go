package admission

import (
	"math"
	"time"
)

// A request whose bounds pass long before its turn comes is better told at its
// arrival: it can go elsewhere, and keeps no place from others meanwhile. The
// estimate must rest on enough, and be far off, because who is refused so might
// have been served.

// farBeyond is how many times its bound a wait must be for a request to be refused
// because of it.
const farBeyond = 1.5

// refuseEarly refuses t, which would have to wait behind others of its lane l, when
// that would take far longer than the first bound of its wait allows. It is told
// the same as when that bound had passed.
func (ds *decisions) refuseEarly(now Instant, t *Ticket, q *classQueue, l *lane, lack Resource, out *[]*Ticket) bool {
	if l == nil || q.stretch(now) < ds.early.stretch {
		return false
	}
	end := t.classAt
	if left := ds.queues.timeLeft(t); left != math.MaxInt64 {
		end = min(end, now.Add(left))
	}
	if t.Deadline != 0 {
		end = min(end, t.Deadline)
	}
	if end == never {
		return false
	}
	pace := q.atBest(now, ds.queues.start, l.leg(t, lack))
	most := farBeyond * end.Sub(now).Seconds()
	if q.pace.rate.sum < ds.early.admissions || !(float64(len(l.h)+1)/pace > most) {
		return false
	}
	ahead := l.aheadOf(t)
	wait := float64(ahead+1) / pace
	if ahead == 0 || !(wait > most) {
		return false
	}
	lack = q.lackFor(lack)
	switch end { // in the order of expire
	case t.Deadline:
		ds.refuseLate(now, t, LimitClientWait, lack, t.patience(), out)
	case t.classAt:
		ds.refuseLate(now, t, LimitClassWait, lack, t.classLimit, out)
	default:
		ds.refuse(now, t, QueueTimeout, lack, int64(ds.limits.QueueTimeout), out)
	}
	t.refusal.Predicted, t.refusal.RetryAfter = true, wholeSeconds(wait)
	t.refusal.Estimate = time.Duration(min(wait, maxEstimate.Seconds()) * float64(time.Second))
	return true
}

// maxEstimate bounds what is told of an estimate.
const maxEstimate = 24 * time.Hour
