package cluster

import (
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// standing is whether this member stands for keeper, and when.
type standing struct {
	since  admission.Instant // when it first might, or never
	jitter time.Duration
	after  time.Duration // it stands, since then
	now    bool          // without waiting: another's refusal asks for a higher number
	// epoch is the one for which it stood last; newcomer: it was not listed then, or there
	// was no record; settled: there was one, which nobody who reaches the store renewed.
	epoch    Epoch
	newcomer bool
	settled  bool
}

func (s *standing) due(now admission.Instant) bool {
	return s.since != never && now >= s.since.Add(s.after+s.jitter)
}

// handed is an office that this member handed over.
type handed struct {
	epoch   Epoch
	members []Member
	soft    []byte
	until   admission.Instant // by then it should have been taken
}

// takeUp is how long a successor has to take an office, before the one that handed it over
// may stand again.
const takeUp = 500 * time.Millisecond

// consider looks whether this member is to stand: nobody is heard to be in office, and the
// record is of nobody who could be.
func (e *election) consider() {
	if !e.mayStand() {
		e.stand.since = never
		return
	}
	s := &e.stand
	first := s.since == never
	if first {
		s.since, s.jitter = e.m.now, e.jitter()
	}
	o := &e.m.o
	switch {
	case s.now || e.m.member.isStandby() || e.store.record == nil:
		s.after, s.jitter = 0, 0
	case !e.anyListedAnswers() && nameOf(e.store.record.Members, e.store.record.Epoch.Keeper) == e.m.o.Self.Name:
		s.after, s.jitter = 0, 0 // nobody else has that name
	case e.isListed() || !e.anyListedAnswers():
		s.after = o.Lease / 5
	default:
		s.after = 2 * o.Lease // those who are listed come first
	}
}

func (e *election) jitter() time.Duration {
	if e.m.o.Random == nil {
		return 0
	}
	return time.Duration(e.m.o.Random() % uint64(max(1, e.m.o.Lease/10)))
}

func (e *election) mayStand() bool {
	if e.banned != "" || !e.store.known {
		return false
	}
	now, lease := e.m.now, admission.Instant(e.m.o.Lease)
	r := e.store.record
	ended := e.promised.Keeper != 0 && e.hasEnded(e.promised.Keeper)
	own := e.promised.Keeper == e.m.o.Self.Incarnation
	if e.promised.Keeper != 0 && !ended && !e.stand.now && !e.notTaken() && now-max(e.heard, e.promisedAt) < lease {
		return false // it may be heard
	}
	// Others hear one: then it can confirm itself at the store, and this member's link to it is cut.
	for _, p := range e.m.order {
		if p.hears && p.refused == "" && p.quiet(now) <= admission.Instant(e.m.o.Silent) && !(ended && p.epoch == e.promised) && !(own && p.epoch == e.promised) {
			return false
		}
	}
	switch {
	case r == nil, e.hasEnded(r.Epoch.Keeper), r.Epoch.Keeper == e.m.o.Self.Incarnation, e.notTaken() && r.Epoch == e.handed.epoch:
		return true
	}
	return e.store.expired(e.m.o.Lease)
}

func (e *election) anyListedAnswers() bool {
	for _, x := range e.listed() {
		if p := e.m.peers[x.Incarnation]; p != nil && p.everHere && p.quiet(e.m.now) <= admission.Instant(e.m.o.Silent) {
			return true
		}
	}
	return false
}

// standNow writes the record with an epoch of this member's own.
func (e *election) standNow() {
	if !e.mayWrite(false) {
		return
	}
	r := e.store.record
	epoch := Epoch{Number: max(e.highest, e.promised.Number) + 1, Keeper: e.m.o.Self.Incarnation}
	e.stand.epoch, e.stand.newcomer, e.stand.settled = epoch, !e.isListed(), r != nil && e.notRenewed()
	list := e.roster.members
	if r != nil {
		// A record that is older than what is known of lists may lack some, and have others.
		list = append(slices.Clone(r.Members), list...)
		if r.Epoch.Compare(e.roster.of) >= 0 {
			list = slices.Clone(r.Members)
		}
	}
	list = e.withSelf(e.living(list))
	e.m.counters.Stood++
	e.stand.since, e.stand.now = never, false
	e.write(Record{Epoch: epoch, Members: list})
}

// living is a list without those that have ended, and that come twice.
func (e *election) living(list []Member) (living []Member) {
	seen := map[Incarnation]bool{}
	for _, x := range list {
		if !seen[x.Incarnation] && !e.hasEnded(x.Incarnation) && len(living) < maxMembers {
			seen[x.Incarnation] = true
			living = append(living, x)
		}
	}
	return living
}

// withSelf is a list with this member, by seat.
func (e *election) withSelf(list []Member) []Member {
	self, seat := e.m.o.Self, uint64(0)
	self.Seat = 0
	list = slices.DeleteFunc(list, func(x Member) bool {
		seat = max(seat, x.Seat)
		if x.Incarnation == self.Incarnation {
			self.Seat = x.Seat
		}
		return x.Incarnation == self.Incarnation
	})
	if self.Seat == 0 {
		self.Seat = seat + 1
	}
	list = append(list, self)
	slices.SortStableFunc(list, bySeat)
	return list
}

// handOver gives the office to the senior of the newest version among those that answer.
func (e *election) handOver() error {
	switch {
	case e.m.keeper == nil:
		return ErrNotKeeper
	case e.handTo != 0:
		return nil
	}
	to := e.successor()
	if to == nil {
		return ErrNoSuccessor
	}
	e.handTo, e.handBy = to.Incarnation, e.m.now.Add(e.m.o.Lease)
	return nil
}

func (e *election) successor() *peer {
	var best *peer
	for _, x := range e.listed() {
		p := e.m.peers[x.Incarnation]
		if p == nil || p.epoch != e.promised || p.quiet(e.m.now) > admission.Instant(e.m.o.Silent) {
			continue
		}
		p.Seat = x.Seat
		if best == nil || p.Versions.Max > best.Versions.Max || p.Versions.Max == best.Versions.Max && p.Seat < best.Seat {
			best = p
		}
	}
	return best
}

// giveUpHandover looks for another when the successor answers no more, and ends trying.
func (e *election) giveUpHandover() {
	if e.handTo == 0 || e.store.op != nil {
		return
	}
	p := e.m.peers[e.handTo]
	if p != nil && p.quiet(e.m.now) <= admission.Instant(e.m.o.Silent) && e.m.now < e.handBy {
		return
	}
	e.handTo = 0
	if e.m.now < e.handBy {
		if to := e.successor(); to != nil {
			e.handTo = to.Incarnation
			return
		}
	}
	e.m.event(LevelWarn, "cluster: the office could not be handed over", "epoch", e.promised, "store_error", e.store.err.text())
}

// handedOver tells the successor, which the store has as the keeper now.
func (e *election) handedOver(r *Record) {
	m := e.m
	soft := m.keeper.stop()
	m.counters.HandedOver++
	h := handed{epoch: r.Epoch, members: r.Members, soft: soft, until: m.now.Add(takeUp)}
	m.event(LevelInfo, "cluster: the office is handed over", "epoch", e.promised, "to", nameOf(r.Members, r.Epoch.Keeper), "its_epoch", r.Epoch)
	e.endOffice()
	e.handed = h
	e.promised = r.Epoch
	for _, p := range m.order {
		p.resetSession(0)
	}
	e.offer()
	m.member.promised()
}

// offer tells the successor that the office is its own, until it says so itself.
func (e *election) offer() {
	h := &e.handed
	p := e.m.peers[h.epoch.Keeper]
	if h.epoch != e.promised || p == nil || p.epoch.Compare(h.epoch) >= 0 {
		*h = handed{}
		return
	}
	p.say(Control{Kind: ControlHandover, Epoch: h.epoch, Members: h.members, Soft: h.soft})
}

// notTaken tells that this member handed over its office, and nobody took it.
func (e *election) notTaken() bool {
	return e.handed.epoch != (Epoch{}) && e.m.now >= e.handed.until
}

// handover takes an office that another hands over.
func (e *election) handover(p *peer, c *Control) {
	if c.Epoch.Keeper != e.m.o.Self.Incarnation || c.Epoch.Compare(e.promised) <= 0 || p.refused != "" || e.banned != "" {
		return
	}
	if len(c.Members) > maxMembers || !slices.ContainsFunc(c.Members, func(x Member) bool { return x.Incarnation == c.Epoch.Keeper }) {
		return
	}
	e.m.counters.TookOver++
	e.roster.know(c.Epoch, c.Members)
	e.takeOffice(&Record{Epoch: c.Epoch, Members: c.Members}, -1, c.Soft)
	e.m.keeper.before = p.Incarnation
}
