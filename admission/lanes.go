package admission

import (
	"slices"

	"github.com/sluice-router/sluice/internal/heap"
)

// maxLanes bounds the lanes of a gate; what needs one more shares one a class.
const maxLanes = 1024

// lane is the waiters of one class that need the same: a target, and a retry's
// exclusion. A head that cannot start blocks those behind it in its lane and
// nobody else. In strict order a class has one lane for all.
type lane struct {
	queue   *classQueue
	target  *Target // nil: of any; the shared lane, or the only one
	mask    *mask   // of all of them; nil: none
	exclude Exclusions
	waiters heap.Heap[byPlace]
	front   []*Ticket // the first of them, or none; see first

	// places in the heaps of the class; -1: in none
	classPos, readyPos int

	lack    Resource          // why the head cannot start, when it is known to be blocked
	since   Instant           // since when the head is blocked; 0: it is not known to be
	heldUp  Instant           // since when it is known to hold up others that could start; 0: it is not
	granted uint64            // grants of the model group at that time
	widePos int               // in the wide lanes of the class; -1: not in them
	parks   [maxParks]parking // of a blocked lane that is not wide
	parksN  int
}

// maxParks is at how many ranks at most a blocked head waits to be told of them
// alone: one that is pinned to a rank, or a worker of few. So a thousand heads
// for as many ranks cost nothing when a hold of another rank ends.
const maxParks = 4

// parking is a rank at which a lane waits, and where in the rank's list.
type parking struct {
	rank *Rank
	pos  int
}

// parkedLane is a lane that waits at a rank, and which of its parks that is.
type parkedLane struct {
	lane *lane
	park int
}

// lacksPrefill tells whether no change of a decode rank's holds can help the
// head of l: no prefill rank would do whatever decode ranks were free.
func (l *lane) lacksPrefill() bool {
	return l.waitsOn(l.lack) == PrefillLeg
}

// mayUse tells whether the end of a hold of r may help the head of l.
func (l *lane) mayUse(r *Rank) bool {
	if r.role == RoleDecode && l.lacksPrefill() {
		return false
	}
	return l.head().Target.concerns(r)
}

// waitsOn is the leg on whose ranks alone it depends whether the head of l, which lacks
// that, can start; numLegs: on those of both.
func (l *lane) waitsOn(lack Resource) Leg {
	switch {
	case l.head().Target.shape != Disaggregated:
		return DecodeLeg
	case lack == ResourcePrefillSlot, lack == ResourcePrefillTokens:
		return PrefillLeg
	}
	return numLegs
}

// park puts a blocked lane where wake finds it: at the ranks its head waits for
// when they are few, or among the wide lanes of its class.
func park(l *lane, few []*Rank) {
	l.widePos, l.parksN = -1, 0
	if len(few) == 0 {
		l.widePos = len(l.queue.wide)
		l.queue.wide = append(l.queue.wide, l)
		return
	}
	for i, r := range few {
		l.parks[i] = parking{r, len(r.parked)}
		r.parked = append(r.parked, parkedLane{l, i})
	}
	l.parksN = len(few)
}

// unpark takes a lane that is blocked no more from where park put it.
func (q *classQueue) unpark(l *lane) {
	if i := l.widePos; i >= 0 {
		last := len(q.wide) - 1
		q.wide[i] = q.wide[last]
		q.wide[i].widePos = i
		q.wide[last] = nil
		q.wide = q.wide[:last]
		l.widePos = -1
	}
	for k := range l.parksN {
		r, i := l.parks[k].rank, l.parks[k].pos
		last := len(r.parked) - 1
		moved := r.parked[last]
		r.parked[i] = moved
		moved.lane.parks[moved.park].pos = i
		r.parked[last] = parkedLane{}
		r.parked = r.parked[:last]
		l.parks[k] = parking{}
	}
	l.parksN = 0
}

// remove takes a waiter out of the lane.
func (l *lane) remove(t *Ticket) {
	if l.waiters.Remove(int(t.queuePos)).Ticket != t {
		panic("BUG: a waiter is not where its queue has it")
	}
	if len(l.front) > 0 {
		l.leaveFront(t)
	}
}

// head is the waiter to be served next. REQUIRES: l has waiters, as every lane that is
// not spare.
func (l *lane) head() *Ticket { return l.waiters.First().Ticket }

func (l *lane) blocked() bool { return l.readyPos < 0 }

// lackNow is what the head of l lacks; nothing while it declines what there is.
func (l *lane) lackNow() Resource {
	if !l.blocked() {
		return ResourceNone
	}
	return l.lack
}

// lane returns the lane t belongs to, or nil when nobody waits in it.
func (q *classQueue) lane(qs *queues, t *Ticket) *lane {
	if q.n == 0 {
		return nil
	}
	if t.mask != nil {
		return q.maskedLane(qs, t)
	}
	if !qs.laned {
		return q.shared
	}
	if t.Exclude.empty() {
		if l := q.lanes[t.Target]; l != nil {
			return l
		}
	} else {
		for _, l := range q.excluding {
			if l.target == t.Target && l.exclude.equal(&t.Exclude) {
				return l
			}
		}
	}
	if qs.lanes >= maxLanes {
		return q.shared
	}
	return nil
}

func (x *Exclusions) equal(o *Exclusions) bool {
	return slices.Equal(x[PrefillLeg], o[PrefillLeg]) && slices.Equal(x[DecodeLeg], o[DecodeLeg])
}

// openLane makes the lane of t.
func (q *classQueue) openLane(qs *queues, t *Ticket) *lane {
	var l *lane
	if n := len(qs.spareLanes); n > 0 {
		l = qs.spareLanes[n-1]
		qs.spareLanes = qs.spareLanes[:n-1]
	} else {
		l = &lane{}
	}
	*l = lane{queue: q, mask: t.mask, waiters: l.waiters, front: l.front, classPos: -1, readyPos: -1, widePos: -1}
	if l.mask != nil {
		q.openMasked(qs, l, t)
		return l
	}
	switch {
	case !qs.laned:
		q.shared = l
	case qs.lanes >= maxLanes:
		q.shared = l
	case t.Exclude.empty():
		l.target = t.Target
		if q.lanes == nil {
			q.lanes = map[*Target]*lane{}
		}
		q.lanes[t.Target] = l
		qs.lanes++
	default:
		l.target = t.Target
		for leg, ranks := range t.Exclude {
			l.exclude[leg] = slices.Clone(ranks)
		}
		q.excluding = append(q.excluding, l)
		qs.lanes++
	}
	return l
}

// closeLane forgets a lane that nobody waits in.
func (q *classQueue) closeLane(qs *queues, l *lane) {
	switch {
	case l.mask != nil:
		q.closeMasked(qs, l)
	case l.target == nil:
		q.shared = nil
	case l.exclude.empty():
		delete(q.lanes, l.target)
		qs.lanes--
	default:
		q.excluding = slices.DeleteFunc(q.excluding, func(o *lane) bool { return o == l })
		qs.lanes--
	}
	if len(qs.spareLanes) < 64 && cap(l.waiters.All()) <= 1024 {
		qs.spareLanes = append(qs.spareLanes, l)
	}
}
