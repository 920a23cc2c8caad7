package admission

import "slices"

// maxQuarantines bounds the quarantined pairs; the oldest makes place for a new one.
const maxQuarantines = 64

// quarantine keeps a pair from new grants, until endQuarantine or until one of the ranks is
// removed. What runs on it goes on. A request for which no other pair of
// candidates is left has it all the same.
func (ix *rankIndex) quarantine(p, d *Rank) {
	b := quarantinedPair{p, d}
	if p == nil || d == nil || !p.present || !d.present || p.role != RolePrefill || d.role != RoleDecode || slices.Contains(ix.quarantines, b) {
		return
	}
	if len(ix.quarantines) == maxQuarantines {
		ix.endQuarantine(ix.quarantines[0].prefill, ix.quarantines[0].decode)
	}
	ix.quarantines = append(ix.quarantines, b)
	p.quarantined = append(p.quarantined, d)
}

func (ix *rankIndex) endQuarantine(p, d *Rank) {
	at := slices.Index(ix.quarantines, quarantinedPair{p, d})
	if at < 0 {
		return
	}
	ix.quarantines = slices.Delete(ix.quarantines, at, at+1)
	p.quarantined = slices.DeleteFunc(p.quarantined, func(r *Rank) bool { return r == d })
}

// endQuarantines forgets the quarantines of a rank that is removed.
func (ix *rankIndex) endQuarantines(r *Rank) {
	for i := len(ix.quarantines) - 1; i >= 0; i-- {
		if b := ix.quarantines[i]; b.prefill == r || b.decode == r {
			ix.endQuarantine(b.prefill, b.decode)
		}
	}
}
