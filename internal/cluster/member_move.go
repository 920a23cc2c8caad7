package cluster

import (
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// A decode leg whose prefill is running or done does not wait for a keeper: when none answers
// in time, the member moves it to another rank by itself, and tells.

// move asks for another decode rank for a ticket.
func (b *member) move(number uint64, attempt uint32, exclude []string) {
	t := b.tickets[number]
	if t == nil || t.attempt != attempt || t.state != granted || !t.grant.holdsDecode || t.grant.prefill == "" {
		b.m.out.Moved = append(b.m.out.Moved, Moved{Number: number, Attempt: attempt})
		return
	}
	t.exclude = exclude
	if !b.hasKeeper(b.m.o.Silent) {
		b.moveAlone(t)
		return
	}
	var avoid []RankAt
	for _, id := range exclude {
		if at := b.m.ranks.at(id); at != (RankAt{}) {
			avoid = append(avoid, at)
		}
	}
	if t.moveBy == never {
		b.moving = append(b.moving, t)
	}
	t.moveBy = b.m.now.Add(moveWithin)
	t.asked++
	b.tell(Item{Kind: ItemMove, Number: number, Attempt: attempt, Body: avoid})
}

// moved takes the keeper's answer; false: its rank is not in the copy of the table.
func (b *member) moved(it *Item) bool {
	t := b.tickets[it.Number]
	if t == nil || t.attempt != it.Attempt || t.asked == 0 {
		return true
	}
	if t.asked--; t.asked > 0 || t.moveBy == never {
		return true // of an earlier question, or too late
	}
	if !it.Granted {
		b.endMove(t)
		b.m.out.Moved = append(b.m.out.Moved, Moved{Number: t.number, Attempt: t.attempt})
		return true
	}
	id := b.m.ranks.id(it.Decode)
	if id == "" {
		return false
	}
	blocks := t.grant.blocks
	if g, _ := it.Body.(*Grant); g != nil {
		blocks = g.Blocks
	}
	b.moveTo(t, id, blocks)
	return true
}

// moveTo has t decode on another rank.
func (b *member) moveTo(t *ticket, id string, blocks int64) {
	b.endMove(t)
	g := &t.grant
	g.decode, g.started, g.grown, g.blocks = id, false, 0, blocks
	b.m.out.Moved = append(b.m.out.Moved, Moved{Number: t.number, Attempt: t.attempt, Granted: true, Decode: id})
}

func (b *member) endMove(t *ticket) {
	if t.moveBy == never {
		return
	}
	t.moveBy, t.exclude = never, nil
	b.moving = slices.DeleteFunc(b.moving, func(o *ticket) bool { return o == t })
}

// endMoves makes the moves that no keeper has answered in time.
func (b *member) endMoves() {
	for i := 0; i < len(b.moving); {
		if t := b.moving[i]; b.alone.on || t.moveBy <= b.m.now {
			b.moveAlone(t)
			continue
		}
		i++
	}
}

// moveAlone moves the decode leg of t to the rank with the least load, by the last that is
// known, of those that may be paired with its prefill rank.
func (b *member) moveAlone(t *ticket) {
	b.endMove(t)
	row := b.otherDecode(t)
	if row == nil {
		b.m.out.Moved = append(b.m.out.Moved, Moved{Number: t.number, Attempt: t.attempt})
		return
	}
	b.moveTo(t, row.Spec.ID, blocksOf(&t.request, row.Spec.Capacity.BlockSize))
	row.Load.Pending += max(t.request.Legs, 1) // until the keeper tells it
	b.tell(Item{Kind: ItemMovedAlone, Number: t.number, Attempt: t.attempt, Decode: row.At})
	b.alone.stale = b.alone.on
}

func (b *member) otherDecode(t *ticket) (best *Row) {
	p := b.m.ranks.find(t.grant.prefill)
	if p == nil {
		return nil // it is not known what may follow it
	}
	target := &t.request.Target
	better := func(r *Row) bool {
		if best == nil {
			return true
		}
		load, least := r.Load.Pending+r.Load.Active, best.Load.Pending+best.Load.Active
		return load < least || load == least && r.Spec.ID < best.Spec.ID
	}
	for _, r := range b.m.ranks.rows {
		if r == nil || r.Spec.Role != admission.RoleDecode || r.Spec.ID == t.grant.decode || slices.Contains(t.exclude, r.Spec.ID) ||
			!pairs(p.Spec, r.Spec, target) || !b.usable(r) || !eligible(target, admission.DecodeLeg, r.Spec) {
			continue
		}
		if better(r) {
			best = r
		}
	}
	return best
}

// pairs tells whether a decode rank may follow a prefill rank.
func pairs(p, d *admission.RankSpec, t *admission.TargetSpec) bool {
	return p.PairGroup == d.PairGroup && (t.Topology != admission.TopologyRequired || p.Topology == d.Topology) &&
		slices.ContainsFunc(d.Models, func(model string) bool { return slices.Contains(p.Models, model) })
}

// usable tells whether requests of this member may go to a rank.
func (b *member) usable(r *Row) bool {
	own, ok := b.m.observed.ranks[r.Spec.ID]
	if !ok || slices.Contains(r.Masked, b.m.o.Self.Incarnation) {
		return false
	}
	s := stateFor(r, &own)
	return s.Healthy && !s.Draining && s.Breaker != admission.BreakerOpen
}

// stateFor is what this member has a rank for: what all know, and what it tried itself.
func stateFor(r *Row, own *RankObservation) admission.RankState {
	s := own.Spec.State
	if own.Checks != Failed && own.Legs == Untried && r != nil {
		draining := s.Draining
		s = r.Spec.State
		s.Draining = s.Draining || draining
	}
	return s
}

// eligible tells whether a target admits a rank for a leg.
func eligible(t *admission.TargetSpec, l admission.Leg, r *admission.RankSpec) bool {
	names := func(pin string) bool {
		if pin == r.ID || pin == r.Worker {
			return true
		}
		_, rank, ok := admission.SplitRankID(r.ID)
		_, of, at := admission.SplitRankID(pin)
		return ok && at && len(pin) > 0 && pin[0] == '@' && of == rank
	}
	switch {
	case t.Pins[l] != "" && !names(t.Pins[l]),
		t.Allowed[l] != nil && !slices.ContainsFunc(t.Allowed[l], names),
		t.Adapter != "" && !slices.Contains(r.Adapters, t.Adapter):
		return false
	}
	for _, want := range t.Require[l] {
		if r.Labels[want.Key] != want.Value {
			return false
		}
	}
	return true
}

// defaultBlock is the size of KV blocks, in tokens, of ranks that do not tell it.
const defaultBlock = 16

// blocksOf is how many KV blocks a request is booked with on a rank.
func blocksOf(r *admission.Request, size int64) int64 {
	if size <= 0 {
		size = defaultBlock
	}
	legs := int64(max(r.Legs, 1))
	leg := (max(r.PromptTokens, 0)+legs-1)/legs + max(r.ReserveTokens, 0)
	return legs * ((leg + size - 1) / size)
}

// tokensOn are the prompt tokens that a rank has to compute.
func tokensOn(r *admission.Request, l admission.Leg, id string) int64 {
	cached := int64(0)
	for _, h := range r.Hints[l].Holders {
		if h.Rank.ID == id {
			cached = max(cached, h.Tokens)
		}
	}
	return max(r.PromptTokens-cached, 0)
}
