package admission

import "math"

// drain grants to waiters of a family while there is room for a head.
//
// Heads that are found without room stay blocked until something happens that
// concerns them, so a drain looks at each lane that was woken at most once for
// each grant of it, and once more.
func (c *Core) drain(now Instant, f *family, out *[]*Ticket) int {
	granted := 0
	for f.waiting > 0 {
		t := c.nextOf(now, f, out)
		if t == nil {
			break
		}
		q := t.lane.queue
		q.deficit -= t.cost()
		c.dequeue(now, t)
		c.grant(now, t, f, out)
		granted++
	}
	f.note(now)
	return granted
}

// nextOf returns the waiter of f to be granted next, with its ranks chosen.
func (c *Core) nextOf(now Instant, f *family, out *[]*Ticket) *Ticket {
	c.placeFence(now, f)
	if o := f.fence.owner; o != nil {
		if c.choose(o) == ResourceNone {
			return o
		}
	}
	if len(f.profiles) == 1 {
		return c.nextIn(now, f.profiles[0], out)
	}
	var first *Ticket
	for _, p := range f.profiles {
		if p.waiting == 0 {
			continue
		}
		if t := c.nextIn(now, p, out); t != nil && (first == nil || t.before(first)) {
			first = t
		}
	}
	return first
}

// nextIn is one step of the deficit round robin between the classes of a
// profile. The class whose turn it is goes on while its deficit pays for its
// head; one that cannot start anything keeps its deficit and gains nothing. When
// none can pay, as many rounds are credited at once as the first of them needs,
// to those that could start something: the work does not depend on how large a
// request is.
func (c *Core) nextIn(now Instant, p *profileQueue, out *[]*Ticket) *Ticket {
	n := len(p.classes)
	rounds := int64(math.MaxInt64)
	c.poor = c.poor[:0]
	for i := range n {
		at := p.cursor + i
		if at >= n {
			at -= n
		}
		q := p.classes[at]
		t := c.startable(now, q, out)
		if t == nil {
			continue
		}
		cost := t.cost()
		if q.deficit >= cost {
			p.cursor = at
			return t
		}
		c.poor = append(c.poor, poor{at, t})
		rounds = min(rounds, (cost-q.deficit+q.class.quantum-1)/q.class.quantum)
	}
	for _, x := range c.poor {
		q := p.classes[x.at]
		q.deficit += times(rounds, q.class.quantum)
	}
	var first *poor // the next after the one whose turn is over
	for i := range c.poor {
		x := &c.poor[i]
		if p.classes[x.at].deficit >= x.head.cost() && (first == nil || first.at == p.cursor) {
			first = x
		}
	}
	if first == nil {
		return nil
	}
	p.cursor = first.at
	return first.head
}

// poor is a class that could start its head but cannot pay for it.
type poor struct {
	at   int
	head *Ticket
}

// times is a × b, but no more than a deficit can ever be of use.
func times(a, b int64) int64 {
	const most = maxAmount << 10
	if a > most/b {
		return most
	}
	return a * b
}

// startable returns the first head of q, in the order of the class, that has
// room, with its ranks chosen. Those before it are blocked.
func (c *Core) startable(now Instant, q *classQueue, out *[]*Ticket) *Ticket {
	for l := q.ready.top(); l != nil; l = q.ready.top() {
		t := l.head()
		if c.reconsider(now, t) {
			continue
		}
		switch lack := c.choose(t); lack {
		case ResourceNone:
			return t
		case ResourceOverloaded:
			c.dequeue(now, t)
			c.refuse(now, t, AllOverloaded, lack, 0, out)
		default:
			c.block(now, l, lack)
		}
	}
	return nil
}
