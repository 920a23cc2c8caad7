package cluster

import (
	"time"

	"github.com/sluice-router/sluice/admission"
)

const (
	// maxReported bounds the tickets of one report, and those that one member may have.
	maxReported = 1 << 20
	// maxBacklog bounds the items that wait for the gate to open, of one member. One that has
	// more has to report anew.
	maxBacklog = 1 << 17
)

// envelope takes an envelope of the epoch from a member: its session, its items.
func (k *keeper) envelope(p *peer, e *Envelope) {
	s := k.seats[e.From]
	if s == nil {
		return // it says hello first
	}
	late := len(e.Items) > 0 && !k.isCurrent(p, e)
	if e.Session != p.session {
		if e.Session < p.session {
			return // it came late
		}
		if late {
			k.resync(p)
			return
		}
		if e.Seq != 1 || len(e.Items) == 0 || !begins(&e.Items[0]) {
			s.reported = false // what it last reported is not where it stands
			k.watchSeat(s)
			k.resync(p)
			return
		}
		k.openSession(s, p, e.Session)
	}
	s.timeRound(k.m.now, p)
	if e.Session == 0 {
		return
	}
	if e.Ack > p.acked && e.Ack <= p.seqOut {
		p.acked = e.Ack
	}
	switch next := p.seqIn + 1; {
	case late:
		k.resync(p)
		return
	case len(e.Items) == 0 && e.Seq > p.seqIn, e.Seq > next:
		k.resync(p) // one is missing
		return
	case len(e.Items) == 0, e.Seq < next:
		return // a beat, or it came before
	}
	p.seqIn = e.Seq
	for i := range e.Items {
		if k.seats[e.From] != s || p.session != e.Session {
			return // what it reported ended it
		}
		k.item(s, &e.Items[i])
	}
}

// isCurrent tells whether the sender of an envelope cannot have fallen back since it was sent,
// and granted what is not told in it: its patience began after it had what the envelope
// answers, or when it promised itself to this epoch.
func (k *keeper) isCurrent(p *peer, e *Envelope) bool {
	at := k.began
	if p.Incarnation == k.before {
		at = -1
	}
	if e.Echo > p.without {
		at = max(at, p.fresh)
	}
	return k.m.now < at.Add(k.m.o.Lease)
}

func begins(it *Item) bool {
	r, ok := it.Body.(*Report)
	return it.Kind == ItemReport && ok && r != nil && r.First
}

// resync asks a member for a new session.
func (k *keeper) resync(p *peer) {
	if p.resyncAsked > 0 && k.m.now-p.resyncAsked < admission.Instant(k.m.o.Beat) {
		return
	}
	p.resyncAsked = k.m.now
	p.say(Control{Kind: ControlResync, Epoch: k.epoch})
}

// openSession begins a session, with a report. What was decided and not sent is void: the
// report will tell where its tickets stand. Until then it is granted nothing.
func (k *keeper) openSession(s *seat, p *peer, session uint64) {
	p.resetSession(session)
	s.reported, s.collecting, s.report, s.backlog, s.rowsTold = false, nil, nil, nil, 0
	k.m.docs.close(s.Incarnation)
	k.watchSeat(s)
	k.chooseStandby()
}

// reportsAnew is openSession of this process's own requests, whose report is under way: what is
// granted to them and was not delivered is void.
func (k *keeper) reportsAnew() {
	if s := k.seats[k.m.o.Self.Incarnation]; s != nil {
		s.reported, s.collecting, s.report, s.backlog = false, nil, nil, nil
		k.watchSeat(s)
	}
}

// receive takes an item of this process's own member.
func (k *keeper) receive(from Incarnation, it *Item) {
	if s := k.seats[from]; s != nil {
		k.item(s, it)
	}
	k.deliver()
}

// item takes one item of a member, in order.
func (k *keeper) item(s *seat, it *Item) {
	switch {
	case it.Kind == ItemReport:
		if r, ok := it.Body.(*Report); ok && r != nil {
			k.collect(s, r)
		}
	case it.Kind == ItemDocuments:
		if d, ok := it.Body.(*Documents); ok && d != nil {
			k.m.docs.receive(s.Incarnation, d)
		}
	case !s.reported: // it begins with a report
	case k.port == nil || !s.listed:
		if len(s.backlog) < maxBacklog {
			s.backlog = append(s.backlog, held{*it, k.m.now})
		} else if p := k.m.peers[s.Incarnation]; p != nil {
			s.reported, s.report, s.backlog = false, nil, nil
			k.resync(p)
		}
	default:
		k.take(s, it)
	}
}

// held is an item that waits for the gate to open, and since when.
type held struct {
	Item
	at admission.Instant
}

// later is what an ask says some time after it was sent.
func (a *Ask) later(d time.Duration) *Ask {
	if d <= 0 {
		return a
	}
	x := *a
	x.Age += d
	x.Waited += d
	x.Deadline -= d
	x.ClassDeadline -= d
	return &x
}

// take takes one item of a member that has reported, once the gate is open.
func (k *keeper) take(s *seat, it *Item) {
	switch it.Kind {
	case ItemArrive:
		if ask, ok := it.Body.(*Ask); ok && ask != nil {
			k.arrive(s, it.Number, it.Attempt, ask)
		}
	case ItemStep:
		k.step(s, it)
	case ItemRefresh:
		if h, ok := it.Body.(*HintsOf); ok && h != nil {
			k.refresh(s, it, h)
		}
	case ItemMove:
		avoid, _ := it.Body.([]RankAt)
		k.move(s, it, avoid)
	case ItemMovedAlone:
		k.movedAlone(s, it)
	case ItemObserve:
		if o, ok := it.Body.(*Observation); ok && o != nil {
			k.table.observe(k.m.now, s.Incarnation, o)
			k.fleetChanged()
		}
	case ItemConfigure:
		if c, ok := it.Body.(*Configuration); ok && c != nil {
			s.configure(c)
			k.configured()
		}
	case ItemSharesTaken:
		s.sharesTaken = max(s.sharesTaken, it.Number)
		k.shares.dirty = true
		k.settleShares()
	}
}

// collect takes one part of a report.
func (k *keeper) collect(s *seat, r *Report) {
	if r.First {
		whole := *r
		s.collecting, s.reported = &whole, false
		s.backlog = nil // what came before it is in it
	} else if c := s.collecting; c != nil {
		c.Holds = append(c.Holds, r.Holds...)
		c.Waiters = append(c.Waiters, r.Waiters...)
		c.Foreign = append(c.Foreign, r.Foreign...)
	}
	c := s.collecting
	if c == nil {
		return
	}
	if len(c.Holds)+len(c.Waiters) > maxReported || len(c.Foreign) > maxSeats*maxReported {
		s.collecting = nil
		k.m.event(LevelError, "a member reports more than can be", "member", s.Name, "holds", len(c.Holds), "waiting", len(c.Waiters))
		return
	}
	if r.Last {
		s.collecting = nil
		k.reportedBy(s, c)
	}
}

// reportedBy takes a whole report.
func (k *keeper) reportedBy(s *seat, r *Report) {
	s.reported, s.fallback = true, r.Fallback
	s.sharesTaken, k.shares.dirty = r.Shares.Version, true
	if r.Self.Incarnation == s.Incarnation {
		seat := s.Seat
		s.Member = r.Self
		s.Seat = seat
	}
	if r.Configuration != nil {
		s.configure(r.Configuration)
	}
	if r.Documents != nil && !s.self() {
		k.m.docs.receive(s.Incarnation, r.Documents)
	}
	for _, x := range r.Ended {
		if x != s.Incarnation {
			k.ended(x)
		}
	}
	s.reportAt, k.claims.dirty = k.m.now, true
	switch {
	case k.port != nil && s.listed:
		k.admitLate(s, r)
		return
	case k.port != nil: // what it holds is booked, what it asks for waits until it is listed
		s.report = r
		k.adopt(k.takeHolds(nil, s, r.Holds))
		return
	}
	s.report = r
	for _, x := range r.Known {
		if _, left := k.left[x.Incarnation]; !left && x.Incarnation != 0 && len(k.seats) < maxSeats && !k.m.election.hasEnded(x.Incarnation) {
			k.addSeat(x)
		}
	}
}

// timeRound measures how fast a member answers: the best of a second.
func (s *seat) timeRound(now admission.Instant, p *peer) {
	if p.fresh < 0 {
		return
	}
	round := max(now.Sub(p.fresh)-p.kept, 0)
	if now-s.roundAt >= admission.Instant(time.Second) {
		s.round, s.roundAt = round, now
	}
	s.round = min(s.round, round)
}
