package cluster

import (
	"cmp"
	"maps"
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// holdLog are the holds of all members, as the keeper of an epoch tells its standby. It is
// kept until another keeper is heard deciding, which knows them.
type holdLog struct {
	of      Epoch
	entries map[TicketID]*HoldEntry
	whole   bool // the last part has come
	own     bool // it is what this member knew as the keeper
}

// maxLogged bounds the holds that are remembered. With more, this is no standby.
const maxLogged = 1 << 20

// holds takes a part of all holds of an epoch.
func (l *holdLog) holds(of Epoch, x *Holds) {
	if x.First {
		*l = holdLog{of: of, entries: map[TicketID]*HoldEntry{}}
	}
	if l.entries == nil || l.own || l.of != of {
		return
	}
	for i := range x.Entries {
		l.put(x.Entries[i])
	}
	l.whole = l.whole || x.Last
}

func (l *holdLog) put(h HoldEntry) {
	if len(l.entries) >= maxLogged {
		*l = holdLog{}
		return
	}
	l.entries[h.Ticket] = &h
}

// hold takes what became of one hold: what was granted or moved, or a step of it.
func (l *holdLog) hold(b *member, it *Item) {
	if l.entries == nil || l.own || l.of != b.m.election.promised {
		return
	}
	id := TicketID{it.Member, it.Number}
	if x, _ := it.Body.(*HoldOf); x != nil {
		prefill, decode := b.m.ranks.id(it.Prefill), b.m.ranks.id(it.Decode)
		if decode == "" { // of a rank that is gone: who has it tells
			return
		}
		l.put(HoldEntry{Ticket: id, Attempt: it.Attempt, Prefill: prefill, Decode: decode, Hold: *x})
		return
	}
	h := l.entries[id]
	if h == nil || h.Attempt != it.Attempt {
		return
	}
	if it.Op == admission.StepForget || it.Op == admission.StepCancel || it.Op == "" {
		delete(l.entries, id)
		return
	}
	g := ticketGrant{
		holdsPrefill: h.Hold.HoldsPrefill, holdsDecode: h.Hold.HoldsDecode, started: h.Hold.DecodeActive,
		firstToken: h.Hold.FirstToken, grown: h.Hold.Grown,
	}
	g.take(it.Op, it.Amount)
	h.Hold.HoldsPrefill, h.Hold.HoldsDecode, h.Hold.DecodeActive = g.holdsPrefill, g.holdsDecode, g.started
	h.Hold.FirstToken, h.Hold.Grown = g.firstToken, g.grown
	if !g.held() {
		delete(l.entries, id)
	}
}

// inherit takes what this member knew as the keeper of an epoch.
func (l *holdLog) inherit(of Epoch, all []HoldEntry) {
	*l = holdLog{of: of, entries: map[TicketID]*HoldEntry{}, whole: true, own: true}
	for i := range all {
		l.put(all[i])
	}
}

// drop forgets the holds of other epochs.
func (l *holdLog) drop(but Epoch) {
	if l.of != but {
		*l = holdLog{}
	}
}

func (l *holdLog) sorted() (all []HoldEntry) {
	for _, h := range slices.SortedFunc(maps.Values(l.entries), func(a, b *HoldEntry) int {
		return cmp.Or(cmp.Compare(a.Ticket.Member, b.Ticket.Member), cmp.Compare(a.Ticket.Number, b.Ticket.Number))
	}) {
		all = append(all, *h)
	}
	return all
}
