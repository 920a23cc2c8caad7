package policy

import "github.com/sluice-router/sluice/admission"

// tokenLoad finds the rank of a pool with the least load in tokens.
type tokenLoad struct {
	measure admission.Measure
	mixed   bool // any of the least loaded
	passing powerOfTwo
}

func newTokenLoad(o pool) tokenLoad {
	l := tokenLoad{measure: admission.ByTokensAndKV, passing: powerOfTwo{rng: o.rng}}
	switch o.role {
	case admission.RolePrefill:
		l.measure = admission.ByTokens
	case admission.RoleDecode:
		l.mixed = true
	}
	return l
}

// least returns the least loaded rank, of equal ones the one that was booked least recently.
//
// Of ranks that only decode any of the equal ones is taken. If both legs took turns, each
// prefill rank would meet the same decode ranks again and again, and when a pair fails it
// would not show which of the two is at fault.
func (l *tokenLoad) least(v *admission.View) int {
	least := v.Min()
	if !l.mixed {
		return least
	}
	if i := v.Nth(l.passing.rng.below(v.Len())); v.Amount(i) == v.Amount(least) {
		return i
	}
	return least
}
