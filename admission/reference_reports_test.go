package admission

import (
	"math"
	"slices"
)

// report is what an engine reports of a rank. It tells whether the rank has more room by it
// than before.
func (m *reference) report(r *refRank, p RankReport) (more bool) {
	unbooked := int64(0)
	if r.real.role != RolePrefill && p.Requests > 0 && r.real.bounds.Share.Parts <= 1 {
		used := int64(math.Ceil(float64(p.KVTokens) / float64(r.blockSize)))
		unbooked = max(used-max(p.ActiveBlocks, r.blocks[1]), 0)
	}
	r.report = p
	was := r.vetoed
	m.judge(r)
	more = unbooked < r.unbooked || was && !r.vetoed
	r.unbooked = unbooked
	if unbooked > 0 {
		m.unbooked++
	}
	return more
}

// judge finds out whether r is vetoed by its report: from a limit on, until it is below
// four fifths of both.
func (m *reference) judge(r *refRank) {
	w, u := float64(m.limits.OverloadWaiting), m.limits.OverloadUsage
	reaches := func(part float64) bool {
		return w > 0 && float64(r.report.Waiting) >= part*w || u > 0 && r.report.Usage >= part*u
	}
	was := r.vetoed
	r.vetoed = reaches(1) || was && reaches(0.8)
	if r.vetoed && !was {
		m.vetoes++
	}
}

// reported takes reports that come together into account, and looks at those who may start
// because of them.
func (m *reference) reported(now Instant, changes []Change) {
	for _, ch := range changes {
		switch r := m.find(ch.Rank); {
		case m.report(r, ch.Report):
			m.lookFor(r)
		case slices.Contains(m.ranks, r):
			m.lookAgain(r.real.pools[0].model.modelGroup)
		}
	}
	m.drain(now)
}
