package cluster

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// Machine is one member of a cluster; see the package comment. It is not safe for
// concurrent use. Time is told with each call and never runs back.
//
// After each call the caller takes what came of it: [Machine.Out] once, and an envelope
// ([Machine.Take]) for each peer of [Machine.Ready] to which nothing is being written.
type Machine struct {
	o   Options
	now admission.Instant

	peers  map[Incarnation]*peer
	order  []*peer // the same, by incarnation
	stamps uint64  // given to envelopes

	election election
	keeper   *keeper // while this member is the keeper of an epoch
	member   member
	docs     documents
	ranks    tableCopy    // the keeper's table, as it was told last
	observed observations // what this process's fleet knows of ranks

	// loop are the items between this member and this keeper, in order.
	loop    []looped
	looping bool

	out      Output
	counters Counters
}

// looped is an item that stays in this process.
type looped struct {
	toKeeper bool
	item     Item
}

// Output is what is to be done.
type Output struct {
	// Decided are local tickets that were decided, Renew those whose hints are to be
	// renewed, Moved the answers to Move, Revoked those whose prefill legs are to be ended.
	Decided []Decided
	Renew   []uint64
	Moved   []Moved
	Revoked []uint64
	// Store is an operation on the store, whose result is told by Stored. There is never
	// more than one at a time.
	Store *StoreOp
	// Peers changed: ask [Machine.Peers].
	PeersChanged bool
	// Documents changed, for the fleet of this process.
	Documents []Document
	// RanksChanged: the copy of the keeper's table changed; ask [Machine.Rows].
	RanksChanged bool
	// Events are what operators are told.
	Events []Event
}

// Decided is the decision on a local ticket.
type Decided struct {
	Number          uint64
	Attempt         uint32
	Granted         bool
	Prefill, Decode string // rank ids, "" where there is none
	Grant           Grant
	Place           Place // of one that was queued by the keeper
	Alone           bool  // it was decided without a keeper
	Refusal         *admission.Refusal
}

// Moved answers [Machine.Move].
type Moved struct {
	Number  uint64
	Attempt uint32
	Granted bool
	Decode  string
}

// StoreOp is an operation on the store: a write of Record where Write is set, if the
// revision is still Revision ("": there is none); else a reading.
type StoreOp struct {
	ID       uint64
	Write    bool
	Record   Record
	Revision string
}

// StoreResult is what came of one. A write has the new Revision; a Conflict means that
// the record has another revision now.
type StoreResult struct {
	ID       uint64
	Record   *Record // of a reading; nil: there is none
	Revision string
	Conflict bool
	Err      error // the store did not answer, or with nonsense; a write may have happened
}

// Event is one thing that operators are told, once.
type Event struct {
	Level   Level
	Message string
	Args    []any // pairs of key and value, as for log/slog
}

// Level is how much an event matters.
type Level int8

// The levels, as log/slog has them.
const (
	LevelInfo  Level = 0
	LevelWarn  Level = 4
	LevelError Level = 8
)

// NewMachine makes a member that knows of no other. Its first step is Tick.
func NewMachine(o Options, now admission.Instant) *Machine {
	o.Complete()
	m := &Machine{o: o, now: now, peers: map[Incarnation]*peer{}}
	m.election.start(m)
	m.member.start(m)
	m.docs.start(m)
	return m
}

// Tick tells the time.
func (m *Machine) Tick(now admission.Instant) {
	m.at(now)
	m.settle()
}

func (m *Machine) at(now admission.Instant) {
	m.now = max(m.now, now)
	if m.keeper != nil && m.now >= m.keeper.lapse {
		m.keeper.lapsed()
	}
}

// settle lets each part do what is due, and carries what stays in this process.
func (m *Machine) settle() {
	m.election.tick()
	if m.keeper != nil {
		m.keeper.tick()
	}
	m.member.tick()
	m.docs.tick()
	m.runLoop()
}

func (m *Machine) runLoop() {
	if m.looping {
		return
	}
	m.looping = true
	for i := 0; i < len(m.loop); i++ {
		l := m.loop[i]
		m.loop[i] = looped{}
		switch {
		case !l.toKeeper:
			m.member.receive(&l.item)
		case m.keeper != nil:
			m.keeper.receive(m.o.Self.Incarnation, &l.item)
		}
	}
	m.loop, m.looping = m.loop[:0], false
}

// voidLoop makes void what this keeper decided about this process's requests and they were not
// told yet: they are about to report where they stand, without it.
func (m *Machine) voidLoop() {
	for i := range m.loop {
		l := &m.loop[i]
		switch l.item.Kind {
		case ItemDecision, ItemQueued, ItemRenew, ItemMoved:
			if !l.toKeeper {
				*l = looped{}
			}
		}
	}
}

// NextTick is when Tick is due at the latest, for a caller that minds beats itself.
func (m *Machine) NextTick() admission.Instant {
	next := min(m.election.next(), m.member.next(), m.docs.next())
	if m.keeper != nil {
		next = min(next, m.keeper.next())
	}
	for _, p := range m.order {
		if due := p.lazySince + lazyTime; len(p.pending) > 0 && due > m.now {
			next = min(next, due) // later, it is ready, or waits for the office
		}
	}
	return next
}

// NextDeadline is when Tick is due at the latest, or a beat.
func (m *Machine) NextDeadline() admission.Instant {
	next := m.NextTick()
	for _, p := range m.order {
		next = min(next, p.lastSent.Add(m.o.Beat))
	}
	return next
}

// Out returns what is to be done since the last call. It is valid until the next call of
// any method.
func (m *Machine) Out() Output {
	out := m.out
	m.out = Output{}
	return out
}

// Peers are the members to which streams are kept.
func (m *Machine) Peers() (peers []Member) {
	for _, p := range m.order {
		peers = append(peers, p.Member)
	}
	return peers
}

// Refused tells why a peer may not be a member, "" if it may or is not known.
func (m *Machine) Refused(x Incarnation) string {
	if p := m.peers[x]; p != nil {
		return p.refused
	}
	return ""
}

// Ready appends the peers for which there is an envelope to send.
func (m *Machine) Ready(to []Incarnation) []Incarnation {
	for _, p := range m.order {
		if m.ready(p) {
			to = append(to, p.Incarnation)
		}
	}
	return to
}

// IsReady tells whether there is an envelope to send to a peer.
func (m *Machine) IsReady(now admission.Instant, to Incarnation) bool {
	m.at(now)
	p := m.peers[to]
	return p != nil && m.ready(p)
}

// Quiet is for how long a peer has left envelopes unanswered.
func (m *Machine) Quiet(now admission.Instant, of Incarnation) time.Duration {
	m.at(now)
	if p := m.peers[of]; p != nil {
		return time.Duration(p.quiet(m.now))
	}
	return 0
}

// Take returns the envelope for a peer; nil: there is no such peer. The caller owns it.
// What is in it must be sent before a later one, or not at all.
func (m *Machine) Take(now admission.Instant, to Incarnation) *Envelope {
	m.at(now)
	p := m.peers[to]
	if p == nil {
		return nil
	}
	m.stamps++ // of all peers: one that is forgotten and met again is not sent an old one
	p.stamp = m.stamps
	p.sent.keep(p.stamp, m.now, admission.Instant(5*time.Millisecond))
	p.lastSent, p.ackNow = m.now, false
	e := &Envelope{
		From: m.o.Self.Incarnation, To: to, Stamp: p.stamp, Echo: p.echo, EchoAge: m.now.Sub(p.echoAt),
		Epoch: m.election.promised, Heard: m.election.hears(), Session: p.session, Ack: p.seqIn,
		Control: p.control,
	}
	p.control = nil
	if m.keeper != nil {
		if e.Office = m.keeper.office(); e.Office == OfficeNone {
			p.without = p.stamp
		}
		e.Wanted = m.keeper.somebodyWaits()
	}
	if m.keeper == nil || e.Office == OfficeDeciding { // else what was decided may not act now
		e.Items = p.takeItems()
	}
	m.counters.Envelopes++
	m.counters.Items += uint64(len(e.Items))
	if len(e.Items) > 0 {
		p.seqOut++
		if m.keeper != nil {
			m.keeper.took(p, p.seqOut, e.Items)
		}
	}
	e.Seq = p.seqOut
	m.sayNewer(p, e)
	return e
}

// Sent gives back an envelope that was taken and is not used any more.
func (m *Machine) Sent(e *Envelope) {
	if p := m.peers[e.To]; p != nil && p.spare == nil && cap(e.Items) <= maxItems {
		clear(e.Items)
		p.spare = e.Items[:0]
	}
}

// Receive takes an envelope that came from a peer whose stream says that it is From.
func (m *Machine) Receive(now admission.Instant, e *Envelope) {
	m.at(now)
	if e.To != m.o.Self.Incarnation {
		return
	}
	p := m.peers[e.From]
	if p == nil {
		if p = m.election.stranger(e); p == nil {
			return
		}
	}
	p.fresh, p.kept = -1, max(e.EchoAge, 0)
	if t, ok := p.sent.at(e.Echo); ok && e.Echo > 0 && e.Echo <= p.stamp {
		p.fresh = t
		if !p.everHere || t > p.answered {
			p.answered, p.everHere = t, true
		}
		if m.keeper != nil && e.Echo > p.without {
			p.sure = max(p.sure, t)
		}
	}
	if e.Stamp > p.echo && m.confirms(p) {
		p.echo, p.echoAt = e.Stamp, m.now
	}
	m.listen()
	if e.Epoch.Compare(p.epoch) > 0 { // what it promised before may come late
		p.epoch = e.Epoch
	}
	p.wanted = e.Wanted
	for i := range e.Control {
		m.election.control(p, &e.Control[i])
	}
	m.election.told(p, e)
	switch {
	case p.refused != "" || m.peers[e.From] != p: // no member, or not any more
	case m.keeper != nil && e.Epoch == m.keeper.epoch:
		m.keeper.envelope(p, e)
	case m.keeper == nil && e.Epoch.Keeper == e.From && (e.Epoch == m.election.promised || m.o.withoutEpochs):
		m.member.envelope(p, e)
	}
	m.settle()
}

// confirms tells whether the envelope of p that is being read is to be echoed. A member that
// falls back because it does not hear its keeper must be lost to that keeper by then. So what
// the keeper sends is not echoed while what this member sends is not answered in time: it does
// not count as heard here either.
func (m *Machine) confirms(p *peer) bool {
	if m.keeper != nil || p.Incarnation != m.election.promised.Keeper || p.echo == 0 {
		return true
	}
	return p.fresh >= 0 && m.now-p.fresh <= admission.Instant(m.o.Silent)
}

// listen lets this process's requests hear its own keeper when it is in office again, before
// that decides: what was granted here meanwhile is reported first.
func (m *Machine) listen() {
	if m.keeper != nil && m.member.alone.on {
		m.member.listen()
		m.runLoop()
	}
}

// Stored tells what came of a StoreOp.
func (m *Machine) Stored(now admission.Instant, r StoreResult) {
	m.at(now)
	m.election.stored(r)
	m.listen()
	m.settle()
}

// Arrive tells that a local ticket wants to start, for the first time or once more. The
// instants of r are of this machine's clock.
func (m *Machine) Arrive(now admission.Instant, number uint64, attempt uint32, r *admission.Request) {
	m.at(now)
	m.member.arrive(number, attempt, r)
	m.runLoop()
}

// Step tells what became of a local ticket: StepCancel, StepStartDecode, StepFirstToken,
// StepGrow (amount: blocks in all), StepEndPrefill, StepEndDecode, StepRelease,
// StepForget.
func (m *Machine) Step(now admission.Instant, number uint64, attempt uint32, op admission.StepOp, amount int64) {
	m.at(now)
	m.member.step(number, attempt, op, amount)
	m.runLoop()
}

// Move asks for another decode rank for a local ticket; the answer is in Output.Moved,
// within a fifth of a second.
func (m *Machine) Move(now admission.Instant, number uint64, attempt uint32, exclude []string) {
	m.at(now)
	m.member.move(number, attempt, exclude)
	m.runLoop()
}

// Refresh hands in renewed hints.
func (m *Machine) Refresh(now admission.Instant, number uint64, attempt uint32, hints *[2]admission.RequestHint) {
	m.at(now)
	m.member.refresh(number, attempt, hints)
	m.runLoop()
}

// Observe tells what this process's fleet knows of ranks.
func (m *Machine) Observe(now admission.Instant, o Observation) {
	m.at(now)
	m.observed.add(m.now, &o)
	m.member.observe(o)
	m.runLoop()
}

// Rows is the copy of the keeper's table, by id; nil: no keeper has told any. It must not be
// changed, and not be read after the next call of any method.
func (m *Machine) Rows() map[string]*Row { return m.ranks.byID }

// Documents are those that say something: what was ordered by hand, and what the sources of
// all members declare.
func (m *Machine) Documents() []Document { return m.docs.all() }

// Declare tells what documents this process changed: workers that were registered or
// removed by hand, and what its sources declare.
func (m *Machine) Declare(now admission.Instant, d []Document) {
	m.at(now)
	m.docs.declare(d)
	m.runLoop()
}

// Configure puts settings in force for the gate, if nobody has newer ones.
func (m *Machine) Configure(now admission.Instant, generation uint64, s admission.Settings) {
	m.at(now)
	m.member.configure(generation, s)
	m.runLoop()
}

// StopArrivals refuses what arrives here from now on.
func (m *Machine) StopArrivals(now admission.Instant) {
	m.at(now)
	m.member.stopArrivals()
	m.runLoop()
}

// DrainWithin refuses local waiters that cannot start within d.
func (m *Machine) DrainWithin(now admission.Instant, d time.Duration) {
	m.at(now)
	m.member.drainWithin(d)
	m.runLoop()
}

// RefuseWaiters ends every local wait.
func (m *Machine) RefuseWaiters(now admission.Instant) {
	m.at(now)
	m.member.refuseWaiters()
	m.runLoop()
}

// HandOver gives the office to another member. The error is ErrNotKeeper or
// ErrNoSuccessor.
func (m *Machine) HandOver(now admission.Instant) error {
	m.at(now)
	defer m.settle()
	return m.election.handOver()
}

// Leave says goodbye to all. The caller sends what Ready says once more, and ends.
func (m *Machine) Leave(now admission.Instant) {
	m.at(now)
	m.election.leave()
	m.settle()
}

// Ended is an operator's word that the member of that name is gone for good, if it does
// not answer.
func (m *Machine) Ended(now admission.Instant, name string) error {
	m.at(now)
	defer m.settle()
	return m.election.endedByName(name)
}

// LeadsHere tells that a call for a member was answered by this process, at its own address,
// and returns whether that member is who had its name before.
func (m *Machine) LeadsHere(now admission.Instant, of Incarnation) (former bool) {
	m.at(now)
	defer m.settle()
	return m.election.leadsHere(of)
}

// toKeeper sends an item to the keeper of the promised epoch.
func (m *Machine) toKeeper(it Item) {
	if k := m.election.promised.Keeper; k == m.o.Self.Incarnation {
		m.loop = append(m.loop, looped{true, it})
	} else if p := m.peers[k]; p != nil {
		p.add(m.now, it)
	}
}

// toMember sends an item to a member, in its session.
func (m *Machine) toMember(to Incarnation, it Item) {
	if to == m.o.Self.Incarnation {
		m.loop = append(m.loop, looped{false, it})
	} else if p := m.peers[to]; p != nil {
		p.add(m.now, it)
	}
}

func (p *peer) add(now admission.Instant, it Item) {
	if p.droppedPending {
		return
	}
	if len(p.pending) >= maxPending {
		clear(p.pending)
		p.pending, p.droppedPending = nil, true // a gap follows, and with it a new session
		p.seqOut++
		return
	}
	if !it.lazy() {
		p.urgent = true
	} else if len(p.pending) == 0 {
		p.lazySince = now
	}
	p.pending = append(p.pending, it)
}

// say sends a control message, in place of one of its kind that was not sent yet.
func (p *peer) say(c Control) {
	for i := range p.control {
		if p.control[i].Kind == c.Kind {
			p.control[i] = c
			return
		}
	}
	p.control = append(p.control, c)
}

// addPeer makes a member a peer, or renews what is known of it.
func (m *Machine) addPeer(x Member) *peer {
	if x.Incarnation == m.o.Self.Incarnation {
		return nil
	}
	p := m.peers[x.Incarnation]
	if p == nil {
		p = &peer{Member: x, since: m.now}
		m.peers[x.Incarnation] = p
		m.order = append(m.order, p)
		slices.SortFunc(m.order, func(a, b *peer) int { return cmp.Compare(a.Incarnation, b.Incarnation) })
		m.out.PeersChanged = true
	} else if p.Member != x {
		p.Member = x
		m.out.PeersChanged = true
	}
	return p
}

// dropPeer forgets a peer.
func (m *Machine) dropPeer(x Incarnation) {
	if m.peers[x] == nil {
		return
	}
	delete(m.peers, x)
	m.order = slices.DeleteFunc(m.order, func(p *peer) bool { return p.Incarnation == x })
	m.out.PeersChanged = true
}

func (m *Machine) event(l Level, message string, args ...any) {
	m.out.Events = append(m.out.Events, Event{l, message, args})
}

// becomeKeeper begins an epoch that the store has: members are as they were written. The
// own promise is made.
func (m *Machine) becomeKeeper(e Epoch, members []Member, soft []byte) {
	m.keeper = newKeeper(m, e, members, soft)
	m.member.promised()
}

// endKeeper ends the office; what was decided and not sent is void.
func (m *Machine) endKeeper() {
	if k := m.keeper; k != nil && k.port != nil {
		m.member.log.inherit(k.epoch, k.othersHolds())
	}
	m.keeper = nil
	for _, p := range m.order {
		p.resetSession(0)
	}
	m.loop = slices.DeleteFunc(m.loop, func(l looped) bool { return l.toKeeper })
}
