package admission

import (
	"slices"
)

// Restore makes a port to a core in that state. o is what the process brings along;
// limits, classes and thresholds of it do not count. Decided are waiters that need not
// wait here.
func Restore(now Instant, s State, o Options) (*Port, Answer) {
	o.Limits, o.Classes, o.Reject, o.Epoch = s.Settings.Limits, s.Settings.Classes, s.Settings.Reject, s.Epoch
	p := NewPort(o)
	c := p.core
	c.loaded = s.Loaded
	c.arrivals, c.noArrivals, c.noWaits, c.drainEnd = s.Arrivals, s.NoArrivals, s.NoWaits, s.DrainEnd
	c.unknownClass, c.missed, c.fences = s.UnknownClasses, s.MissedEvents, s.Fences

	var changes []FleetChange
	for i := range s.Ranks {
		changes = append(changes, FleetChange{Op: AddRank, Add: &s.Ranks[i]})
	}
	for _, b := range s.Quarantined {
		changes = append(changes, FleetChange{Op: QuarantinePair, Rank: b[PrefillLeg], Other: b[DecodeLeg]})
	}
	c.Apply(now, p.changes(changes), &p.out)
	for _, x := range s.Masks {
		m := &mask{origin: x.Origin, ranks: p.rankList(x.Ranks)}
		m.index(c.words)
		c.masks = append(c.masks, m)
	}

	for _, spec := range s.Gone {
		r := NewRank(spec)
		r.groupID = c.group(r.group) // a decode leg may still move to what it was paired with
		p.ranks[r.ref()] = r
		p.gone++
	}
	tickets := make([]*Ticket, len(s.Tickets))
	for i := range s.Tickets {
		tickets[i] = p.restoreTicket(&s.Tickets[i])
	}
	c.Resume(now, tickets, &p.out)
	var a Answer
	p.answer(true, &a)
	return p, a
}

func (p *Port) restoreTicket(s *TicketState) *Ticket {
	c := p.core
	t := p.ticket(s.Ticket)
	home := t.extra
	*t = Ticket{
		extra:   home,
		arrived: s.Arrived, arrival: s.Arrival, epoch: s.Epoch, seq: s.Order, waited: s.Waited, refusal: s.Refusal,
		weight: s.Cost, orderBy: s.OrderBy,
		queuedAt: s.QueuedAt, limitAt: s.LimitAt, lostAt: s.LostAt, classAt: s.ClassAt, classLimit: int64(s.ClassLimit),
		queuedRaw: s.QueuedRaw, queuedCached: s.QueuedCached, wasQueue: s.WasQueued, reconsidered: s.Reconsidered, lacked: s.Lacked,
		passes: uint8(min(max(s.Passes, 0), 255)), declined: s.Declined, declinesAt: s.DeclinesAt,
		holdsPrefill: s.HoldsPrefill, holdsDecode: s.HoldsDecode, decodeActive: s.DecodeActive,
		tokens: s.Tokens, heldBlocks: s.Blocks, granted: s.GrantedAt, probes: s.Probes,
		state: ticketState(max(slices.Index(statuses[:], s.Status), 0)),
	}
	home.grown, home.home = s.Grown, nil // its memory is not used again
	p.set(t, &s.Request)
	// The ranks of the model may have left since.
	t.Target = c.intern(c.model(s.Target.Model), s.Target)
	if s.Instead != nil {
		t.Instead = c.intern(c.model(s.Instead.Model), *s.Instead)
	}
	if s.ClassName != "" { // of a configuration that is not there any more
		t.class = &class{Class: Class{Name: s.ClassName}}
	}
	if s.Prefill != nil {
		t.Prefill = p.rank(*s.Prefill)
	}
	if s.Decode != nil {
		t.Decode = p.rank(*s.Decode)
	}
	return t
}

// Resume books on a fresh core what tickets hold that were granted before, and queues
// those that waited again, in their place. What is held comes first: no waiter takes it.
func (c *Core) Resume(now Instant, tickets []*Ticket, out *[]*Ticket) {
	resumeHolds(c, now, tickets)
	waiters := slices.DeleteFunc(slices.Clone(tickets), func(t *Ticket) bool { return t.state != stateQueued })
	slices.SortFunc(waiters, (*Ticket).compare)
	for _, t := range waiters {
		if t.declining() {
			t.stopClock(now)
		}
		t.setWake()
		c.enter(now, t, c.chooser.servable(t.Target, t.mask))
	}
	c.dropUnusedModels(&c.rankIndex)
	for _, f := range c.modelGroups {
		c.drain(now, f, out)
	}
}

// resumeHolds books what tickets hold.
func resumeHolds(c *Core, now Instant, tickets []*Ticket) {
	c.tick(now)
	c.restructure(now, &c.rankIndex, false)
	for _, t := range tickets {
		if t.class != nil {
			c.classify(t)
		}
		c.restoreHolds(t)
		c.resumeRuns(t)
	}
}
