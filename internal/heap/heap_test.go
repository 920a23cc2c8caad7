package heap

import (
	"math/rand/v2"
	"slices"
	"testing"
)

type item struct{ key, pos int }

func (x *item) Before(o *item) bool { return x.key < o.key }
func (x *item) SetIndex(i int)      { x.pos = i }

// A random history is compared with a plain list that is sorted for each look.
func TestHeapAgreesWithASortedList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var h Heap[*item]
	var plain []*item
	for step := range 20000 {
		switch n := len(plain); {
		case n == 0 || n < 200 && r.IntN(3) == 0:
			x := &item{key: r.IntN(100)}
			h.Push(x)
			plain = append(plain, x)
		case r.IntN(3) == 0:
			x := plain[r.IntN(n)]
			x.key = r.IntN(100)
			h.Fix(x.pos)
		default:
			i := r.IntN(n)
			x := plain[i]
			if r.IntN(2) == 0 {
				x = h.Pop()
				i = slices.Index(plain, x)
			} else if got := h.Remove(x.pos); got != x {
				t.Fatalf("step %d: another element was removed", step)
			}
			if x.pos != -1 {
				t.Fatalf("step %d: a removed element has the place %d", step, x.pos)
			}
			plain = slices.Delete(plain, i, i+1)
		}
		if h.Len() != len(plain) {
			t.Fatalf("step %d: %d elements, want %d", step, h.Len(), len(plain))
		}
		for i, x := range h.All() {
			if x.pos != i {
				t.Fatalf("step %d: the element at %d says %d", step, i, x.pos)
			}
		}
		if len(plain) > 0 {
			least := slices.MinFunc(plain, func(a, b *item) int { return a.key - b.key })
			if h.First().key != least.key {
				t.Fatalf("step %d: first is %d, want %d", step, h.First().key, least.key)
			}
		}
	}
}

func TestHeapDoesNotAllocate(t *testing.T) {
	var h Heap[*item]
	items := make([]item, 100)
	round := func() {
		for i := range items {
			items[i].key = i * 37 % 100
			h.Push(&items[i])
		}
		for h.Len() > 0 {
			h.Pop()
		}
	}
	round()
	if n := testing.AllocsPerRun(10, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
