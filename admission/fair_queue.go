package admission

import "math"

// fairRound is one step of the deficit round robin between the classes of a profile.
// The class whose turn it is goes on while its deficit pays for its head; one that
// cannot start anything keeps its deficit and gains nothing. When none can pay, as many
// rounds are credited at once as the first of them needs, to those that could start
// something: the work does not depend on how large a request is.
//
// The classes are asked in turn for a head that could start, which is offered to the
// round.
type fairRound struct {
	profile      *profileQueue
	rounds       int64
	unaffordable []unaffordable
}

func (qs *queues) newRound(p *profileQueue) fairRound {
	return fairRound{profile: p, rounds: math.MaxInt64, unaffordable: qs.unaffordable[:0]}
}

// turn returns the place of the class that is asked after i others.
func (p *profileQueue) turn(i int) int {
	at := p.cursor + i
	if n := len(p.classes); at >= n {
		at -= n
	}
	return at
}

// offer tells that class at could start t. It is taken when the deficit of the class
// pays for it.
func (r *fairRound) offer(at int, t *Ticket) (taken bool) {
	q := r.profile.classes[at]
	cost := t.cost()
	if q.deficit >= cost {
		r.profile.cursor = at
		return true
	}
	r.unaffordable = append(r.unaffordable, unaffordable{at, t})
	r.rounds = min(r.rounds, (cost-q.deficit+q.class.quantum-1)/q.class.quantum)
	return false
}

// settle credits the classes that were offered when none could pay, and returns the head
// that is paid for then; nil: nothing was offered.
func (qs *queues) settle(r *fairRound) *Ticket {
	qs.unaffordable = r.unaffordable // its memory
	p := r.profile
	for _, x := range r.unaffordable {
		q := p.classes[x.at]
		q.deficit += mulSat(r.rounds, q.class.quantum)
	}
	var first *unaffordable // the next after the one whose turn is over
	for i := range r.unaffordable {
		x := &r.unaffordable[i]
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

// times is a × b, but no more than a deficit can ever be of use.
func mulSat(a, b int64) int64 {
	const most = maxAmount << 10
	if a > most/b {
		return most
	}
	return a * b
}
