package cluster

import (
	"time"

	"github.com/sluice-router/sluice/admission"
)

// member is this process's own requests: with a keeper it sends what they ask and takes
// what is decided, without one it decides on its share, or refuses.
//
// member_tickets.go has the life of a ticket, member_bounds.go the ends of waits, which are
// kept here whatever the keeper does, member_session.go the session with the keeper,
// member_report.go what it begins with, member_alone.go what happens without a keeper,
// member_standby.go the holds of others that a standby remembers.
type member struct {
	m *Machine

	tickets map[uint64]*ticket
	spare   []*ticket
	waits   waits
	moving  []*ticket // whose Move has not been answered

	// session is the last one that was opened. open: the keeper of the promised epoch has, or
	// gets, a report in it, and what follows the report is sent. openedAt is when it was.
	session  uint64
	open     bool
	openedAt admission.Instant

	// heardAt is when a keeper was last heard that decides, or opens the gate, and that had
	// received what was sent here shortly before; negative: never. office is what it was then.
	// patient is when the patience without a keeper began.
	heardAt admission.Instant
	office  Office
	patient admission.Instant
	// served is the last epoch whose keeper was heard deciding.
	served Epoch

	// revokedFor is the heardAt after which what was granted before was revoked.
	revokedFor admission.Instant

	alone   alone
	log     holdLog
	config  configuration
	shared  Shares
	view    *ClusterView
	viewAt  admission.Instant
	differs bool // the own configuration is not in force, as the log says
	drained drained
}

// configuration is what this process was configured with.
type configuration struct {
	generation uint64
	loaded     admission.Instant
	settings   admission.Settings
	digest     uint64
}

// moveWithin is how long the keeper may take to name another decode rank.
const moveWithin = 200 * time.Millisecond

func (b *member) start(m *Machine) {
	g := &m.o.Gate
	*b = member{m: m, tickets: map[uint64]*ticket{}, heardAt: -1, patient: m.now, openedAt: -1, revokedFor: -1}
	b.config = newConfiguration(m.now, m.o.Generation, admission.Settings{Limits: g.Limits, Classes: g.Classes, Reject: g.Reject})
}

// promised tells that a new epoch is obeyed from now on: a session begins with a report.
func (b *member) promised() {
	b.endAlone()
	b.office, b.patient = OfficeNone, b.m.now
	b.report()
}

// tick does what time brings: ends of waits, the patience without a keeper, what was lost
// too long ago.
func (b *member) tick() {
	b.listen()
	if !b.alone.on && !b.inSession() {
		b.report()
	}
	if !b.alone.on && b.m.now-b.patient >= admission.Instant(b.m.o.Patience) {
		b.beginAlone()
	}
	b.advanceAlone()
	b.endMoves()
	b.endWaits()
	b.revokeLost()
	b.endDrain()
}

func (b *member) next() admission.Instant {
	next := min(b.drained.next(), b.nextRevoke())
	for _, t := range b.moving {
		next = min(next, t.moveBy)
	}
	if b.alone.on {
		return min(next, b.alone.next)
	}
	return min(next, b.waits.next(), b.patient.Add(b.m.o.Patience))
}

// inSession tells whether what is told goes to the keeper of the promised epoch. That may be
// a peer that was forgotten and met again.
func (b *member) inSession() bool {
	k := b.m.election.promised.Keeper
	if k == b.m.o.Self.Incarnation {
		return b.open && b.m.keeper != nil
	}
	p := b.m.peers[k]
	return b.open && p != nil && p.session == b.session
}

// listen hears this process's own keeper.
func (b *member) listen() {
	if b.m.keeper == nil {
		return
	}
	if o := b.m.keeper.office(); o != OfficeNone {
		b.hear(o)
	}
}

// hear tells that the keeper of the promised epoch is there and what it may do.
func (b *member) hear(o Office) {
	b.heardAt, b.patient, b.office = b.m.now, b.m.now, o
	if o == OfficeDeciding && b.served != b.m.election.promised {
		b.served = b.m.election.promised
		b.log.drop(b.served) // that keeper knows all holds
	}
	if b.alone.on {
		b.endAlone()
		b.report()
	}
}

// hasKeeper tells whether a keeper that decides was heard within d.
func (b *member) hasKeeper(d time.Duration) bool {
	return b.open && b.heardAt >= 0 && b.office == OfficeDeciding && b.m.now-b.heardAt <= admission.Instant(d)
}

// settings are those in force for the gate, as far as this member knows.
func (b *member) settings() *admission.Settings {
	if s := b.shared.settings(); s != nil {
		return s
	}
	return &b.config.settings
}

// tell sends an item to the keeper, in the session. Without one the next report tells.
func (b *member) tell(it Item) {
	if b.open {
		b.m.toKeeper(it)
	}
}

// observe takes what this process's fleet knows of ranks.
func (b *member) observe(o Observation) {
	b.tell(Item{Kind: ItemObserve, Body: &o})
	b.aloneObserve(&o)
}

// configure takes the settings of a reload.
func (b *member) configure(generation uint64, s admission.Settings) {
	b.config = newConfiguration(b.m.now, generation, s)
	b.tell(Item{Kind: ItemConfigure, Body: b.configuration()})
}

// isStandby tells whether this member is told of all holds by the keeper of the promised
// epoch; it stands first.
func (b *member) isStandby() bool {
	return b.log.whole && !b.log.own && b.log.of == b.m.election.promised
}
