package cluster

import "github.com/sluice-router/sluice/admission"

// keeper is the gate for all members, while this one has the office.
type keeper struct {
	m     *Machine
	epoch Epoch
}

// newKeeper begins the office: members are asked to report; see the package comment for
// when the gate opens. soft is what a keeper before handed over, or nil.
func newKeeper(m *Machine, e Epoch, members []Member, soft []byte) *keeper {
	return &keeper{m: m, epoch: e}
}

// office is what it may do now.
func (k *keeper) office() Office { return OfficeNone }

// tick does what time brings: deadlines of the core, silent and lost members, grants that
// wait for the standby.
func (k *keeper) tick() {}

func (k *keeper) next() admission.Instant { return never }

// envelope takes an envelope of the epoch from a member: its session, its items.
func (k *keeper) envelope(*peer, *Envelope) {}

// receive takes an item of this process's own member.
func (k *keeper) receive(Incarnation, *Item) {}

// took tells that items, which were pending for p, go out as number seq of its session.
func (k *keeper) took(p *peer, seq uint64, items []Item) {}

// stats is the state of the core; ok is false before the gate is open.
func (k *keeper) stats() (s admission.Stats, ok bool) { return s, false }

// What the election tells the keeper, and asks it.

// join tells of a member that asks to be listed and may be.
func (k *keeper) join(Member) {}

// wanted is the list that the record is to have: the members, by seat, this one among them.
// The election writes the record anew when it differs from what was written last.
func (k *keeper) wanted() []Member { return nil }

// listed tells that the store has this list.
func (k *keeper) listed([]Member) {}

// ended tells that a member is proven to have ended: what it held and asked for is released.
func (k *keeper) ended(Incarnation) {}

// stop ends deciding for good, before the office is handed over, and returns the soft state
// of the core.
func (k *keeper) stop() (soft []byte) { return nil }
