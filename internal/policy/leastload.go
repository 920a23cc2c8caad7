package policy

import "github.com/sluice-router/sluice/admission"

// leastLoad takes the rank with the least booked load, and among equal ones the one
// that was booked least recently, so that idle ranks take turns. The gate keeps the
// ranks ordered, so that the choice does not cost more in a large fleet.
//
// That order holds neither ranks without room nor passed requests, which hold no
// slot. They are placed by power of two.
type leastLoad struct{ passing powerOfTwo }

func (p *leastLoad) Pick(v *admission.View, h *admission.Hint) int {
	if v.Passing() {
		return p.passing.Pick(v, h)
	}
	return v.Min()
}

func (*leastLoad) Booked(int, *admission.Hint) {}
func (*leastLoad) RankAdded(int, string)       {}
func (*leastLoad) RankRemoved(int)             {}
