package cluster

import (
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/list"
)

// ticket is one of this process's requests, from its first arrival until it is forgotten.
type ticket struct {
	number  uint64
	attempt uint32
	state   waitState
	// request is that of the last arrival, with the hints that were handed in last.
	request admission.Request

	// arrival is the first one; since is when the present attempt came, waited the time of
	// the waits before it.
	arrival, since admission.Instant
	waited         time.Duration
	// place and queued are what the keeper said when it had to wait, at queuedAt.
	place    Place
	queued   *Queued
	queuedAt admission.Instant
	inPort   bool // or that of the own core

	// The end of the wait, in waits: why the bound that is due first refuses.
	bound bound
	pos   int // in the heap; -1: not there
	young list.Node[*ticket]

	// What it holds of its last grant.
	grant ticketGrant
	// moveBy is when a move that was asked for is made here; never: none was. asked counts
	// the moves that the keeper has not answered, in the present session.
	moveBy  admission.Instant
	asked   int
	exclude []string
}

// ticketGrant is what a ticket was granted and what it still holds of it.
type ticketGrant struct {
	prefill, decode             string // rank ids
	holdsPrefill, holdsDecode   bool
	started, firstToken, byself bool // byself: granted without a keeper
	revoked                     bool
	at                          admission.Instant
	tokens, blocks, grown       int64
	class                       string
}

// isQueued tells whether a core has taken t into its queue.
func (t *ticket) isQueued() bool { return t.queued != nil || t.inPort }

func (g *ticketGrant) held() bool { return g.holdsPrefill || g.holdsDecode }

type waitState uint8

const (
	waitNot waitState = iota // it has not come, or its last attempt is over
	waiting                  // it has no decision yet
	granted                  // and holds what grant says
)

// maxSpare bounds the tickets that are kept for use again.
const maxSpare = 4096

// arrive takes the arrival of a ticket. What r points to is not changed by the caller until
// the ticket arrives again or is forgotten.
func (b *member) arrive(number uint64, attempt uint32, r *admission.Request) {
	t := b.tickets[number]
	switch {
	case t == nil:
		t = b.newTicket(number)
		t.arrival = b.m.now
	case t.state != waitNot || attempt <= t.attempt:
		return // it waits, or holds something, or came before
	}
	t.attempt, t.request, t.since = attempt, *r, b.m.now
	t.state, t.place, t.queued = waiting, Place{}, nil
	t.grant = ticketGrant{}
	b.waits.add(t)
	switch {
	case b.drained.arrivals && !r.Retry, b.drained.waits && !b.hasKeeper(b.m.o.Silent):
		b.refuse(t, b.refusal(t, admission.Draining))
	case b.alone.on:
		b.aloneArrive(t)
	case b.open:
		b.m.toKeeper(Item{Kind: ItemArrive, Number: number, Attempt: attempt, Body: b.ask(t, true)})
	}
}

func (b *member) newTicket(number uint64) *ticket {
	var t *ticket
	if n := len(b.spare); n > 0 {
		t, b.spare = b.spare[n-1], b.spare[:n-1]
	} else {
		t = &ticket{}
	}
	*t = ticket{number: number, pos: -1, moveBy: never}
	t.young.Value = t
	b.tickets[number] = t
	return t
}

// ask writes down what t asks for. toTable: ranks are named by the keeper's table, those
// that it does not have are left out; else a report names them besides.
func (b *member) ask(t *ticket, toTable bool) *Ask {
	r, now := &t.request, b.m.now
	a := &Ask{Request: *r, Age: now.Sub(t.arrival), Waited: t.waited}
	if t.state == waiting {
		a.Waited += now.Sub(t.since)
	}
	if r.Deadline != 0 {
		a.Deadline, a.HasDeadline = r.Deadline.Sub(now), true
	}
	if r.ClassDeadline != 0 {
		a.ClassDeadline, a.HasClassDeadline = r.ClassDeadline.Sub(now), true
	}
	a.Request.Deadline, a.Request.ClassDeadline = 0, 0
	for l := range r.Hints {
		a.Request.Hints[l].Holders, a.Request.Exclude[l] = nil, nil
		a.Holders[l] = b.holders(r.Hints[l].Holders, toTable)
		for _, x := range r.Exclude[l] {
			if at := b.m.ranks.at(x.ID); at != (RankAt{}) {
				a.Exclude[l] = append(a.Exclude[l], at)
			}
		}
	}
	return a
}

// holders names ranks by the keeper's table.
func (b *member) holders(from []admission.RequestHolder, toTable bool) (to []Holder) {
	for _, h := range from {
		at := b.m.ranks.at(h.Rank.ID)
		if toTable && at == (RankAt{}) {
			continue
		}
		to = append(to, Holder{at, h.Tokens})
	}
	return to
}

// refresh takes renewed hints of a ticket that waits.
func (b *member) refresh(number uint64, attempt uint32, hints *[2]admission.RequestHint) {
	t := b.tickets[number]
	if t == nil || t.attempt != attempt || t.state != waiting || hints == nil {
		return
	}
	t.request.Hints = *hints
	if b.alone.on {
		b.alonePort(admission.Step{Op: admission.StepRefresh, Ticket: number, Hints: b.localHints(hints)})
		return
	}
	h := &HintsOf{Hints: *hints}
	for l := range hints {
		h.Hints[l].Holders = nil
		h.Holders[l] = b.holders(hints[l].Holders, true)
	}
	b.tell(Item{Kind: ItemRefresh, Number: number, Attempt: attempt, Body: h})
}

// step takes what became of a ticket.
func (b *member) step(number uint64, attempt uint32, op admission.StepOp, amount int64) {
	t := b.tickets[number]
	if t == nil {
		return
	}
	if op == admission.StepForget {
		b.forget(t)
		return
	}
	if t.attempt != attempt || t.state == waitNot {
		return
	}
	if t.state == waiting {
		if op == admission.StepCancel || op == admission.StepRelease {
			b.endWait(t)
			b.pass(t, admission.StepCancel, 0)
		}
		return
	}
	if op == admission.StepCancel { // its caller left while the grant was on its way to it
		op = admission.StepRelease
	}
	if !t.grant.take(op, amount) {
		return
	}
	b.pass(t, op, amount)
	if !t.grant.held() {
		t.state = waitNot
		b.endMove(t)
	}
}

// take makes a step with what is held; false: it changes nothing.
func (g *ticketGrant) take(op admission.StepOp, amount int64) bool {
	switch op {
	case admission.StepStartDecode:
		if !g.holdsDecode || g.started {
			return false
		}
		g.started = true
	case admission.StepFirstToken:
		if g.firstToken {
			return false
		}
		g.firstToken = true
	case admission.StepGrow:
		if !g.holdsDecode || amount <= g.grown {
			return false
		}
		g.grown = amount
	case admission.StepEndPrefill:
		if !g.holdsPrefill {
			return false
		}
		g.holdsPrefill = false
	case admission.StepEndDecode:
		if !g.holdsDecode {
			return false
		}
		g.holdsDecode = false
	case admission.StepRelease:
		g.holdsPrefill, g.holdsDecode = false, false
	default:
		return false
	}
	return true
}

// pass tells who decides of a step.
func (b *member) pass(t *ticket, op admission.StepOp, amount int64) {
	if b.alone.on {
		if op == admission.StepGrow {
			op = admission.StepGrowTo
		}
		b.alonePort(admission.Step{Op: op, Ticket: t.number, Blocks: amount})
		return
	}
	b.tell(Item{Kind: ItemStep, Op: op, Number: t.number, Attempt: t.attempt, Amount: amount})
}

// forget ends what a ticket still has, and the ticket.
func (b *member) forget(t *ticket) {
	if t.state == waiting {
		b.endWait(t)
	}
	b.endMove(t)
	b.pass(t, admission.StepForget, 0)
	delete(b.tickets, t.number)
	*t = ticket{}
	if len(b.spare) < maxSpare {
		b.spare = append(b.spare, t)
	}
}

// endWait takes t out of those that wait.
func (b *member) endWait(t *ticket) {
	b.waits.remove(t)
	t.waited += b.m.now.Sub(t.since)
	t.state, t.queued, t.place, t.inPort = waitNot, nil, Place{}, false
}

// decided takes a decision of the keeper; false: it cannot be used, because the copy of the
// keeper's table is not what the keeper has.
func (b *member) decided(it *Item) bool {
	t := b.tickets[it.Number]
	if t == nil || t.attempt != it.Attempt || t.state != waiting {
		if it.Granted && (t == nil || t.attempt != it.Attempt || t.state != granted) {
			b.m.counters.Dropped[DropCanceled]++
			b.tell(Item{Kind: ItemStep, Op: admission.StepRelease, Number: it.Number, Attempt: it.Attempt})
		}
		return true
	}
	if !it.Granted {
		x, _ := it.Body.(*Refused)
		if x == nil {
			x = &Refused{Refusal: *b.refusal(t, admission.NoWorkers)}
		}
		b.endWait(t)
		t.waited = x.Waited
		refusal := x.Refusal
		b.m.out.Decided = append(b.m.out.Decided, Decided{
			Number: t.number, Attempt: t.attempt, Refusal: &refusal, Grant: Grant{Class: x.Class, Waited: x.Waited, Queued: true},
		})
		return true
	}
	prefill, decode := b.m.ranks.id(it.Prefill), b.m.ranks.id(it.Decode)
	if decode == "" || it.Prefill != (RankAt{}) && prefill == "" {
		b.m.counters.Dropped[DropUnusable]++
		return false
	}
	g, _ := it.Body.(*Grant)
	if g == nil {
		g = &Grant{}
	}
	b.granted(t, prefill, decode, *g)
	return true
}

// granted tells the caller of t that it may start.
func (b *member) granted(t *ticket, prefill, decode string, g Grant) {
	place := t.place
	b.endWait(t)
	t.state, t.waited = granted, g.Waited
	t.grant = ticketGrant{
		prefill: prefill, decode: decode, holdsPrefill: prefill != "", holdsDecode: true, byself: b.alone.on,
		at: b.m.now, tokens: g.Tokens, blocks: g.Blocks, class: g.Class,
	}
	b.m.out.Decided = append(b.m.out.Decided, Decided{
		Number: t.number, Attempt: t.attempt, Granted: true, Prefill: prefill, Decode: decode, Grant: g,
		Place: place, Alone: b.alone.on,
	})
}

// refuse ends the wait of t here.
func (b *member) refuse(t *ticket, why *admission.Refusal) {
	queued := t.queued != nil
	b.endWait(t)
	b.m.out.Decided = append(b.m.out.Decided, Decided{
		Number: t.number, Attempt: t.attempt, Refusal: why, Grant: Grant{Class: why.Class, Waited: t.waited, Queued: queued},
	})
}

// isQueued takes the keeper's word that a ticket has to wait.
func (b *member) isQueued(it *Item) {
	t := b.tickets[it.Number]
	q, _ := it.Body.(*Queued)
	if t == nil || t.state != waiting || q == nil || it.Attempt != t.attempt {
		return
	}
	t.place, t.queued, t.queuedAt = it.Place, q, b.m.now
	if b.drained.waits {
		b.cancel(t, b.refusal(t, admission.Draining))
		return
	}
	b.waits.set(t, b.boundOf(t))
}

// cancel refuses a ticket here that the keeper may know of.
func (b *member) cancel(t *ticket, why *admission.Refusal) {
	b.refuse(t, why)
	b.pass(t, admission.StepCancel, 0)
}
