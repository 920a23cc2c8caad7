package admission

import (
	"cmp"
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
	Masks       []MaskState   `json:",omitempty"` // by origin
	Tickets     []TicketState // by number

	Epoch                uint64 `json:",omitempty"`
	Arrivals             uint64
	NoArrivals, NoWaits  bool
	DrainEnd             Instant // never: waiting does not end
	UnknownClasses       uint64
	MissedEvents, Fences uint64
}

// MaskState are the ranks that the requests of one origin may not use.
type MaskState struct {
	Origin uint64
	Ranks  []RankRef
}

// TicketState is one ticket: what it asks for, and where it stands.
type TicketState struct {
	Ticket uint64
	Request
	Status  TicketStatus
	Refusal *Refusal `json:",omitempty"`

	Arrived bool
	Arrival Instant // the first one; Epoch and Order are its [Place]
	Epoch   uint64  `json:",omitempty"`
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

	// What it was granted last, and what it still holds of that. Grown are blocks of output
	// among Blocks, but for those before the last move.
	Prefill, Decode                         *RankRef
	HoldsPrefill, HoldsDecode, DecodeActive bool
	Tokens, Blocks                          int64
	Grown                                   int64 `json:",omitempty"`
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
	// A suspended one waits as one that is queued, but cannot start; see StepSuspend.
	StatusSuspended TicketStatus = "suspended"
)

var statuses = [...]TicketStatus{stateIdle: StatusIdle, stateQueued: StatusQueued, stateGranted: StatusGranted, stateRefused: StatusRefused, stateSuspended: StatusSuspended}

// State writes down what the core knows.
func (p *Port) State() State {
	c := p.core
	s := State{
		Settings: Settings{Limits: c.limits, Classes: c.classes, Reject: c.reject}, Loaded: c.loaded,
		Epoch: c.epoch, Arrivals: c.arrivals, NoArrivals: c.noArrivals, NoWaits: c.noWaits, DrainEnd: c.drainEnd,
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
	for _, m := range c.masks {
		s.Masks = append(s.Masks, MaskState{m.origin, refsOf(m.ranks)})
	}
	slices.SortFunc(s.Masks, func(a, b MaskState) int { return cmp.Compare(a.Origin, b.Origin) })
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
		Arrived: t.arrived, Arrival: t.arrival, Epoch: t.epoch, Order: t.seq, Waited: t.waited,
		Cost: t.weight, OrderBy: t.orderBy,
		QueuedAt: t.queuedAt, LimitAt: t.limitAt, LostAt: t.lostAt, ClassAt: t.classAt, ClassLimit: time.Duration(t.classLimit),
		QueuedRaw: t.queuedRaw, QueuedCached: t.queuedCached, WasQueued: t.wasQueue, Reconsidered: t.reconsidered, Lacked: t.lacked,
		Passes: int(t.passes), Declined: t.declined, DeclinesAt: t.declinesAt,
		HoldsPrefill: t.holdsPrefill, HoldsDecode: t.holdsDecode, DecodeActive: t.decodeActive,
		Tokens: t.tokens, Blocks: t.heldBlocks, Grown: t.extra.grown, GrantedAt: t.granted,
	}
	if t.state != stateQueued && t.state != stateSuspended { // what was chosen for a waiter that was not granted means nothing
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
