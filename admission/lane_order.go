package admission

import (
	"cmp"
	"math"

	"github.com/sluice-router/sluice/internal/heap"
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

// before is the order of arrival: first arrival, then place. A retry keeps both.
func (t *Ticket) before(o *Ticket) bool {
	return t.arrival < o.arrival || t.arrival == o.arrival && (t.epoch < o.epoch || t.epoch == o.epoch && t.seq < o.seq)
}

func (t *Ticket) compare(o *Ticket) int {
	return cmp.Or(cmp.Compare(t.arrival, o.arrival), cmp.Compare(t.epoch, o.epoch), cmp.Compare(t.seq, o.seq))
}

// A waiter is in two heaps, that of its lane and that of all deadlines, and a lane is in
// that of its class and, unless it is blocked, in that of those that may start. Each
// order is a type of its own.

// byPlace is a waiter among those of its lane, the one to be served next first. They are
// in the order of the class, so that a retry finds its old place again.
type byPlace struct{ *Ticket }

// Before implements heap.Element.
func (w byPlace) Before(o byPlace) bool { return w.ahead(o.Ticket) }

// SetIndex implements heap.Element.
func (w byPlace) SetIndex(i int) { w.queuePos = int32(i) }

// byDeadline is a waiter by the instant at which its wait must end, and among equals in
// the order of arrival: what happens at an instant does not depend on how the heap came
// to be.
type byDeadline struct{ *Ticket }

// Before implements heap.Element.
func (w byDeadline) Before(o byDeadline) bool {
	if w.wakeAt != o.wakeAt {
		return w.wakeAt < o.wakeAt
	}
	return w.before(o.Ticket)
}

// SetIndex implements heap.Element.
func (w byDeadline) SetIndex(i int) { w.deadlinePos = int32(i) }

// deadlineHeap is all waiters by when their waits must end.
type deadlineHeap struct{ heap.Heap[byDeadline] }

// next is when the first wait must end.
func (d *deadlineHeap) next() Instant {
	if d.Len() == 0 {
		return never
	}
	return d.First().wakeAt
}

// laneByHead is a lane with waiters among all of its class, by the order of the heads.
type laneByHead struct{ *lane }

// Before implements heap.Element.
func (l laneByHead) Before(o laneByHead) bool { return l.head().ahead(o.head()) }

// SetIndex implements heap.Element.
func (l laneByHead) SetIndex(i int) { l.classPos = i }

// readyLane is a lane among those of its class whose head is not known to be blocked, by
// the order of the heads.
type readyLane struct{ *lane }

// Before implements heap.Element.
func (l readyLane) Before(o readyLane) bool { return l.head().ahead(o.head()) }

// SetIndex implements heap.Element.
func (l readyLane) SetIndex(i int) { l.readyPos = i }

// waiterList links the waiters of one target, in no particular order. It is not one of
// package list, whose nodes have twice the words: they would make every ticket larger.
type waiterList struct{ first *Ticket }

func (l *waiterList) add(t *Ticket) {
	t.prev, t.next = nil, l.first
	if l.first != nil {
		l.first.prev = t
	}
	l.first = t
}

func (l *waiterList) remove(t *Ticket) {
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		l.first = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	t.prev, t.next = nil, nil
}
