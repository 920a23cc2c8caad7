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

// priorityLevels are those of all ranks, by falling priority.
type priorityLevels []priorityLevel

func (x *priorityLevels) join(r *Rank, words int) {
	at, found := slices.BinarySearchFunc(*x, r.priority, func(v priorityLevel, p int) int { return cmp.Compare(p, v.priority) })
	if !found {
		*x = slices.Insert(*x, at, priorityLevel{priority: r.priority, members: make(bitmap, words)})
	}
	(*x)[at].members.set(r.index)
	(*x)[at].n++
}

func (x *priorityLevels) leave(r *Rank) {
	at := slices.IndexFunc(*x, func(v priorityLevel) bool { return v.priority == r.priority })
	v := &(*x)[at]
	v.members.clear(r.index)
	if v.n--; v.n == 0 {
		*x = slices.Delete(*x, at, at+1)
	}
}

// ranked tells whether some ranks of a pool may go before others.
func (ix *rankIndex) ranked(p *pool) bool { return len(ix.priorities) > 1 || p.warmUp.n > 0 }

// joinLevel enters a rank of p into the level of its priority.
func (p *pool) joinLevel(priority int) {
	at, found := p.findLevel(priority)
	if !found {
		p.levels = slices.Insert(p.levels, at, level{priority: priority})
	}
	p.levels[at].members++
}

func (p *pool) leaveLevel(priority int) {
	at, _ := p.findLevel(priority)
	if p.levels[at].members--; p.levels[at].members == 0 {
		p.levels = slices.Delete(p.levels, at, at+1)
	}
}

func (p *pool) findLevel(priority int) (at int, found bool) {
	return slices.BinarySearchFunc(p.levels, priority, func(x level, v int) int { return cmp.Compare(v, x.priority) })
}

// level returns that of a priority. REQUIRES: a rank of the pool has it.
func (p *pool) level(priority int) *level {
	at, _ := p.findLevel(priority)
	return &p.levels[at]
}

// preferRanks keeps, of the ranks that are left for a leg, those of the highest priority
// that are not held back by their warm-up: of a lower priority where all of a higher one
// are. Some are always left; where all that could be chosen warm up, none is held back.
func (ch *chooser) preferRanks(s *candidates, l Leg) {
	levels, p, set := ch.index.priorities, s.pool(l), s.of(l).set
	warm := p.warmUp.n > 0 && set.intersects(p.warmUp.members) && !set.within(p.warmUp.members)
	for i := range levels {
		x := &levels[i]
		if !set.intersects(x.members) {
			continue
		}
		turn := int64(0)
		if warm {
			if turn = p.level(x.priority).turn; !p.warmUp.due(set, x, turn) {
				continue
			}
		}
		if len(levels) > 1 {
			ch.keep(s, l, x.members)
		}
		if warm {
			ch.dropHeldBack(s, l, turn)
		}
		return
	}
}
