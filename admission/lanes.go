package admission

import (
	"slices"
)

// maxLanes bounds the lanes of a gate; what needs one more shares one a class.
const maxLanes = 1024

// lane is the waiters of one class that need the same: a target, and a retry's
// exclusion. A head that cannot start blocks those behind it in its lane and
// nobody else. In strict order a class has one lane for all.
type lane struct {
	queue   *classQueue
	target  *Target // nil: of any; the shared lane, or the only one
	exclude Exclusions
	waitQueue

	pos     [numLaneHeaps]int // in the heaps of the class; -1: not in it
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

func (l *lane) blocked() bool { return l.pos[readyLanes] < 0 }

// laneHeaps are the two heaps a lane can be in, both by the order of the heads.
type laneHeaps uint8

const (
	allLanes   laneHeaps = iota // every lane with waiters
	readyLanes                  // those whose head is not known to be blocked
	numLaneHeaps
)

// laneHeap is lanes by the order of their heads.
type laneHeap struct {
	which laneHeaps
	l     []*lane
}

func (h *laneHeap) top() *lane {
	if len(h.l) == 0 {
		return nil
	}
	return h.l[0]
}

func (h *laneHeap) ahead(i, j int) bool { return h.l[i].h[0].ahead(h.l[j].h[0]) }

func (h *laneHeap) swap(i, j int) {
	h.l[i], h.l[j] = h.l[j], h.l[i]
	h.l[i].pos[h.which] = i
	h.l[j].pos[h.which] = j
}

func (h *laneHeap) push(l *lane) {
	l.pos[h.which] = len(h.l)
	h.l = append(h.l, l)
	h.fix(l)
}

func (h *laneHeap) remove(l *lane) {
	i, last := l.pos[h.which], len(h.l)-1
	h.swap(i, last)
	h.l[last] = nil
	h.l = h.l[:last]
	l.pos[h.which] = -1
	if i < last {
		h.fix(h.l[i])
	}
}

// fix moves l to where its head belongs.
func (h *laneHeap) fix(l *lane) {
	i := l.pos[h.which]
	for i > 0 {
		p := (i - 1) / 2
		if !h.ahead(i, p) {
			break
		}
		h.swap(i, p)
		i = p
	}
	for {
		c := 2*i + 1
		if c >= len(h.l) {
			return
		}
		if c+1 < len(h.l) && h.ahead(c+1, c) {
			c++
		}
		if !h.ahead(c, i) {
			return
		}
		h.swap(i, c)
		i = c
	}
}

// lane returns the lane t belongs to, or nil when nobody waits in it.
func (q *classQueue) lane(qs *queues, t *Ticket) *lane {
	if q.n == 0 {
		return nil
	}
	if !qs.laned {
		return q.all.top()
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
	*l = lane{queue: q, waitQueue: waitQueue{l.h[:0]}, pos: [numLaneHeaps]int{-1, -1}, widePos: -1}
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
	case l.target == nil:
		q.shared = nil
	case l.exclude.empty():
		delete(q.lanes, l.target)
		qs.lanes--
	default:
		q.excluding = slices.DeleteFunc(q.excluding, func(o *lane) bool { return o == l })
		qs.lanes--
	}
	if len(qs.spareLanes) < 64 && cap(l.h) <= 1024 {
		qs.spareLanes = append(qs.spareLanes, l)
	}
}
