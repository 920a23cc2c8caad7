package list

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A random history is compared with a slice.
func TestListAgreesWithASlice(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var l List[int]
	nodes := make([]Node[int], 50)
	var plain []int
	for i := range nodes {
		nodes[i].Value = i
	}
	for step := range 10000 {
		i := r.IntN(len(nodes))
		n := &nodes[i]
		at := slices.Index(plain, i)
		if n.Listed() != (at >= 0) {
			t.Fatalf("step %d: Listed is %t", step, n.Listed())
		}
		switch {
		case at >= 0:
			if !l.Remove(n) || l.Remove(n) {
				t.Fatalf("step %d: a node is removed once", step)
			}
			plain = slices.Delete(plain, at, at+1)
		case len(plain) > 0 && r.IntN(3) == 0:
			at := r.IntN(len(plain))
			l.InsertAfter(n, &nodes[plain[at]])
			plain = slices.Insert(plain, at+1, i)
		case r.IntN(2) == 0:
			l.PushFront(n)
			plain = slices.Insert(plain, 0, i)
		default:
			l.PushBack(n)
			plain = append(plain, i)
		}
		var got []int
		for n := l.First(); n != nil; n = n.Next() {
			got = append(got, n.Value)
		}
		if !slices.Equal(got, plain) || l.Len() != len(plain) {
			t.Fatalf("step %d: %v of %d, want %v", step, got, l.Len(), plain)
		}
		for n := l.Last(); n != nil; n = n.Prev() {
			if last := len(got) - 1; last < 0 || got[last] != n.Value {
				t.Fatalf("step %d: backwards it is another list", step)
			}
			got = got[:len(got)-1]
		}
		if len(got) > 0 {
			t.Fatalf("step %d: backwards it lacks %v", step, got)
		}
	}
}

func TestNodeOfAnotherListIsNotRemoved(t *testing.T) {
	var a, b List[int]
	var n Node[int]
	a.PushBack(&n)
	if b.Remove(&n) || a.Len() != 1 {
		t.Error("a node was removed from a list that it is not in")
	}
	defer func() {
		if recover() == nil {
			t.Error("a node is in two lists")
		}
	}()
	b.PushBack(&n)
}
