package admission

import "slices"

// maxQuarantines bounds the quarantined pairs; the oldest makes place for a new one.
const maxQuarantines = 64

// quarantines are the pairs that are not granted, though both ranks work with others; the
// oldest come first.
type quarantines []quarantinedPair

// quarantinedPair is one of them.
type quarantinedPair struct{ prefill, decode *Rank }

// add keeps a pair from new grants, until end or until one of the ranks is
// removed. What runs on it goes on. A request for which no other pair of
// candidates is left has it all the same.
func (q *quarantines) add(p, d *Rank) {
	b := quarantinedPair{p, d}
	if p == nil || d == nil || !p.present || !d.present || p.role != RolePrefill || d.role != RoleDecode || slices.Contains(*q, b) {
		return
	}
	if len(*q) == maxQuarantines {
		q.end((*q)[0].prefill, (*q)[0].decode)
	}
	*q = append(*q, b)
	p.quarantined = append(p.quarantined, d)
}

func (q *quarantines) end(p, d *Rank) {
	at := slices.Index(*q, quarantinedPair{p, d})
	if at < 0 {
		return
	}
	*q = slices.Delete(*q, at, at+1)
	p.quarantined = slices.DeleteFunc(p.quarantined, func(r *Rank) bool { return r == d })
}

// endAll forgets the quarantines of a rank that is removed.
func (q *quarantines) endAll(r *Rank) {
	for i := len(*q) - 1; i >= 0; i-- {
		if b := (*q)[i]; b.prefill == r || b.decode == r {
			q.end(b.prefill, b.decode)
		}
	}
}
