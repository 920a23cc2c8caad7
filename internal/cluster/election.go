package cluster

import "github.com/sluice-router/sluice/admission"

// election knows who is the keeper: it reads and writes the record in the store, stands
// for keeper, promises, and resigns.
type election struct {
	m *Machine
	// promised is the epoch whose keeper this member obeys; its own while it is the keeper.
	promised Epoch
}

func (e *election) start(m *Machine) { e.m = m }

// tick does what is due: reading and renewing the record, standing, resigning.
func (e *election) tick() {}

func (e *election) next() admission.Instant { return never }

// stored takes the result of a StoreOp.
func (e *election) stored(StoreResult) {}

// control takes one control message.
func (e *election) control(*peer, *Control) {}

// told looks at the head of an envelope: epochs higher than the own one, a keeper's
// office.
func (e *election) told(*peer, *Envelope) {}

// stranger makes a peer of the sender of an envelope that is not known yet, if it says
// who it is and may be a member.
func (e *election) stranger(*Envelope) *peer { return nil }

func (e *election) handOver() {}

func (e *election) leave() {}

func (e *election) ended(string) error { return nil }

// renewed is when the last successful write of the record as this member's own began, for
// as long as this member is the keeper; negative: there was none.
func (e *election) renewed() admission.Instant { return -1 }

// valid tells whether this member, as the keeper, may decide now: within the lease, less
// the margin, the store or all listed members confirmed it.
func (e *election) valid() bool { return false }

// hears tells whether the keeper of the promised epoch is in office, as was heard lately;
// this member itself, when it is the keeper.
func (e *election) hears() bool { return false }

// lastHeard is when a keeper of the promised epoch in office was last heard, by an envelope
// that answered a recent one of this member's; negative: never.
func (e *election) lastHeard() admission.Instant { return -1 }

// hasEnded tells whether a member is proven to have ended.
func (e *election) hasEnded(Incarnation) bool { return false }
