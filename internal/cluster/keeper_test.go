package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// keeperBed is a keeper whose members are played by the test: they answer, report and take
// what is sent as it says.
type keeperBed struct {
	*testing.T
	m     *Machine
	k     *keeper
	stamp map[Incarnation]uint64
	seq   map[Incarnation]uint64 // of the member's envelopes in its session
	ack   map[Incarnation]uint64
	sess  map[Incarnation]uint64
	mute  map[Incarnation]bool
	got   map[Incarnation][]Item
	rows  map[Incarnation]*tableCopy
}

const own Incarnation = 1

// newKeeperBed begins epoch 7 with members 1 (the keeper), 2, 3 and so on, on some prefill
// ranks p0, p1 and on one decode rank d0, each with a limit of slots.
func newKeeperBed(t *testing.T, members, slots int, change func(*Options)) *keeperBed {
	self := Member{Name: "m1", Incarnation: own, Address: "m1:1", Versions: Versions{1, 1}, Seat: 1}
	o := Options{Self: self, Cluster: "c", Random: func() uint64 { return 4 }, Gate: admission.Options{Limits: bedLimits(slots)}}
	if change != nil {
		change(&o)
	}
	b := &keeperBed{
		T: t, m: NewMachine(o, 1), stamp: map[Incarnation]uint64{}, seq: map[Incarnation]uint64{}, ack: map[Incarnation]uint64{},
		sess: map[Incarnation]uint64{}, mute: map[Incarnation]bool{}, got: map[Incarnation][]Item{}, rows: map[Incarnation]*tableCopy{},
	}
	list := []Member{self}
	for i := 2; i <= members; i++ {
		x := Member{Name: fmt.Sprintf("m%d", i), Incarnation: Incarnation(i), Address: "x:1", Versions: Versions{1, 1}, Seat: uint64(i)}
		list = append(list, x)
		b.m.addPeer(x)
	}
	e := Epoch{7, own}
	b.m.election.promised, b.m.election.hadList, b.m.election.wrote = e, list, b.m.now
	b.k = newKeeper(b.m, e, list, nil)
	b.m.keeper = b.k
	for _, p := range b.m.order {
		b.mute[p.Incarnation] = false
	}
	return b
}

func bedLimits(slots int) admission.Limits {
	return admission.Limits{PrefillSlots: slots, QueueSize: 20000, QueueTimeout: time.Minute}
}

// at lets the time come, in steps of 50 ms, with each of which the store and the members
// answer.
func (b *keeperBed) after(d time.Duration) {
	for end := b.m.now.Add(d); ; {
		b.m.election.wrote = b.m.now
		b.beats()
		b.k.tick()
		b.carry()
		if b.m.now >= end {
			return
		}
		b.m.now = min(end, b.m.now.Add(50*time.Millisecond))
	}
}

// beats has those answer that are not mute.
func (b *keeperBed) beats() {
	for _, p := range b.m.order {
		p.stamp++
		p.sent.keep(p.stamp, b.m.now, 0)
		if !b.mute[p.Incarnation] {
			b.send(p.Incarnation)
		}
	}
}

// send has a member send items, or a beat.
func (b *keeperBed) send(from Incarnation, items ...Item) {
	p := b.m.peers[from]
	p.fresh, p.answered, p.everHere, p.sure = b.m.now, b.m.now, true, b.m.now
	b.stamp[from]++
	e := &Envelope{From: from, To: own, Stamp: b.stamp[from], Echo: max(p.stamp, 1), Epoch: b.k.epoch, Session: b.sess[from], Ack: b.ack[from], Items: items}
	if len(items) > 0 {
		b.seq[from]++
	}
	e.Seq = b.seq[from]
	b.k.envelope(p, e)
	b.k.tick()
	b.carry()
}

// carry takes what the keeper sends, as Take does.
func (b *keeperBed) carry() {
	for i := 0; i < len(b.m.loop); i++ {
		if !b.m.loop[i].toKeeper {
			b.take(own, b.m.loop[i].item)
		}
	}
	b.m.loop = b.m.loop[:0]
	for _, p := range b.m.order {
		for b.k.office() == OfficeDeciding && len(p.pending) > 0 && !b.mute[p.Incarnation] {
			items := p.takeItems()
			p.seqOut++
			b.k.took(p, p.seqOut, items)
			for _, it := range items {
				b.take(p.Incarnation, it)
			}
			b.ack[p.Incarnation] = p.seqOut
		}
	}
}

func (b *keeperBed) take(to Incarnation, it Item) {
	if x, ok := it.Body.(*Rows); ok {
		if b.rows[to] == nil {
			b.rows[to] = &tableCopy{}
		}
		b.rows[to].apply(x)
	}
	if x, ok := it.Body.(*Shares); ok {
		version := x.Version
		defer func() {
			taken := Item{Kind: ItemSharesTaken, Number: version}
			if to == own {
				b.k.receive(own, &taken)
			} else if !b.mute[to] {
				b.send(to, taken)
			}
		}()
	}
	b.got[to] = append(b.got[to], it)
}

// report opens a session of a member with a report, from that of the keeper itself on.
func (b *keeperBed) report(from Incarnation, change func(*Report)) {
	r := &Report{First: true, Last: true, Observation: bedFleet(), Fallback: b.m.o.Fallback,
		Configuration: &Configuration{Digest: 1, Settings: admission.Settings{Limits: b.m.o.Gate.Limits}}}
	r.Self = b.k.seats[from].Member
	if change != nil {
		change(r)
	}
	it := Item{Kind: ItemReport, Body: r}
	if from == own {
		b.k.receive(own, &it)
		b.carry()
		return
	}
	b.sess[from]++
	b.seq[from], b.ack[from] = 0, 0
	b.send(from, it)
}

func bedFleet() *Observation {
	o := &Observation{Full: true}
	for _, id := range []string{"p0", "d0"} {
		role := admission.RolePrefill
		if id[0] == 'd' {
			role = admission.RoleDecode
		}
		o.Ranks = append(o.Ranks, RankObservation{ID: id, Stamp: 1, Spec: admission.RankSpec{
			ID: id, Worker: id, Role: role, Models: []string{"m"}, State: admission.RankState{Healthy: true},
		}})
	}
	return o
}

func bedAsk() *Ask {
	return &Ask{Request: admission.Request{Target: admission.TargetSpec{Model: "m", Shape: admission.Disaggregated}, PromptTokens: 100}}
}

func (b *keeperBed) arrive(from Incarnation, number uint64, ask *Ask) {
	it := Item{Kind: ItemArrive, Number: number, Attempt: 1, Body: ask}
	if from == own {
		b.k.receive(own, &it)
		b.carry()
	} else {
		b.send(from, it)
	}
}

func (b *keeperBed) step(from Incarnation, number uint64, op admission.StepOp) {
	it := Item{Kind: ItemStep, Op: op, Number: number, Attempt: 1}
	if from == own {
		b.k.receive(own, &it)
		b.carry()
	} else {
		b.send(from, it)
	}
}

// decisions of a member's tickets so far: "3 granted", "4 queue_full", "5 queued".
func (b *keeperBed) decisions(of Incarnation) (list []string) {
	for _, it := range b.got[of] {
		switch x := it.Body.(type) {
		case *Grant:
			list = append(list, fmt.Sprintf("%d granted", it.Number))
		case *Refused:
			list = append(list, fmt.Sprintf("%d %s", it.Number, x.Refusal.Reason))
		case *Queued:
			list = append(list, fmt.Sprintf("%d queued", it.Number))
		}
	}
	return list
}

func (b *keeperBed) want(of Incarnation, want ...string) {
	b.Helper()
	if got := b.decisions(of); !slices.Equal(got, want) {
		b.Fatalf("member %d was told %q, want %q", of, got, want)
	}
}

// slots is what is booked of p0, with what is set aside.
func (b *keeperBed) slots(want int) {
	b.Helper()
	l, _ := b.k.port.Load(b.k.refOf("p0"))
	if l.Slots != want {
		b.Fatalf("%d slots are booked on p0, want %d", l.Slots, want)
	}
}

func opened(t *testing.T, members, slots int, change func(*Options)) *keeperBed {
	b := newKeeperBed(t, members, slots, change)
	b.after(0)
	for i := 1; i <= members; i++ {
		b.report(Incarnation(i), nil)
	}
	b.after(200 * time.Millisecond)
	if b.k.office() != OfficeDeciding {
		t.Fatalf("office %d, waits for %v", b.k.office(), b.k.missing())
	}
	return b
}

func TestKeeperOfOneDecides(t *testing.T) {
	b := opened(t, 1, 1, nil)
	b.arrive(own, 1, bedAsk())
	b.arrive(own, 2, bedAsk())
	b.want(own, "1 granted", "2 queued")
	b.step(own, 1, admission.StepEndPrefill)
	b.want(own, "1 granted", "2 queued", "2 granted")
	b.slots(1)
	b.step(own, 1, admission.StepForget)
	b.step(own, 2, admission.StepForget)
	b.slots(0)
	if n := len(b.k.seats[own].tickets); n != 0 {
		t.Fatalf("%d tickets are left", n)
	}
}

func TestKeeperServesAllMembersInOneOrder(t *testing.T) {
	b := opened(t, 3, 1, nil)
	b.arrive(2, 1, bedAsk())
	b.arrive(3, 1, bedAsk())
	b.arrive(own, 1, bedAsk())
	b.want(2, "1 granted")
	b.want(3, "1 queued")
	b.want(own, "1 queued")
	b.step(2, 1, admission.StepRelease)
	b.want(3, "1 queued", "1 granted")
	b.want(own, "1 queued")
	b.step(3, 1, admission.StepRelease)
	b.after(100 * time.Millisecond)
	b.want(own, "1 queued", "1 granted")
	places := map[Place]bool{}
	for _, m := range []Incarnation{own, 3} {
		for _, it := range b.got[m] {
			if it.Kind == ItemQueued {
				places[it.Place] = true
				if it.Place.Epoch != 7 {
					t.Errorf("place %v", it.Place)
				}
			}
		}
	}
	if len(places) != 2 {
		t.Errorf("places %v", places)
	}
}

// What repeats, comes late or is of another attempt changes nothing.
func TestKeeperTakesRepeatsAndLatecomersOnce(t *testing.T) {
	b := opened(t, 2, 2, nil)
	b.arrive(2, 1, bedAsk())
	b.arrive(2, 1, bedAsk())
	b.send(2, Item{Kind: ItemStep, Op: admission.StepGrow, Number: 1, Attempt: 1, Amount: 8})
	b.send(2, Item{Kind: ItemStep, Op: admission.StepGrow, Number: 1, Attempt: 1, Amount: 8})
	b.send(2, Item{Kind: ItemStep, Op: admission.StepGrow, Number: 1, Attempt: 1, Amount: 3})
	b.send(2, Item{Kind: ItemStep, Op: admission.StepRelease, Number: 1, Attempt: 0})
	b.send(2, Item{Kind: ItemStep, Op: admission.StepGrow, Number: 77, Attempt: 1, Amount: -3})
	b.want(2, "1 granted")
	b.slots(1)
	l, _ := b.k.port.Load(b.k.refOf("d0"))
	if l.PendingBlocks != 7+8 {
		t.Fatalf("%d blocks", l.PendingBlocks)
	}
	e := &Envelope{From: 2, To: own, Session: b.sess[2], Seq: 2, Items: []Item{{Kind: ItemStep, Op: admission.StepRelease, Number: 1, Attempt: 1}}}
	b.k.envelope(b.m.peers[2], e) // a copy of an old envelope
	b.slots(1)
	b.step(2, 1, admission.StepRelease)
	b.step(2, 1, admission.StepRelease)
	b.slots(0)
}

// A missing envelope makes the keeper ask for a new session, and take nothing meanwhile.
func TestKeeperAsksForANewSessionAfterAGap(t *testing.T) {
	b := opened(t, 2, 2, nil)
	b.seq[2]++
	b.arrive(2, 1, bedAsk())
	b.want(2)
	if c := b.m.peers[2].control; len(c) != 1 || c[0].Kind != ControlResync {
		t.Fatalf("control %v", c)
	}
	b.report(2, func(r *Report) { r.Waiters = []Waiter{{Number: 1, Attempt: 1, Ask: *bedAsk()}} })
	b.want(2, "1 granted")
}

// Grants to the keeper's own requests count when the standby knows of them.
func TestKeeperTakesItsOwnGrantsWhenTheStandbyKnows(t *testing.T) {
	b := opened(t, 3, 2, nil)
	b.got = map[Incarnation][]Item{}
	p := b.m.peers[2]
	it := Item{Kind: ItemArrive, Number: 1, Attempt: 1, Body: bedAsk()}
	b.k.receive(own, &it)
	items := p.takeItems()
	p.seqOut++
	b.k.took(p, p.seqOut, items)
	if h, ok := items[0].Body.(*HoldOf); !ok || !h.HoldsPrefill || items[0].Member != own {
		t.Fatalf("the standby is told %+v", items[0])
	}
	b.k.tick()
	b.carry()
	b.want(own)
	b.ack[2] = p.seqOut
	b.send(2)
	b.want(own, "1 granted")
	b.step(own, 1, admission.StepRelease)
	last := b.got[2][len(b.got[2])-1]
	if last.Kind != ItemHold || last.Op != admission.StepRelease {
		t.Fatalf("the standby is told %+v", last)
	}
}

// The standby is told of holds of others, not of its own; a new one of all.
func TestKeeperTellsANewStandbyOfAllHolds(t *testing.T) {
	b := opened(t, 3, 4, nil)
	b.arrive(2, 1, bedAsk())
	b.arrive(3, 1, bedAsk())
	b.arrive(own, 1, bedAsk())
	holds := func(of Incarnation) (n int) {
		for _, it := range b.got[of] {
			switch x := it.Body.(type) {
			case *HoldOf:
				n++
			case *Holds:
				n += len(x.Entries)
			}
		}
		return n
	}
	if n := holds(2); n != 2 {
		t.Fatalf("the standby was told of %d holds", n)
	}
	b.mute[2] = true
	b.after(700 * time.Millisecond)
	if b.k.standby == nil || b.k.standby.Incarnation != 3 {
		t.Fatalf("standby %+v", b.k.standby)
	}
	if n := holds(3); n != 2 {
		t.Fatalf("the new standby was told of %d holds", n)
	}
}

// Without anybody who answers the keeper takes grants for itself within its share only.
func TestKeeperAloneIsWithinItsShare(t *testing.T) {
	b := opened(t, 3, 3, nil)
	b.mute[2], b.mute[3] = true, true
	b.after(600 * time.Millisecond)
	for i := range uint64(3) {
		b.arrive(own, i+1, bedAsk())
	}
	b.want(own, "1 granted")
	b.step(own, 1, admission.StepRelease)
	b.want(own, "1 granted", "2 granted")
	b.step(own, 3, admission.StepCancel)
	b.slots(1)
	b.mute[2] = false
	b.after(100 * time.Millisecond)
	b.want(own, "1 granted", "2 granted")
}

// A silent member is granted nothing and blocks nobody; it keeps its place.
func TestKeeperPassesOverSilentMembers(t *testing.T) {
	b := opened(t, 3, 1, nil)
	b.arrive(own, 1, bedAsk())
	b.arrive(2, 1, bedAsk())
	b.arrive(3, 1, bedAsk())
	b.arrive(3, 2, bedAsk())
	b.mute[2] = true
	b.after(600 * time.Millisecond)
	b.step(own, 1, admission.StepRelease)
	b.want(3, "1 queued", "2 queued", "1 granted")
	b.mute[2] = false
	b.after(0)
	b.step(3, 1, admission.StepRelease)
	b.want(2, "1 queued", "1 granted")
	b.want(3, "1 queued", "2 queued", "1 granted")
}

// What a lost member holds, and what it may book on its own, is set aside, until it is back,
// ended, or lost for too long.
func TestKeeperSetsAsideWhatLostMembersMayHave(t *testing.T) {
	for _, test := range []struct {
		name     string
		fallback Fallback
		without  bool
		aside    int
	}{{"share", FallbackShare, false, 2}, {"refuse", FallbackRefuse, false, 1}, {"without claims", FallbackShare, true, 1}} {
		t.Run(test.name, func(t *testing.T) {
			b := opened(t, 3, 6, func(o *Options) { o.Fallback, o.withoutClaims = test.fallback, test.without })
			b.arrive(2, 1, bedAsk())
			b.mute[2] = true
			b.after(5200 * time.Millisecond)
			b.slots(test.aside) // a third of the limit, with what it holds
			if v := b.k.view(); (len(v.Claims) > 0) != (test.aside > 1) || v.Members[1].State != "lost" {
				t.Errorf("view %+v", v)
			}
			b.mute[2] = false
			b.after(100 * time.Millisecond)
			b.slots(test.aside) // it may have decided alone: until it reports
			b.report(2, func(r *Report) { r.Fallback, r.Holds = test.fallback, []HoldEntry{bedHold(2, 1)} })
			b.slots(1)
			b.mute[2] = true
			b.after(59 * time.Second)
			b.slots(test.aside)
			b.after(2 * time.Second)
			b.slots(0)
			if len(b.k.wanted()) != 2 {
				t.Errorf("the list is %v", b.k.wanted())
			}
		})
	}
}

func TestKeeperReleasesWhatEndedMembersHold(t *testing.T) {
	b := opened(t, 2, 1, nil)
	b.arrive(2, 1, bedAsk())
	b.arrive(own, 1, bedAsk())
	b.k.ended(2)
	b.carry()
	b.want(own, "1 queued", "1 granted")
	if len(b.k.wanted()) != 1 {
		t.Errorf("the list is %v", b.k.wanted())
	}
}

// The gate opens when all have reported, or are lost and a lease has passed.
func TestKeeperOpensWhenNobodyIsMissing(t *testing.T) {
	b := newKeeperBed(t, 3, 6, nil)
	b.mute[3] = true
	b.report(own, nil)
	b.after(time.Second)
	b.report(2, nil)
	b.after(3500 * time.Millisecond)
	if b.k.office() != OfficeOpening || !slices.Equal(b.k.missing(), []string{"m3"}) {
		t.Fatalf("office %d, waits for %v", b.k.office(), b.k.missing())
	}
	b.after(time.Second)
	if b.k.office() != OfficeDeciding {
		t.Fatalf("office %d, waits for %v", b.k.office(), b.k.missing())
	}
	b.slots(2) // the share of the lost one is set aside from the beginning
}

func TestKeeperOpensForMembersThatOnlyReportsKnow(t *testing.T) {
	b := newKeeperBed(t, 2, 6, nil)
	b.report(own, nil)
	b.report(2, func(r *Report) { r.Known = []Member{{Name: "m3", Incarnation: 3, Address: "x"}} })
	b.after(time.Second)
	if b.k.office() != OfficeOpening {
		t.Fatalf("office %d", b.k.office())
	}
	b.k.ended(3)
	b.after(0)
	if b.k.office() != OfficeDeciding {
		t.Fatalf("office %d, waits for %v", b.k.office(), b.k.missing())
	}
}

// A report may name a member that has ended, if its sender has not heard that yet; whoever
// knows better does not wait for it.
func TestKeeperDoesNotWaitForWhoIsKnownToHaveEnded(t *testing.T) {
	b := newKeeperBed(t, 2, 6, nil)
	b.m.keeper = nil
	b.m.election.markEnded(3, "it said goodbye") // before the epoch
	b.m.keeper = b.k
	b.report(own, nil)
	b.report(2, func(r *Report) { r.Known = []Member{{Name: "m3", Incarnation: 3, Address: "x"}} })
	b.after(0)
	if b.k.office() != OfficeDeciding {
		t.Fatalf("office %d, waits for %v", b.k.office(), b.k.missing())
	}
}

// The goodbye of a keeper that hands over may come before the office does: its successor's
// list has it, and neither waits for it nor sets anything aside for it.
func TestKeeperDoesNotWaitForWhoHandedOverAndEnded(t *testing.T) {
	b := newKeeperBed(t, 2, 6, nil)
	list := []Member{b.m.o.Self, b.m.peers[2].Member, {Name: "m3", Incarnation: 3, Address: "x:1", Versions: Versions{1, 1}, Seat: 3}}
	b.m.keeper = nil
	b.m.election.markEnded(3, "it said goodbye")
	b.k = newKeeper(b.m, b.m.election.promised, list, nil)
	b.m.keeper = b.k
	b.report(own, nil)
	b.report(2, nil)
	b.after(0)
	if b.k.office() != OfficeDeciding || len(b.k.order) != 2 {
		t.Fatalf("office %d, %d members, waits for %v", b.k.office(), len(b.k.order), b.k.missing())
	}
}

func bedHold(member Incarnation, number uint64) HoldEntry {
	return HoldEntry{
		Ticket: TicketID{member, number}, Attempt: 1, Prefill: "p0", Decode: "d0",
		Hold: HoldOf{Ask: bedAsk(), HoldsPrefill: true, HoldsDecode: true, Tokens: 100, Blocks: 7, Grown: 2, Age: time.Second},
	}
}

// Waiters keep their places over keepers; who waits without a place comes behind them, the
// eldest first. Holds come before all.
func TestKeeperRebuildsInOrder(t *testing.T) {
	b := newKeeperBed(t, 3, 1, nil)
	b.after(0)
	waiter := func(number uint64, place Place, age time.Duration) Waiter {
		ask := bedAsk()
		ask.Age, ask.Waited = age, age
		return Waiter{Number: number, Attempt: 1, Place: place, Ask: *ask}
	}
	b.report(own, func(r *Report) {
		r.Waiters = []Waiter{waiter(11, Place{6, 3}, time.Second), waiter(12, Place{}, 9*time.Second)}
	})
	b.report(2, func(r *Report) {
		r.Holds = []HoldEntry{bedHold(2, 20)}
		r.Waiters = []Waiter{waiter(21, Place{6, 2}, 2*time.Second), waiter(22, Place{5, 9}, time.Second)}
	})
	b.report(3, func(r *Report) { r.Waiters = []Waiter{waiter(31, Place{}, 10*time.Second)} })
	b.after(0)
	b.slots(1)
	l, _ := b.k.port.Load(b.k.refOf("d0"))
	if l.PendingBlocks != 9 {
		t.Errorf("%d blocks are booked", l.PendingBlocks)
	}
	order := []string{}
	holder, number := Incarnation(2), uint64(20)
	for range 5 {
		before := map[Incarnation]int{}
		for m := range Incarnation(4) {
			before[m] = len(b.decisions(m))
		}
		b.step(holder, number, admission.StepRelease)
		b.after(0)
		for m := range Incarnation(4) {
			for _, d := range b.decisions(m)[before[m]:] {
				order = append(order, d)
				fmt.Sscanf(d, "%d granted", &number)
				holder = m
			}
		}
	}
	if want := []string{"22 granted", "21 granted", "11 granted", "31 granted", "12 granted"}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
}

// What a standby knew of members that do not report is booked; of those that do, their own
// word counts.
func TestKeeperBooksWhatTheStandbyKnew(t *testing.T) {
	b := newKeeperBed(t, 3, 6, func(o *Options) { o.Fallback = FallbackRefuse })
	b.report(own, func(r *Report) {
		r.Standby, r.Of = true, Epoch{6, 9}
		r.Foreign = []HoldEntry{bedHold(2, 1), bedHold(3, 1), bedHold(3, 2)}
	})
	b.mute[3] = true
	b.after(5 * time.Second)
	b.report(2, nil)
	b.after(time.Second)
	if b.k.office() != OfficeDeciding {
		t.Fatalf("office %d, waits for %v", b.k.office(), b.k.missing())
	}
	b.slots(2)
	b.mute[3] = false
	b.report(3, func(r *Report) { r.Holds = []HoldEntry{bedHold(3, 2)} }) // it comes late
	b.slots(1)
	b.step(3, 2, admission.StepRelease)
	b.slots(0)
}

// A member that reports anew says what it has. What was granted to it and is waiting there
// waits again, in its place.
func TestKeeperReconcilesWithANewSession(t *testing.T) {
	b := opened(t, 2, 1, nil)
	b.arrive(2, 1, bedAsk())
	b.arrive(2, 2, bedAsk())
	b.arrive(own, 1, bedAsk())
	var place Place
	for _, it := range b.got[2] {
		if it.Kind == ItemQueued {
			place = it.Place
		}
	}
	b.step(2, 1, admission.StepRelease) // 2 is granted, and never hears of it
	b.got[2] = nil
	b.report(2, func(r *Report) { r.Waiters = []Waiter{{Number: 2, Attempt: 1, Place: place, Ask: *bedAsk()}} })
	b.after(100 * time.Millisecond)
	b.slots(1)
	b.want(2, "2 granted")
	b.want(own, "1 queued")
	b.got[2] = nil
	b.report(2, nil) // it has nothing any more
	b.after(100 * time.Millisecond)
	b.want(own, "1 queued", "1 granted")
}

// Between the opening of a session and the end of its report a member is granted nothing.
func TestKeeperGrantsNothingDuringAReport(t *testing.T) {
	b := opened(t, 2, 1, nil)
	b.arrive(own, 1, bedAsk())
	b.arrive(2, 1, bedAsk())
	place := b.got[2][len(b.got[2])-1].Place
	b.sess[2]++
	b.seq[2], b.ack[2], b.got[2] = 0, 0, nil
	b.send(2, Item{Kind: ItemReport, Body: &Report{First: true, Self: b.k.seats[2].Member}})
	b.step(own, 1, admission.StepRelease)
	b.want(2)
	b.send(2, Item{Kind: ItemReport, Body: &Report{Last: true, Waiters: []Waiter{{Number: 1, Attempt: 1, Place: place, Ask: *bedAsk()}}}})
	b.want(2, "1 granted")
}

// What comes behind a report before the gate opens is done after it.
func TestKeeperKeepsStepsUntilItOpens(t *testing.T) {
	b := newKeeperBed(t, 2, 1, nil)
	b.after(0)
	b.report(2, func(r *Report) { r.Holds = []HoldEntry{bedHold(2, 1)} })
	b.arrive(2, 2, bedAsk())
	b.step(2, 1, admission.StepRelease)
	b.want(2)
	b.report(own, nil)
	b.after(0)
	b.want(2, "2 queued", "2 granted")
	b.slots(1)
}

// A keeper that nobody confirms decides nothing, and says so.
func TestKeeperDecidesNothingUnconfirmed(t *testing.T) {
	b := opened(t, 2, 1, nil)
	b.mute[2] = true
	b.m.now = b.m.now.Add(4600 * time.Millisecond) // it was frozen
	if o := b.k.office(); o != OfficeNone {
		t.Fatalf("office %d", o)
	}
	it := Item{Kind: ItemArrive, Number: 1, Attempt: 1, Body: bedAsk()}
	b.k.receive(own, &it)
	b.k.tick()
	b.carry()
	b.want(own)
	b.mute[2] = false
	b.after(100 * time.Millisecond)
	b.want(own, "1 granted")
}

// A joiner is granted nothing before the store lists it, and what it asked is kept.
func TestKeeperGrantsJoinersOnceTheyAreListed(t *testing.T) {
	b := opened(t, 1, 2, nil)
	x := Member{Name: "m2", Incarnation: 2, Address: "x", Versions: Versions{1, 1}}
	b.m.addPeer(x)
	b.k.join(x)
	if list := b.k.wanted(); len(list) != 2 || list[1].Seat != 2 {
		t.Fatalf("wanted %v", list)
	}
	b.report(2, nil)
	b.arrive(2, 1, bedAsk())
	b.want(2)
	b.k.listed(b.k.wanted())
	b.after(100 * time.Millisecond)
	b.want(2, "1 granted")
	if !slices.Equal(b.k.shares.Committed, []Incarnation{1, 2}) || b.k.shares.Proposed != nil {
		t.Errorf("shares %+v", b.k.shares)
	}
}

// A new list of shares is committed when all have agreed, and only then is another proposed.
func TestKeeperChangesSharesStepByStep(t *testing.T) {
	b := opened(t, 3, 2, nil)
	if x := b.k.shares; !slices.Equal(x.Committed, []Incarnation{1, 2, 3}) {
		t.Fatalf("shares %+v", x)
	}
	b.mute[3] = true
	b.after(600 * time.Millisecond)
	s := admission.Settings{Limits: bedLimits(4)}
	b.send(2, Item{Kind: ItemConfigure, Body: &Configuration{Generation: 2, Digest: 2, Settings: s}})
	b.after(time.Second)
	if x := b.k.shares; x.Proposed == nil || x.ProposedSettings.Limits.PrefillSlots != 4 || x.CommittedSettings.Limits.PrefillSlots != 2 {
		t.Fatalf("shares %+v", x)
	}
	b.mute[3] = false
	b.after(time.Second)
	if x := b.k.shares; x.Proposed != nil || x.CommittedSettings.Limits.PrefillSlots != 4 {
		t.Fatalf("shares %+v", x)
	}
}

// Of configurations the highest generation is in force, else what was loaded last.
func TestKeeperPutsTheNewestConfigurationInForce(t *testing.T) {
	b := opened(t, 3, 1, nil)
	set := func(from Incarnation, generation, digest uint64, slots int, age time.Duration) {
		b.send(from, Item{Kind: ItemConfigure, Body: &Configuration{Generation: generation, Digest: digest, Age: age, Settings: admission.Settings{Limits: bedLimits(slots)}}})
	}
	slots := func(want int) {
		t.Helper()
		if n := b.k.port.Settings().Limits.PrefillSlots; n != want {
			t.Errorf("%d slots are in force, want %d", n, want)
		}
	}
	b.after(time.Second)
	set(2, 0, 2, 5, 0)
	slots(5)
	set(3, 0, 3, 7, 100*time.Second)
	slots(5)
	set(3, 1, 3, 7, 100*time.Second)
	slots(7)
	if v := b.k.view(); v.Settings != "m3" || !v.Members[1].Differs || v.Members[2].Differs {
		t.Errorf("view %+v", v)
	}
	told := 0
	for _, e := range b.m.Out().Events {
		if e.Message == "the configuration of a member is another than the one in force" {
			told++
		}
	}
	if told > 5 {
		t.Errorf("differences were told %d times", told)
	}
}

// Members have the table, with what is booked by all, at most every 100 ms.
func TestKeeperPushesLoads(t *testing.T) {
	b := opened(t, 2, 4, nil)
	b.arrive(2, 1, bedAsk())
	b.after(300 * time.Millisecond)
	for _, m := range []Incarnation{own, 2} {
		r := b.rows[m].find("p0")
		if r == nil || r.Load.Slots != 1 {
			t.Errorf("member %d has %+v", m, r)
		}
	}
	n := len(b.got[2])
	b.after(200 * time.Millisecond)
	for _, it := range b.got[2][n:] {
		if it.Kind == ItemRows {
			t.Errorf("rows are pushed though nothing has changed: %+v", it.Body)
		}
	}
	var last *ClusterView
	for _, it := range b.got[2] {
		if x, ok := it.Body.(*ClusterView); ok {
			last = x
		}
	}
	if last == nil || last.Standby != "m2" || !last.Deciding || last.Members[1].Holds != 1 {
		t.Errorf("view %+v", last)
	}
}

func TestKeeperMovesDecodeLegs(t *testing.T) {
	b := newKeeperBed(t, 2, 4, nil)
	two := func(r *Report) {
		x := r.Observation.Ranks[1]
		x.ID, x.Spec.ID, x.Spec.Worker = "d1", "d1", "d1"
		r.Observation.Ranks = append(r.Observation.Ranks, x)
	}
	b.after(0)
	b.report(own, two)
	b.report(2, two)
	b.after(100 * time.Millisecond)
	b.arrive(2, 1, bedAsk())
	on := func(id string, want int) {
		t.Helper()
		if l, _ := b.k.port.Load(b.k.refOf(id)); l.Pending != want {
			t.Errorf("%d decode requests are booked on %s, want %d", l.Pending, id, want)
		}
	}
	on("d0", 1)
	b.send(2, Item{Kind: ItemMove, Number: 1, Attempt: 1})
	on("d0", 0)
	on("d1", 1)
	answer := b.got[2][len(b.got[2])-1]
	if answer.Kind != ItemMoved || !answer.Granted || answer.Decode != b.k.table.at("d1") {
		t.Errorf("answer %+v", answer)
	}
	b.send(2, Item{Kind: ItemMovedAlone, Number: 1, Attempt: 1, Decode: b.k.table.at("d0")})
	on("d0", 1)
	on("d1", 0)
	b.slots(1)
	b.step(2, 1, admission.StepForget)
	on("d0", 0)
	b.slots(0)
}

// The time until the gate opens counts: of the bounds of who waits, and of who came behind
// the report.
func TestKeeperCountsTheTimeUntilItOpens(t *testing.T) {
	b := newKeeperBed(t, 2, 1, nil)
	b.after(0)
	ask := bedAsk()
	ask.HasDeadline, ask.Deadline = true, 2*time.Second
	b.report(2, func(r *Report) {
		r.Holds = []HoldEntry{bedHold(2, 1)}
		r.Waiters = []Waiter{{Number: 2, Attempt: 1, Place: Place{6, 1}, Ask: *ask}}
	})
	b.arrive(2, 3, ask)
	b.after(1500 * time.Millisecond)
	b.report(own, nil)
	b.after(400 * time.Millisecond)
	b.want(2, "3 queued")
	b.after(200 * time.Millisecond)
	b.want(2, "3 queued", "2 deadline_exceeded", "3 deadline_exceeded")
}

// A rank that one member alone cannot reach is masked for its requests, and blocks nobody.
func TestKeeperMasksRanksForThoseThatFail(t *testing.T) {
	b := opened(t, 2, 1, nil)
	o := bedFleet()
	o.Ranks[0].Spec.State.Healthy, o.Ranks[0].Checks = false, Failed
	b.send(2, Item{Kind: ItemObserve, Body: o})
	good := bedFleet()
	good.Ranks[0].Checks, good.Ranks[0].Legs = Succeeded, Succeeded
	it := Item{Kind: ItemObserve, Body: good}
	b.k.receive(own, &it)
	b.after(100 * time.Millisecond)
	b.arrive(2, 1, bedAsk())
	b.want(2, "1 no_workers")
	b.arrive(own, 1, bedAsk())
	b.after(100 * time.Millisecond)
	b.want(own, "1 granted")
	o.Ranks[0].Spec.State.Healthy, o.Ranks[0].Checks = true, Succeeded
	b.send(2, Item{Kind: ItemObserve, Body: o})
	b.arrive(2, 2, bedAsk())
	b.want(2, "1 no_workers", "2 queued")
}

// Ranks that only the keeper before knew are kept for those that still have to report, and
// go when all have.
func TestKeeperForgetsRanksThatNobodyTellsOf(t *testing.T) {
	b := newKeeperBed(t, 2, 1, nil)
	b.mute[2] = true
	gone := admission.RankSpec{ID: "p9", Worker: "p9", Role: admission.RolePrefill, Models: []string{"m"}, Generation: 6<<32 | 1}
	b.report(own, func(r *Report) {
		r.Rows = &Rows{Version: 4, Full: true, Rows: []Row{{At: RankAt{5, gone.Generation}, Spec: &gone}}}
	})
	b.after(5200 * time.Millisecond)
	if at := b.k.table.at("p9"); b.k.office() != OfficeDeciding || at.Generation != gone.Generation {
		t.Fatalf("office %d, the rank is %v", b.k.office(), at)
	}
	b.mute[2] = false
	b.report(2, nil)
	b.after(100 * time.Millisecond)
	if at := b.k.table.at("p9"); at != (RankAt{}) {
		t.Fatalf("the rank is %v", at)
	}
}

// What the keeper before knew of queues goes on after a planned handover.
func TestKeeperGoesOnWithSoftState(t *testing.T) {
	b := opened(t, 1, 1, nil)
	for i := range uint64(20) {
		b.arrive(own, i+1, bedAsk())
		b.step(own, i+1, admission.StepForget)
	}
	soft := b.k.stop()
	if b.k.office() != OfficeNone {
		t.Fatalf("office %d after it stopped", b.k.office())
	}
	m := b.m
	next := newKeeper(m, Epoch{8, own}, []Member{m.o.Self}, soft)
	m.keeper, m.election.promised, b.k = next, next.epoch, next
	b.report(own, nil)
	b.after(0)
	if x := next.port.Soft(m.now); len(x.Total) == 0 || next.soft != nil {
		t.Errorf("soft state %+v", x)
	}
}

// What a member was granted by itself counts, not what the keeper had granted to the same
// attempt and it never heard of.
func TestKeeperTakesWhatAMemberGrantedItself(t *testing.T) {
	b := newKeeperBed(t, 2, 1, nil)
	two := func(r *Report) {
		x := r.Observation.Ranks[0]
		x.ID, x.Spec.ID, x.Spec.Worker = "p1", "p1", "p1"
		r.Observation.Ranks = append(r.Observation.Ranks, x)
	}
	b.after(0)
	b.report(own, two)
	b.report(2, two)
	b.after(100 * time.Millisecond)
	b.arrive(2, 1, bedAsk())
	x, _ := b.k.port.Ticket(b.k.seats[2].tickets[1].number)
	other := map[string]string{"p0": "p1", "p1": "p0"}[x.Prefill.ID]
	b.report(2, func(r *Report) {
		two(r)
		h := bedHold(2, 1)
		h.Prefill = other
		r.Holds = []HoldEntry{h}
	})
	for id, want := range map[string]int{x.Prefill.ID: 0, other: 1} {
		if l, _ := b.k.port.Load(b.k.refOf(id)); l.Slots != want {
			t.Errorf("%d slots are booked on %s, want %d", l.Slots, id, want)
		}
	}
	b.step(2, 1, admission.StepForget)
	for _, id := range []string{"p0", "p1"} {
		if l, _ := b.k.port.Load(b.k.refOf(id)); l.Slots != 0 {
			t.Errorf("%d slots are left on %s", l.Slots, id)
		}
	}
}
