package fleet

import (
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// A broken KV transfer does not tell which of the two ranks broke it. Several transfers do:
// who is at fault fails with partners that go on to succeed with others. So a failure is kept
// open against both ranks of its pair, until one of them succeeds with another partner. That
// one is cleared of it, and it then counts against the other; unless the one that is cleared
// was charged in between, or failed with a third that was cleared, because then the failure
// may well have been its own.
//
// A rank is charged for what counts against it once that is of more than one worker: with one
// it may be the link. Its own success drops all that is held against it.

// suspicion is what the failures of a pair mean for one of its ranks, since that one last
// succeeded with any partner.
type suspicion struct {
	listed bool              // the pair is in the rank's failing
	open   int               // proven failures for which neither rank was cleared
	since  admission.Instant // the first of these
}

// partners are those with which a rank has failed since it last succeeded with any, and which
// were cleared.
type partners struct {
	first   *Rank
	several bool
	pending int // failures that count against the rank and were not charged
}

// failed counts n failures with a partner that was cleared of them, and returns how many to
// charge to the rank itself.
func (l *partners) failed(with *Rank, n int) (charges int) {
	l.pending += n
	switch {
	case l.first == nil:
		l.first = with
	case l.first.worker != with.worker: // what fails one rank of a process often fails all of them
		l.several = true
	}
	if !l.several {
		return 0
	}
	charges, l.pending = l.pending, 0
	return charges
}

// sides returns what the pair holds against one of its ranks and against the other, and
// the other.
func (x *pair) sides(r *Rank) (own, others *suspicion, other *Rank) {
	if x.key.p == r {
		return &x.prefill, &x.decode, x.key.d
	}
	return &x.decode, &x.prefill, x.key.p
}

// suspectLocked holds a failure of the pair against both of its ranks; but not against
// one whose partner has failures to make up for already. The caller must hold
// quarantine.mu.
func (x *pair) suspectLocked(now admission.Instant) {
	for _, r := range []*Rank{x.key.p, x.key.d} {
		own, _, other := x.sides(r)
		if !own.listed {
			own.listed = true
			r.failing = append(r.failing, x)
		}
		if other.breaker.marked.Load() {
			continue
		}
		if own.open == 0 {
			own.since = now
		}
		own.open++
	}
}

// clearLocked takes into account that p and d have succeeded together. It returns the
// ranks that are charged for failures with one of them, once for each. The caller must
// hold quarantine.mu.
func (q *quarantine) clearLocked(p, d *Rank) (atFault []*Rank) {
	if x := q.pairs[pairKey{p, d}]; x != nil {
		x.prefill.open, x.decode.open = 0, 0
	}
	for _, r := range []*Rank{p, d} {
		third := r.partners.first
		r.partners = partners{}
		for _, x := range r.failing {
			own, others, other := x.sides(r)
			n := others.open
			*own, others.open = suspicion{}, 0
			if n > 0 && (third == nil || third.worker == other.worker) && !r.breaker.chargedSince(others.since) {
				for range other.partners.failed(r, n) {
					atFault = append(atFault, other)
				}
			}
		}
		r.failing = nil
	}
	return atFault
}

// forgetLocked drops all that the pair's failures meant for its ranks. The caller must hold
// quarantine.mu.
func (x *pair) forgetLocked() {
	for _, r := range []*Rank{x.key.p, x.key.d} {
		r.partners = partners{}
		r.failing = slices.DeleteFunc(r.failing, func(y *pair) bool { return x == y })
	}
}

// chargedSince reports whether a failure was counted at a moment or after it.
func (b *breaker) chargedSince(t admission.Instant) bool {
	bad := admission.Instant(b.bad.Load())
	return bad != 0 && bad >= t
}
