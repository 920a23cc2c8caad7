package admission

// FirstToken ends the prefill tokens of a ticket: its first output token came,
// so that its prompt is computed. Its slot stays until prefill ends.
func (c *Core) FirstToken(now Instant, t *Ticket, out *[]*Ticket) {
	if c.endTokens(t) {
		c.drainAfter(now, t.prefillRank(), out)
	}
}

// Grow adds KV blocks of output to the decode booking.
func (c *Core) Grow(now Instant, t *Ticket, blocks int64, out *[]*Ticket) {
	if !t.holdsDecode || blocks <= 0 {
		return
	}
	turns := c.overTurns
	c.growDecode(t, blocks)
	if c.overTurns != turns {
		c.drainOver(now, t.Decode, out)
	}
	c.lookAgain(now, t.Target.model.modelGroup, out)
}

// drainOver looks at every head that may have had r for its last candidate, now
// that r is over a reject threshold: whatever else they lack, they are refused.
func (c *Core) drainOver(now Instant, r *Rank, out *[]*Ticket) {
	if c.waiting == 0 || r.index < 0 {
		return
	}
	f := r.pools[0].model.modelGroup
	c.wake(f, nil)
	c.drain(now, f, out)
}

// MoveDecode moves the decode booking of a ticket, whose prefill is running or
// done, to another rank that may be paired with its prefill rank, without
// waiting and without the gate of its class: that check was made at the prefill
// hop. Ranks over a reject threshold are not chosen. It reports false, and
// changes nothing, when there is none: then the request has to go back to
// prefill. Exclusions and the pairs that are quarantined hold as long as others are
// left.
func (c *Core) MoveDecode(now Instant, t *Ticket, exclude []*Rank, out *[]*Ticket) bool {
	if t.state != stateGranted || !t.holdsDecode || t.Prefill == nil {
		return false
	}
	if m := t.Target.model; m.dead {
		if c.models[m.name] == nil {
			return false
		}
		c.requeue(now, t) // its model lost all ranks, and has others now
	}
	old, d := t.Decode, t.Target.model.pools[RoleDecode]
	next := c.chooser.nextDecode(t, exclude)
	if next == nil {
		return false
	}
	turns := c.overTurns
	c.dropDecode(t)
	c.bookings++
	c.bookDecode(t, next)
	d.booked(next, &t.Hints[DecodeLeg])
	if c.overTurns != turns {
		c.drainOver(now, next, out)
	}
	c.drainAfter(now, old, out)
	c.lookAgain(now, t.Target.model.modelGroup, out)
	return true
}

// nextDecode returns another rank for the decode leg of t, whose prefill is running or
// done, or nil: one with room that may follow its prefill rank, which may be gone. Pairs
// in quarantine, and then the other ranks of the workers that it leaves, are avoided while
// others are left.
func (ch *chooser) nextDecode(t *Ticket, exclude []*Rank) *Rank {
	for _, avoid := range [...]legSet{onPairs | decodeWorkers, onPairs, decodeWorkers, 0} {
		s := ch.decodeAfter(t, exclude, avoid)
		if s.of(DecodeLeg).set.empty() {
			continue
		}
		if t.Target.prefers {
			ch.preferDecode(t.Target, &s, t.Prefill)
		}
		return ch.ask(&s, DecodeLeg, &t.Hints[DecodeLeg], -1)
	}
	return nil
}

func (ch *chooser) decodeAfter(t *Ticket, exclude []*Rank, avoid legSet) (s candidates) {
	target, pr := t.Target, t.Prefill
	p := target.model.pools[RoleDecode]
	s.pools[DecodeLeg] = p
	s.sets[DecodeLeg] = rankSet{set: p.room, n: p.roomN}
	if b := target.bits[DecodeLeg]; b != nil {
		ch.and(&s, DecodeLeg, b)
	}
	ch.and(&s, DecodeLeg, ch.index.groups[pr.groupID])
	if t.mask != nil {
		ch.andNot(&s, DecodeLeg, t.mask.bits)
	}
	if target.topology == TopologyRequired { // by name: the domain of a rank that is gone may be another's now
		for i := range s.of(DecodeLeg).set.all() {
			if r := ch.index.ranks[i]; !target.pairs(pr, r) {
				ch.drop(&s, DecodeLeg, r)
			}
		}
	}
	ch.drop(&s, DecodeLeg, t.Decode)
	for _, r := range exclude {
		ch.drop(&s, DecodeLeg, r)
	}
	if avoid&decodeWorkers != 0 {
		ch.dropWorker(&s, DecodeLeg, t.Decode)
		for _, r := range exclude {
			ch.dropWorker(&s, DecodeLeg, r)
		}
	}
	if avoid&onPairs != 0 {
		for _, r := range pr.quarantined {
			ch.drop(&s, DecodeLeg, r)
		}
	}
	return s
}
