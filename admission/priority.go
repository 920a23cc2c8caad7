package admission

import (
	"cmp"
	"slices"
)

// priorityLevel is one priority and the ranks that have it. Fleets have few.
type priorityLevel struct {
	priority int
	members  bitmap
	n        int
}

func (ix *rankIndex) joinPriority(r *Rank) {
	at, found := slices.BinarySearchFunc(ix.priorities, r.priority, func(x priorityLevel, p int) int { return cmp.Compare(p, x.priority) })
	if !found {
		ix.priorities = slices.Insert(ix.priorities, at, priorityLevel{priority: r.priority, members: make(bitmap, ix.words)})
	}
	ix.priorities[at].members.set(r.index)
	ix.priorities[at].n++
}

func (ix *rankIndex) leavePriority(r *Rank) {
	at := slices.IndexFunc(ix.priorities, func(x priorityLevel) bool { return x.priority == r.priority })
	x := &ix.priorities[at]
	x.members.clear(r.index)
	if x.n--; x.n == 0 {
		ix.priorities = slices.Delete(ix.priorities, at, at+1)
	}
}

// ranked tells whether some ranks of a pool may go before others.
func (ix *rankIndex) ranked(p *pool) bool { return len(ix.priorities) > 1 || p.warmUp.n > 0 }

// preferRanks keeps, of the ranks that are left for a leg, those of the highest priority,
// and of these the ones that are not held back by their warm-up. Some are always left.
func (ch *chooser) preferRanks(s *candidates, l Leg) {
	if levels := ch.index.priorities; len(levels) > 1 {
		for i := range levels {
			if s.of(l).set.intersects(levels[i].members) {
				ch.keep(s, l, levels[i].members)
				break
			}
		}
	}
	if s.pool(l).warmUp.n > 0 {
		ch.leaveWarm(s, l)
	}
}
