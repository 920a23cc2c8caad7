//go:build !sluice_nextprotocol

package cluster

// ProtocolVersion is the newest version of the protocol that this build speaks, ProtocolMin
// the oldest. Neighbouring versions speak with each other: what a version adds, and older
// ones do not skip, is said only while all listed members' builds have it (agreeVersion),
// and to no peer whose build does not.
const (
	ProtocolVersion = 1
	ProtocolMin     = 1
)

// LastControl is the last of the control messages that a reader must understand.
const LastControl = ControlResync

// sayNewer adds to an envelope what newer versions say; there is none yet.
func (m *Machine) sayNewer(*peer, *Envelope) {}
