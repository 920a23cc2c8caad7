package admission

// The front of a lane is its first waiters, in order, so that several can be looked at
// without searching the heap each time. It is filled when somebody asks for it, and from
// then on kept in line: it is always a beginning of the lane, though it may be a short one.

// first returns the first n waiters of l, in order, or all if there are fewer. Where that
// is more than the front has, it is filled with up to fill of them.
func (qs *queues) first(l *lane, n, fill int) []*Ticket {
	if n = min(n, l.waiters.Len()); len(l.front) < n {
		qs.frontier = l.fillFront(min(max(fill, n), l.waiters.Len()), qs.frontier)
	}
	return l.front[:n]
}

// fillFront finds the first n waiters of l: in a heap each is behind its parent, so that
// the next one is always a child of those that were found. memory is used, and returned.
func (l *lane) fillFront(n int, memory []int) []int {
	all := l.waiters.All()
	l.front = l.front[:0]
	next := append(memory[:0], 0) // places in the heap, the first waiter last
	for len(l.front) < n {
		at := next[len(next)-1]
		next = next[:len(next)-1]
		l.front = append(l.front, all[at].Ticket)
		for child := 2*at + 1; child <= 2*at+2 && child < len(all); child++ {
			i := len(next)
			next = append(next, 0)
			for ; i > 0 && all[next[i-1]].ahead(all[child].Ticket); i-- {
				next[i] = next[i-1]
			}
			next[i] = child
		}
	}
	return next
}

// joinFront keeps the front in line with t, which has come into the lane. REQUIRES: there is
// a front.
func (l *lane) joinFront(t *Ticket) {
	n := len(l.front)
	if !t.ahead(l.front[n-1]) {
		if n == l.waiters.Len()-1 && n < cap(l.front) {
			l.front = append(l.front, t)
		}
		return
	}
	if n < cap(l.front) {
		l.front = append(l.front, nil)
		n++
	}
	i := n - 1
	for ; i > 0 && t.ahead(l.front[i-1]); i-- {
		l.front[i] = l.front[i-1]
	}
	l.front[i] = t
}

// leaveFront keeps the front in line with t, which has left the lane. REQUIRES: there is a
// front.
func (l *lane) leaveFront(t *Ticket) {
	n := len(l.front)
	if l.front[n-1].ahead(t) {
		return
	}
	i := 0
	for l.front[i] != t {
		i++
	}
	copy(l.front[i:], l.front[i+1:])
	l.front[n-1] = nil
	l.front = l.front[:n-1]
}
