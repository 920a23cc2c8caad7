package cluster

import (
	"encoding/json"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// maxReportPart bounds the tickets of one part of a report.
const maxReportPart = 500

// report opens a session with the keeper of the promised epoch, if there is one, and tells it
// all that it has to know of this member.
func (b *member) report() {
	b.open = false
	k := b.m.election.promised.Keeper
	if k == 0 {
		return
	}
	b.session++
	if k != b.m.o.Self.Incarnation {
		p := b.m.peers[k]
		if p == nil {
			return
		}
		p.resetSession(b.session)
	} else if b.m.voidLoop(); b.m.keeper == nil {
		return
	} else {
		b.m.keeper.reportsAnew()
	}
	b.open, b.openedAt = true, b.m.now
	b.m.counters.Reports++
	for i := range b.tickets {
		b.tickets[i].asked = 0
	}
	for _, part := range b.parts() {
		b.m.toKeeper(Item{Kind: ItemReport, Body: part})
	}
}

// parts is the report, in parts.
func (b *member) parts() []*Report {
	first := &Report{
		First: true, Self: b.m.o.Self, Of: b.served, Standby: b.log.whole, Fallback: b.m.o.Fallback,
		Shares: b.shared, Configuration: b.configuration(), Observation: b.m.observed.whole(b.m.now),
		Known: b.known(),
	}
	if k := b.m.election.promised.Keeper; k != b.m.o.Self.Incarnation {
		first.Documents = b.m.docs.hello()
	}
	if b.served != b.m.election.promised { // else it is that keeper's own
		first.Rows = b.m.ranks.whole()
	}
	all, part, n := []*Report{first}, first, 0
	room := func() *Report {
		if n++; n > maxReportPart {
			part, n = &Report{}, 1
			all = append(all, part)
		}
		return part
	}
	for _, number := range slices.Sorted(maps.Keys(b.tickets)) {
		switch t := b.tickets[number]; t.state {
		case waiting:
			r := room()
			r.Waiters = append(r.Waiters, b.waiter(t))
		case granted:
			r := room()
			r.Holds = append(r.Holds, b.hold(t))
		}
	}
	for _, h := range b.log.sorted() {
		if h.Ticket.Member != b.m.o.Self.Incarnation {
			r := room()
			r.Foreign = append(r.Foreign, h)
		}
	}
	part.Last = true
	return all
}

func (b *member) waiter(t *ticket) Waiter {
	w := Waiter{Number: t.number, Attempt: t.attempt, Place: t.place, Ask: *b.ask(t, false)}
	if t.queued != nil {
		q := *t.queued
		if q.Left > 0 {
			q.Left = max(t.queuedAt.Add(q.Left).Sub(b.m.now), 1)
		}
		w.Queued = &q
	}
	for l := range t.request.Hints {
		for _, h := range t.request.Hints[l].Holders {
			w.HolderIDs[l] = append(w.HolderIDs[l], h.Rank.ID)
		}
		for _, x := range t.request.Exclude[l] {
			w.ExcludeIDs[l] = append(w.ExcludeIDs[l], x.ID)
		}
	}
	return w
}

func (b *member) hold(t *ticket) HoldEntry {
	g := &t.grant
	return HoldEntry{
		Ticket: TicketID{b.m.o.Self.Incarnation, t.number}, Attempt: t.attempt, Prefill: g.prefill, Decode: g.decode,
		Hold: HoldOf{
			Ask:          b.ask(t, false),
			HoldsPrefill: g.holdsPrefill, HoldsDecode: g.holdsDecode, DecodeActive: g.started, FirstToken: g.firstToken,
			Tokens: g.tokens, Blocks: g.blocks, Grown: g.grown, Age: b.m.now.Sub(g.at), Class: g.class,
		},
	}
}

func newConfiguration(now admission.Instant, generation uint64, s admission.Settings) configuration {
	c := configuration{generation: generation, loaded: now, settings: s}
	if text, err := json.Marshal(s); err == nil { // it is nothing but numbers and names
		h := fnv.New64a()
		h.Write(text)
		c.digest = h.Sum64()
	}
	return c
}

func (b *member) configuration() *Configuration {
	c := &b.config
	return &Configuration{Generation: c.generation, Age: b.m.now.Sub(c.loaded), Digest: c.digest, Settings: c.settings}
}

// known are the members that this one knows of: not who may not be one.
func (b *member) known() []Member {
	list := []Member{b.m.o.Self}
	for _, p := range b.m.order {
		if p.refused == "" {
			list = append(list, p.Member)
		}
	}
	return list
}
