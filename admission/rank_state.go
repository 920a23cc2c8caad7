package admission

func (ix *rankIndex) setState(r *Rank, s RankState) {
	if s.Breaker == BreakerHalfOpen && r.state.Breaker != BreakerHalfOpen {
		r.epoch++
		r.probes = 0
	}
	r.state = s
	ix.refresh(r, 0)
}

// refresh brings the indexes in line with the rank's state and holds. seq is
// not zero when the rank was just booked.
func (ix *rankIndex) refresh(r *Rank, seq uint64) {
	if r.index < 0 {
		return // gone: its holds end without a trace in the indexes
	}
	cand := r.present && r.state.candidate()
	room := cand
	if r.role == RolePrefill && ix.limits.PrefillSlots > 0 && r.slots >= ix.limits.PrefillSlots {
		room = false
	}
	if r.state.Breaker == BreakerHalfOpen && r.probes >= r.state.Probes {
		room = false
	}
	over := ix.rejecting && r.present && ix.overloaded(r)
	if over {
		room = false
		if !r.over {
			ix.overTurns++
		}
	}
	if over != r.over {
		ix.over.put(r.index, over)
	}
	if len(ix.prefillThresholds)+len(ix.blockThresholds) > 0 {
		ix.refreshThresholds(r)
	}
	load := r.load()
	overDelta := b2i(cand && over) - b2i(r.cand && r.over)
	holds := r.holds()
	more := holds.minus(r.counted)
	for _, p := range r.pools {
		p.sum.add(more)
		p.overN += overDelta
		if cand != r.cand {
			p.cand.put(r.index, cand)
			d := 1
			if !cand {
				d = -1
			}
			p.candN += d
			p.groupCand[r.groupID] += d
		}
		if room != r.room {
			p.room.put(r.index, room)
			d := 1
			if !room {
				d = -1
			}
			p.roomN += d
			p.roomIn[r.index/(64*roomBlock)] += int32(d)
		}
		p.load.put(r.index, r.groupID, load, seq, room)
	}
	r.cand, r.room, r.over, r.counted = cand, room, over, holds
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
