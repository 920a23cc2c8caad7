package admission

// nextDecode returns another rank for the decode leg of t, whose prefill is running or
// done, or nil: one with room that may follow its prefill rank, which may be gone. Pairs
// in quarantine are avoided while others are left.
func (ch *chooser) nextDecode(t *Ticket, exclude []*Rank) *Rank {
	for _, apart := range [...]bool{true, false} {
		s := ch.decodeAfter(t, exclude, apart)
		if s.of(DecodeLeg).set.empty() {
			continue
		}
		if t.Target.prefers {
			ch.preferDecode(t.Target, &s, t.Prefill)
		}
		return ch.ask(&s, DecodeLeg, t.Hints[DecodeLeg], -1)
	}
	return nil
}

func (ch *chooser) decodeAfter(t *Ticket, exclude []*Rank, apart bool) (s candidates) {
	target, pr := t.Target, t.Prefill
	p := target.model.pools[RoleDecode]
	s.pools[DecodeLeg] = p
	s.sets[DecodeLeg] = rankSet{set: p.room, n: p.roomN}
	if b := target.bits[DecodeLeg]; b != nil {
		ch.and(&s, DecodeLeg, b)
	}
	ch.and(&s, DecodeLeg, ch.index.groups[pr.groupID])
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
	if apart {
		for _, r := range pr.quarantined {
			ch.drop(&s, DecodeLeg, r)
		}
	}
	return s
}
