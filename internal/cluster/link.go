package cluster

import (
	"sort"
	"time"

	"github.com/sluice-router/sluice/admission"
)

const never = admission.Instant(1<<63 - 1)

// sentTimes remembers when stamps were sent, a few hundred of the last ones.
type sentTimes struct {
	stamps [512]uint64
	times  [512]admission.Instant
	n      uint64 // how many were kept so far
}

// keep remembers a stamp unless the last one that is remembered was sent just before: an
// echo of this one then counts as one of that.
func (s *sentTimes) keep(stamp uint64, at, apart admission.Instant) {
	if s.n > 0 && at-s.times[(s.n-1)%uint64(len(s.times))] < apart {
		return
	}
	s.stamps[s.n%uint64(len(s.stamps))], s.times[s.n%uint64(len(s.times))] = stamp, at
	s.n++
}

// at returns when the last remembered stamp that is not after stamp was sent.
func (s *sentTimes) at(stamp uint64) (t admission.Instant, ok bool) {
	size := uint64(len(s.stamps))
	kept := min(s.n, size)
	i := sort.Search(int(kept), func(i int) bool { return s.stamps[(s.n-1-uint64(i))%size] <= stamp })
	if i == int(kept) {
		return 0, false
	}
	return s.times[(s.n-1-uint64(i))%size], true
}

// peer is another member, as far as envelopes go.
type peer struct {
	Member

	// Of beats, whatever the epoch.
	stamp    uint64 // the last one sent
	sent     sentTimes
	echo     uint64            // the last stamp received
	echoAt   admission.Instant // when that was received
	kept     time.Duration     // for how long the peer had the stamp that it answered last
	answered admission.Instant // when the last stamp was sent that it answered; never before: since
	since    admission.Instant // when it became a peer
	everHere bool              // it answered at all
	// without is the last stamp that was sent while this member, its keeper, had no office;
	// sure when the last later one was sent that it answered: it cannot have fallen back
	// before that is as old as the patience.
	without  uint64
	sure     admission.Instant
	lastSent admission.Instant
	epoch    Epoch  // the one that it told last
	hears    bool   // it hears the keeper of that, as it told last
	refused  string // why it is no member
	rejects  string // why it does not take this process
	greeted  admission.Instant
	former   bool // it had the name of this process, and what listens at its address is this one

	// Of the session. session is the one that the member side opened.
	session        uint64
	seqOut, seqIn  uint64
	acked          uint64 // of seqOut
	ackNow         bool   // it waits for Ack
	pending        []Item
	spare          []Item            // room for pending, once that is taken
	urgent         bool              // some of them are not to wait, see lazyTime
	lazySince      admission.Instant // when the oldest of them came, if none is urgent
	wanted         bool              // the keeper: somebody waits for what steps give back
	control        []Control
	fresh          admission.Instant // of the envelope that is being read: when the stamp it echoes was sent
	resyncAsked    admission.Instant
	droppedPending bool // pending had grown too large; the session is void
}

// maxPending bounds the items that wait to be taken for one peer. A peer that reads so
// slowly gets a new session.
const maxPending = 1 << 17

// quiet is for how long p has left envelopes unanswered.
func (p *peer) quiet(now admission.Instant) admission.Instant {
	if !p.everHere {
		return now - p.since
	}
	return now - p.answered
}

// resetSession forgets what was sent and received in a session.
func (p *peer) resetSession(session uint64) {
	p.session, p.seqOut, p.seqIn, p.acked, p.ackNow = session, 0, 0, 0, false
	clear(p.pending)
	p.pending, p.droppedPending = p.pending[:0], false
	p.urgent = false
}

// lazyTime is how long steps of requests may wait for an envelope that goes out anyway, while
// nobody waits for what they give back. Each envelope costs as much as a dozen steps.
const lazyTime = admission.Instant(5 * time.Millisecond)

// lazy tells whether an item may wait: it is a step of a request that runs, or tells the
// standby of one.
func (it *Item) lazy() bool {
	switch it.Kind {
	case ItemStep:
		return it.Op != admission.StepCancel
	case ItemHold:
		return it.Op != ""
	}
	return false
}

// maxItems bounds the items of an envelope; a part of something long is the last of its.
const maxItems = 1024

// takeItems takes what is to be sent next.
func (p *peer) takeItems() (items []Item) {
	n := 0
	for n < min(len(p.pending), maxItems) {
		n++
		if k := p.pending[n-1].Kind; k == ItemReport || k == ItemHolds || k == ItemRows || k == ItemDocuments {
			break
		}
	}
	if n == len(p.pending) {
		items = p.pending
		p.pending, p.spare, p.urgent = p.spare, nil, false // the items belong to the caller
		return items
	}
	items = p.pending[:n:n]
	p.pending, p.urgent = p.pending[n:], true
	return items
}

// ready tells whether an envelope is to be sent to p now.
func (m *Machine) ready(p *peer) bool {
	now, beat := m.now, admission.Instant(m.o.Beat)
	takes := m.keeper == nil || m.keeper.office() == OfficeDeciding // see Take
	return takes && len(p.pending) > 0 && (p.urgent || p.wanted || now-p.lazySince >= lazyTime) || len(p.control) > 0 || p.ackNow || p.lastSent == 0 || now-p.lastSent >= beat
}
