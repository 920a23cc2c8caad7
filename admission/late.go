package admission

import "slices"

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
	if !qs.late(now, l.queue, len(l.h)-1, leg) {
		return // not even the last
	}
	inOrder := slices.Clone(l.h)
	slices.SortFunc(inOrder, func(a, b *Ticket) int {
		if a.ahead(b) {
			return -1
		}
		return 1
	})
	for i, t := range inOrder {
		if t.lostAt == never && qs.late(now, l.queue, i, leg) {
			qs.unservable = append(qs.unservable, t)
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
	n, looks, ahead := len(l.h), min(len(l.h), aheadLooks), 0
	for i := range looks {
		if l.h[i*n/looks].ahead(t) {
			ahead++
		}
	}
	return ahead * n / looks
}
