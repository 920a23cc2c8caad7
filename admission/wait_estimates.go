package admission

import (
	"math"
	"slices"
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
	if q.pace.rate.sum < ds.early.admissions || !(float64(l.waiters.Len()+1)/pace > most) {
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

// A router that stops serves those who wait for as long as its drain lasts. Who
// cannot start before the end is better told at once: another router may take it.

// late tells whether one who waits behind so many others of q cannot start before
// the drain ends. Nobody is late while the pace is not known.
func (qs *queues) late(now Instant, q *classQueue, ahead int, leg Leg) bool {
	r := q.atBest(now, qs.start, leg)
	left := qs.drainEnd.Sub(now) + q.pace.runs[leg].age(now) // what runs ends that much sooner
	return r > 0 && float64(ahead+1)/r > left.Seconds()
}

// findLate adds the late waiters of a lane to c.unservable.
func (qs *queues) findLate(now Instant, l *lane) {
	leg := l.leg(nil, l.lack)
	if !qs.late(now, l.queue, l.waiters.Len()-1, leg) {
		return // not even the last
	}
	inOrder := slices.Clone(l.waiters.All())
	slices.SortFunc(inOrder, func(a, b byPlace) int {
		if a.Before(b) {
			return -1
		}
		return 1
	})
	for i, w := range inOrder {
		if w.lostAt == never && qs.late(now, l.queue, i, leg) {
			qs.unservable = append(qs.unservable, w.Ticket)
		}
	}
}

// leg is that whose holds have to end for the head of l to start; of no lane, for t,
// which lacks that.
func (l *lane) leg(t *Ticket, lack Resource) Leg {
	if l != nil {
		t, lack = l.head(), l.lack
	}
	return t.legOf(lack)
}

// aheadLooks is at how many waiters aheadOf looks.
const aheadLooks = 64

// aheadOf is how many waiters of l, or of no lane, would be served before t; of long
// lanes it is an estimate from some of them.
func (l *lane) aheadOf(t *Ticket) int {
	if l == nil {
		return 0
	}
	all := l.waiters.All()
	n, looks, ahead := len(all), min(len(all), aheadLooks), 0
	for i := range looks {
		if all[i*n/looks].ahead(t) {
			ahead++
		}
	}
	return ahead * n / looks
}
