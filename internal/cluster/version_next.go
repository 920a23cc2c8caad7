//go:build sluice_nextprotocol

package cluster

// This is the next version of the protocol as tests of rolling upgrades need it: it says
// something to all members that older builds skip, and something to newer ones that older
// builds refuse.
const (
	ProtocolVersion = 2
	ProtocolMin     = 1
)

const (
	controlNext ControlKind = ControlResync + 1
	// controlNextOption is of the kinds that who does not know them skips.
	controlNextOption ControlKind = 128
)

// LastControl is the last of the control messages that a reader must understand.
const LastControl = controlNext

// sayNewer adds to an envelope what version 2 says.
func (m *Machine) sayNewer(p *peer, e *Envelope) {
	e.Control = append(e.Control, Control{Kind: controlNextOption, Reason: "version 2"})
	if min(m.election.roster.version, p.Versions.Max) >= 2 {
		e.Control = append(e.Control, Control{Kind: controlNext, Reason: "version 2"})
	}
}
