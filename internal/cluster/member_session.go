package cluster

import (
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// What a member and its keeper tell each other belongs to a session, which the member opens
// with a report. When an envelope is missing, or a grant comes too late, it opens another.

// envelope takes an envelope of the keeper of the promised epoch.
func (b *member) envelope(p *peer, e *Envelope) {
	now := b.m.now
	if e.Office != OfficeNone && p.fresh >= 0 && now-p.fresh <= admission.Instant(b.m.o.Silent) {
		b.hear(e.Office)
	}
	if b.alone.on && !b.m.o.withoutEpochs {
		return // what it says is too old
	}
	for i := range e.Control {
		// Of an earlier session it is not said again once it has the report of this one.
		if e.Control[i].Kind == ControlResync && p.fresh >= b.openedAt {
			b.report()
			return
		}
	}
	if b.m.o.withoutEpochs {
		b.items(p, e)
		return
	}
	if !b.open || e.Session != p.session {
		b.drop(e, DropEpoch)
		return
	}
	p.acked = max(p.acked, min(e.Ack, p.seqOut))
	switch {
	case len(e.Items) == 0:
		if e.Seq > p.seqIn {
			b.report()
		}
	case e.Seq <= p.seqIn: // it came before
	case e.Seq > p.seqIn+1:
		b.drop(e, DropEpoch)
		b.report()
	case hasGrant(e) && !b.isFresh(p):
		b.drop(e, DropStale)
		b.report()
	default:
		p.seqIn = e.Seq
		b.items(p, e)
	}
}

// isFresh tells whether the envelope that is being read answers what was sent here lately
// enough for its grants to be taken: its keeper cannot have counted this member as lost.
func (b *member) isFresh(p *peer) bool {
	return p.fresh >= 0 && b.m.now-p.fresh < admission.Instant(b.m.o.Lease-b.m.o.Margin)
}

func hasGrant(e *Envelope) bool {
	return slices.ContainsFunc(e.Items, func(it Item) bool {
		return it.Granted && (it.Kind == ItemDecision || it.Kind == ItemMoved)
	})
}

// drop counts the grants of an envelope that is not taken.
func (b *member) drop(e *Envelope, why Drop) {
	for i := range e.Items {
		if e.Items[i].Kind == ItemDecision && e.Items[i].Granted {
			b.m.counters.Dropped[why]++
		}
	}
}

// items takes the items of an envelope, until one shows that a new session is needed.
func (b *member) items(p *peer, e *Envelope) {
	for i := range e.Items {
		it := &e.Items[i]
		if it.Kind == ItemHolds || it.Kind == ItemHold && it.Op == "" && it.Member == e.From {
			p.ackNow = true // the keeper's own request waits for it
		}
		if !b.take(e.From, it) {
			b.report()
			return
		}
	}
}

// receive takes an item of this process's own keeper.
func (b *member) receive(it *Item) {
	if b.m.keeper == nil || b.alone.on {
		return
	}
	if !b.take(b.m.o.Self.Incarnation, it) {
		b.report()
	}
}

// take takes an item of the keeper; false: a new session is needed.
func (b *member) take(from Incarnation, it *Item) bool {
	switch it.Kind {
	case ItemQueued:
		b.isQueued(it)
	case ItemDecision:
		return b.decided(it)
	case ItemRenew:
		if t := b.tickets[it.Number]; t != nil && t.state == waiting {
			b.m.out.Renew = append(b.m.out.Renew, it.Number)
		}
	case ItemMoved:
		return b.moved(it)
	case ItemRows:
		if x, _ := it.Body.(*Rows); x != nil {
			b.m.ranks.apply(x)
			b.m.out.RanksChanged = true
		}
	case ItemShares:
		if x, _ := it.Body.(*Shares); x != nil {
			b.shared = *x
			b.tell(Item{Kind: ItemSharesTaken, Number: x.Version})
		}
	case ItemHold:
		b.log.hold(b, it)
	case ItemHolds:
		if x, _ := it.Body.(*Holds); x != nil {
			b.log.holds(b.m.election.promised, x)
		}
	case ItemStatus:
		if x, _ := it.Body.(*ClusterView); x != nil {
			b.view, b.viewAt = x, b.m.now
			b.tellDiffers()
		}
	case ItemDocuments:
		if x, _ := it.Body.(*Documents); x != nil {
			b.m.docs.receive(from, x)
		}
	}
	return true
}
