// Package list is a doubly linked list whose nodes are part of the elements, so that
// adding and removing an element takes constant time and allocates nothing. It differs
// from container/list in that, and in having a type.
//
//	type waiter struct {
//		node list.Node[*waiter]
//		…
//	}
//
//	w.node.Value = w
//	l.PushBack(&w.node)
//	for n := l.First(); n != nil; n = n.Next() { n.Value … }
//	l.Remove(&w.node)
package list

// Node is one element's place in a list. The zero value is in no list. A node that is
// in a list must not be copied.
type Node[T any] struct {
	Value      T
	list       *List[T] // nil: in none
	prev, next *Node[T]
}

// Listed reports whether n is in a list.
func (n *Node[T]) Listed() bool { return n.list != nil }

// Next returns the node after n, nil after the last one.
func (n *Node[T]) Next() *Node[T] { return n.next }

// Prev returns the node before n, nil before the first one.
func (n *Node[T]) Prev() *Node[T] { return n.prev }

// List is a list of nodes. The zero value is empty and ready for use. It must not be
// copied, and is not safe for concurrent use.
type List[T any] struct {
	first, last *Node[T]
	n           int
}

// Len returns the number of nodes.
func (l *List[T]) Len() int { return l.n }

// First returns the first node, nil if the list is empty.
func (l *List[T]) First() *Node[T] { return l.first }

// Last returns the last node, nil if the list is empty.
func (l *List[T]) Last() *Node[T] { return l.last }

// PushFront adds n before all others. REQUIRES: n is in no list.
func (l *List[T]) PushFront(n *Node[T]) { l.link(nil, n, l.first) }

// PushBack adds n after all others. REQUIRES: n is in no list.
func (l *List[T]) PushBack(n *Node[T]) { l.link(l.last, n, nil) }

// InsertAfter adds n after p. REQUIRES: p is in l, and n in no list.
func (l *List[T]) InsertAfter(n, p *Node[T]) {
	if p.list != l {
		panic("BUG: a node is added after one that is not in the list")
	}
	l.link(p, n, p.next)
}

// link puts n between two neighbours; nil is the end of the list.
func (l *List[T]) link(before, n, after *Node[T]) {
	if n.list != nil {
		panic("BUG: a node is added to a list while it is in one")
	}
	n.list, n.prev, n.next = l, before, after
	if before != nil {
		before.next = n
	} else {
		l.first = n
	}
	if after != nil {
		after.prev = n
	} else {
		l.last = n
	}
	l.n++
}

// Remove takes n out of the list and reports whether it was in it.
func (l *List[T]) Remove(n *Node[T]) bool {
	if n.list != l {
		return false
	}
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		l.first = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		l.last = n.prev
	}
	n.list, n.prev, n.next = nil, nil, nil
	l.n--
	return true
}
