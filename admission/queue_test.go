package admission

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-router/sluice/internal/heap"
)

// Any waiter leaves from any place, and the rest stay in order: the model test
// has queues too short to see a heap broken deep inside.
func TestQueuesStayHeaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q heap.Heap[byPlace]
		var d deadlineHeap
		var in []*Ticket
		seq := uint64(0)
		verify := func() {
			for i, k := range q.All() {
				if int(k.queuePos) != i || k.Before(q.All()[max(i-1, 0)/2]) {
					t.Fatal("the queue is no heap")
				}
			}
			for i, k := range d.All() {
				if int(k.deadlinePos) != i || k.Before(d.All()[max(i-1, 0)/2]) {
					t.Fatal("the deadlines are no heap")
				}
			}
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch op := rapid.IntRange(0, 4).Draw(t, "op"); {
			case op < 3:
				seq++
				k := &Ticket{seq: seq, arrival: Instant(rapid.IntRange(0, 40).Draw(t, "arrival")), wakeAt: Instant(rapid.IntRange(0, 40).Draw(t, "end"))}
				q.Push(byPlace{k})
				d.Push(byDeadline{k})
				in = append(in, k)
			case len(in) > 0:
				i := rapid.IntRange(0, len(in)-1).Draw(t, "who")
				k := in[i]
				if op == 3 {
					q.Remove(int(k.queuePos))
					d.Remove(int(k.deadlinePos))
					in = slices.Delete(in, i, i+1)
				} else {
					k.wakeAt = Instant(rapid.IntRange(0, 40).Draw(t, "end"))
					d.Fix(int(k.deadlinePos))
				}
			}
			verify()
		}
		slices.SortFunc(in, (*Ticket).compare)
		for _, k := range in {
			if q.First().Ticket != k {
				t.Fatal("not in order")
			}
			q.Remove(int(k.queuePos))
		}
	})
}
