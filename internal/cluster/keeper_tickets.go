package cluster

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// kept is a ticket of some member.
type kept struct {
	seat    *seat
	id      TicketID
	number  uint64 // in the port
	attempt uint32
	state   keptState
	ask     *Ask
	place   Place // zero until it has to wait

	again   bool // it was taken over: the port does not know when it came first
	granted admission.Instant
	grown   int64 // blocks since the grant, or since it was moved

	// Of what was granted to this process: own tells that it is not delivered yet. told: the
	// standby is being told, by what goes out next or went out as seq.
	own  bool
	told bool
	seq  uint64
}

type keptState uint8

const (
	keptIdle keptState = iota
	keptWaiting
	keptGranted
)

// maxAmount bounds what a member says of amounts.
const maxAmount = 1 << 40

// keep makes a ticket of a member.
func (k *keeper) keep(s *seat, number uint64) *kept {
	t := &kept{seat: s, id: TicketID{s.Incarnation, number}}
	k.number(t)
	s.tickets[number] = t
	return t
}

// number gives a ticket a number in the port.
func (k *keeper) number(t *kept) {
	if n := len(k.free); n > 0 {
		t.number, k.free = k.free[n-1], k.free[:n-1]
		k.tickets[t.number] = t
	} else {
		t.number = uint64(len(k.tickets))
		k.tickets = append(k.tickets, t)
	}
}

// drop ends what a ticket has, and forgets it.
func (k *keeper) drop(t *kept) {
	k.settled(t)
	if k.port != nil {
		k.do(admission.Step{Op: admission.StepForget, Ticket: t.number})
	}
	k.tickets[t.number] = nil
	k.free = append(k.free, t.number)
	if t.seat.tickets[t.id.Number] == t {
		delete(t.seat.tickets, t.id.Number)
	}
}

// settled notes that t waits no more, or holds nothing any more.
func (k *keeper) settled(t *kept) {
	switch t.state {
	case keptWaiting:
		t.seat.waits--
	case keptGranted:
		t.seat.holds--
		if !t.own || t.told {
			k.tellStep(t, admission.StepRelease, 0)
		}
		if t.own {
			t.own = false
			k.m.counters.Dropped[DropVoid]++
		}
	}
	t.state = keptIdle
}

// sorted are the tickets of a member, by number.
func (s *seat) sorted() []*kept {
	list := make([]*kept, 0, len(s.tickets))
	for _, t := range s.tickets {
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b *kept) int { return cmp.Compare(a.id.Number, b.id.Number) })
	return list
}

// do takes a step of the core and carries out what it decided.
func (k *keeper) do(s admission.Step) (done bool) {
	s.Now = k.m.now
	a := k.answer // its memory is used again, but for steps within this one
	k.answer = admission.Answer{}
	k.port.Take(&s, &a)
	done = k.carry(&a)
	clear(a.Decided)
	k.answer = a
	return done
}

// carry carries out what the core decided.
func (k *keeper) carry(a *admission.Answer) (done bool) {
	k.portNext = a.Next
	for i := range a.Decided {
		k.decided(&a.Decided[i])
	}
	for _, n := range a.Ask {
		if t := k.ticket(n); t != nil && t.state == keptWaiting {
			k.m.toMember(t.seat.Incarnation, Item{Kind: ItemRenew, Number: t.id.Number, Attempt: t.attempt})
		}
	}
	return a.Done
}

func (k *keeper) ticket(number uint64) *kept {
	if number < uint64(len(k.tickets)) {
		return k.tickets[number]
	}
	return nil
}

// arrive takes a ticket of a member that wants to start.
func (k *keeper) arrive(s *seat, number uint64, attempt uint32, ask *Ask) {
	t := s.tickets[number]
	switch {
	case t == nil && len(s.tickets) >= maxReported:
		k.refuse(s, number, attempt, admission.GateUnavailable)
		return
	case t == nil:
		t = k.keep(s, number)
	case attempt <= t.attempt:
		return // it came before
	default:
		if t.state != keptIdle { // the end of the attempt before was not told
			k.step(s, &Item{Op: admission.StepRelease, Number: number, Attempt: t.attempt})
		}
	}
	known := t.ask != nil && !t.again
	t.attempt, t.ask, t.grown = attempt, ask, 0
	if !known && (t.again || ask.Request.Retry || ask.Waited > 0) {
		k.comesAgain(t)
	}
	k.start(t)
}

// comesAgain makes the core know when a ticket came first and how long it has waited, which
// another keeper knew.
func (k *keeper) comesAgain(t *kept) {
	if t.again {
		k.do(admission.Step{Op: admission.StepForget, Ticket: t.number})
	}
	t.again = false
	arrival := k.m.now
	if t.ask.Request.Retry {
		arrival = arrival.Add(-max(t.ask.Age, 0))
	}
	k.adopt([]admission.TicketState{{
		Ticket: t.number, Request: k.request(t.seat, t.ask), Status: admission.StatusIdle,
		Arrived: true, Arrival: arrival, Waited: max(t.ask.Waited, 0),
	}})
}

// start has the core decide about t, which has come.
func (k *keeper) start(t *kept) {
	r := k.request(t.seat, t.ask)
	t.state = keptWaiting
	t.seat.waits++
	done := k.do(admission.Step{Op: admission.StepArrive, Ticket: t.number, Request: &r})
	switch {
	case !done: // nobody serves its model
		k.settled(t)
		k.refuse(t.seat, t.id.Number, t.attempt, admission.NoWorkers)
	case t.state == keptWaiting:
		k.queued(t)
		k.waitsNow()
	}
}

// queued gives a waiter its place and tells its member.
func (k *keeper) queued(t *kept) {
	x, ok := k.port.Ticket(t.number)
	if !ok {
		return
	}
	t.place = Place(x.Place)
	q := &Queued{Class: x.Class, Lacked: x.Lacked, Slots: k.port.PrefillSlots()}
	switch end := min(x.LimitAt, x.ClassAt, x.Deadline); end {
	case never:
	case x.Deadline:
		q.Left, q.Reason, q.Kind, q.Limit = end.Sub(k.m.now), admission.DeadlineExceeded, admission.LimitClientWait, int64(x.Patience)
	case x.ClassAt:
		q.Left, q.Reason, q.Kind, q.Limit = end.Sub(k.m.now), admission.DeadlineExceeded, admission.LimitClassWait, int64(x.ClassLimit)
	default:
		q.Left, q.Reason, q.Limit = end.Sub(k.m.now), admission.QueueTimeout, int64(x.Limit)
	}
	if q.Reason != 0 {
		q.Left = max(q.Left, 1)
		if t.ask.Request.Retry {
			q.Reason, q.Kind = admission.RetryRefused, ""
		}
	}
	k.m.toMember(t.seat.Incarnation, Item{Kind: ItemQueued, Number: t.id.Number, Attempt: t.attempt, Place: t.place, Body: q})
}

// refuse refuses what the core was not asked about.
func (k *keeper) refuse(s *seat, number uint64, attempt uint32, why admission.Reason) {
	after := time.Second
	if why == admission.NoWorkers {
		after = max(k.m.o.Gate.HealthInterval, after)
	}
	k.m.toMember(s.Incarnation, Item{Kind: ItemDecision, Number: number, Attempt: attempt, Body: &Refused{
		Refusal: admission.Refusal{Reason: why, Resource: admission.ResourceWorker, RetryAfter: after},
	}})
}

// decided tells a member of a decision.
func (k *keeper) decided(d *admission.Decision) {
	t := k.ticket(d.Ticket)
	if t == nil || t.state != keptWaiting {
		return
	}
	s := t.seat
	x, _ := k.port.Ticket(d.Ticket)
	t.seat.waits--
	if !d.Granted {
		t.state = keptIdle
		if d.Refusal == nil {
			return
		}
		k.m.toMember(s.Incarnation, Item{Kind: ItemDecision, Number: t.id.Number, Attempt: t.attempt, Body: &Refused{*d.Refusal, x.Class, x.Waited}})
		return
	}
	t.state, t.granted = keptGranted, k.m.now
	s.holds++
	k.pushed.changed = true
	if s.self() {
		t.own, t.told = true, false
		k.own = append(k.own, t)
		k.tellHold(t, &x)
		return // see deliver
	}
	k.tellHold(t, &x)
	k.m.toMember(s.Incarnation, k.grantOf(t, &x))
}

func (k *keeper) grantOf(t *kept, x *admission.PortTicket) Item {
	return Item{
		Kind: ItemDecision, Granted: true, Number: t.id.Number, Attempt: t.attempt, Place: t.place,
		Prefill: k.table.named(x.Prefill), Decode: k.table.named(x.Decode),
		Body: &Grant{
			Class: x.Class, Waited: x.Waited, Queued: x.Queued, Lacked: x.Lacked, Choice: x.Choice,
			Tokens: x.Tokens, Blocks: x.Blocks,
		},
	}
}

// named is how members are told of a rank that the core has; the zero value: none.
func (t *table) named(ref admission.RankRef) RankAt {
	if at := t.at(ref.ID); ref.ID != "" && at.Generation == ref.Generation {
		return at
	}
	return RankAt{}
}

// step takes a step of a ticket. What is unknown, or of another attempt, changes nothing.
func (k *keeper) step(s *seat, it *Item) {
	t := s.tickets[it.Number]
	if t == nil {
		return
	}
	if it.Op == admission.StepForget {
		if it.Attempt == 0 || it.Attempt >= t.attempt {
			k.pushed.changed = true
			k.drop(t)
		}
		return
	}
	if it.Attempt != t.attempt {
		return
	}
	switch it.Op {
	case admission.StepCancel, admission.StepRelease:
		// A cancelled one may have been granted meanwhile: the member will not take it.
		k.pushed.changed = true
		k.settled(t)
		k.do(admission.Step{Op: admission.StepCancel, Ticket: t.number})
		k.do(admission.Step{Op: admission.StepRelease, Ticket: t.number})
	case admission.StepStartDecode, admission.StepFirstToken, admission.StepEndPrefill, admission.StepEndDecode:
		if t.state == keptGranted {
			k.pushed.changed = true
			k.do(admission.Step{Op: it.Op, Ticket: t.number})
			k.tellStep(t, it.Op, 0)
		}
	case admission.StepGrow:
		if more := min(it.Amount, maxAmount) - t.grown; t.state == keptGranted && more > 0 {
			t.grown += more
			k.do(admission.Step{Op: admission.StepGrow, Ticket: t.number, Blocks: more})
			k.pushed.changed = true
			k.tellStep(t, it.Op, t.grown)
		}
	}
}

// refresh hands in renewed hints of a waiter.
func (k *keeper) refresh(s *seat, it *Item, h *HintsOf) {
	t := s.tickets[it.Number]
	if t == nil || it.Attempt != t.attempt || t.state != keptWaiting {
		return
	}
	hints := h.Hints
	for l := range hints {
		hints[l].Holders = k.holders(h.Holders[l])
	}
	k.do(admission.Step{Op: admission.StepRefresh, Ticket: t.number, Hints: &hints})
}

// move answers whether the decode leg of a ticket can move.
func (k *keeper) move(s *seat, it *Item, avoid []RankAt) {
	answer := Item{Kind: ItemMoved, Number: it.Number, Attempt: it.Attempt}
	if t := s.tickets[it.Number]; t != nil && it.Attempt == t.attempt && t.state == keptGranted {
		k.pushed.changed = true
		if k.do(admission.Step{Op: admission.StepMoveDecode, Ticket: t.number, Exclude: k.refs(avoid)}) {
			t.grown = 0
			k.pushed.changed = true
			x, _ := k.port.Ticket(t.number)
			answer.Granted, answer.Decode = true, k.table.named(x.Decode)
			k.tellHold(t, &x)
		}
	}
	k.m.toMember(s.Incarnation, answer)
}

// movedAlone books the decode leg of a ticket where its member moved it.
func (k *keeper) movedAlone(s *seat, it *Item) {
	t := s.tickets[it.Number]
	ref := k.table.ref(it.Decode)
	if t == nil || it.Attempt != t.attempt || t.state != keptGranted || ref.ID == "" {
		return
	}
	x, ok := k.port.Ticket(t.number)
	if !ok || !x.HoldsDecode || x.Decode == ref {
		return
	}
	k.pushed.changed = true
	// It is booked there before what it held is given back: nobody may get its prefill slot
	// in between.
	old := t.number
	k.number(t)
	state := k.granted(t, &HoldOf{
		Ask: t.ask, HoldsPrefill: x.HoldsPrefill, HoldsDecode: true, DecodeActive: x.DecodeActive,
		Tokens: x.Tokens, Blocks: x.Blocks - t.grown, Class: x.Class,
	}, x.Prefill, ref)
	t.grown, t.again = 0, true
	k.adopt([]admission.TicketState{state})
	k.tickets[old] = nil
	k.do(admission.Step{Op: admission.StepForget, Ticket: old})
	k.free = append(k.free, old)
	k.pushed.changed = true
	if x, ok = k.port.Ticket(t.number); ok {
		k.tellHold(t, &x)
	}
}

// request is what a member asks for, in this keeper's times and ranks.
func (k *keeper) request(s *seat, a *Ask) admission.Request {
	r := a.Request
	r.Origin = uint64(s.Incarnation)
	r.Legs = min(max(r.Legs, 0), 1<<20)
	r.Deadline, r.ClassDeadline = 0, 0
	if a.HasDeadline {
		r.Deadline = max(k.m.now.Add(a.Deadline), 1)
	}
	if a.HasClassDeadline {
		r.ClassDeadline = max(k.m.now.Add(a.ClassDeadline), 1)
	}
	for l := range r.Hints {
		r.Hints[l].Holders = k.holders(a.Holders[l])
		r.Exclude[l] = k.refs(a.Exclude[l])
	}
	return r
}

// holders are those that the table has.
func (k *keeper) holders(list []Holder) (known []admission.RequestHolder) {
	if len(list) == 0 {
		return nil
	}
	known = make([]admission.RequestHolder, 0, min(len(list), admission.MaxHolders))
	for _, h := range list {
		if ref := k.table.ref(h.Rank); ref.ID != "" && len(known) < admission.MaxHolders {
			known = append(known, admission.RequestHolder{Rank: ref, Tokens: h.Tokens})
		}
	}
	return known
}

// maxAvoided bounds the ranks that one request may ask to avoid.
const maxAvoided = 256

func (k *keeper) refs(list []RankAt) (refs []admission.RankRef) {
	for _, at := range list[:min(len(list), maxAvoided)] {
		if ref := k.table.ref(at); ref.ID != "" {
			refs = append(refs, ref)
		}
	}
	return refs
}
