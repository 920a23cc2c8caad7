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

// PushFront adds n before all others. REQUIRES: n is in no list.
func (l *List[T]) PushFront(n *Node[T]) {
	l.add(n)
	n.next = l.first
	if l.first != nil {
		l.first.prev = n
	} else {
		l.last = n
	}
	l.first = n
}

// PushBack adds n after all others. REQUIRES: n is in no list.
func (l *List[T]) PushBack(n *Node[T]) {
	l.add(n)
	n.prev = l.last
	if l.last != nil {
		l.last.next = n
	} else {
		l.first = n
	}
	l.last = n
}

func (l *List[T]) add(n *Node[T]) {
	if n.list != nil {
		panic("BUG: a node is added to a list while it is in one")
	}
	n.list = l
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
