package admission

// waitQueue is the waiters of one lane, the one to be served next first: a binary
// heap in the order of the class, so that a retry finds its old place again and
// any waiter leaves in O(log n).
type waitQueue struct{ h []*Ticket }

func (q *waitQueue) head() *Ticket {
	if len(q.h) == 0 {
		return nil
	}
	return q.h[0]
}

func (q *waitQueue) push(t *Ticket) {
	t.queuePos = len(q.h)
	q.h = append(q.h, t)
	q.up(t.queuePos)
}

func (q *waitQueue) remove(t *Ticket) {
	i, last := t.queuePos, len(q.h)-1
	if i < 0 || q.h[i] != t {
		panic("BUG: a waiter is not where its queue has it")
	}
	q.swap(i, last)
	q.h[last] = nil
	q.h = q.h[:last]
	if i < last {
		q.down(i)
		q.up(i)
	}
	t.queuePos = -1
}

func (q *waitQueue) swap(i, j int) {
	q.h[i], q.h[j] = q.h[j], q.h[i]
	q.h[i].queuePos = i
	q.h[j].queuePos = j
}

func (q *waitQueue) up(i int) {
	for i > 0 {
		p := (i - 1) / 2
		if !q.h[i].ahead(q.h[p]) {
			return
		}
		q.swap(i, p)
		i = p
	}
}

func (q *waitQueue) down(i int) {
	for {
		c := 2*i + 1
		if c >= len(q.h) {
			return
		}
		if c+1 < len(q.h) && q.h[c+1].ahead(q.h[c]) {
			c++
		}
		if !q.h[c].ahead(q.h[i]) {
			return
		}
		q.swap(i, c)
		i = c
	}
}

// deadlineHeap is the waiters by the instant at which their wait must end, and
// among equals in the order of the queue: what happens at an instant does not
// depend on how the heap came to be.
type deadlineHeap struct{ h []*Ticket }

func (d *deadlineHeap) next() Instant {
	if len(d.h) == 0 {
		return never
	}
	return d.h[0].wakeAt
}

func (d *deadlineHeap) sooner(a, b *Ticket) bool {
	if a.wakeAt != b.wakeAt {
		return a.wakeAt < b.wakeAt
	}
	return a.before(b)
}

func (d *deadlineHeap) push(t *Ticket) {
	t.deadlinePos = len(d.h)
	d.h = append(d.h, t)
	d.fix(t)
}

func (d *deadlineHeap) remove(t *Ticket) {
	i, last := t.deadlinePos, len(d.h)-1
	d.swap(i, last)
	d.h[last] = nil
	d.h = d.h[:last]
	if i < last {
		d.fix(d.h[i])
	}
	t.deadlinePos = -1
}

func (d *deadlineHeap) swap(i, j int) {
	d.h[i], d.h[j] = d.h[j], d.h[i]
	d.h[i].deadlinePos = i
	d.h[j].deadlinePos = j
}

// fix moves t to where its wakeAt belongs.
func (d *deadlineHeap) fix(t *Ticket) {
	i := t.deadlinePos
	for i > 0 {
		p := (i - 1) / 2
		if !d.sooner(d.h[i], d.h[p]) {
			break
		}
		d.swap(i, p)
		i = p
	}
	for {
		c := 2*i + 1
		if c >= len(d.h) {
			return
		}
		if c+1 < len(d.h) && d.sooner(d.h[c+1], d.h[c]) {
			c++
		}
		if !d.sooner(d.h[c], d.h[i]) {
			return
		}
		d.swap(i, c)
		i = c
	}
}

// waiterList links the waiters of one target, in no particular order.
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
