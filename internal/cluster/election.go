package cluster

import (
	"time"

	"github.com/sluice-router/sluice/admission"
)

// election knows who is the keeper: it reads and writes the record in the store
// (election_store.go), stands for keeper and hands over (election_stand.go), promises and
// resigns (here), and knows who the members are (election_peers.go).
//
// # Why there is one keeper at a time
//
// Who becomes keeper has replaced the record by compare-and-swap, so that the keeper before
// it renews no more. Unless it was new to the cluster it was also listed by the one before,
// which it answered for the last time before its own office began. So what that one rests on
// - its own last renewal, or an answer of every listed member - is from before then, and a
// lease later, less the margin, it decides nothing. Until that time the new gate opens only
// when everybody has promised itself to it, the old keeper included. Who is new to the
// cluster, or made the record because there was none, cannot know what it does not see:
// its gate opens a lease after its office began, and by then a living keeper that reaches
// the store has written its record anew. It opens earlier where that has been waited for
// already (notRenewed) and all that the record listed are proven to have ended: all routers
// were restarted.
type election struct {
	m *Machine
	// promised is the epoch whose keeper this member obeys; its own while it is the keeper.
	promised   Epoch
	promisedAt admission.Instant // or when an office ended
	heard      admission.Instant // when its keeper was, in office, by an envelope that answered a recent one; negative: never
	highest    uint64            // number of an epoch that was seen anywhere
	ticked     admission.Instant

	store  storeState
	stand  standing
	roster roster

	// Of the office, while this member is the keeper.
	since   admission.Instant // it began
	wrote   admission.Instant // when the last successful writing of its record began; negative: none
	opensAt admission.Instant // not before: this member was new to the cluster
	before  []Member          // unless all these have ended: who was listed then; nil: whoever it was
	hadList []Member          // the list that the store has, as far as is known
	tried   []Member          // of lists whose writing may have happened
	half    admission.Instant // since when half the list does not answer, or never
	handTo  Incarnation       // to be handed over to; 0: no
	handBy  admission.Instant // at the latest, else it is given up
	handed  handed            // what was handed over last
	left    bool
	banned  string // why this member may not take part any more
}

func (e *election) start(m *Machine) {
	e.m = m
	e.promisedAt, e.heard, e.wrote, e.half = m.now, -1, -1, never
	e.ticked = m.now
	e.store.changed, e.stand.since = -1, never
	e.roster.start()
}

// tick does what is due: reading and renewing the record, standing, resigning.
func (e *election) tick() {
	now := e.m.now
	if !e.left {
		if e.m.keeper != nil {
			e.keepOffice()
		} else {
			e.consider()
		}
		e.greet()
		e.endFormer()
		e.dropQuiet()
	}
	e.access()
	e.ticked = now
}

// next is when tick is due at the latest. What depends on answers is looked at each beat.
func (e *election) next() admission.Instant {
	if e.left {
		return never
	}
	return e.ticked.Add(e.m.o.Beat)
}

// keepOffice ends the office when half the list has not been heard for the patience, and
// goes on with handing it over.
func (e *election) keepOffice() {
	now := e.m.now
	if now-e.ticked > admission.Instant(e.m.o.Silent) {
		e.half = never // this process stood still; nobody else did
	}
	known, heard := 1, 1
	for _, x := range e.listed() {
		// A member that did not answer in this epoch is none whose absence says anything:
		// it was lost before, and others may have had their chance to stand.
		if p := e.m.peers[x.Incarnation]; p != nil && p.everHere && p.answered >= e.since {
			known++
			heard += b2i(p.quiet(now) <= admission.Instant(e.m.o.Silent))
		}
	}
	switch {
	case heard*2 >= known:
		e.half = never
	case e.half == never:
		e.half = now
	case now-e.half >= admission.Instant(e.m.o.Patience):
		e.resign("half of the members do not answer", "members", known, "heard", heard)
		return
	}
	e.giveUpHandover()
}

// resign ends the office.
func (e *election) resign(why string, args ...any) {
	e.m.counters.Resigned++
	e.m.event(LevelWarn, "cluster: not the keeper any more: "+why, append([]any{"epoch", e.promised}, args...)...)
	e.endOffice()
}

func (e *election) endOffice() {
	e.m.endKeeper()
	e.handTo, e.hadList, e.tried = 0, nil, nil
	e.wrote, e.half = -1, never
	e.promisedAt = e.m.now
	e.stand.since, e.stand.now = never, false
	e.store.stale = true
}

// takeOffice makes this member the keeper of an epoch that the record has, or had. wrote is
// when the writing of it began, or negative when another wrote it.
func (e *election) takeOffice(r *Record, wrote admission.Instant, soft []byte) {
	m := e.m
	if m.keeper != nil {
		e.endOffice()
	}
	e.promised, e.promisedAt, e.since = r.Epoch, m.now, m.now
	e.highest = max(e.highest, r.Epoch.Number)
	e.wrote, e.half, e.opensAt = wrote, never, m.now
	e.before = nil
	if e.stand.newcomer && e.stand.epoch == r.Epoch {
		e.opensAt = m.now.Add(m.o.Lease)
		if e.stand.settled {
			e.before = r.Members
		}
	}
	e.stand.since, e.stand.now = never, false
	e.hadList, e.tried, e.handTo, e.handed = r.Members, nil, 0, handed{}
	e.store.renewAt = wrote.Add(m.o.WriteStore)
	if wrote < 0 {
		e.store.stale = true // the revision is not known
	}
	e.meet(r.Members)
	for _, p := range m.order {
		p.resetSession(0)
	}
	e.roster.greeted = m.now.Add(-m.o.Beat) // they are summoned at once
	m.event(LevelInfo, "cluster: keeper now", "epoch", r.Epoch, "members", names(r.Members))
	m.becomeKeeper(r.Epoch, r.Members, soft)
}

// mayOpen tells whether the gate of this keeper may open, as far as keepers are concerned
// that it may not know of.
func (e *election) mayOpen() bool {
	if e.m.now >= e.opensAt {
		return true
	}
	for _, x := range e.before {
		if x.Incarnation != e.m.o.Self.Incarnation && !e.hasEnded(x.Incarnation) {
			return false
		}
	}
	return e.before != nil
}

// promise makes this member obey a higher epoch than before.
func (e *election) promise(to Epoch, of *peer) {
	m := e.m
	if m.keeper != nil {
		e.resign("another was elected", "keeper", of.Name, "its_epoch", to)
	}
	e.promised, e.promisedAt = to, m.now
	e.highest = max(e.highest, to.Number)
	e.stand.since, e.stand.now = never, false
	for _, p := range m.order {
		p.resetSession(0)
	}
	m.event(LevelInfo, "cluster: a keeper was elected", "keeper", of.Name, "epoch", to)
	m.member.promised()
}

// control takes one control message.
func (e *election) control(p *peer, c *Control) {
	if e.left {
		return
	}
	switch c.Kind {
	case ControlHello:
		e.hello(p, c)
	case ControlSummons:
		e.summoned(p, c)
	case ControlRefused:
		if k := e.m.keeper; k != nil && c.Epoch.Compare(k.epoch) > 0 {
			e.giveWay(p, c.Epoch, c.Heard)
		}
	case ControlHandover:
		e.handover(p, c)
	case ControlGoodbye:
		e.goodbye(p, c)
	case ControlReject:
		e.wasRejected(p, c)
	}
}

// summoned promises, or says what was promised to another.
func (e *election) summoned(p *peer, c *Control) {
	if c.Epoch.Keeper != p.Incarnation || p.refused != "" {
		return
	}
	switch order := c.Epoch.Compare(e.promised); {
	case order > 0:
		e.roster.know(c.Epoch, c.Members)
		e.meet(c.Members)
		e.promise(c.Epoch, p)
	case order < 0:
		p.say(Control{Kind: ControlRefused, Epoch: e.promised, Heard: e.hears()})
	}
}

// told looks at the head of an envelope: epochs higher than the own one, a keeper's
// office.
func (e *election) told(p *peer, v *Envelope) {
	now := e.m.now
	e.highest = max(e.highest, v.Epoch.Number)
	lately := p.fresh >= 0 && now-p.fresh <= admission.Instant(e.m.o.Silent)
	if lately {
		p.hears = v.Heard
	}
	if k := e.m.keeper; k != nil {
		if v.Epoch.Compare(k.epoch) > 0 {
			e.giveWay(p, v.Epoch, v.Heard)
		}
		return
	}
	if lately && v.Epoch == e.promised && v.From == e.promised.Keeper && v.Office != OfficeNone {
		e.heard = now
	}
}

// giveWay resigns because a member promised a higher epoch. Where its keeper is not heard
// this member takes a higher number at once.
func (e *election) giveWay(p *peer, higher Epoch, heard bool) {
	e.highest = max(e.highest, higher.Number)
	e.resign("a member promised itself to a later epoch", "member", p.Name, "its_epoch", higher)
	e.stand.now = !heard
}

// hears tells whether the keeper of the promised epoch is in office, as was heard lately;
// this member itself, when it is the keeper.
func (e *election) hears() bool {
	if e.m.keeper != nil {
		return e.m.keeper.office() != OfficeNone
	}
	if e.promised == (Epoch{}) || e.promised.Keeper == e.m.o.Self.Incarnation || e.hasEnded(e.promised.Keeper) {
		return false
	}
	// Who was promised just now is as good as heard.
	return e.m.now-max(e.heard, e.promisedAt) <= admission.Instant(e.m.o.Silent)
}

// valid tells whether this member, as the keeper, may decide now: within the lease, less
// the margin, the store or all listed members confirmed it.
func (e *election) valid() bool {
	at := max(e.wrote, e.confirmed())
	return e.m.keeper != nil && at >= 0 && e.m.now < at.Add(e.m.o.Lease-e.m.o.Margin)
}

// confirmed is since when at the latest all listed members have answered; negative: one
// has not. A list whose writing may have happened counts as well: a member of that could
// have been elected. Members that have ended stand no more.
func (e *election) confirmed() admission.Instant {
	at, others := e.m.now, false
	for _, list := range [...][]Member{e.hadList, e.tried} {
		for _, x := range list {
			if x.Incarnation == e.m.o.Self.Incarnation || e.hasEnded(x.Incarnation) {
				continue
			}
			p := e.m.peers[x.Incarnation]
			if p == nil || !p.everHere {
				return -1
			}
			at, others = min(at, p.answered), true
		}
	}
	if !others {
		// Nobody else can contradict it. A store that is away does not stop the only member,
		// but it ends when whoever came after it would have stopped counting it.
		if e.wrote < 0 {
			return -1
		}
		return min(at, e.wrote.Add(max(0, e.m.o.Lost-e.m.o.Lease)))
	}
	return at
}

// status tells what the election knows.
func (e *election) status(s *Status) {
	ago := func(t admission.Instant) time.Duration {
		if t < 0 {
			return -1
		}
		return time.Duration(e.m.now - t)
	}
	s.Promised, s.Heard = e.promised, ago(e.heard)
	if e.m.keeper != nil {
		s.Heard = 0
	}
	s.StoreRead, s.StoreWritten, s.StoreError, s.StoreWrites = ago(e.store.readAt()), ago(e.store.writtenAt()), e.store.err.text(), e.m.counters.StoreWrites
}
