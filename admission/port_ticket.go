package admission

import "time"

// PortTicket is where a ticket of a [Port] stands.
type PortTicket struct {
	Status TicketStatus
	Class  string
	Waited time.Duration // over all waits that are over
	Queued bool          // the last attempt had to wait
	Lacked Resource
	Choice Choice
	Place  Place

	// Of a waiter: when its wait ends, for each bound; never where there is none.
	LimitAt, ClassAt, Deadline Instant
	// What the bounds allow, for refusals.
	Limit, ClassLimit, Patience time.Duration

	// Of a granted one: what it was granted and still holds.
	Prefill, Decode                         RankRef
	HoldsPrefill, HoldsDecode, DecodeActive bool
	Tokens, Blocks                          int64
}

// Ticket tells where a ticket stands; false: the port does not know it.
func (p *Port) Ticket(number uint64) (s PortTicket, ok bool) {
	t := p.tickets[number]
	if t == nil {
		return s, false
	}
	s = PortTicket{
		Status: statuses[t.state], Class: t.ClassName(), Waited: t.waited, Queued: t.wasQueue, Lacked: t.lacked, Choice: t.choice, Place: Place{t.epoch, t.seq},
		HoldsPrefill: t.holdsPrefill, HoldsDecode: t.holdsDecode, DecodeActive: t.decodeActive,
		Tokens: t.tokens, Blocks: t.heldBlocks,
	}
	switch t.state {
	case stateQueued, stateSuspended:
		s.LimitAt, s.ClassAt, s.Deadline = t.limitAt, t.classAt, never
		s.Limit, s.ClassLimit = t.limitAt.Sub(t.queuedAt)+t.waited, time.Duration(t.classLimit)
		if t.Deadline != 0 {
			s.Deadline, s.Patience = t.Deadline, time.Duration(t.patience())
		}
	case stateGranted:
		s.Prefill, s.Decode = t.Prefill.ref(), t.Decode.ref()
	}
	return s, true
}

// PrefillSlots tells whether requests in prefill are bounded, on some rank at least.
func (p *Port) PrefillSlots() bool { return p.core.limits.PrefillSlots > 0 || p.core.ownSlots > 0 }
