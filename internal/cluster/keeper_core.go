package cluster

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// What the keeper has the core do beside the steps of tickets.

// gateOptions are those of the core, with the settings in force.
func (k *keeper) gateOptions() admission.Options {
	o := k.m.o.Gate
	o.Epoch = k.epoch.Number
	if k.settings.from != 0 {
		o.Limits, o.Classes, o.Reject = k.settings.settings.Limits, k.settings.settings.Classes, k.settings.settings.Reject
	}
	return o
}

// fleetChanged tells the core what has changed of ranks, and the members before they are
// told of decisions that come of it.
func (k *keeper) fleetChanged() {
	if k.port == nil {
		return
	}
	masked := map[Incarnation]bool{}
	changes := k.table.changes(k.m.now, nil, func(member Incarnation, ref admission.RankRef, masks bool) {
		masked[member] = true
		of := k.masks[member]
		if of == nil {
			of = map[admission.RankRef]bool{}
			k.masks[member] = of
		}
		if masks {
			of[ref] = true
		} else {
			delete(of, ref)
		}
	})
	for i := range changes {
		switch op := changes[i].Op; op {
		case admission.AddRank, admission.SetAttributes:
			k.claims.dirty = true
		case admission.RemoveRank:
			k.claims.dirty = true
			for _, of := range k.masks {
				delete(of, changes[i].Rank)
			}
		}
	}
	if len(changes) > 0 || len(masked) > 0 {
		k.tellRows()
	}
	for _, member := range slices.Sorted(maps.Keys(masked)) {
		k.setMask(member)
	}
	if len(changes) > 0 {
		k.do(admission.Step{Op: admission.StepApply, Changes: changes})
	}
	for _, d := range k.table.differences(8) {
		k.m.event(LevelWarn, "members say different things of a rank", "rank", d.id, "member", k.nameOf(d.member), "differs", d.what)
	}
}

func (k *keeper) nameOf(x Incarnation) string {
	if s := k.seats[x]; s != nil {
		return s.Name
	}
	return x.String()
}

// setMask tells the core which ranks the requests of a member must not use.
func (k *keeper) setMask(member Incarnation) {
	refs := slices.SortedFunc(maps.Keys(k.masks[member]), func(a, b admission.RankRef) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Generation, b.Generation))
	})
	k.do(admission.Step{Op: admission.StepSetMask, Origin: uint64(member), Exclude: refs})
}

// adopt makes tickets known to the core in the state that they had elsewhere.
func (k *keeper) adopt(states []admission.TicketState) {
	if len(states) > 0 {
		a := k.port.Adopt(k.m.now, states)
		k.carry(&a)
	}
}

// suspend takes the waiters of a member out of the queues: it cannot be granted anything.
func (k *keeper) suspend(s *seat) {
	s.suspended = true
	k.do(admission.Step{Op: admission.StepSuspend, Tickets: s.waitingNumbers()})
}

// resume puts them back in their place.
func (k *keeper) resume(s *seat) {
	s.suspended = false
	k.do(admission.Step{Op: admission.StepPutBack, Tickets: s.waitingNumbers()})
}

func (s *seat) waitingNumbers() (numbers []uint64) {
	for _, t := range s.sorted() {
		if t.state == keptWaiting {
			numbers = append(numbers, t.number)
		}
	}
	return numbers
}

// setAside books what is set aside on ranks.
func (k *keeper) setAside(list []asideOn) {
	var changes []admission.FleetChange
	for _, x := range list {
		changes = append(changes, admission.FleetChange{Op: admission.SetAside, Rank: x.ref, Aside: x.Aside})
	}
	if len(changes) > 0 {
		k.do(admission.Step{Op: admission.StepApply, Changes: changes})
		k.pushed.changed = true
	}
}

// softState is what a planned successor goes on with. Tickets are named as members name them.
func (k *keeper) softState() []byte {
	x := softState{Soft: k.port.Soft(k.m.now)}
	for i, q := range x.Soft.Queues {
		if t := k.ticket(q.Fence); q.Fence != 0 && t != nil {
			x.Soft.Queues[i].Fence = uint64(len(x.Fences) + 1)
			x.Fences = append(x.Fences, t.id)
		}
	}
	text, err := json.Marshal(x)
	if err != nil {
		return nil // it starts anew
	}
	return text
}

type softState struct {
	Soft   admission.Soft
	Fences []TicketID // by the number, from 1, that stands for a ticket in Soft
}

// restoreSoft goes on with what the keeper before handed over.
func (k *keeper) restoreSoft() {
	var x softState
	if len(k.soft) == 0 || json.Unmarshal(k.soft, &x) != nil {
		return
	}
	k.soft = nil
	for i, q := range x.Soft.Queues {
		x.Soft.Queues[i].Fence = 0
		if q.Fence == 0 || q.Fence > uint64(len(x.Fences)) {
			continue
		}
		id := x.Fences[q.Fence-1]
		if s := k.seats[id.Member]; s != nil && s.tickets[id.Number] != nil {
			x.Soft.Queues[i].Fence = s.tickets[id.Number].number
		}
	}
	a := k.port.SetSoft(k.m.now, x.Soft)
	k.carry(&a)
}

// tellLoads notes in the table what is booked on ranks.
func (k *keeper) tellLoads() {
	k.port.EachLoad(func(ref admission.RankRef, l admission.RankLoad) {
		k.table.setLoad(ref, Load{
			Slots: l.Slots, PrefillLegs: l.PrefillLegs, Pending: l.Pending, Active: l.Active,
			Tokens: l.Tokens, PendingBlocks: l.PendingBlocks, ActiveBlocks: l.ActiveBlocks,
		})
	})
}
