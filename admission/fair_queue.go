package admission

import "math"

// headTrier tries to start a waiter at the head of its lane.
type headTrier interface {
	// tryHead chooses ranks for the head of l and tells that there are some; or blocks
	// l, or takes its head out of it.
	tryHead(now Instant, l *lane, out *[]*Ticket) bool
}

// nextIn is one step of the deficit round robin between the classes of a
// profile. The class whose turn it is goes on while its deficit pays for its
// head; one that cannot start anything keeps its deficit and gains nothing. When
// none can pay, as many rounds are credited at once as the first of them needs,
// to those that could start something: the work does not depend on how large a
// request is.
func (qs *queues) nextIn(now Instant, p *profileQueue, heads headTrier, out *[]*Ticket) *Ticket {
	n := len(p.classes)
	rounds := int64(math.MaxInt64)
	qs.unaffordable = qs.unaffordable[:0]
	for i := range n {
		at := p.cursor + i
		if at >= n {
			at -= n
		}
		q := p.classes[at]
		t := startable(now, q, heads, out)
		if t == nil {
			continue
		}
		cost := t.cost()
		if q.deficit >= cost {
			p.cursor = at
			return t
		}
		qs.unaffordable = append(qs.unaffordable, unaffordable{at, t})
		rounds = min(rounds, (cost-q.deficit+q.class.quantum-1)/q.class.quantum)
	}
	for _, x := range qs.unaffordable {
		q := p.classes[x.at]
		q.deficit += mulSat(rounds, q.class.quantum)
	}
	var first *unaffordable // the next after the one whose turn is over
	for i := range qs.unaffordable {
		x := &qs.unaffordable[i]
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

// unaffordable is a class that could start its head but cannot pay for it.
type unaffordable struct {
	at   int
	head *Ticket
}

// times is a × b, but no more than a deficit can ever be of use.
func mulSat(a, b int64) int64 {
	const most = maxAmount << 10
	if a > most/b {
		return most
	}
	return a * b
}

// startable returns the first head of q, in the order of the class, that has
// room, with its ranks chosen. Those before it are blocked.
func startable(now Instant, q *classQueue, heads headTrier, out *[]*Ticket) *Ticket {
	for l := q.ready.top(); l != nil; l = q.ready.top() {
		if heads.tryHead(now, l, out) {
			return l.head()
		}
	}
	return nil
}
