package cluster

import (
	"cmp"
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// keeper is the gate for all members, while this one has the office.
//
// keeper_members.go knows who the members are and who answers, keeper_session.go takes what
// they send, keeper_rebuild.go begins with what they report, keeper_tickets.go has the
// requests, keeper_standby.go tells the standby of them, keeper_shares.go divides limits for
// the time without a keeper and sets aside what lost members may have, keeper_view.go tells
// members of ranks and of the whole.
type keeper struct {
	m     *Machine
	epoch Epoch
	began admission.Instant

	// before is who handed the office over, if somebody did: it promised itself to this epoch
	// before that began, and its patience with it.
	before Incarnation
	// lapse is when the first member may have fallen back that could not before.
	lapse admission.Instant

	seats   map[Incarnation]*seat
	order   []*seat              // the same, by seat
	left    map[Incarnation]bool // who is no member any more; true: it has ended
	stopped bool                 // the office is being handed over

	table *table
	masks map[Incarnation]map[admission.RankRef]bool // what requests of a member must not use

	// The gate. port is nil until it opens.
	port      *admission.Port
	portNext  admission.Instant
	answer    admission.Answer // memory of do
	tickets   []*kept          // by number in the port, from 1
	free      []uint64
	settings  settingsInForce
	soft      []byte
	waitsTold bool // operators were told that the gate waits for members
	allTold   bool // every member has told of its ranks: see forgetRestored

	standby     *seat
	own         []*kept           // granted to this process, and not delivered yet
	waitedUntil admission.Instant // see somebodyWaits

	shares sharesInForce
	claims claims
	pushed pushed
}

// newKeeper begins the office: members are asked to report; see the package comment for
// when the gate opens. soft is what a keeper before handed over, or nil.
func newKeeper(m *Machine, e Epoch, members []Member, soft []byte) *keeper {
	k := &keeper{
		m: m, epoch: e, began: m.now, soft: soft,
		seats: map[Incarnation]*seat{}, left: map[Incarnation]bool{},
		table: newTable(e), masks: map[Incarnation]map[admission.RankRef]bool{}, tickets: []*kept{nil}, portNext: never,
	}
	for _, p := range m.order {
		p.resetSession(0) // those of other epochs
	}
	for _, x := range members {
		if x.Incarnation != m.o.Self.Incarnation && m.election.hasEnded(x.Incarnation) {
			k.left[x.Incarnation] = true // while the record was written, or its goodbye was faster than the office
			continue
		}
		k.addSeat(x).listed = true
	}
	if k.seats[m.o.Self.Incarnation] == nil {
		k.addSeat(m.o.Self)
	}
	return k
}

// office is what it may do now.
func (k *keeper) office() Office {
	switch {
	case k.stopped || !k.m.election.valid():
		return OfficeNone
	case k.port == nil:
		return OfficeOpening
	}
	return OfficeDeciding
}

// tick does what time brings: deadlines of the core, silent and lost members, grants that
// wait for the standby.
func (k *keeper) tick() {
	k.watch()
	if k.port == nil && k.complete() && k.office() == OfficeOpening {
		k.open()
	}
	if k.port == nil {
		k.tellMissing()
		return
	}
	if k.m.now >= k.table.next() {
		k.fleetChanged()
	}
	if k.m.now >= k.portNext {
		k.do(admission.Step{Op: admission.StepAdvance})
	}
	k.forgetRestored()
	k.settleShares()
	k.settleClaims()
	k.deliver()
	k.tell()
}

func (k *keeper) next() admission.Instant {
	if k.port == nil {
		return k.m.now.Add(k.m.o.Beat)
	}
	return min(k.portNext, k.table.next(), k.nextTold(), k.nextWatch())
}

// What the election tells the keeper, and asks it.

// join tells of a member that asks to be listed and may be.
func (k *keeper) join(x Member) {
	if s := k.seats[x.Incarnation]; s != nil {
		seat := s.Seat
		s.Member = x
		s.Seat = seat
		return
	}
	if k.left[x.Incarnation] || len(k.seats) >= maxSeats {
		return
	}
	delete(k.left, x.Incarnation) // it was lost, and is back
	x.Seat = 0
	s := k.addSeat(x)
	k.m.event(LevelInfo, "a member joins", "member", s.Name, "address", s.Address, "build", s.Build)
}

// wanted is the list that the record is to have: the members, by seat, this one among them.
// The election writes the record anew when it differs from what was written last.
func (k *keeper) wanted() (list []Member) {
	for _, s := range k.order {
		list = append(list, s.Member)
	}
	return list
}

// listed tells that the store has this list.
func (k *keeper) listed(list []Member) {
	for _, s := range k.order {
		s.listed = slices.ContainsFunc(list, func(x Member) bool { return x.Incarnation == s.Incarnation })
	}
	k.shares.dirty = true
	k.watch()
	for _, s := range slices.Clone(k.order) {
		if s.listed && s.report != nil && k.port != nil {
			k.admitLate(s, s.report)
		}
	}
}

// ended tells that a member is proven to have ended: what it held and asked for is released.
func (k *keeper) ended(x Incarnation) {
	if s := k.seats[x]; s != nil && !s.self() {
		k.m.event(LevelInfo, "a member has ended", "member", s.Name, "holds", s.holds, "waiting", s.waits)
		k.remove(s)
	}
	k.leaves(x, true)
}

// stop ends deciding for good, before the office is handed over, and returns the soft state
// of the core.
func (k *keeper) stop() (soft []byte) {
	k.stopped = true
	if k.port == nil {
		return k.soft
	}
	return k.softState()
}

// stats is the state of the core; ok is false before the gate is open.
func (k *keeper) stats() (s admission.Stats, ok bool) {
	if k.port == nil {
		return s, false
	}
	return k.port.Stats(k.m.now), true
}

func (k *keeper) sortSeats() {
	slices.SortFunc(k.order, func(a, b *seat) int {
		return cmp.Or(cmp.Compare(a.Seat, b.Seat), cmp.Compare(a.Incarnation, b.Incarnation))
	})
}
