package admission

import "slices"

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
	granted uint64            // grants of the family at that time
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
	*l = lane{queue: q, waitQueue: waitQueue{l.h[:0]}, pos: [numLaneHeaps]int{-1, -1}}
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
