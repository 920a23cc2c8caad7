package cluster

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// alone is what a member does that has heard no keeper for its patience. It refuses
// everything (port is nil), or decides by a core of its own, in which it has its share of
// every limit and what its own requests hold.
type alone struct {
	on    bool
	since admission.Instant
	port  *admission.Port
	next  admission.Instant
	ranks map[string]*admission.RankSpec // those of the core, by id
	// stale: the core is to be made anew, not before renewAt.
	stale   bool
	renewAt admission.Instant
}

// renewAlone is the least time between two cores of a member on its own.
const renewAlone = 100 * time.Millisecond

// beginAlone begins the fallback.
func (b *member) beginAlone() {
	m := b.m
	if b.alone.on {
		m.counters.FallbackFor += m.now.Sub(b.alone.since)
	}
	b.alone = alone{on: true, since: m.now, next: never}
	b.open, b.office = false, OfficeNone
	parts := b.shared.parts(m.o.Self.Incarnation)
	switch {
	case m.o.Fallback == FallbackRefuse:
		m.event(LevelWarn, "no keeper of the gate is heard: all requests are refused", "for", m.o.Patience)
	case m.election.banned != "": // what it held is given away
		m.event(LevelWarn, "this router takes no part in the gate any more: all requests are refused")
	case parts == 0:
		m.event(LevelWarn, "no keeper of the gate is heard and this router has no share of the limits: all requests are refused",
			"for", m.o.Patience, "joined", b.heardAt >= 0)
	default:
		m.event(LevelWarn, "no keeper of the gate is heard: this router decides alone, on its share of the limits",
			"for", m.o.Patience, "parts", parts)
		b.renewPort()
		return
	}
	for _, t := range b.waits.all() {
		b.refuse(t, b.unavailable(t))
	}
}

// endAlone ends it, because a keeper is there. The next report tells what was granted.
func (b *member) endAlone() {
	if !b.alone.on {
		return
	}
	b.m.counters.FallbackFor += b.m.now.Sub(b.alone.since)
	b.m.event(LevelInfo, "a keeper of the gate is heard again", "epoch", b.m.election.promised, "after", b.m.now.Sub(b.alone.since))
	b.alone = alone{}
}

func (b *member) unavailable(t *ticket) *admission.Refusal {
	x := b.refusal(t, admission.GateUnavailable)
	x.Resource = admission.ResourceWorker
	return x
}

// advanceAlone does what is due in the own core.
func (b *member) advanceAlone() {
	a := &b.alone
	if a.port == nil {
		return
	}
	if b.m.election.banned != "" {
		b.beginAlone()
		return
	}
	if a.stale && b.m.now >= a.renewAt {
		b.renewPort()
	}
	if b.m.now >= a.next {
		b.alonePort(admission.Step{Op: admission.StepAdvance})
	}
	a.next = min(a.next, a.renewal())
}

func (a *alone) renewal() admission.Instant {
	if a.stale {
		return a.renewAt
	}
	return never
}

// renewPort makes the own core: this member's share of the ranks that it has, and its tickets
// as they stand.
func (b *member) renewPort() {
	a, m := &b.alone, b.m
	a.stale, a.renewAt = false, m.now.Add(renewAlone)
	who := m.o.Self.Incarnation
	set := *b.settings()
	s := admission.State{Settings: set, Loaded: set, DrainEnd: never, Ranks: b.shareOfRanks()}
	if b.drained.end != 0 {
		s.DrainEnd = b.drained.end
	}
	a.ranks = map[string]*admission.RankSpec{}
	for i := range s.Ranks {
		a.ranks[s.Ranks[i].ID] = &s.Ranks[i]
	}
	s.Quarantined = b.quarantined()
	var states []admission.TicketState
	var arriving []*ticket
	gone := map[string]bool{}
	for _, n := range slices.Sorted(maps.Keys(b.tickets)) {
		t := b.tickets[n]
		if t.state == waiting && !t.isQueued() {
			arriving = append(arriving, t)
		}
		states = append(states, b.ticketState(t))
		for _, id := range [...]string{t.grant.prefill, t.grant.decode} {
			if t.state == granted && id != "" && a.ranks[id] == nil && !gone[id] {
				gone[id] = true
				s.Gone = append(s.Gone, b.goneSpec(id))
			}
		}
	}
	o := m.o.Gate
	o.Epoch = m.election.promised.Number + 1 // after the places that keepers gave
	o.ShareOf = func(limit int64, bound string) int64 { return b.shared.bound(limit, bound, who) }
	var answer admission.Answer
	a.port, answer = admission.Restore(m.now, s, o)
	b.aloneAnswer(&answer)
	answer = a.port.Adopt(m.now, states)
	b.aloneAnswer(&answer)
	slices.SortFunc(arriving, func(x, y *ticket) int {
		return cmp.Or(cmp.Compare(x.arrival, y.arrival), cmp.Compare(x.number, y.number))
	})
	for _, t := range arriving {
		if t.state == waiting {
			b.aloneArrive(t)
		}
	}
}

// ref names a rank in the own core.
func (b *member) ref(id string) admission.RankRef {
	if r := b.m.ranks.find(id); r != nil {
		return admission.RankRef{ID: id, Generation: r.At.Generation}
	}
	return admission.RankRef{ID: id, Generation: max(b.m.observed.ranks[id].Spec.Generation, 1)}
}

func (b *member) goneSpec(id string) admission.RankSpec {
	x := admission.RankSpec{ID: id}
	if r := b.m.ranks.find(id); r != nil {
		x = *r.Spec
	} else if own, ok := b.m.observed.ranks[id]; ok {
		x = own.Spec
	}
	x.Generation, x.Data = b.ref(id).Generation, nil
	return x
}

func (b *member) quarantined() (all [][2]admission.RankRef) {
	for _, p := range b.m.ranks.pairs {
		if p.Left > 0 && b.alone.ranks[p.Prefill] != nil && b.alone.ranks[p.Decode] != nil {
			all = append(all, [2]admission.RankRef{b.ref(p.Prefill), b.ref(p.Decode)})
		}
	}
	return all
}

// localRequest is what t asks for, with the ranks of the own core.
func (b *member) localRequest(t *ticket) admission.Request {
	r := t.request
	r.Hints = *b.localHints(&r.Hints)
	for l, refs := range r.Exclude {
		r.Exclude[l] = nil
		for _, x := range refs {
			r.Exclude[l] = append(r.Exclude[l], b.ref(x.ID))
		}
	}
	return r
}

func (b *member) localHints(h *[2]admission.RequestHint) *[2]admission.RequestHint {
	out := *h
	for l := range out {
		out[l].Holders = nil
		for _, x := range h[l].Holders {
			out[l].Holders = append(out[l].Holders, admission.RequestHolder{Rank: b.ref(x.Rank.ID), Tokens: x.Tokens})
		}
	}
	return &out
}

// ticketState is where t stands, for the own core.
func (b *member) ticketState(t *ticket) admission.TicketState {
	now, g := b.m.now, &t.grant
	s := admission.TicketState{
		Ticket: t.number, Request: b.localRequest(t), Status: admission.StatusIdle,
		Arrived: true, Arrival: t.arrival, Waited: t.waited, ClassName: g.class,
		Cost: max(t.request.PromptTokens-max(t.request.CachedTokens, 0), 0),
	}
	switch {
	case t.state == granted:
		s.Status, s.GrantedAt = admission.StatusGranted, g.at
		s.HoldsPrefill, s.HoldsDecode, s.DecodeActive = g.holdsPrefill, g.holdsDecode, g.started
		s.Prefill, s.Decode = b.refOf(g.prefill), b.refOf(g.decode)
		if !g.firstToken {
			s.Tokens = g.tokens
		}
		s.Blocks, s.Grown = g.blocks+g.grown, g.grown
	case t.state == waiting && t.isQueued():
		s.Status, s.QueuedAt, s.Epoch, s.Order = admission.StatusQueued, t.since, t.place.Epoch, t.place.Number
		if t.queued != nil {
			s.ClassName, s.Lacked = t.queued.Class, t.queued.Lacked
		}
	case t.state == waiting:
		s.Waited += now.Sub(t.since)
	}
	return s
}

func (b *member) refOf(id string) *admission.RankRef {
	if id == "" {
		return nil
	}
	ref := b.ref(id)
	return &ref
}

// aloneArrive brings t to the own core.
func (b *member) aloneArrive(t *ticket) {
	a := &b.alone
	if a.port == nil {
		b.refuse(t, b.unavailable(t))
		return
	}
	r := b.localRequest(t)
	answer := a.port.Do(admission.Step{Op: admission.StepArrive, Now: b.m.now, Ticket: t.number, Request: &r})
	b.aloneAnswer(&answer)
	switch {
	case t.state != waiting:
	case answer.Done:
		t.inPort = true
	default: // nobody serves its model
		b.refuse(t, b.refusal(t, admission.NoWorkers))
	}
	if t.state == waiting && b.drained.waits {
		b.cancel(t, b.refusal(t, admission.Draining))
	}
}

// alonePort takes a step of the own core, if there is one.
func (b *member) alonePort(s admission.Step) {
	if b.alone.port == nil {
		return
	}
	s.Now = b.m.now
	answer := b.alone.port.Do(s)
	b.aloneAnswer(&answer)
}

// aloneAnswer takes what the own core has decided.
func (b *member) aloneAnswer(answer *admission.Answer) {
	a := &b.alone
	a.next = min(answer.Next, a.renewal())
	b.m.out.Renew = append(b.m.out.Renew, answer.Ask...)
	for i := range answer.Decided {
		d := &answer.Decided[i]
		t := b.tickets[d.Ticket]
		switch {
		case t == nil || t.state != waiting:
		case d.Granted:
			g := Grant{Class: d.Class, Waited: d.Waited, Queued: d.Queued, Lacked: d.Lacked, Choice: d.Choice}
			l := admission.DecodeLeg
			if d.Prefill.ID != "" {
				l = admission.PrefillLeg
			}
			g.Tokens = tokensOn(&t.request, l, cmp.Or(d.Prefill.ID, d.Decode.ID))
			if r := a.ranks[d.Decode.ID]; r != nil {
				g.Blocks = blocksOf(&t.request, r.Capacity.BlockSize)
			}
			b.granted(t, d.Prefill.ID, d.Decode.ID, g)
		case d.Refusal != nil:
			x := *d.Refusal
			x.RetryAfter = max(x.RetryAfter, b.retryAfter(x.Reason))
			b.refuse(t, &x)
		}
	}
}

// aloneObserve lets the own core know what was observed.
func (b *member) aloneObserve(o *Observation) {
	a := &b.alone
	if a.port == nil {
		return
	}
	a.stale = a.stale || o.Full || len(o.Pairs) > 0
	var changes []admission.FleetChange
	for i := range o.Ranks {
		own := &o.Ranks[i]
		r := a.ranks[own.ID]
		if r == nil || own.Gone {
			a.stale = true
			continue
		}
		if s := stateFor(b.m.ranks.find(own.ID), own); s != r.State {
			r.State = s
			changes = append(changes, admission.FleetChange{Op: admission.SetState, Rank: b.ref(own.ID), State: s})
		}
		if rep := own.Spec.Reported.RankReport; rep != r.Reported.RankReport {
			r.Reported.RankReport = rep
			changes = append(changes, admission.FleetChange{Op: admission.SetReport, Rank: b.ref(own.ID), Report: rep})
		}
	}
	if len(changes) > 0 {
		b.alonePort(admission.Step{Op: admission.StepApply, Changes: changes})
	}
	a.next = min(a.next, a.renewal())
}

// revokeDue is when the prefill legs that were granted before the keeper was lost have to
// have ended: what is set aside for this member is released not long after. The keeper
// counts from when it sent what was answered last, which is up to two times Silent before it
// was heard last.
func (b *member) revokeDue() admission.Instant {
	if b.heardAt < 0 || b.m.keeper != nil && b.m.keeper.office() != OfficeNone {
		return never
	}
	return b.heardAt.Add(b.m.o.Lost - b.m.o.Margin - 2*b.m.o.Silent)
}

func (b *member) nextRevoke() admission.Instant {
	due := b.revokeDue()
	if due == never || due <= b.m.now {
		return never // done: nothing was granted since
	}
	return due
}

// revokeLost ends them.
func (b *member) revokeLost() {
	if due := b.revokeDue(); b.revokedFor == b.heardAt || due > b.m.now {
		return
	}
	b.revokedFor = b.heardAt
	for _, t := range b.tickets {
		if g := &t.grant; t.state == granted && g.holdsPrefill && !g.byself && !g.revoked {
			g.revoked = true
			b.m.out.Revoked = append(b.m.out.Revoked, t.number)
			b.m.counters.Revoked++
		}
	}
	slices.Sort(b.m.out.Revoked)
}
