package cluster

import (
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// maxEntries is the most tickets of one part of a long message.
const maxEntries = 500

// chooseStandby makes the senior of the other members that answer the standby. One that was
// none before is told all holds.
func (k *keeper) chooseStandby() {
	var first *seat
	for _, s := range k.order {
		if !s.self() && s.mayGet() {
			first = s
			break
		}
	}
	if k.port == nil || k.m.o.withoutStandby {
		first = nil
	}
	if first == k.standby {
		return
	}
	k.standby = first
	for _, t := range k.own { // who was told of them is not the standby any more
		t.told, t.seq = false, 0
	}
	if first == nil {
		k.m.event(LevelWarn, "there is no standby: no other member answers")
		k.deliver()
		return
	}
	k.m.event(LevelInfo, "a member is the standby", "member", first.Name)
	k.tellAllHolds()
}

// tellAllHolds tells a new standby what it has to know, but for its own tickets.
func (k *keeper) tellAllHolds() {
	part := &Holds{First: true}
	send := func() {
		k.m.toMember(k.standby.Incarnation, Item{Kind: ItemHolds, Body: part})
		part = &Holds{}
	}
	for _, t := range k.tickets {
		if t == nil || t.state != keptGranted || t.seat == k.standby {
			continue
		}
		x, ok := k.port.Ticket(t.number)
		if !ok {
			continue
		}
		if len(part.Entries) == maxEntries {
			send()
		}
		part.Entries = append(part.Entries, HoldEntry{Ticket: t.id, Attempt: t.attempt, Prefill: x.Prefill.ID, Decode: x.Decode.ID, Hold: k.holdOf(t, &x)})
		if t.own {
			t.told, t.seq = true, 0
		}
	}
	part.Last = true
	send()
}

// othersHolds are the holds of all other members, for the next keeper: some may be lost.
func (k *keeper) othersHolds() (all []HoldEntry) {
	for _, t := range k.tickets {
		if t == nil || t.state != keptGranted || t.seat.self() {
			continue
		}
		if x, ok := k.port.Ticket(t.number); ok {
			all = append(all, HoldEntry{Ticket: t.id, Attempt: t.attempt, Prefill: x.Prefill.ID, Decode: x.Decode.ID, Hold: k.holdOf(t, &x)})
		}
	}
	return all
}

// holdOf is what t holds.
func (k *keeper) holdOf(t *kept, x *admission.PortTicket) HoldOf {
	return HoldOf{
		Ask: t.ask, HoldsPrefill: x.HoldsPrefill, HoldsDecode: x.HoldsDecode, DecodeActive: x.DecodeActive,
		FirstToken: x.Tokens == 0, Tokens: x.Tokens, Blocks: x.Blocks - t.grown, Grown: t.grown,
		Age: k.m.now.Sub(t.granted), Class: x.Class,
	}
}

// tellHold tells the standby what t was granted.
func (k *keeper) tellHold(t *kept, x *admission.PortTicket) {
	if k.standby == nil || t.seat == k.standby {
		return
	}
	h := k.holdOf(t, x)
	k.m.toMember(k.standby.Incarnation, Item{
		Kind: ItemHold, Member: t.id.Member, Number: t.id.Number, Attempt: t.attempt,
		Prefill: k.table.named(x.Prefill), Decode: k.table.named(x.Decode), Body: &h,
	})
	if t.own {
		t.told, t.seq = true, 0
	}
}

// tellStep tells the standby of a step of a ticket that it was told of.
func (k *keeper) tellStep(t *kept, op admission.StepOp, amount int64) {
	if k.standby == nil || t.seat == k.standby {
		return
	}
	k.m.toMember(k.standby.Incarnation, Item{
		Kind: ItemHold, Member: t.id.Member, Number: t.id.Number, Attempt: t.attempt, Op: op, Amount: amount,
	})
}

// took tells that items, which were pending for p, go out as number seq of its session.
func (k *keeper) took(p *peer, seq uint64, items []Item) {
	if k.standby == nil || p.Incarnation != k.standby.Incarnation || len(k.own) == 0 {
		return
	}
	own := k.seats[k.m.o.Self.Incarnation]
	sent := func(number uint64, attempt uint32) {
		if t := own.tickets[number]; t != nil && t.own && t.attempt == attempt {
			t.seq = seq
		}
	}
	for i := range items {
		switch x := items[i].Body.(type) {
		case *HoldOf:
			if items[i].Member == own.Incarnation {
				sent(items[i].Number, items[i].Attempt)
			}
		case *Holds:
			for _, e := range x.Entries {
				if e.Ticket.Member == own.Incarnation {
					sent(e.Ticket.Number, e.Attempt)
				}
			}
		}
	}
}

// deliver hands this process the grants that somebody else knows of: that the standby has
// acknowledged, or, while nobody could, those within this member's share.
func (k *keeper) deliver() {
	if len(k.own) == 0 || k.port == nil || k.office() != OfficeDeciding {
		return
	}
	if s := k.seats[k.m.o.Self.Incarnation]; !s.reported {
		return // it is reporting where it stands, without them
	}
	share := ownShare{k: k}
	k.own = slices.DeleteFunc(k.own, func(t *kept) bool {
		if !t.own || t.state != keptGranted {
			return true // it was given back
		}
		if !k.known(t, &share) {
			return false
		}
		t.own = false
		x, _ := k.port.Ticket(t.number)
		k.m.toMember(t.seat.Incarnation, k.grantOf(t, &x))
		return true
	})
}

// known tells whether a grant to this process may count.
func (k *keeper) known(t *kept, share *ownShare) bool {
	switch {
	case k.m.o.withoutStandby:
		return true
	case k.standby != nil:
		p := k.m.peers[k.standby.Incarnation]
		return t.told && t.seq > 0 && p != nil && p.acked >= t.seq
	}
	return share.fits(t)
}
