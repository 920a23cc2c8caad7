package admission

import "time"

// A [Core] can be driven by values alone: each step, each answer and the whole state can
// be written as JSON and read back, on another machine, too. Tickets have numbers there,
// ranks a name and a generation, targets their specification. [Port] keeps the tables.

// RankRef names a rank: its id, and which of the ranks that had this id.
type RankRef struct {
	ID         string
	Generation uint64
}

// Request is what a [Ticket] asks for; its fields are those of the ticket.
type Request struct {
	Target         TargetSpec
	Legs           int
	Hints          [numLegs]RequestHint
	Renew          bool `json:",omitempty"` // hints: the ticket has a Matcher
	Deadline       Instant
	NoWorkerWaited time.Duration
	Retry          bool
	Exclude        [numLegs][]RankRef

	PromptTokens, CachedTokens int64
	ReserveTokens              int64
	Bytes                      int64
	Class                      string
	StrictPriority             int
	PriorityJump               float64
	ClassDeadline              Instant

	Bypass  *BypassRule
	Instead *TargetSpec

	// Predicate is a number of what Target and Instead ask for: requests of one gate that
	// have the same number, which is not 0, ask for the same. It is not written down.
	Predicate uint64 `json:"-"`
	// Origin is whose request it is; see StepSetMask.
	Origin uint64 `json:",omitempty"`
}

// RequestHint is a [Hint].
type RequestHint struct {
	Key          uint64
	HasKey       bool
	Holders      []RequestHolder `json:",omitempty"`
	PromptTokens int64           `json:",omitempty"`
	Sharing      int32           `json:",omitempty"`
	PrefixKey    uint64          `json:",omitempty"`
	HasPrefix    bool            `json:",omitempty"`
}

// RequestHolder is a [Holder].
type RequestHolder struct {
	Rank   RankRef
	Tokens int64
}

// FleetChange is a [Change]. A rank that is added is described by Add, its generation
// included; other changes name it.
type FleetChange struct {
	Op         ChangeOp
	Rank       RankRef
	Add        *RankSpec
	State      RankState
	Attributes RankAttributes
	Other      RankRef
	Report     RankReport
	Aside      Aside
}

// StepOp is which step of a core is taken.
type StepOp string

// The steps: the methods of [Core] of that name, and what only a port does.
const (
	StepArrive        StepOp = "arrive" // Ticket and Request
	StepCancel        StepOp = "cancel"
	StepStartDecode   StepOp = "start_decode"
	StepFirstToken    StepOp = "first_token"
	StepGrow          StepOp = "grow"        // by Blocks
	StepGrowTo        StepOp = "grow_to"     // to Blocks in all since the grant or the last move; less does nothing
	StepMoveDecode    StepOp = "move_decode" // not to Exclude
	StepRefresh       StepOp = "refresh"     // to Hints
	StepEndPrefill    StepOp = "end_prefill"
	StepEndDecode     StepOp = "end_decode"
	StepRelease       StepOp = "release"
	StepForget        StepOp = "forget"   // Release, and the ticket comes no more
	StepSuspend       StepOp = "suspend"  // Tickets: waiters block nobody, and nothing ends their waits, until they are put back
	StepPutBack       StepOp = "put_back" // Tickets, in their place
	StepSetMask       StepOp = "set_mask" // Exclude are what requests of Origin may not use
	StepApply         StepOp = "apply"    // Changes
	StepAdvance       StepOp = "advance"
	StepReload        StepOp = "reload"      // Settings
	StepSetLimits     StepOp = "set_limits"  // of Settings
	StepSetClasses    StepOp = "set_classes" // of Settings
	StepSetReject     StepOp = "set_reject"  // of Settings
	StepStopArrivals  StepOp = "stop_arrivals"
	StepDrainWithin   StepOp = "drain_within" // Within
	StepRefuseWaiters StepOp = "refuse_waiters"
)

// Step is one step of a core, written down.
type Step struct {
	Op       StepOp
	Now      Instant
	Ticket   uint64          `json:",omitempty"`
	Tickets  []uint64        `json:",omitempty"`
	Request  *Request        `json:",omitempty"`
	Blocks   int64           `json:",omitempty"`
	Hints    *[2]RequestHint `json:",omitempty"`
	Exclude  []RankRef       `json:",omitempty"`
	Origin   uint64          `json:",omitempty"`
	Changes  []FleetChange   `json:",omitempty"`
	Settings *Settings       `json:",omitempty"`
	Within   time.Duration   `json:",omitempty"`
}

// Answer is what came of a step.
type Answer struct {
	// Done is what Cancel and MoveDecode return; false also when a ticket could not
	// arrive: nobody serves its model, or it waits or holds something already.
	Done bool
	// Decided are the tickets that were decided, the one that arrived among them.
	Decided []Decision
	// Ask are the tickets whose hints are to be renewed, by StepRefresh.
	Ask []uint64 `json:",omitempty"`
	// Next is when time has to be told at the latest; see [Core.NextDeadline].
	Next Instant
}

// Decision is what became of a ticket.
type Decision struct {
	Ticket  uint64
	Granted bool
	Refusal *Refusal
	// Prefill and Decode are the granted ranks; zero: none.
	Prefill RankRef `json:",omitzero"`
	Decode  RankRef `json:",omitzero"`
	// Class is that which the ticket was given, Queued whether it had to wait, Waited for how
	// long, over all waits.
	Class  string        `json:",omitempty"`
	Queued bool          `json:",omitempty"`
	Waited time.Duration `json:",omitempty"`
	Lacked Resource      `json:",omitempty"`
	Choice Choice        `json:",omitzero"`
}

// Place is the place of a waiter: they come in the order of their first arrival, and the
// number tells the order of those that came at the same time. Cores with higher epochs give
// later places. The zero Place is none.
type Place struct{ Epoch, Number uint64 }

// Port drives a core by values. Like the core it is not safe for concurrent use.
type Port struct {
	core    *Core
	ranks   map[RankRef]*Rank // registered, or still mentioned
	gone    int               // how many of them are not registered
	tickets map[uint64]*Ticket
	out     []*Ticket
	nobody  *Ticket       // holds nothing, waits for nothing
	spare   []*portTicket // that are over
}

// portTicket is a ticket of a port, in one piece of memory.
type portTicket struct {
	Ticket
	extraTicket
}

// maxSpare bounds the tickets that are kept for others.
const maxSpare = 1024

// NewPort makes a port to a core without ranks.
func NewPort(o Options) *Port {
	return &Port{core: NewCore(o), ranks: map[RankRef]*Rank{}, tickets: map[uint64]*Ticket{}, nobody: &Ticket{}}
}

// Do takes a step. Steps for tickets that the port does not know do nothing.
func (p *Port) Do(s Step) Answer {
	var a Answer
	p.Take(&s, &a)
	return a
}

// Take is Do with the memory of a, of which nothing else is used. Nothing of the step is
// kept, but for what pointers, slices and strings of a request lead to, which must not change.
func (p *Port) Take(s *Step, a *Answer) {
	c, out := p.core, &p.out
	t := p.tickets[s.Ticket]
	if t == nil {
		t = p.nobody
	}
	done := true
	switch s.Op {
	case StepArrive:
		if t.state == stateQueued || t.state == stateSuspended || t.holdsPrefill || t.holdsDecode {
			done = false // it came before
		} else if t, done = p.arriving(s); done {
			c.Arrive(s.Now, t, out)
			if t.state != stateQueued {
				*out = append(*out, t)
			} else {
				t.extra.home = nil
			}
		}
	case StepCancel:
		if done = t.state == stateSuspended; done {
			t.waited += s.Now.Sub(t.queuedAt)
			t.state = stateIdle
		} else {
			done = c.Cancel(s.Now, t, out)
		}
	case StepStartDecode:
		c.StartDecode(t)
	case StepFirstToken:
		c.FirstToken(s.Now, t, out)
	case StepGrow:
		p.grow(s, t, s.Blocks)
	case StepGrowTo:
		if t.extra != nil {
			p.grow(s, t, s.Blocks-t.extra.grown)
		}
	case StepMoveDecode:
		if done = c.MoveDecode(s.Now, t, p.rankList(s.Exclude), out); done {
			t.extra.grown = 0
		}
	case StepRefresh:
		if done = s.Hints != nil; done {
			c.Refresh(s.Now, t, p.hints(s.Hints), out)
		}
	case StepEndPrefill:
		c.EndPrefill(s.Now, t, out)
	case StepEndDecode:
		c.EndDecode(s.Now, t, out)
	case StepRelease:
		c.Release(s.Now, t, out)
	case StepForget:
		p.forget(s, t)
	case StepSuspend:
		suspend(c, s.Now, p.ticketList(s.Tickets), out)
	case StepPutBack:
		putBackAll(c, s.Now, p.ticketList(s.Tickets), out)
	case StepSetMask:
		p.setMask(s)
	case StepApply:
		c.Apply(s.Now, p.changes(s.Changes), out)
		p.sweep()
	case StepAdvance:
		c.Advance(s.Now, out)
	case StepReload:
		c.Reload(s.Now, *s.Settings, out)
	case StepSetLimits:
		c.SetLimits(s.Now, s.Settings.Limits, out)
	case StepSetClasses:
		c.SetClasses(s.Now, s.Settings.Classes, out)
	case StepSetReject:
		c.SetRejectThresholds(s.Now, s.Settings.Reject, out)
	case StepStopArrivals:
		c.StopArrivals()
	case StepDrainWithin:
		c.DrainWithin(s.Now, s.Within, out)
	case StepRefuseWaiters:
		c.RefuseWaiters(s.Now, out)
	default:
		done = false
	}
	p.answer(done, a)
}

// answer makes a what came of a step.
func (p *Port) answer(done bool, a *Answer) {
	a.Done, a.Next = done, p.core.NextDeadline()
	a.Decided, a.Ask = a.Decided[:0], a.Ask[:0]
	for i, t := range p.out {
		d := Decision{
			Ticket: t.extra.number, Granted: t.state == stateGranted,
			Class: t.ClassName(), Queued: t.wasQueue, Waited: t.waited, Lacked: t.lacked,
		}
		if d.Granted {
			d.Prefill, d.Decode, d.Choice = t.Prefill.ref(), t.Decode.ref(), t.choice
		} else {
			d.Refusal = t.refusal
		}
		a.Decided = append(a.Decided, d)
		p.out[i] = nil
	}
	p.out = p.out[:0]
	for _, t := range p.core.Asked() {
		a.Ask = append(a.Ask, t.extra.number)
	}
}

// arriving returns the ticket of a step as its request says; ok is false when nobody
// serves its model.
func (p *Port) arriving(s *Step) (t *Ticket, ok bool) {
	t = p.tickets[s.Ticket]
	if t == nil {
		target := p.core.Resolve(s.Request.Target)
		if target == nil {
			return nil, false
		}
		t = p.ticket(s.Ticket)
		t.Target = target
		if s.Request.Instead != nil {
			t.Instead = p.core.Resolve(*s.Request.Instead)
		}
	}
	p.set(t, s.Request)
	t.extra.grown = 0
	return t, true
}

// ticket makes the ticket of a number.
func (p *Port) ticket(number uint64) *Ticket {
	var x *portTicket
	if last := len(p.spare) - 1; last >= 0 {
		x = p.spare[last]
		p.spare[last] = nil
		p.spare = p.spare[:last]
	} else {
		x = &portTicket{}
	}
	x.number, x.home = number, x
	x.extra = &x.extraTicket
	p.tickets[number] = &x.Ticket
	return &x.Ticket
}

// set gives t what a request says, but for its targets.
func (p *Port) set(t *Ticket, r *Request) {
	t.Legs, t.Deadline, t.NoWorkerWaited, t.Retry = min(r.Legs, maxLegs), r.Deadline, r.NoWorkerWaited, r.Retry
	t.PromptTokens, t.CachedTokens, t.ReserveTokens, t.Bytes = r.PromptTokens, r.CachedTokens, r.ReserveTokens, r.Bytes
	t.Class, t.StrictPriority, t.PriorityJump, t.ClassDeadline = r.Class, r.StrictPriority, r.PriorityJump, r.ClassDeadline
	t.Bypass = r.Bypass
	t.Matcher = nil
	if r.Renew {
		t.Matcher = atPort{}
	}
	for l := range numLegs {
		p.hint(&t.Hints[l], &r.Hints[l])
		t.Exclude[l] = p.rankList(r.Exclude[l])
	}
	t.extra.origin = r.Origin
	if len(p.core.masks) > 0 || t.mask != nil {
		t.mask = maskOf(&p.core.rankIndex, r.Origin)
	}
}

// maxLegs bounds the calls of one request, so that no sum overflows.
const maxLegs = 1 << 20

// grow adds blocks of output to what t holds.
func (p *Port) grow(s *Step, t *Ticket, blocks int64) {
	if t.holdsDecode && blocks > 0 {
		p.core.Grow(s.Now, t, blocks, &p.out)
		t.extra.grown += min(blocks, maxAmount)
	}
}

// forget ends what a ticket still has.
func (p *Port) forget(s *Step, t *Ticket) {
	if t == p.nobody {
		return
	}
	p.core.Cancel(s.Now, t, &p.out)
	p.core.Release(s.Now, t, &p.out)
	for _, target := range [...]*Target{t.Target, t.Instead} {
		if target != nil {
			p.core.unref(target)
		}
	}
	delete(p.tickets, s.Ticket)
	if x := t.extra.home; x != nil && len(p.spare) < maxSpare {
		*x = portTicket{}
		p.spare = append(p.spare, x)
	}
}

// setMask makes s.Exclude what requests of an origin may not use.
func (p *Port) setMask(s *Step) {
	var tickets []*Ticket
	for _, t := range p.tickets {
		if t.extra.origin == s.Origin {
			tickets = append(tickets, t)
		}
	}
	setMask(p.core, s.Now, s.Origin, p.rankList(s.Exclude), tickets, &p.out)
	p.sweep()
}

func (p *Port) ticketList(numbers []uint64) (tickets []*Ticket) {
	for _, n := range numbers {
		if t := p.tickets[n]; t != nil {
			tickets = append(tickets, t)
		}
	}
	return tickets
}

// rank returns the rank of a name; one that is not registered if it is not known.
func (p *Port) rank(ref RankRef) *Rank {
	r := p.ranks[ref]
	if r == nil {
		r = NewRank(RankSpec{ID: ref.ID, Generation: ref.Generation})
		r.stub = true
		p.ranks[ref] = r
		p.gone++
	}
	return r
}

// atPort is the Matcher of tickets whose hints are renewed by steps.
type atPort struct{}

func (atPort) Match(*Ticket, *[2]Hint) bool { return false }

// hints reads written hints.
func (p *Port) hints(r *[2]RequestHint) *[2]Hint {
	var hints [2]Hint
	for l := range numLegs {
		p.hint(&hints[l], &r[l])
	}
	return &hints
}

// hint reads a written hint.
func (p *Port) hint(h *Hint, r *RequestHint) {
	*h = Hint{Key: r.Key, HasKey: r.HasKey, PromptTokens: r.PromptTokens, Sharing: r.Sharing, PrefixKey: r.PrefixKey, HasPrefix: r.HasPrefix}
	for i := range r.Holders[:min(len(r.Holders), MaxHolders)] {
		h.Holders[i] = Holder{p.rank(r.Holders[i].Rank), r.Holders[i].Tokens}
	}
}

// hintOf writes a hint down.
func hintOf(h *Hint) RequestHint {
	r := RequestHint{Key: h.Key, HasKey: h.HasKey, PromptTokens: h.PromptTokens, Sharing: h.Sharing, PrefixKey: h.PrefixKey, HasPrefix: h.HasPrefix}
	for _, holder := range h.Holders {
		if holder.Rank == nil {
			break
		}
		r.Holders = append(r.Holders, RequestHolder{holder.Rank.ref(), holder.Tokens})
	}
	return r
}

func (p *Port) rankList(refs []RankRef) (ranks []*Rank) {
	for _, ref := range refs {
		ranks = append(ranks, p.rank(ref))
	}
	return ranks
}

func (p *Port) changes(all []FleetChange) (changes []Change) {
	for _, x := range all {
		ch := Change{Op: x.Op, State: x.State, Attributes: x.Attributes, Report: x.Report, Aside: x.Aside}
		switch x.Op {
		case AddRank:
			r := NewRank(*x.Add)
			switch old := p.ranks[r.ref()]; {
			case old == nil:
				p.ranks[r.ref()] = r
			case old.stub:
				old.become(r)
				r = old
				p.gone--
			default:
				continue // it came twice, or after its removal
			}
			ch.Rank = r
		case QuarantinePair, EndQuarantine:
			ch.Rank, ch.Other = p.rank(x.Rank), p.rank(x.Other)
		default:
			ch.Rank = p.rank(x.Rank)
			if x.Op == RemoveRank && ch.Rank.present {
				p.gone++
			}
		}
		changes = append(changes, ch)
	}
	return changes
}

// maxGone bounds the ranks that are remembered after their removal, beside those that
// tickets mention.
const maxGone = 1024

// sweep forgets ranks that are gone and that no ticket mentions, when they are many.
func (p *Port) sweep() {
	if p.gone <= maxGone {
		return
	}
	mentioned := map[*Rank]bool{}
	for _, t := range p.tickets {
		mentioned[t.Prefill], mentioned[t.Decode] = true, true
		for l, ranks := range t.Exclude {
			for _, r := range ranks {
				mentioned[r] = true
			}
			for _, h := range t.Hints[l].Holders {
				mentioned[h.Rank] = true
			}
		}
	}
	for _, m := range p.core.masks {
		for _, r := range m.ranks {
			mentioned[r] = true
		}
	}
	p.gone = 0
	for ref, r := range p.ranks {
		switch {
		case r.present:
		case mentioned[r]:
			p.gone++
		default:
			delete(p.ranks, ref)
		}
	}
}

// ref names a rank; nil: the zero value.
func (r *Rank) ref() RankRef {
	if r == nil {
		return RankRef{}
	}
	return RankRef{r.id, r.generation}
}

// become makes r, which was only mentioned so far, the rank that o describes. What tickets
// hold of it, they hold of that.
func (r *Rank) become(o *Rank) {
	r.stub = false
	r.role, r.state, r.worker, r.number, r.data = o.role, o.state, o.worker, o.number, o.data
	r.report, r.unbooked, r.vetoed = o.report, o.unbooked, o.vetoed
	r.setAttributes(RankAttributes{
		Models: o.models, PairGroup: o.group, Topology: o.topology,
		Labels: o.labels, Adapters: o.adapters, Capacity: o.capacity, Limits: o.bounds, Priority: o.priority,
	})
	r.addAside(o.aside)
}

func refOf(r *Rank) *RankRef {
	if r == nil {
		return nil
	}
	ref := r.ref()
	return &ref
}

func refsOf(ranks []*Rank) (refs []RankRef) {
	for _, r := range ranks {
		refs = append(refs, r.ref())
	}
	return refs
}

// requestOf writes down what t asks for.
func requestOf(t *Ticket) Request {
	r := Request{
		Target: t.Target.specification(), Legs: t.Legs, Deadline: t.Deadline,
		NoWorkerWaited: t.NoWorkerWaited, Retry: t.Retry, Renew: t.Matcher != nil,
		PromptTokens: t.PromptTokens, CachedTokens: t.CachedTokens, ReserveTokens: t.ReserveTokens, Bytes: t.Bytes,
		Class: t.Class, StrictPriority: t.StrictPriority, PriorityJump: t.jump(), ClassDeadline: t.ClassDeadline,
		Bypass: t.Bypass,
	}
	if t.extra != nil {
		r.Origin = t.extra.origin
	}
	for l, ranks := range t.Exclude {
		r.Exclude[l] = refsOf(ranks)
		r.Hints[l] = hintOf(&t.Hints[l])
	}
	if t.Instead != nil {
		s := t.Instead.specification()
		r.Instead = &s
	}
	r.Predicate = predicate(t)
	return r
}

// predicate is a number of what t may be placed on; see Request.
func predicate(t *Ticket) uint64 {
	n := t.Target.number
	if t.Instead == nil && n>>32 == 0 {
		return n
	}
	if t.Instead == nil || (n|t.Instead.number)>>32 != 0 {
		return 0
	}
	return n | t.Instead.number<<32
}

// specification is what the target was resolved from, with the model that serves it.
func (t *Target) specification() TargetSpec {
	s := t.spec
	s.Model, s.Shape = t.model.name, t.shape
	return s
}

// specOf describes a rank as it is now.
func specOf(r *Rank) RankSpec {
	return RankSpec{
		ID: r.id, Generation: r.generation, Worker: r.worker, Role: r.role, Models: r.models, PairGroup: r.group,
		Topology: r.topology, Labels: r.labels, Adapters: r.adapters, Capacity: r.capacity, Limits: r.bounds, Priority: r.priority, State: r.state,
		Reported: r.reported(), Aside: r.aside,
	}
}
