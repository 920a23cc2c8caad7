package admission

import (
	"maps"
	"slices"
	"time"
)

// State is what a core knows that a fresh one cannot find out by itself: the ranks, what
// requests hold on them, who waits, and the settings in force. Deficits, fences, and how
// fast queues move are not in it; they start anew.
type State struct {
	Settings Settings
	// Loaded are the settings of the last reload.
	Loaded      Settings
	Ranks       []RankSpec // registered ones, by index
	Gone        []RankSpec // removed ones that tickets were granted: what they hold ends there
	Quarantined [][numLegs]RankRef
	Tickets     []TicketState // by number

	Arrivals             uint64
	NoArrivals, NoWaits  bool
	DrainEnd             Instant // never: waiting does not end
	UnknownClasses       uint64
	MissedEvents, Fences uint64
}

// TicketState is one ticket: what it asks for, and where it stands.
type TicketState struct {
	Ticket uint64
	Request
	Status  TicketStatus
	Refusal *Refusal `json:",omitempty"`

	Arrived bool
	Arrival Instant // the first one; Order is that among equal ones
	Order   uint64
	Waited  time.Duration // in all, but for the present wait

	// ClassName is the class it was given, Cost what it pays when served, OrderBy the
	// deadline that orders it.
	ClassName string
	Cost      int64
	OrderBy   Instant

	// Of the present wait.
	QueuedAt                Instant
	LimitAt, LostAt         Instant
	ClassAt                 Instant
	ClassLimit              time.Duration
	QueuedRaw, QueuedCached int64
	WasQueued, Reconsidered bool
	// Passes are how often it was passed over for the sake of caches, Declined for how long
	// it declined ranks for its own sake, but for the time since DeclinesAt, when it began
	// to decline what there is; 0: it does not.
	Passes     int           `json:",omitempty"`
	Declined   time.Duration `json:",omitempty"`
	DeclinesAt Instant       `json:",omitempty"`
	Lacked     Resource

	// What it was granted last, and what it still holds of that.
	Prefill, Decode                         *RankRef
	HoldsPrefill, HoldsDecode, DecodeActive bool
	Tokens, Blocks                          int64
	GrantedAt                               Instant
	Probes                                  [numLegs]bool
}

// TicketStatus is where a ticket stands.
type TicketStatus string

// The statuses. An idle ticket has not come yet, or its last attempt is over.
const (
	StatusIdle    TicketStatus = "idle"
	StatusQueued  TicketStatus = "queued"
	StatusGranted TicketStatus = "granted"
	StatusRefused TicketStatus = "refused"
)

var statuses = [...]TicketStatus{stateIdle: StatusIdle, stateQueued: StatusQueued, stateGranted: StatusGranted, stateRefused: StatusRefused}

// State writes down what the core knows.
func (p *Port) State() State {
	c := p.core
	s := State{
		Settings: Settings{Limits: c.limits, Classes: c.classes, Reject: c.reject}, Loaded: c.loaded,
		Arrivals: c.arrivals, NoArrivals: c.noArrivals, NoWaits: c.noWaits, DrainEnd: c.drainEnd,
		UnknownClasses: c.unknownClass, MissedEvents: c.missed, Fences: c.fences,
	}
	for _, r := range c.ranks {
		if r != nil {
			s.Ranks = append(s.Ranks, specOf(r))
		}
	}
	for _, q := range c.quarantines {
		s.Quarantined = append(s.Quarantined, [numLegs]RankRef{q.prefill.ref(), q.decode.ref()})
	}
	gone := map[*Rank]bool{}
	for _, n := range slices.Sorted(maps.Keys(p.tickets)) {
		t := p.tickets[n]
		s.Tickets = append(s.Tickets, stateOf(n, t))
		for _, r := range [...]*Rank{t.Prefill, t.Decode} {
			if r != nil && !r.present && !gone[r] {
				gone[r] = true
				s.Gone = append(s.Gone, specOf(r))
			}
		}
	}
	return s
}

func stateOf(number uint64, t *Ticket) TicketState {
	s := TicketState{
		Ticket: number, Request: requestOf(t), Status: statuses[t.state], Refusal: t.refusal,
		Arrived: t.arrived, Arrival: t.arrival, Order: t.seq, Waited: t.waited,
		Cost: t.weight, OrderBy: t.orderBy,
		QueuedAt: t.queuedAt, LimitAt: t.limitAt, LostAt: t.lostAt, ClassAt: t.classAt, ClassLimit: time.Duration(t.classLimit),
		QueuedRaw: t.queuedRaw, QueuedCached: t.queuedCached, WasQueued: t.wasQueue, Reconsidered: t.reconsidered, Lacked: t.lacked,
		Passes: int(t.passes), Declined: t.declined, DeclinesAt: t.declinesAt,
		HoldsPrefill: t.holdsPrefill, HoldsDecode: t.holdsDecode, DecodeActive: t.decodeActive,
		Tokens: t.tokens, Blocks: t.heldBlocks, GrantedAt: t.granted,
	}
	if t.state != stateQueued { // what was chosen for a waiter that was not granted means nothing
		s.Prefill, s.Decode = refOf(t.Prefill), refOf(t.Decode)
	}
	if t.class != nil {
		s.ClassName = t.class.Name
	}
	for l, r := range [...]*Rank{t.Prefill, t.Decode} {
		s.Probes[l] = r != nil && r.present && t.holdsProbe(r, Leg(l))
	}
	return s
}

// Restore makes a port to a core in that state. o is what the process brings along;
// limits, classes and thresholds of it do not count. Decided are waiters that need not
// wait here.
func Restore(now Instant, s State, o Options) (*Port, Answer) {
	o.Limits, o.Classes, o.Reject = s.Settings.Limits, s.Settings.Classes, s.Settings.Reject
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
	return p, p.answer(true)
}

func (p *Port) restoreTicket(s *TicketState) *Ticket {
	c := p.core
	t := &Ticket{
		arrived: s.Arrived, arrival: s.Arrival, seq: s.Order, waited: s.Waited, refusal: s.Refusal,
		weight: s.Cost, orderBy: s.OrderBy,
		queuedAt: s.QueuedAt, limitAt: s.LimitAt, lostAt: s.LostAt, classAt: s.ClassAt, classLimit: int64(s.ClassLimit),
		queuedRaw: s.QueuedRaw, queuedCached: s.QueuedCached, wasQueue: s.WasQueued, reconsidered: s.Reconsidered, lacked: s.Lacked,
		passes: uint8(min(max(s.Passes, 0), 255)), declined: s.Declined, declinesAt: s.DeclinesAt,
		holdsPrefill: s.HoldsPrefill, holdsDecode: s.HoldsDecode, decodeActive: s.DecodeActive,
		tokens: s.Tokens, heldBlocks: s.Blocks, granted: s.GrantedAt, probes: s.Probes,
		state: ticketState(max(slices.Index(statuses[:], s.Status), 0)),
	}
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
	p.tickets[s.Ticket], p.numbers[t] = t, s.Ticket
	return t
}

// Resume books on a fresh core what tickets hold that were granted before, and queues
// those that waited again, in their place. What is held comes first: no waiter takes it.
func (c *Core) Resume(now Instant, tickets []*Ticket, out *[]*Ticket) {
	c.tick(now)
	c.restructure(now, &c.rankIndex, false)
	for _, t := range tickets {
		if t.class != nil {
			c.classify(t)
		}
		c.restoreHolds(t)
		c.resumeRuns(t)
	}
	waiters := slices.DeleteFunc(slices.Clone(tickets), func(t *Ticket) bool { return t.state != stateQueued })
	slices.SortFunc(waiters, (*Ticket).compare)
	for _, t := range waiters {
		if t.declining() {
			t.stopClock(now)
		}
		t.setWake()
		c.enter(now, t, c.chooser.servable(t.Target))
	}
	c.dropUnusedModels(&c.rankIndex)
	for _, f := range c.modelGroups {
		c.drain(now, f, out)
	}
}
