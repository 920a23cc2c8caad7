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
