package policy

import "github.com/sluice-router/sluice/admission"

// random takes any rank with room, each with the same chance.
type random struct{ rng rng }

func (p *random) Pick(v *admission.View, _ *admission.Hint) int { return v.Nth(p.rng.below(v.Len())) }
func (*random) Booked(int, *admission.Hint)                     {}
func (*random) RankAdded(int, string)                           {}
func (*random) RankRemoved(int)                                 {}
