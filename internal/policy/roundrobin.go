package policy

import "github.com/sluice-router/sluice/admission"

// roundRobin takes the ranks in turn and skips those without room. The turn
// moves with a booking only, so a choice that could not be booked takes nobody's
// turn.
type roundRobin struct{ last int }

func (p *roundRobin) Pick(v *admission.View, _ *admission.Hint) int { return v.Next(p.last) }
func (p *roundRobin) Booked(i int, _ *admission.Hint)               { p.last = i }
func (*roundRobin) RankAdded(int, string)                           {}
func (*roundRobin) RankRemoved(int)                                 {}
