// Package heap is a binary heap whose elements know where they lie, so that any of
// them can be moved or removed in O(log n). It differs from container/heap in having
// a type: nothing is boxed, and no method but push, when it grows, allocates.
//
//	type event struct { at time.Time; pos int }
//
//	func (e *event) Before(o *event) bool { return e.at.Before(o.at) }
//	func (e *event) SetIndex(i int)       { e.pos = i }
//
//	var h heap.Heap[*event]
//	h.Push(e)
//	e.at = later
//	h.Fix(e.pos)
//
// An element that lies in two heaps with different orders has a type for each:
// type byDeadline struct{ *event }.
package heap

// Element is what a Heap holds.
type Element[T any] interface {
	// Before reports whether the element comes out before another one.
	Before(T) bool
	// SetIndex is called with the element's new place; -1: it is in the heap no more.
	SetIndex(int)
}

// Heap has the first element at place 0. The zero value is empty and ready for use. It
// is not safe for concurrent use.
type Heap[T Element[T]] struct{ list []T }

// Len returns the number of elements.
func (h *Heap[T]) Len() int { return len(h.list) }

// First returns the first element. REQUIRES: Len() > 0.
func (h *Heap[T]) First() T { return h.list[0] }

// All returns the elements in no particular order. The slice is the heap's own.
func (h *Heap[T]) All() []T { return h.list }

// Push adds x.
func (h *Heap[T]) Push(x T) {
	h.list = append(h.list, x)
	x.SetIndex(len(h.list) - 1)
	h.up(len(h.list) - 1)
}

// Pop removes the first element and returns it. REQUIRES: Len() > 0.
func (h *Heap[T]) Pop() T { return h.Remove(0) }

// Remove removes the element at place i and returns it.
func (h *Heap[T]) Remove(i int) T {
	var none T
	x, end := h.list[i], len(h.list)-1
	last := h.list[end]
	h.list[end] = none
	h.list = h.list[:end]
	if i < end {
		// The last element mostly belongs at the bottom again. So the gap goes all the
		// way down, which takes one comparison a level instead of two, and the last
		// element up from there.
		i = h.gapDown(i)
		h.list[i] = last
		last.SetIndex(i)
		h.up(i)
	}
	x.SetIndex(-1)
	return x
}

// gapDown moves the gap at place i to the bottom, and returns where that is.
func (h *Heap[T]) gapDown(i int) int {
	list := h.list
	for {
		first := 2*i + 1
		if first >= len(list) {
			return i
		}
		c := list[first]
		if second := first + 1; second < len(list) && list[second].Before(c) {
			first, c = second, list[second]
		}
		list[i] = c
		c.SetIndex(i)
		i = first
	}
}

// Fix moves the element at place i to where it belongs, after its order changed.
func (h *Heap[T]) Fix(i int) {
	if !h.down(i) {
		h.up(i)
	}
}

// up and down write the moved element once, where it ends up.

func (h *Heap[T]) up(i int) {
	x := h.list[i]
	start := i
	for i > 0 {
		parent := (i - 1) / 2
		p := h.list[parent]
		if !x.Before(p) {
			break
		}
		h.list[i] = p
		p.SetIndex(i)
		i = parent
	}
	if i != start {
		h.list[i] = x
		x.SetIndex(i)
	}
}

// down reports whether the element at place i moved.
func (h *Heap[T]) down(i int) bool {
	x := h.list[i]
	start := i
	for {
		first := 2*i + 1
		if first >= len(h.list) {
			break
		}
		c := h.list[first]
		if second := first + 1; second < len(h.list) && h.list[second].Before(c) {
			first, c = second, h.list[second]
		}
		if !c.Before(x) {
			break
		}
		h.list[i] = c
		c.SetIndex(i)
		i = first
	}
	if i == start {
		return false
	}
	h.list[i] = x
	x.SetIndex(i)
	return true
}
