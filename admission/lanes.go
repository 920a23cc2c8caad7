package admission

import (
	"math/bits"
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
	granted uint64            // grants of the family at that time
	widePos int               // in the wide lanes of the class; -1: not in them
	parks   [maxParks]park    // of a blocked lane that is not wide
	parksN  int
}

// maxParks is at how many ranks at most a blocked head waits to be told of them
// alone: one that is pinned to a rank, or a worker of few. So a thousand heads
// for as many ranks cost nothing when a hold of another rank ends.
const maxParks = 4

// park is a rank at which a lane waits, and where in the rank's list.
type park struct {
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
	return l.head().Target.shape == Disaggregated && (l.lack == ResourcePrefillSlot || l.lack == ResourcePrefillTokens)
}

// mayUse tells whether the end of a hold of r may help the head of l.
func (l *lane) mayUse(r *Rank) bool {
	if r.role == RoleDecode && l.lacksPrefill() {
		return false
	}
	return l.head().Target.concerns(r)
}

// park puts a blocked lane where wake finds it: at the ranks its head waits for
// when they are few, or among the wide lanes of its class.
func (c *Core) park(l *lane) {
	l.widePos, l.parksN = -1, 0
	t := l.head().Target
	leg := PrefillLeg
	switch {
	case t.shape != Disaggregated:
		leg = DecodeLeg
	case !l.lacksPrefill():
		leg = numLegs
	}
	if leg < numLegs && t.bits[leg] != nil && c.parkAt(l, t.bits[leg], t.model.pools[t.role(leg)].members) {
		return
	}
	l.widePos = len(l.queue.wide)
	l.queue.wide = append(l.queue.wide, l)
}

// parkAt parks l at the ranks that both sets have, if they are few.
func (c *Core) parkAt(l *lane, eligible, members bitmap) bool {
	n := 0
	for w, word := range eligible {
		if n += ones(word & members[w]); n > maxParks {
			return false
		}
	}
	if n == 0 {
		return false
	}
	for w, word := range eligible {
		for word &= members[w]; word != 0; word &= word - 1 {
			r := c.ranks[w<<6+bits.TrailingZeros64(word)]
			l.parks[l.parksN] = park{r, len(r.parked)}
			r.parked = append(r.parked, parkedLane{l, l.parksN})
			l.parksN++
		}
	}
	return true
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
		l.parks[k] = park{}
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
func (q *classQueue) lane(c *Core, t *Ticket) *lane {
	if q.n == 0 {
		return nil
	}
	if !c.laned {
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
	if c.lanes >= maxLanes {
		return q.shared
	}
	return nil
}

func (x *Exclusions) equal(o *Exclusions) bool {
	return slices.Equal(x[PrefillLeg], o[PrefillLeg]) && slices.Equal(x[DecodeLeg], o[DecodeLeg])
}

// openLane makes the lane of t.
func (q *classQueue) openLane(c *Core, t *Ticket) *lane {
	var l *lane
	if n := len(c.spareLanes); n > 0 {
		l = c.spareLanes[n-1]
		c.spareLanes = c.spareLanes[:n-1]
	} else {
		l = &lane{}
	}
	*l = lane{queue: q, waitQueue: waitQueue{l.h[:0]}, pos: [numLaneHeaps]int{-1, -1}, widePos: -1}
	switch {
	case !c.laned:
		q.shared = l
	case c.lanes >= maxLanes:
		q.shared = l
	case t.Exclude.empty():
		l.target = t.Target
		if q.lanes == nil {
			q.lanes = map[*Target]*lane{}
		}
		q.lanes[t.Target] = l
		c.lanes++
	default:
		l.target = t.Target
		for leg, ranks := range t.Exclude {
			l.exclude[leg] = slices.Clone(ranks)
		}
		q.excluding = append(q.excluding, l)
		c.lanes++
	}
	return l
}

// closeLane forgets a lane that nobody waits in.
func (q *classQueue) closeLane(c *Core, l *lane) {
	switch {
	case l.target == nil:
		q.shared = nil
	case l.exclude.empty():
		delete(q.lanes, l.target)
		c.lanes--
	default:
		q.excluding = slices.DeleteFunc(q.excluding, func(o *lane) bool { return o == l })
		c.lanes--
	}
	if len(c.spareLanes) < 64 && cap(l.h) <= 1024 {
		c.spareLanes = append(c.spareLanes, l)
	}
}
