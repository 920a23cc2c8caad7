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
	cand := r.present && r.state.candidate() && !r.withheld()
	room := cand
	if r.limited {
		room = room && !ix.limits.full(r, 0, 0)
	} else if r.role == RolePrefill && ix.limits.PrefillSlots > 0 && r.slots >= ix.limits.PrefillSlots {
		room = false
	}
	if r.state.Breaker == BreakerHalfOpen && r.probes >= r.probesLimit() {
		room = false
	}
	if r.vetoed {
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
	if r.state.Share|r.share != 0 {
		ix.refreshShare(r, cand)
	}
	if ix.loaded != nil {
		ix.loaded.note(r)
	}
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
			p.level(r.priority).cand += d
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
		p.load.put(r.index, r.groupID, r.amount(p.measure), seq, room)
	}
	r.cand, r.room, r.over, r.counted = cand, room, over, holds
}

// refreshShare begins, changes or ends the warm-up of a rank in its pools.
func (ix *rankIndex) refreshShare(r *Rank, cand bool) {
	share := uint16(0)
	if cand {
		share = r.state.share()
	}
	if share == r.share {
		return
	}
	for _, p := range r.pools {
		u, v := &p.warmUp, p.level(r.priority)
		if u.members == nil {
			u.members, u.next = make(bitmap, ix.words), make([]int64, ix.words*64)
		}
		v.shares += int64(share) - int64(r.share)
		switch {
		case r.share == 0:
			u.n++
			v.warm++
			u.members.set(r.index)
			u.next[r.index] = v.turn
		case share == 0:
			u.n--
			v.warm--
			u.members.clear(r.index)
		}
	}
	r.share = share
}
