package cluster

import (
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// machines are members of one cluster, between which what is sent arrives at once. The first
// is the keeper; the store is what the test says.
type machines struct {
	*testing.T
	now  admission.Instant
	all  map[Incarnation]*Machine
	cut  func(from, to Incarnation) bool
	held map[TicketID]bool // of slots
}

func newMachines(t *testing.T, n int, change func(*Options)) *machines {
	x := &machines{T: t, now: admission.Instant(time.Hour), all: map[Incarnation]*Machine{}, held: map[TicketID]bool{}}
	var list []Member
	for i := 1; i <= n; i++ {
		list = append(list, Member{Name: string(rune('a' + i - 1)), Incarnation: Incarnation(i), Address: "127.0.0.1:1", Versions: Versions{1, 1}, Seat: uint64(i)})
	}
	e := Epoch{1, 1}
	for _, self := range list {
		o := Options{Cluster: "c", Self: self, Random: func() uint64 { return 4 },
			Gate: admission.Options{Limits: admission.Limits{PrefillSlots: 8, QueueSize: 100, QueueTimeout: time.Minute}}}
		if change != nil {
			change(&o)
		}
		m := NewMachine(o, x.now)
		m.Observe(x.now, Observation{Full: true, Ranks: []RankObservation{rankObserved("p1", admission.RolePrefill), rankObserved("d1", admission.RoleDecode)}})
		for _, p := range list {
			m.addPeer(p)
		}
		m.election.promised = e
		x.all[self.Incarnation] = m
	}
	k := x.all[1]
	k.election.hadList = list
	x.confirm()
	k.becomeKeeper(e, list, nil)
	for i := 2; i <= n; i++ {
		x.all[Incarnation(i)].member.promised()
	}
	return x
}

// confirm has the store confirm the keeper.
func (x *machines) confirm() { x.all[1].election.wrote = x.now }

// carry lets everything arrive.
func (x *machines) carry() {
	for moved := true; moved; {
		moved = false
		for from := Incarnation(1); from <= Incarnation(len(x.all)); from++ {
			m := x.all[from]
			for _, to := range m.Ready(nil) {
				e := m.Take(x.now, to)
				moved = true
				if x.cut == nil || !x.cut(from, to) {
					x.all[to].Receive(x.now, e)
				}
			}
			for _, d := range m.Out().Decided {
				if d.Granted {
					x.held[TicketID{from, d.Number}] = true
				}
			}
		}
	}
}

func (x *machines) pass(d time.Duration, each func()) {
	for end := x.now.Add(d); x.now < end; {
		x.now = x.now.Add(50 * time.Millisecond)
		if each != nil {
			each()
		}
		for from := Incarnation(1); from <= Incarnation(len(x.all)); from++ {
			x.all[from].Tick(x.now)
		}
		x.carry()
	}
}

// The keeper is confirmed by nobody for longer than the patience, though the others hear it
// and it hears them. They fall back, each to its share. When the store confirms it again it
// decides only beside what they may have taken meanwhile.
func TestMembersThatFellBackKeepTheirShareUntilTheyReport(t *testing.T) {
	const gone Incarnation = 4 // it is listed, and not there: it may have its share
	x := newMachines(t, 4, nil)
	x.cut = func(from, to Incarnation) bool { return from == gone || to == gone }
	x.pass(7*time.Second, x.confirm)
	k := x.all[1].keeper
	if o := k.office(); o != OfficeDeciding {
		t.Fatalf("the office is %v", o)
	}
	share := x.all[1].member.shared.rank(x.all[1].ranks.find("p1").Spec, gone)
	most := 8 - int(share.Slots)
	x.pass(10*time.Second, nil) // the store is away
	for m := Incarnation(1); m <= 3; m++ {
		if !x.all[m].member.alone.on {
			t.Fatalf("%d did not fall back", m)
		}
		for n := uint64(1); n <= 10; n++ {
			x.all[m].Arrive(x.now, n, 1, pdRequest())
		}
	}
	x.carry()
	if n := len(x.held); n != most {
		t.Fatalf("%d in prefill, their shares are %d", n, most)
	}
	// The store confirms the keeper again. One member is not heard yet.
	x.cut = func(from, to Incarnation) bool { return from == gone || to == gone || from == 2 }
	x.pass(300*time.Millisecond, x.confirm)
	if x.all[3].member.alone.on || k.office() != OfficeDeciding {
		t.Error("the keeper does not decide")
	}
	if n := len(x.held); n != most {
		t.Errorf("%d in prefill, %d may be", n, most)
	}
	x.cut = func(from, to Incarnation) bool { return from == gone || to == gone }
	x.pass(2*time.Second, x.confirm)
	if n := len(x.held); n != most || x.all[2].member.alone.on {
		t.Errorf("%d in prefill, %d may be; in fallback still: %v", n, most, x.all[2].member.alone.on)
	}
	if each := k.claims.each; len(each) != 1 || each[0].seat.Incarnation != gone {
		t.Errorf("set aside: %+v", each)
	}
}

// The office is handed over, to one that was not the standby. A member is lost then: the
// keeper that hands over is the only one that knows what it holds.
func TestKeeperThatHandsOverTellsWhatItKnowsOfOthers(t *testing.T) {
	x := newMachines(t, 4, nil)
	x.pass(time.Second, x.confirm)
	x.all[4].Arrive(x.now, 1, 1, pdRequest())
	x.all[4].Arrive(x.now, 2, 1, pdRequest())
	x.carry()
	if len(x.held) != 2 {
		t.Fatalf("%d in prefill", len(x.held))
	}
	x.cut = func(from, to Incarnation) bool { return from == 4 || to == 4 }
	k := x.all[1].keeper
	k.stop()
	m := x.all[1]
	m.endKeeper()
	m.election.promised = Epoch{2, 3}
	m.member.promised()
	p := m.peers[3]
	var r *Report
	for len(p.pending) > 0 {
		for _, it := range p.takeItems() {
			if part, ok := it.Body.(*Report); ok {
				r = part
			}
		}
	}
	if r == nil || !r.Standby || r.Of != (Epoch{1, 1}) || len(r.Foreign) != 2 || r.Foreign[0].Ticket.Member != 4 || !r.Foreign[0].Hold.HoldsPrefill {
		t.Errorf("reported %+v", r)
	}
	if m.member.isStandby() {
		t.Error("it takes itself for the standby")
	}
}
