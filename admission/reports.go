package admission

import (
	"math"
	"slices"
)

// RankReport is what an engine says of the load of a rank, whoever sent the requests; see
// [SetReport]. The zero value is no report.
type RankReport struct {
	// Requests are all that the engine has, Waiting those that it has not begun.
	Requests, Waiting int64
	// KVTokens are the tokens of its KV cache that requests hold, Usage the part of the
	// cache that they take, from 0 to 1.
	KVTokens int64
	Usage    float64
	// ActiveBlocks are the active blocks of the rank when the engine was asked:
	// requests that have ended since may still be in what it answered.
	ActiveBlocks int64
}

// ReportedLoad is the last report of a rank and what follows from it.
type ReportedLoad struct {
	RankReport
	// Unbooked are KV blocks that the engine has in use beyond what is booked.
	Unbooked int64
	// Vetoed: the rank has no room because of Limits.OverloadWaiting or
	// Limits.OverloadUsage.
	Vetoed bool
}

func (r *Rank) reported() ReportedLoad { return ReportedLoad{r.report, r.unbooked, r.vetoed} }

// vetoEnds is the part of a limit that a report has to be below to end a veto.
const vetoEnds = 0.8

func (p RankReport) clean() RankReport {
	for _, v := range []*int64{&p.Requests, &p.Waiting, &p.KVTokens, &p.ActiveBlocks} {
		*v = min(max(*v, 0), maxAmount)
	}
	if !(p.Usage >= 0) || math.IsInf(p.Usage, 0) {
		p.Usage = 0
	}
	return p
}

// setReport takes the report of a rank into account. It tells whether some request may have
// room for it that had none before.
func (ix *rankIndex) setReport(r *Rank, p RankReport) (more bool) {
	r.report = p.clean()
	unbooked := int64(0)
	if r.decodes() && r.report.Requests > 0 {
		size := r.blockSize()
		unbooked = max((r.report.KVTokens+size-1)/size-max(r.blocksActive, r.report.ActiveBlocks), 0)
	}
	more = unbooked < r.unbooked
	changed := unbooked != r.unbooked
	r.unbooked = unbooked
	if ix.judgeReport(r) {
		changed, more = true, more || !r.vetoed
	}
	if changed {
		ix.refresh(r, 0)
	}
	return more
}

// judgeReport finds out whether the report of r is over a limit of it. It tells whether that has
// changed; then refresh is to be called.
func (ix *rankIndex) judgeReport(r *Rank) (changed bool) {
	was := r.vetoed
	part := 1.0
	if was {
		part = vetoEnds
	}
	w, u := float64(ix.limits.OverloadWaiting), ix.limits.OverloadUsage
	r.vetoed = w > 0 && float64(r.report.Waiting) >= part*w || u > 0 && r.report.Usage >= part*u
	if r.vetoed == was {
		return false
	}
	ix.countVeto(r, r.vetoed)
	return true
}

// countVeto keeps the set of vetoed ranks that are registered.
func (ix *rankIndex) countVeto(r *Rank, vetoed bool) {
	if ix.vetoed.has(r.index) == vetoed {
		return
	}
	ix.vetoed.put(r.index, vetoed)
	ix.vetoedN += b2i(vetoed) - b2i(!vetoed)
}

// onlyReports tells whether no change is of anything but what engines report.
func onlyReports(changes []Change) bool {
	for i := range changes {
		if changes[i].Op != SetReport {
			return false
		}
	}
	return len(changes) > 0
}

// applyReports is Apply for reports alone. It looks at the ranks that are named and at the
// waiters they may have room for, and at nothing else.
func (c *Core) applyReports(now Instant, changes []Change, out *[]*Ticket) {
	for i := range changes {
		r := changes[i].Rank
		if !r.present || !c.setReport(r, changes[i].Report) {
			continue
		}
		if f := c.wakeFor(r); f != nil && !slices.Contains(c.touched, f) {
			c.touched = append(c.touched, f)
		}
	}
	for _, f := range c.touched {
		c.drain(now, f, out)
	}
	clear(c.touched)
	c.touched = c.touched[:0]
}
