package admission

import (
	"cmp"
	"slices"
)

// Adopt adds tickets to a running core in the state that they had elsewhere, of which
// another process tells. It books what they hold, whether there is room or not. Waiters are
// queued in their place, whatever the bounds of queues are, those without a place behind them
// by the age of their arrival; bounds of their waits are worked out anew, from QueuedAt.
// Tokens and Blocks that are negative are what the request needs on its ranks, with Grown.
// Of what contradicts itself, or is not known here, as little as possible is taken. Tickets
// that the port knows already stay as they are. Decided are waiters that need not wait.
func (p *Port) Adopt(now Instant, states []TicketState) Answer {
	c := p.core
	var tickets, waiters []*Ticket
	for i := range states {
		if p.tickets[states[i].Ticket] != nil {
			continue
		}
		s := states[i]
		s.clean(now)
		for _, target := range [...]*TargetSpec{&s.Target, s.Instead} {
			if target != nil {
				if m := c.modelOf(target.Model); m != nil {
					target.Model = m.name
				}
			}
		}
		t := p.restoreTicket(&s)
		p.fit(t)
		tickets = append(tickets, t)
		if t.state == stateQueued || t.state == stateSuspended {
			waiters = append(waiters, t)
		}
	}
	p.placeAdopted(tickets, waiters)
	c.restructure(now, &c.rankIndex, false)
	for _, t := range tickets {
		c.classify(t) // with a class of its own it stays in that, if there is one of that name
	}
	resumeHolds(c, now, tickets)
	for _, t := range waiters {
		p.boundAdopted(now, t)
		if t.state == stateQueued {
			putBack(c, now, t, &p.out)
		}
	}
	c.dropUnusedModels(&c.rankIndex)
	for _, f := range c.modelGroups {
		c.drain(now, f, &p.out)
	}
	var a Answer
	p.answer(true, &a)
	return a
}

// clean takes from s what cannot be.
func (s *TicketState) clean(now Instant) {
	s.Arrival, s.QueuedAt, s.GrantedAt = min(s.Arrival, now), min(s.QueuedAt, now), min(s.GrantedAt, now)
	s.Waited, s.Declined = max(s.Waited, 0), max(s.Declined, 0)
	if s.DeclinesAt > 0 && s.DeclinesAt < now {
		s.Declined += now.Sub(s.DeclinesAt)
	}
	s.DeclinesAt = 0
	s.QueuedAt = max(s.QueuedAt, s.Arrival)
	s.Arrived, s.Refusal, s.Probes = true, nil, [numLegs]bool{}
	s.Cost = min(max(s.Cost, 0), maxAmount)
	s.Tokens, s.Blocks, s.Grown = min(s.Tokens, maxAmount), min(s.Blocks, maxAmount), min(max(s.Grown, 0), maxAmount)
	s.HoldsPrefill = s.HoldsPrefill && s.Prefill != nil
	s.HoldsDecode = s.HoldsDecode && s.Decode != nil
	switch s.Status {
	case StatusQueued, StatusSuspended:
		s.HoldsPrefill, s.HoldsDecode = false, false
		s.WasQueued = true
	case StatusGranted:
	default:
		s.Status = StatusIdle
		s.HoldsPrefill, s.HoldsDecode = false, false
	}
	s.DecodeActive = s.DecodeActive && s.HoldsDecode
}

// fit makes what t holds fit the ranks that it holds it on.
func (p *Port) fit(t *Ticket) {
	if t.Prefill != nil && t.Prefill.present && t.Prefill.role != RolePrefill {
		t.Prefill, t.holdsPrefill = nil, false
	}
	if t.Decode != nil && t.Decode.role == RolePrefill {
		t.Decode, t.holdsDecode, t.decodeActive = nil, false, false
	}
	if t.state != stateGranted {
		t.Prefill, t.Decode = nil, nil
	}
	leg, tokens := PrefillLeg, t.holdsPrefill
	if t.Prefill == nil {
		leg, tokens = DecodeLeg, t.holdsDecode
	}
	switch {
	case !tokens:
		t.tokens = 0
	case t.tokens < 0:
		t.tokens = t.uncachedOn(leg, t.prefillRank())
	}
	switch {
	case !t.holdsDecode:
		t.heldBlocks, t.extra.grown = 0, 0
	case t.heldBlocks < 0:
		t.heldBlocks = t.blocks(t.Decode.blockSize()) + t.extra.grown
	}
	for l, r := range [...]*Rank{t.Prefill, t.Decode} {
		held := [...]bool{t.holdsPrefill, t.holdsDecode}[l]
		t.probes[l] = held && r != nil && r.present && r.state.Breaker == BreakerHalfOpen
	}
	if t.state == stateQueued || t.state == stateSuspended {
		t.queuedRaw = min(max(t.PromptTokens, 0), maxAmount)
		t.queuedCached = min(max(t.CachedTokens, 0), t.queuedRaw)
	}
}

// placeAdopted gives places to those of tickets that have none, and makes the arrivals of
// waiters rise with their places, also in comparison with those who wait here.
func (p *Port) placeAdopted(tickets, waiters []*Ticket) {
	c := p.core
	place := func(a, b *Ticket) int { return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.seq, b.seq)) }
	adopted := map[*Ticket]bool{}
	for _, t := range tickets {
		adopted[t] = true
		if t.epoch == c.epoch {
			c.arrivals = max(c.arrivals, t.seq)
		}
	}
	var placed, others []*Ticket
	for _, t := range waiters {
		if t.epoch == 0 && t.seq == 0 {
			others = append(others, t)
		} else {
			placed = append(placed, t)
		}
	}
	for _, t := range p.tickets {
		if (t.state == stateQueued || t.state == stateSuspended) && !adopted[t] {
			placed = append(placed, t)
		}
	}
	slices.SortFunc(placed, place)
	latest := never
	for _, t := range slices.Backward(placed) {
		if adopted[t] {
			t.arrival = min(t.arrival, latest)
		} else {
			latest = min(latest, t.arrival)
		}
	}
	earliest := -never
	for _, t := range placed {
		if adopted[t] {
			t.arrival = max(t.arrival, earliest)
		}
		earliest = max(earliest, t.arrival)
	}
	for _, t := range tickets { // holds have a place only if they have waited
		if t.state != stateQueued && t.state != stateSuspended && t.epoch == 0 && t.seq == 0 {
			others = append(others, t)
		}
	}
	slices.SortStableFunc(others, func(a, b *Ticket) int { return cmp.Compare(a.arrival, b.arrival) })
	for _, t := range others {
		c.arrivals++
		t.epoch, t.seq = c.epoch, c.arrivals
		if t.state == stateQueued || t.state == stateSuspended {
			t.arrival = max(t.arrival, earliest)
		}
	}
}

// boundAdopted works out when the wait of t ends.
func (p *Port) boundAdopted(now Instant, t *Ticket) {
	c := p.core
	c.setBounds(t.queuedAt, t, true)
	t.classAt, t.classLimit = t.classWait(t.queuedAt)
	t.hintsAt = now
}
