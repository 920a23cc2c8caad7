package admission

func (r *Rank) reported() ReportedLoad { return ReportedLoad{r.report, r.unbooked, r.vetoed} }

// vetoEnds is the part of a limit that a report has to be below to end a veto.
const vetoEnds = 0.8

// setReport takes the report of a rank into account. It tells whether some request may have
// room for it that had none before.
func (ix *rankIndex) setReport(r *Rank, p RankReport) (more bool) {
	r.report = p.clean()
	unbooked := int64(0)
	if r.decodes() && r.report.Requests > 0 && !r.shared() { // others' requests are in it, too
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
