package admission

import (
	"cmp"
	"math"
)

// position is a waiter's place among those of its class; the least goes first.
type position struct {
	strict   int     // negated
	deadline Instant // never: none
	score    int64   // negated
}

func (a position) compare(b position) int {
	return cmp.Or(cmp.Compare(a.strict, b.strict), cmp.Compare(a.deadline, b.deadline), cmp.Compare(a.score, b.score))
}

// place works out the place of t in its class. It depends only on what is frozen
// with t, so that a reload that changes the order sorts waiters anew.
func (t *Ticket) place() {
	t.position = position{strict: -t.StrictPriority, deadline: t.orderBy}
	jump := t.jump()
	switch t.class.Order {
	case WSPT:
		score := max(1+jump, 0) / float64(max(t.weight, 1))
		t.position.score = -int64(math.Float64bits(score)) // not negative, so ordered as its bits
	case LCFS:
		t.position.score = -int64(t.arrival) - int64(jump*1e9)
	default:
		t.position.score = int64(t.arrival) - int64(jump*1e9)
	}
}

// jump is the priority jump in seconds, up to thirty years.
func (t *Ticket) jump() float64 {
	if math.IsNaN(t.PriorityJump) {
		return 0
	}
	return min(max(t.PriorityJump, -1e9), 1e9)
}

// ahead is the order within a class.
func (t *Ticket) ahead(o *Ticket) bool {
	if c := t.position.compare(o.position); c != 0 {
		return c < 0
	}
	return t.before(o)
}

// before is the order of arrival: first arrival, then sequence. A retry keeps
// both.
func (t *Ticket) before(o *Ticket) bool {
	return t.arrival < o.arrival || t.arrival == o.arrival && t.seq < o.seq
}

func (t *Ticket) compare(o *Ticket) int {
	return cmp.Or(cmp.Compare(t.arrival, o.arrival), cmp.Compare(t.seq, o.seq))
}
