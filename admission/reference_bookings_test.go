package admission

import "slices"

func (m *reference) bookDecode(t *refTicket, d *refRank) {
	t.decode, t.active = d, false
	t.blocks = t.need(d)
	t.output, t.outgrown, t.counter = 0, 0, newOutput(t.real)
	if t.size = d.real.capacity.BlockSize; t.size == 0 {
		t.size = 16
	}
	d.pending += t.real.legs()
	d.blocks[0] += t.blocks
	if d.state.Breaker == BreakerHalfOpen {
		d.probes++
		t.decEpoch = d.epoch
	}
}

func (m *reference) endTokens(t *refTicket) {
	r := t.prefillWas
	if r == nil {
		r = t.decode
	}
	if r != nil && t.tokens > 0 {
		r.tokens -= t.tokens
		m.lookFor(r)
	}
	t.tokens = 0
}

func (m *reference) endPrefill(t *refTicket) {
	if p := t.prefill; p != nil {
		m.endTokens(t)
		p.slots--
		p.legs -= t.real.legs()
		if t.prefillEpoch == p.epoch && p.state.Breaker == BreakerHalfOpen {
			p.probes--
		}
		t.prefill, t.prefillEpoch = nil, 0
		m.endRun(t, PrefillLeg)
		m.lookFor(p)
	}
}

func (m *reference) startDecode(t *refTicket) {
	if t.decode != nil && !t.active {
		t.active = true
		t.decode.pending -= t.real.legs()
		t.decode.active += t.real.legs()
		t.decode.blocks[0] -= t.blocks
		t.decode.blocks[1] += t.blocks
	}
}

func (m *reference) grow(t *refTicket, blocks int64) {
	if d := t.decode; d != nil {
		look := m.lookIfOver(d)
		t.blocks += blocks
		if t.active {
			d.blocks[1] += blocks
		} else {
			d.blocks[0] += blocks
		}
		look()
		m.lookAgain(t.group())
	}
}

// come tells that n tokens more of the answer have come, alike in each leg. They fill
// what was reserved for them; only what outgrows it is booked.
func (m *reference) come(t *refTicket, n int64) {
	t.output += n
	legs := int64(t.real.legs())
	leg := func(tokens, of int64) int64 { return (tokens + of - 1) / of }
	prompt := leg(t.real.PromptTokens, legs)
	more := legs * (leg(prompt+leg(t.output, legs), t.size) - leg(prompt+t.real.ReserveTokens, t.size))
	if more > t.outgrown {
		m.grow(t, more-t.outgrown)
		t.outgrown = more
	}
}

func (m *reference) dropDecode(t *refTicket) {
	d := t.decode
	if t.active {
		d.active -= t.real.legs()
		d.blocks[1] -= t.blocks
	} else {
		d.pending -= t.real.legs()
		d.blocks[0] -= t.blocks
	}
	if t.decEpoch == d.epoch && d.state.Breaker == BreakerHalfOpen {
		d.probes--
	}
	t.decode, t.decEpoch, t.blocks = nil, 0, 0
}

func (m *reference) endDecode(t *refTicket) {
	if t.decode != nil {
		if t.prefillWas == nil {
			m.endTokens(t)
		}
		m.lookFor(t.decode)
		m.dropDecode(t)
		m.endRun(t, DecodeLeg)
	}
}

// staged are the ranks that the decode booking of t may move to.
func (m *reference) staged(t *refTicket, exclude []*Rank) []*refRank {
	if t.state != stateGranted || t.decode == nil || t.prefillWas == nil {
		return nil
	}
	left := func(d *refRank) bool {
		for _, x := range m.ranks {
			if (x == t.decode || slices.Contains(exclude, x.real)) && m.sameWorker(d, x) {
				return true
			}
		}
		return false
	}
	for _, avoid := range []legSet{onPairs | decodeWorkers, onPairs, decodeWorkers, 0} {
		var all []*refRank
		for _, d := range m.ranks {
			p := t.prefillWas
			if m.fits(t, DecodeLeg, d) && m.room(d) && d != t.decode && !slices.Contains(exclude, d.real) &&
				d.real.group == p.real.group && (t.target.spec.Topology != TopologyRequired || d.real.topology == p.real.topology) &&
				!(avoid&onPairs != 0 && slices.Contains(m.quarantines, refBar{p, d})) && !(avoid&decodeWorkers != 0 && left(d)) {
				all = append(all, d)
			}
		}
		if len(all) > 0 {
			return all
		}
	}
	return nil
}
