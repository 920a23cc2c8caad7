package cluster

import (
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// maxSeats bounds the members of a cluster.
const maxSeats = 64

// seat is a member, as its keeper sees it.
type seat struct {
	Member
	k      *keeper
	listed bool // by the store
	state  seatState

	// reported: it has reported in its present session, what of it is for the core was
	// taken. collecting has the parts of a report that is under way, report a whole one until
	// the gate opens; backlog are the items that came behind it.
	reported   bool
	collecting *Report
	report     *Report
	backlog    []held
	reportAt   admission.Instant

	lostSince admission.Instant
	// unsure: it may have fallen back, and decided by itself since it was heard last. It is
	// until it has answered what told of this keeper's office, and reported if it did fall back.
	unsure bool

	tickets     map[uint64]*kept // by its own number
	holds       int
	waits       int
	suspended   bool // its waiters are
	config      *Configuration
	configAt    admission.Instant // when it was loaded, by this clock
	differsTold uint64            // the digest of which operators were told
	fallback    Fallback
	round       time.Duration // the best of a second
	roundAt     admission.Instant
	sharesTaken uint64
	rowsTold    uint64 // version of the table
}

type seatState uint8

const (
	seatReporting seatState = iota // or joining: nothing is known of it yet
	seatAnswering
	seatSilent
	seatLost
)

func (s *seat) self() bool { return s.Incarnation == s.k.m.o.Self.Incarnation }

// mayGet tells whether requests of the member may be granted.
func (s *seat) mayGet() bool {
	return s.listed && s.reported && s.state == seatAnswering && !s.unsure
}

// addSeat makes a member one of the gate's.
func (k *keeper) addSeat(x Member) *seat {
	if s := k.seats[x.Incarnation]; s != nil {
		return s
	}
	if x.Seat == 0 {
		for _, s := range k.order {
			x.Seat = max(x.Seat, s.Seat)
		}
		x.Seat++
	}
	s := &seat{Member: x, k: k, tickets: map[uint64]*kept{}, lostSince: k.m.now}
	k.seats[x.Incarnation] = s
	k.order = append(k.order, s)
	k.sortSeats()
	k.m.addPeer(x)
	k.shares.dirty = true
	k.tellNames()
	return s
}

// tellNames tells who is a member to those that keep what members declared.
func (k *keeper) tellNames() {
	var names []string
	for _, s := range k.order {
		names = append(names, s.Name)
	}
	k.m.docs.members(names)
}

// lapsed sets aside what those may take that may have fallen back by now, before anything
// else is decided.
func (k *keeper) lapsed() {
	k.watch()
	k.settleClaims()
}

// watch finds out who answers.
func (k *keeper) watch() {
	k.lapse = never
	for i := 0; i < len(k.order); i++ { // it may remove one: the next is then looked at later
		k.watchSeat(k.order[i])
	}
	k.chooseStandby()
}

func (k *keeper) watchSeat(s *seat) {
	now, o := k.m.now, &k.m.o
	was := s.state
	quiet, answered := admission.Instant(0), now
	if !s.self() {
		answered = k.began
		if p := k.m.peers[s.Incarnation]; p != nil {
			quiet = p.quiet(now)
			if p.everHere {
				answered = max(answered, p.answered)
			}
		} else {
			quiet = now - k.began
		}
	}
	k.watchSure(s)
	switch {
	case quiet >= admission.Instant(o.Lease) && now-k.began >= admission.Instant(o.Lease):
		s.state = seatLost
	case quiet >= admission.Instant(o.Silent):
		s.state = seatSilent
	case !s.reported:
		s.state = seatReporting
	default:
		s.state = seatAnswering
	}
	if s.state == seatLost && was != seatLost {
		// It may decide on its own from now on. When it is back it has to report first.
		s.lostSince, s.reported, s.collecting = answered, false, nil
		if p := k.m.peers[s.Incarnation]; p != nil {
			p.resetSession(0)
		}
		k.table.lose(s.Incarnation)
		k.claims.dirty = true
		if k.port == nil { // what it holds is not known yet
			k.m.event(LevelWarn, "a member is lost: it has not answered for the lease", "member", s.Name)
		} else {
			k.m.event(LevelWarn, "a member is lost: it has not answered for the lease", "member", s.Name, "holds", s.holds, "waiting", s.waits)
		}
	}
	if was == seatLost && s.state != seatLost {
		k.table.observe(now, s.Incarnation, &Observation{}) // what it said counts again
		k.m.event(LevelInfo, "a lost member answers again", "member", s.Name)
	}
	if s.state == seatLost && now-s.lostSince >= admission.Instant(o.Lost+o.Silent) {
		k.m.event(LevelWarn, "a lost member is counted no more: what it held is released", "member", s.Name, "holds", s.holds, "waiting", s.waits)
		k.remove(s)
		return
	}
	if s.state == seatLost && !s.listed && s.holds == 0 && len(s.tickets) == 0 {
		k.remove(s) // it asked to join, and went
		return
	}
	if k.port == nil {
		return
	}
	if may := s.mayGet(); may == s.suspended {
		if may {
			k.resume(s)
		} else {
			k.suspend(s)
		}
	}
}

// watchSure finds out whether a member may have fallen back. Its patience, which is not less
// than the lease, began after what it answered last was sent.
func (k *keeper) watchSure(s *seat) {
	if s.self() {
		return
	}
	sure := k.began
	if p := k.m.peers[s.Incarnation]; p != nil {
		if sure = max(sure, p.sure); s.Incarnation == k.before {
			sure = p.sure
		}
	}
	was, until := s.unsure, sure.Add(k.m.o.Lease)
	s.unsure = k.m.now >= until || was && !s.reported
	if !s.unsure {
		k.lapse = min(k.lapse, until)
	}
	if s.unsure != was {
		k.claims.dirty = true
	}
}

// nextWatch is when the state of a member may change by time alone.
func (k *keeper) nextWatch() admission.Instant {
	next, o := never, &k.m.o
	for _, s := range k.order {
		p := k.m.peers[s.Incarnation]
		if s.self() || p == nil {
			continue
		}
		quiet := p.quiet(k.m.now)
		for _, after := range [...]time.Duration{o.Silent, o.Lease} {
			if quiet < admission.Instant(after) {
				next = min(next, (k.m.now - quiet).Add(after))
			}
		}
		if s.state == seatLost {
			next = min(next, s.lostSince.Add(o.Lost+o.Silent))
		}
	}
	return next
}

// remove takes a member out of the gate: it has ended, or was lost too long.
func (k *keeper) remove(s *seat) {
	delete(k.seats, s.Incarnation)
	k.order = slices.DeleteFunc(k.order, func(o *seat) bool { return o == s })
	k.leaves(s.Incarnation, false)
	if p := k.m.peers[s.Incarnation]; p != nil {
		p.resetSession(0)
	}
	for _, t := range s.sorted() {
		k.drop(t)
	}
	delete(k.masks, s.Incarnation)
	if k.port != nil {
		k.setMask(s.Incarnation)
	}
	k.claims.dirty, k.shares.dirty = true, true
	k.table.forget(k.m.now, s.Incarnation)
	k.m.docs.close(s.Incarnation)
	k.tellNames()
	k.chooseStandby()
	if k.port != nil {
		k.fleetChanged()
		k.configured()
		k.settleShares()
		k.settleClaims()
	}
}

// leaves remembers that a member is none any more, so that what others still know of it does
// not bring it back.
func (k *keeper) leaves(x Incarnation, ended bool) {
	if len(k.left) >= 1024 {
		clear(k.left)
	}
	k.left[x] = k.left[x] || ended
}
