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
}

// StepOp is which step of a core is taken.
type StepOp string

// The steps: the methods of [Core] of that name.
const (
	StepArrive        StepOp = "arrive" // Ticket and Request
	StepCancel        StepOp = "cancel"
	StepStartDecode   StepOp = "start_decode"
	StepFirstToken    StepOp = "first_token"
	StepGrow          StepOp = "grow"        // by Blocks
	StepMoveDecode    StepOp = "move_decode" // not to Exclude
	StepRefresh       StepOp = "refresh"     // to Hints
	StepEndPrefill    StepOp = "end_prefill"
	StepEndDecode     StepOp = "end_decode"
	StepRelease       StepOp = "release"
	StepForget        StepOp = "forget" // Release, and the ticket comes no more
	StepApply         StepOp = "apply"  // Changes
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
	Request  *Request        `json:",omitempty"`
	Blocks   int64           `json:",omitempty"`
	Hints    *[2]RequestHint `json:",omitempty"`
	Exclude  []RankRef       `json:",omitempty"`
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
	Ticket          uint64
	Granted         bool
	Refusal         *Refusal
	Prefill, Decode *RankRef
}

// Port drives a core by values. Like the core it is not safe for concurrent use.
type Port struct {
	core    *Core
	ranks   map[RankRef]*Rank // registered, or still mentioned
	gone    int               // how many of them are not registered
	tickets map[uint64]*Ticket
	numbers map[*Ticket]uint64
	out     []*Ticket
}

// NewPort makes a port to a core without ranks.
func NewPort(o Options) *Port {
	return &Port{core: NewCore(o), ranks: map[RankRef]*Rank{}, tickets: map[uint64]*Ticket{}, numbers: map[*Ticket]uint64{}}
}

// Do takes a step. Steps for tickets that the port does not know do nothing.
func (p *Port) Do(s Step) Answer {
	c, out := p.core, &p.out
	t := p.tickets[s.Ticket]
	if t == nil {
		t = &Ticket{} // holds nothing, waits for nothing
	}
	done := true
	switch s.Op {
	case StepArrive:
		if t.state == stateQueued || t.holdsPrefill || t.holdsDecode {
			done = false // it came before
		} else if t, done = p.arriving(s); done {
			c.Arrive(s.Now, t, out)
			if t.state != stateQueued {
				*out = append(*out, t)
			}
		}
	case StepCancel:
		done = c.Cancel(s.Now, t, out)
	case StepStartDecode:
		c.StartDecode(t)
	case StepFirstToken:
		c.FirstToken(s.Now, t, out)
	case StepGrow:
		c.Grow(s.Now, t, s.Blocks, out)
	case StepMoveDecode:
		done = c.MoveDecode(s.Now, t, p.rankList(s.Exclude), out)
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
	return p.answer(done)
}

func (p *Port) answer(done bool) Answer {
	a := Answer{Done: done, Next: p.core.NextDeadline()}
	for _, t := range p.out {
		d := Decision{Ticket: p.numbers[t], Granted: t.state == stateGranted}
		if d.Granted {
			d.Prefill, d.Decode = refOf(t.Prefill), refOf(t.Decode)
		} else {
			d.Refusal = t.refusal
		}
		a.Decided = append(a.Decided, d)
	}
	clear(p.out)
	p.out = p.out[:0]
	for _, t := range p.core.Asked() {
		a.Ask = append(a.Ask, p.numbers[t])
	}
	return a
}

// arriving returns the ticket of a step as its request says; ok is false when nobody
// serves its model.
func (p *Port) arriving(s Step) (t *Ticket, ok bool) {
	t = p.tickets[s.Ticket]
	if t == nil {
		t = &Ticket{}
		if t.Target = p.core.Resolve(s.Request.Target); t.Target == nil {
			return nil, false
		}
		if s.Request.Instead != nil {
			t.Instead = p.core.Resolve(*s.Request.Instead)
		}
		p.tickets[s.Ticket], p.numbers[t] = t, s.Ticket
	}
	p.set(t, s.Request)
	return t, true
}

// set gives t what a request says, but for its targets.
func (p *Port) set(t *Ticket, r *Request) {
	t.Legs, t.Deadline, t.NoWorkerWaited, t.Retry = r.Legs, r.Deadline, r.NoWorkerWaited, r.Retry
	t.PromptTokens, t.CachedTokens, t.ReserveTokens, t.Bytes = r.PromptTokens, r.CachedTokens, r.ReserveTokens, r.Bytes
	t.Class, t.StrictPriority, t.PriorityJump, t.ClassDeadline = r.Class, r.StrictPriority, r.PriorityJump, r.ClassDeadline
	t.Bypass = r.Bypass
	t.Hints, t.Matcher = *p.hints(&r.Hints), nil
	if r.Renew {
		t.Matcher = atPort{}
	}
	for l, refs := range r.Exclude {
		t.Exclude[l] = p.rankList(refs)
	}
}

// forget ends what a ticket still has.
func (p *Port) forget(s Step, t *Ticket) {
	if p.tickets[s.Ticket] != t {
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
	delete(p.numbers, t)
}

// rank returns the rank of a name; one that is not registered if it is not known.
func (p *Port) rank(ref RankRef) *Rank {
	r := p.ranks[ref]
	if r == nil {
		r = NewRank(RankSpec{ID: ref.ID, Generation: ref.Generation})
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
	return &[2]Hint{p.hint(&r[PrefillLeg]), p.hint(&r[DecodeLeg])}
}

// hint reads a written hint.
func (p *Port) hint(r *RequestHint) Hint {
	h := Hint{Key: r.Key, HasKey: r.HasKey, PromptTokens: r.PromptTokens, Sharing: r.Sharing, PrefixKey: r.PrefixKey, HasPrefix: r.HasPrefix}
	for i, holder := range r.Holders[:min(len(r.Holders), MaxHolders)] {
		h.Holders[i] = Holder{p.rank(holder.Rank), holder.Tokens}
	}
	return h
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
		ch := Change{Op: x.Op, State: x.State, Attributes: x.Attributes, Report: x.Report}
		switch x.Op {
		case AddRank:
			r := NewRank(*x.Add)
			if old := p.ranks[r.ref()]; old != nil {
				continue // it came twice, or after its removal
			}
			p.ranks[r.ref()] = r
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
	for t := range p.numbers {
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

func (r *Rank) ref() RankRef { return RankRef{r.id, r.generation} }

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
	for l, ranks := range t.Exclude {
		r.Exclude[l] = refsOf(ranks)
		r.Hints[l] = hintOf(&t.Hints[l])
	}
	if t.Instead != nil {
		s := t.Instead.specification()
		r.Instead = &s
	}
	r.Predicate = t.predicate()
	return r
}

// predicate is a number of what t may be placed on; see Request.
func (t *Ticket) predicate() uint64 {
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
		Reported: r.reported(),
	}
}
