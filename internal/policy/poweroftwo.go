package policy

import "github.com/sluice-router/sluice/admission"

// powerOfTwo draws two different ranks and takes the one with less booked load.
// Bookings count from the moment of the grant, so that requests which arrive
// together see each other. Ties go to the first drawn, that is to anyone: idle
// ranks share what comes in.
type powerOfTwo struct{ rng rng }

func (p *powerOfTwo) Pick(v *admission.View, _ *admission.Hint) int {
	n := v.Len()
	if n == 1 {
		return v.Nth(0)
	}
	a := p.rng.below(n)
	b := p.rng.below(n - 1)
	if b >= a {
		b++
	}
	first, second := v.Nth(a), v.Nth(b)
	if v.Load(second) < v.Load(first) {
		return second
	}
	return first
}

func (*powerOfTwo) Booked(int, *admission.Hint) {}
func (*powerOfTwo) RankAdded(int, string)       {}
func (*powerOfTwo) RankRemoved(int)             {}
