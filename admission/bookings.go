package admission

// ledger books what requests hold on their ranks.
type ledger struct {
	index    *rankIndex
	queues   *queues // which are told how long holds last
	bookings uint64  // so far, to order them
}

// book takes the holds of t on its chosen ranks: prefill before decode, so that
// a rejected candidate never inflates decode load.
func (lg *ledger) book(t *Ticket) {
	lg.bookings++
	legs := t.legs()
	if p := t.Prefill; p != nil {
		t.tokens = t.uncachedOn(PrefillLeg, p)
		p.slots++
		p.prefill += legs
		p.tokens += t.tokens
		t.holdsPrefill = true
		lg.probe(t, p, PrefillLeg)
		lg.index.refresh(p, lg.bookings)
	} else {
		t.tokens = t.uncachedOn(DecodeLeg, t.Decode)
		t.Decode.tokens += t.tokens
	}
	lg.bookDecode(t, t.Decode)
}

// bookDecode takes the decode holds of t on d, pending.
func (lg *ledger) bookDecode(t *Ticket, d *Rank) {
	t.Decode = d
	t.heldBlocks = t.blocks(d.blockSize())
	d.pending += t.legs()
	d.blocksPending += t.heldBlocks
	t.holdsDecode = true
	t.decodeActive = false
	lg.probe(t, d, DecodeLeg)
	lg.index.refresh(d, lg.bookings)
}

func (lg *ledger) probe(t *Ticket, r *Rank, l Leg) {
	t.probes[l] = r.state.Breaker == BreakerHalfOpen
	if t.probes[l] {
		r.probes++
		t.epochs[l] = r.epoch
	}
}

func (lg *ledger) unprobe(t *Ticket, r *Rank, l Leg) {
	if t.holdsProbe(r, l) {
		r.probes--
	}
	t.probes[l] = false
}

// endTokens ends the prefill tokens of t, if it still has them.
func (lg *ledger) endTokens(t *Ticket) bool {
	if t.tokens == 0 {
		return false
	}
	r := t.prefillRank()
	r.tokens -= t.tokens
	t.tokens = 0
	r.check()
	lg.index.refresh(r, 0)
	return true
}

// endPrefill is dropPrefill, and counts how long the hold lasted.
func (lg *ledger) endPrefill(now Instant, t *Ticket) bool {
	if !lg.dropPrefill(t) {
		return false
	}
	t.Prefill.meter(now)
	lg.queues.endRun(now, t, PrefillLeg)
	return true
}

// dropPrefill ends the prefill slot, units and tokens of t, if it still has them.
func (lg *ledger) dropPrefill(t *Ticket) bool {
	if !t.holdsPrefill {
		return false
	}
	t.holdsPrefill = false
	r := t.Prefill
	r.slots--
	r.prefill -= t.legs()
	r.tokens -= t.tokens
	t.tokens = 0
	lg.unprobe(t, r, PrefillLeg)
	r.check()
	lg.index.refresh(r, 0)
	return true
}

// StartDecode turns the decode booking of t from pending to active.
func (lg *ledger) StartDecode(t *Ticket) {
	if !t.holdsDecode || t.decodeActive {
		return
	}
	t.decodeActive = true
	r := t.Decode
	r.pending -= t.legs()
	r.active += t.legs()
	r.blocksPending -= t.heldBlocks
	r.blocksActive += t.heldBlocks
	r.check()
	if lg.index.loaded != nil {
		lg.index.loaded.note(r)
	}
}

// endDecode is dropAnswer, and counts how long the hold lasted.
func (lg *ledger) endDecode(now Instant, t *Ticket) bool {
	if !lg.dropAnswer(t) {
		return false
	}
	t.Decode.meter(now)
	lg.queues.endRun(now, t, DecodeLeg)
	return true
}

// dropAnswer ends the decode holds of t, if it still has them, and the prefill tokens it has
// there.
func (lg *ledger) dropAnswer(t *Ticket) bool {
	if !t.holdsDecode {
		return false
	}
	if t.Prefill == nil {
		t.Decode.tokens -= t.tokens
		t.tokens = 0
	}
	lg.dropDecode(t)
	return true
}

// dropDecode ends the decode holds of t.
func (lg *ledger) dropDecode(t *Ticket) {
	t.holdsDecode = false
	r := t.Decode
	if t.decodeActive {
		r.active -= t.legs()
		r.blocksActive -= t.heldBlocks
	} else {
		r.pending -= t.legs()
		r.blocksPending -= t.heldBlocks
	}
	t.heldBlocks = 0
	lg.unprobe(t, r, DecodeLeg)
	r.check()
	lg.index.refresh(r, 0)
}

// growDecode adds output blocks to the decode booking of t. It may take a rank over
// the limits of classes: that closes the gate and breaks nothing.
func (lg *ledger) growDecode(t *Ticket, blocks int64) {
	if !t.holdsDecode || blocks <= 0 {
		return
	}
	blocks = min(blocks, maxAmount)
	r := t.Decode
	t.heldBlocks += blocks
	if t.decodeActive {
		r.blocksActive += blocks
	} else {
		r.blocksPending += blocks
	}
	lg.index.refresh(r, 0)
}

// restoreHolds books what t holds, as another ledger had it.
func (lg *ledger) restoreHolds(t *Ticket) {
	lg.bookings++
	if t.holdsPrefill {
		t.Prefill.slots++
		t.Prefill.prefill += t.legs()
		lg.restoreProbe(t, t.Prefill, PrefillLeg)
	}
	if t.holdsDecode {
		d := t.Decode
		if t.decodeActive {
			d.active += t.legs()
			d.blocksActive += t.heldBlocks
		} else {
			d.pending += t.legs()
			d.blocksPending += t.heldBlocks
		}
		lg.restoreProbe(t, d, DecodeLeg)
	}
	if t.tokens > 0 {
		t.prefillRank().tokens += t.tokens
	}
	for _, r := range [...]*Rank{t.Prefill, t.Decode} {
		if r != nil {
			lg.index.refresh(r, lg.bookings)
		}
	}
}

func (lg *ledger) restoreProbe(t *Ticket, r *Rank, l Leg) {
	if t.probes[l] {
		r.probes++
		t.epochs[l] = r.epoch
	}
}
