package cluster

import (
	"cmp"
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// A keeper begins with what members report: what they hold, who waits in which place, and
// what the standby knew of members that do not report. The gate opens when nobody is missing
// who could have been granted something by a keeper before.

// complete tells whether the gate may open: every member has reported, or is lost.
func (k *keeper) complete() bool {
	if !k.m.election.mayOpen() {
		return false // it was new to the cluster, and may not know of another
	}
	for _, s := range k.order {
		if !s.reported && s.state != seatLost {
			return false
		}
	}
	return true
}

// missing are the members that the gate waits for, by name.
func (k *keeper) missing() (names []string) {
	for _, s := range k.order {
		if !s.reported && s.state != seatLost {
			names = append(names, s.Name)
		}
	}
	return names
}

// tellMissing tells operators, once, when members that do not answer keep the gate from
// opening.
func (k *keeper) tellMissing() {
	if !k.waitsTold && k.m.now-k.began >= admission.Instant(k.m.o.Silent) {
		k.waitsTold = true
		if len(k.missing()) == 0 {
			k.m.event(LevelInfo, "the gate is not open yet: the keeper has found no record of this cluster, and waits in case there are members that it does not know", "at_most", k.m.o.Lease)
			return
		}
		k.m.event(LevelWarn, "the gate waits for the reports of members before it opens", "members", k.missing(), "at_most", k.m.o.Lease)
	}
}

// forgetRestored removes ranks that only the table of the keeper before had, once every
// member has told of those that it has.
func (k *keeper) forgetRestored() {
	if k.allTold {
		return
	}
	for _, s := range k.order {
		if !s.reported || !s.listed {
			return
		}
	}
	k.allTold = true
	k.table.dropRestored()
	k.fleetChanged()
}

// open makes the core and lets decisions begin.
func (k *keeper) open() {
	reports := k.byEpoch()
	for _, s := range reports {
		if r := s.report.Rows; r != nil {
			k.table.restore(r)
		}
	}
	if len(reports) > 0 && reports[0].report.Rows != nil {
		k.table.restorePairs(k.m.now, reports[0].report.Rows.Pairs)
	}
	for _, s := range k.order {
		if s.report != nil && s.report.Observation != nil {
			k.table.observe(k.m.now, s.Incarnation, s.report.Observation)
		}
		if s.state == seatLost {
			k.table.lose(s.Incarnation)
		}
	}
	k.configured()
	k.restoreShares(reports)

	k.port = admission.NewPort(k.gateOptions())
	k.fleetChanged()

	// What is held comes first, then what may be held by those that are lost: no waiter
	// takes it.
	var held []admission.TicketState
	waiters := 0
	for _, s := range k.order {
		if r := s.report; r != nil {
			held = k.takeHolds(held, s, r.Holds)
			waiters += len(r.Waiters)
		}
	}
	held = k.takeForeign(held, reports)
	holds := len(held)
	k.adopt(held)
	for _, s := range k.order {
		s.suspended = !s.mayGet()
	}
	k.claims.dirty = true
	k.settleClaims()

	var all []reportedWaiter
	for _, s := range k.order {
		if s.report != nil && s.listed {
			all = s.waiters(all, s.report)
			s.report = nil
		}
	}
	after := k.admitWaiters(all)
	k.restoreSoft()
	k.startAll(after)
	for _, s := range slices.Clone(k.order) {
		k.replay(s)
	}
	k.m.event(LevelInfo, "the gate is open", "epoch", k.epoch, "members", len(k.order), "holds", holds, "waiting", waiters,
		"after", k.m.now.Sub(k.began))
	k.chooseStandby()
	k.settleShares()
	k.tell()
}

// byEpoch are the members that have reported, those first that obeyed the latest epoch.
func (k *keeper) byEpoch() (list []*seat) {
	for _, s := range k.order {
		if s.report != nil {
			list = append(list, s)
		}
	}
	version := func(s *seat) uint64 {
		if s.report.Rows == nil {
			return 0
		}
		return s.report.Rows.Version
	}
	slices.SortStableFunc(list, func(a, b *seat) int {
		return cmp.Or(b.report.Of.Compare(a.report.Of), cmp.Compare(version(b), version(a)))
	})
	return list
}

// takeHolds makes tickets of what a member reports that it holds.
func (k *keeper) takeHolds(held []admission.TicketState, s *seat, entries []HoldEntry) []admission.TicketState {
	for i := range entries {
		e := &entries[i]
		if s.tickets[e.Ticket.Number] != nil || e.Ticket.Member != s.Incarnation || len(s.tickets) >= maxReported {
			continue
		}
		held = append(held, k.takeHold(s, e))
	}
	return held
}

func (k *keeper) takeHold(s *seat, e *HoldEntry) admission.TicketState {
	t := k.keep(s, e.Ticket.Number)
	t.attempt, t.ask, t.grown = e.Attempt, e.Hold.Ask, min(max(e.Hold.Grown, 0), maxAmount)
	if t.ask == nil {
		t.ask = &Ask{}
	}
	t.state, t.again = keptGranted, true
	t.granted = k.m.now.Add(-max(e.Hold.Age, 0))
	s.holds++
	return k.granted(t, &e.Hold, k.refOf(e.Prefill), k.refOf(e.Decode))
}

// refOf is a rank by its id. One that is not in the table is gone: what is held of it ends
// there.
func (k *keeper) refOf(id string) admission.RankRef {
	if ref := k.table.ref(k.table.at(id)); ref.ID != "" {
		return ref
	}
	return admission.RankRef{ID: id}
}

// granted is the state of a ticket that was granted.
func (k *keeper) granted(t *kept, h *HoldOf, prefill, decode admission.RankRef) admission.TicketState {
	x := admission.TicketState{
		Ticket: t.number, Request: k.request(t.seat, t.ask), Status: admission.StatusGranted,
		Arrived: true, Arrival: t.granted, Waited: max(t.ask.Waited, 0), ClassName: cmp.Or(h.Class, noClass),
		Cost:         costOf(t.ask),
		HoldsPrefill: h.HoldsPrefill && prefill.ID != "", HoldsDecode: h.HoldsDecode && decode.ID != "",
		DecodeActive: h.DecodeActive, GrantedAt: t.granted, Grown: t.grown,
	}
	x.Blocks = min(max(h.Blocks, 0)+t.grown, maxAmount)
	if !h.FirstToken && (x.HoldsPrefill || prefill.ID == "" && x.HoldsDecode) {
		x.Tokens = min(max(h.Tokens, 0), maxAmount)
	}
	if prefill.ID != "" {
		x.Prefill = &prefill
	}
	if decode.ID != "" {
		x.Decode = &decode
	}
	if x.Target.Shape == admission.Bypass && x.Prefill != nil && x.Instead != nil {
		x.Target, *x.Instead = *x.Instead, x.Target // it was decided afresh
	}
	return x
}

// noClass is the class of tickets whose class is not known: the core finds it.
const noClass = "?"

// takeForeign takes what standbys knew of members that have not reported. Of several that
// which stood by the latest keeper counts.
func (k *keeper) takeForeign(held []admission.TicketState, reports []*seat) []admission.TicketState {
	var of *Epoch
	for _, s := range reports {
		r := s.report
		if !r.Standby || len(r.Foreign) == 0 && of == nil {
			continue
		}
		if of != nil && *of != r.Of {
			break
		}
		of = &r.Of
		for i := range r.Foreign {
			e := &r.Foreign[i]
			lost := k.seats[e.Ticket.Member]
			if lost == nil || lost.reported || lost.tickets[e.Ticket.Number] != nil || len(lost.tickets) >= maxReported {
				continue
			}
			held = append(held, k.takeHold(lost, e))
		}
	}
	return held
}

// reportedWaiter is one waiter of a report.
type reportedWaiter struct {
	*Waiter
	seat *seat
}

func (s *seat) waiters(all []reportedWaiter, r *Report) []reportedWaiter {
	since := s.k.m.now.Sub(s.reportAt)
	for i := range r.Waiters {
		w := &r.Waiters[i]
		w.Ask = *w.Ask.later(since)
		all = append(all, reportedWaiter{w, s})
	}
	s.reportAt = s.k.m.now
	return all
}

// replay does what came behind the report of a member.
func (k *keeper) replay(s *seat) {
	if k.seats[s.Incarnation] != s || !s.listed {
		return
	}
	backlog := s.backlog
	s.backlog = nil
	for i := range backlog {
		if k.seats[s.Incarnation] != s {
			return
		}
		it := &backlog[i].Item
		if ask, ok := it.Body.(*Ask); ok && ask != nil {
			it.Body = ask.later(k.m.now.Sub(backlog[i].at))
		}
		k.take(s, it)
	}
}

// admitWaiters queues waiters in their places, and returns those that no keeper has queued,
// the eldest first.
func (k *keeper) admitWaiters(all []reportedWaiter) (after []*kept) {
	slices.SortStableFunc(all, func(a, b reportedWaiter) int {
		return cmp.Or(a.Place.Compare(b.Place), cmp.Compare(b.Ask.Age, a.Ask.Age), cmp.Compare(a.seat.Incarnation, b.seat.Incarnation), cmp.Compare(a.Number, b.Number))
	})
	var states []admission.TicketState
	for _, w := range all {
		s := w.seat
		if s.tickets[w.Number] != nil || len(s.tickets) >= maxReported {
			continue
		}
		t := k.keep(s, w.Number)
		t.attempt, t.ask, t.place = w.Attempt, k.askOf(w.Waiter), w.Place
		if w.Place == (Place{}) {
			after = append(after, t)
			continue
		}
		t.state = keptWaiting
		s.waits++
		states = append(states, k.waitingState(t, w.Waiter))
	}
	k.adopt(states)
	return after
}

// startAll has tickets arrive.
func (k *keeper) startAll(after []*kept) {
	for _, t := range after {
		if k.ticket(t.number) != t {
			continue
		}
		if t.ask.Request.Retry || t.ask.Waited > 0 {
			k.comesAgain(t)
		}
		k.start(t)
	}
}

// askOf is the ask of a reported waiter, whose ranks are named by ids there.
func (k *keeper) askOf(w *Waiter) *Ask {
	a := w.Ask
	for l := range a.Holders {
		holders := a.Holders[l]
		a.Holders[l] = nil
		for i, id := range w.HolderIDs[l] {
			if at := k.table.at(id); at != (RankAt{}) && i < len(holders) {
				a.Holders[l] = append(a.Holders[l], Holder{at, holders[i].Tokens})
			}
		}
		a.Exclude[l] = nil
		for _, id := range w.ExcludeIDs[l] {
			if at := k.table.at(id); at != (RankAt{}) {
				a.Exclude[l] = append(a.Exclude[l], at)
			}
		}
	}
	return &a
}

// waitingState is the state of a ticket that waits, as its member told it. The core works out
// what ends the wait.
func (k *keeper) waitingState(t *kept, w *Waiter) admission.TicketState {
	x := admission.TicketState{
		Ticket: t.number, Request: k.request(t.seat, t.ask), Status: admission.StatusQueued,
		Arrived: true, Arrival: k.m.now.Add(-max(w.Ask.Age, 0)), Epoch: w.Place.Epoch, Order: w.Place.Number,
		Waited: max(w.Ask.Waited, 0), QueuedAt: k.m.now, Passes: w.Passes,
		ClassName: noClass, Cost: costOf(t.ask),
	}
	if t.seat.suspended {
		x.Status = admission.StatusSuspended
	}
	if q := w.Queued; q != nil {
		x.ClassName, x.Lacked = cmp.Or(q.Class, noClass), q.Lacked
	}
	return x
}

// costOf is what serving a request costs its class.
func costOf(a *Ask) int64 {
	return min(max(a.Request.PromptTokens-max(a.Request.CachedTokens, 0), 0), maxAmount)
}
