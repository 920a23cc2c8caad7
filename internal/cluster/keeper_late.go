package cluster

import (
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// admitLate takes the report of a member after the gate has opened: it comes late, or opens
// a new session because something was lost. What it says of its own tickets counts.
func (k *keeper) admitLate(s *seat, r *Report) {
	if r.Observation != nil {
		k.table.observe(k.m.now, s.Incarnation, r.Observation)
	}
	k.fleetChanged()
	k.configured()

	holds := map[uint64]*HoldEntry{}
	for i := range r.Holds {
		if e := &r.Holds[i]; e.Ticket.Member == s.Incarnation {
			holds[e.Ticket.Number] = e
		}
	}
	waits := map[uint64]*Waiter{}
	for i := range r.Waiters {
		waits[r.Waiters[i].Number] = &r.Waiters[i]
	}
	// First all wait or hold again, in their place; then what is over is given back, so that
	// whoever is next in order gets it.
	var stale, again []*kept
	for _, t := range s.sorted() {
		switch e, w := holds[t.id.Number], waits[t.id.Number]; {
		case e != nil && t.state == keptGranted && e.Attempt == t.attempt && k.alike(t, e):
			again = append(again, t)
		case w != nil && t.state == keptWaiting && w.Attempt == t.attempt && w.Place != (Place{}):
			delete(waits, t.id.Number) // it kept its place
		case t.state == keptGranted:
			stale = append(stale, t)
			delete(s.tickets, t.id.Number)
		default:
			k.drop(t)
		}
	}
	s.report = nil
	k.watchSeat(s)
	k.adopt(k.takeHolds(nil, s, r.Holds))
	all := slices.DeleteFunc(s.waiters(nil, r), func(w reportedWaiter) bool { return waits[w.Number] == nil })
	after := k.admitWaiters(all)
	for _, t := range again {
		k.amend(t, holds[t.id.Number])
	}
	for _, t := range stale {
		k.m.counters.Dropped[DropVoid] += uint64(b2i(waits[t.id.Number] != nil && !t.own))
		k.drop(t)
	}
	for _, t := range s.sorted() {
		if t.state == keptGranted {
			if x, ok := k.port.Ticket(t.number); ok {
				k.tellHold(t, &x)
			}
		}
	}
	k.pushed.changed, k.claims.dirty = true, true
	k.settleClaims()
	k.startAll(after)
	k.chooseStandby()
	k.settleShares()
	k.replay(s)
	k.tell()
}

// alike tells whether what a member reports of a ticket follows from what is known of it. It
// may have been granted something else by itself meanwhile, or have moved.
func (k *keeper) alike(t *kept, e *HoldEntry) bool {
	x, ok := k.port.Ticket(t.number)
	return ok && x.Prefill.ID == e.Prefill && x.Decode.ID == e.Decode &&
		(x.HoldsPrefill || !e.Hold.HoldsPrefill) && (x.HoldsDecode || !e.Hold.HoldsDecode)
}

// amend brings what is known of a hold in line with what its member says.
func (k *keeper) amend(t *kept, e *HoldEntry) {
	x, ok := k.port.Ticket(t.number)
	if !ok {
		return
	}
	step := func(op admission.StepOp, due bool) {
		if due {
			k.do(admission.Step{Op: op, Ticket: t.number})
		}
	}
	k.pushed.changed = true
	if t.own { // it is known there
		t.own = false
	}
	step(admission.StepStartDecode, e.Hold.DecodeActive && !x.DecodeActive)
	step(admission.StepFirstToken, e.Hold.FirstToken && x.Tokens > 0)
	step(admission.StepEndPrefill, x.HoldsPrefill && !e.Hold.HoldsPrefill)
	step(admission.StepEndDecode, x.HoldsDecode && !e.Hold.HoldsDecode)
	if more := min(e.Hold.Grown, maxAmount) - t.grown; more > 0 {
		t.grown += more
		k.do(admission.Step{Op: admission.StepGrow, Ticket: t.number, Blocks: more})
	}
}
