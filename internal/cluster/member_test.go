package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

const (
	selfID   Incarnation = 1
	keeperID Incarnation = 9
)

// fakeKeeper is the other end of a member's session: a test says what it sends.
type fakeKeeper struct {
	t   *testing.T
	m   *Machine
	now admission.Instant

	id          Incarnation
	epoch       Epoch
	office      Office
	stamp, echo uint64
	session     uint64 // the last one that a report opened
	seqOut      uint64
	seqIn       uint64
	got         []Item // since the last call of take
	reports     []*Report
	out         Output // gathered
}

// newMember makes a member whose keeper is a fake one that decides.
func newMember(t *testing.T, change func(*Options)) *fakeKeeper {
	o := Options{
		Cluster: "c", Self: Member{Name: "self", Incarnation: selfID, Address: "127.0.0.1:1"},
		Random: func() uint64 { return 4 },
		Gate: admission.Options{Limits: admission.Limits{
			PrefillSlots: 2, QueueSize: 100, QueueTimeout: 10 * time.Second,
		}},
	}
	if change != nil {
		change(&o)
	}
	k := &fakeKeeper{t: t, now: admission.Instant(time.Hour), id: keeperID, office: OfficeDeciding}
	k.m = NewMachine(o, k.now)
	k.m.Tick(k.now)
	k.m.Observe(k.now, Observation{Full: true, Ranks: testRanks()})
	k.summon(Epoch{1, keeperID})
	k.exchange()
	k.exchange()
	k.send(Item{Kind: ItemRows, Body: testRows()})
	k.take()
	return k
}

// summon has the member promise itself to an epoch of this keeper.
func (k *fakeKeeper) summon(e Epoch) {
	k.id, k.epoch = e.Keeper, e
	k.stamp, k.echo, k.session, k.seqOut, k.seqIn = 0, 0, 0, 0, 0
	k.m.addPeer(Member{Name: "keeper", Incarnation: e.Keeper, Address: "127.0.0.1:9"})
	k.m.election.promised = e
	k.m.member.promised()
	k.m.Tick(k.now)
}

func rankObserved(id string, role admission.Role) RankObservation {
	return RankObservation{ID: id, Spec: admission.RankSpec{
		ID: id, Generation: 1, Worker: id, Role: role, Models: []string{"m"}, State: admission.RankState{Healthy: true},
		Capacity: admission.Capacity{KVBlocks: 1000, BlockSize: 16},
	}}
}

// testRanks are two prefill and three decode ranks.
func testRanks() (all []RankObservation) {
	for _, id := range []string{"p1", "p2"} {
		all = append(all, rankObserved(id, admission.RolePrefill))
	}
	for _, id := range []string{"d1", "d2", "d3"} {
		all = append(all, rankObserved(id, admission.RoleDecode))
	}
	return all
}

func testRows() *Rows {
	rows := &Rows{Version: 1, Full: true}
	for i, o := range testRanks() {
		spec := o.Spec
		spec.Generation = 1<<32 | uint64(i+1)
		rows.Rows = append(rows.Rows, Row{At: RankAt{uint32(i + 1), spec.Generation}, Spec: &spec})
	}
	return rows
}

// at names a rank of testRows.
func (k *fakeKeeper) at(id string) RankAt { return k.m.ranks.at(id) }

// hear takes what the member sends, at once.
func (k *fakeKeeper) hear() {
	for slices.Contains(k.m.Ready(nil), k.id) {
		e := k.m.Take(k.now, k.id)
		k.echo = max(k.echo, e.Stamp)
		if e.Epoch != k.epoch {
			continue
		}
		for _, it := range e.Items {
			if r, _ := it.Body.(*Report); r != nil {
				if r.First {
					k.session, k.seqOut, k.seqIn = e.Session, 0, 0
				}
				k.reports = append(k.reports, r)
			}
		}
		if e.Session == k.session && len(e.Items) > 0 {
			if e.Seq != k.seqIn+1 {
				k.t.Fatalf("session %d: envelope %d came after %d", e.Session, e.Seq, k.seqIn)
			}
			k.seqIn = e.Seq
		}
		k.got = append(k.got, e.Items...)
	}
	k.gather()
}

func (k *fakeKeeper) gather() {
	out := k.m.Out()
	k.out.Decided = append(k.out.Decided, out.Decided...)
	k.out.Renew = append(k.out.Renew, out.Renew...)
	k.out.Moved = append(k.out.Moved, out.Moved...)
	k.out.Revoked = append(k.out.Revoked, out.Revoked...)
	k.out.Events = append(k.out.Events, out.Events...)
}

// envelope is the next one that the keeper sends.
func (k *fakeKeeper) envelope(items ...Item) *Envelope {
	k.stamp++
	if len(items) > 0 {
		k.seqOut++
	}
	return &Envelope{
		From: k.id, To: selfID, Stamp: k.stamp, Echo: k.echo, Epoch: k.epoch, Office: k.office, Wanted: true,
		Session: k.session, Seq: k.seqOut, Ack: k.seqIn, Items: items,
	}
}

// send has the keeper send items, or a beat.
func (k *fakeKeeper) send(items ...Item) { k.deliver(k.envelope(items...)) }

func (k *fakeKeeper) deliver(e *Envelope) {
	k.m.Receive(k.now, e)
	k.gather()
}

// exchange lets an envelope go each way.
func (k *fakeKeeper) exchange() {
	k.hear()
	k.send()
}

// pass lets time pass; heard: with beats both ways.
func (k *fakeKeeper) pass(d time.Duration, heard bool) {
	for end := k.now.Add(d); k.now < end; {
		k.now = min(end, max(k.m.NextDeadline(), k.now+1))
		k.m.Tick(k.now)
		if next := k.m.member.next(); next <= k.now {
			k.t.Fatalf("after a tick the next is due %v ago", time.Duration(k.now-next))
		}
		k.hear()
		if heard {
			k.send()
		}
	}
}

// take returns what the member has sent since the last call.
func (k *fakeKeeper) take() (items []Item) {
	k.hear()
	items, k.got = k.got, nil
	return items
}

func (k *fakeKeeper) sent(kind ItemKind) (items []Item) {
	for _, it := range k.take() {
		if it.Kind == kind {
			items = append(items, it)
		}
	}
	return items
}

func pdRequest() *admission.Request {
	return &admission.Request{Target: admission.TargetSpec{Model: "m", Shape: admission.Disaggregated}, Legs: 1, PromptTokens: 160}
}

func (k *fakeKeeper) arrive(number uint64, attempt uint32, r *admission.Request) {
	k.m.Arrive(k.now, number, attempt, r)
	k.gather()
}

func (k *fakeKeeper) step(number uint64, op admission.StepOp) {
	k.m.Step(k.now, number, 1, op, 0)
	k.gather()
}

func (k *fakeKeeper) grant(number uint64, attempt uint32, prefill, decode string) Item {
	return Item{
		Kind: ItemDecision, Granted: true, Number: number, Attempt: attempt, Prefill: k.at(prefill), Decode: k.at(decode),
		Body: &Grant{Class: "default", Tokens: 160, Blocks: 10},
	}
}

// decided returns the decisions since the last call.
func (k *fakeKeeper) decided() (all []Decided) {
	k.gather()
	all, k.out.Decided = k.out.Decided, nil
	return all
}

// one returns the one decision since the last call.
func (k *fakeKeeper) one() Decided {
	k.t.Helper()
	all := k.decided()
	if len(all) != 1 {
		k.t.Fatalf("%d decisions, want one: %+v", len(all), all)
	}
	return all[0]
}

func (k *fakeKeeper) refusedFor(reason admission.Reason) *admission.Refusal {
	k.t.Helper()
	d := k.one()
	if d.Granted || d.Refusal == nil || d.Refusal.Reason != reason {
		k.t.Fatalf("decided %+v (%v), want a refusal: %v", d, d.Refusal, reason)
	}
	return d.Refusal
}

func (k *fakeKeeper) undecided() {
	k.t.Helper()
	if all := k.decided(); len(all) > 0 {
		k.t.Fatalf("decided: %+v (%v)", all, all[0].Refusal)
	}
}

func TestMemberAsksAndTakesAGrant(t *testing.T) {
	k := newMember(t, nil)
	r := pdRequest()
	r.Deadline = k.now.Add(3 * time.Second)
	r.Hints[0].Holders = []admission.RequestHolder{{Rank: admission.RankRef{ID: "p2"}, Tokens: 32}, {Rank: admission.RankRef{ID: "unknown"}, Tokens: 64}}
	r.Exclude[1] = []admission.RankRef{{ID: "d1"}, {ID: "unknown"}}
	k.arrive(7, 1, r)
	items := k.take()
	if len(items) != 1 || items[0].Kind != ItemArrive || items[0].Number != 7 || items[0].Attempt != 1 {
		t.Fatalf("sent %+v", items)
	}
	a := items[0].Body.(*Ask)
	if !a.HasDeadline || a.Deadline != 3*time.Second || a.HasClassDeadline || a.Request.Deadline != 0 {
		t.Errorf("deadlines: %+v", a)
	}
	if want := []Holder{{k.at("p2"), 32}}; !slices.Equal(a.Holders[0], want) {
		t.Errorf("holders %v, want %v", a.Holders[0], want)
	}
	if want := []RankAt{k.at("d1")}; !slices.Equal(a.Exclude[1], want) {
		t.Errorf("excluded %v, want %v", a.Exclude[1], want)
	}
	if a.Request.Hints[0].Holders != nil || a.Request.Exclude[1] != nil {
		t.Error("ranks are told by id, too")
	}
	k.send(k.grant(7, 1, "p1", "d2"))
	if d := k.one(); !d.Granted || d.Number != 7 || d.Prefill != "p1" || d.Decode != "d2" {
		t.Fatalf("decided %+v", d)
	}
	k.send(k.grant(7, 1, "p1", "d2"))
	k.undecided()
	for _, op := range []admission.StepOp{admission.StepStartDecode, admission.StepFirstToken, admission.StepEndPrefill, admission.StepEndPrefill, admission.StepEndDecode, admission.StepRelease} {
		k.step(7, op)
	}
	k.m.Step(k.now, 7, 1, admission.StepForget, 0)
	var ops []admission.StepOp
	for _, it := range k.take() {
		ops = append(ops, it.Op)
	}
	want := []admission.StepOp{admission.StepStartDecode, admission.StepFirstToken, admission.StepEndPrefill, admission.StepEndDecode, admission.StepForget}
	if !slices.Equal(ops, want) {
		t.Errorf("steps %v, want %v", ops, want)
	}
	if n := len(k.m.member.tickets); n != 0 {
		t.Errorf("%d tickets are left", n)
	}
}

func TestMemberGivesAGrantBackThatComesAfterACancel(t *testing.T) {
	k := newMember(t, nil)
	k.arrive(1, 1, pdRequest())
	k.arrive(2, 1, pdRequest())
	k.arrive(3, 1, pdRequest())
	k.step(1, admission.StepCancel)
	k.step(2, admission.StepForget)
	k.step(3, admission.StepCancel)
	k.arrive(3, 2, pdRequest())
	k.take()
	k.send(k.grant(1, 1, "p1", "d1"), k.grant(2, 1, "p1", "d1"), k.grant(3, 1, "p1", "d1"))
	k.undecided()
	back := k.sent(ItemStep)
	if len(back) != 3 {
		t.Fatalf("given back: %+v", back)
	}
	for i, it := range back {
		if it.Op != admission.StepRelease || it.Number != uint64(i+1) || it.Attempt != 1 {
			t.Errorf("given back: %+v", it)
		}
	}
	k.send(k.grant(3, 2, "p1", "d1"))
	if d := k.one(); !d.Granted || d.Attempt != 2 {
		t.Errorf("decided %+v", d)
	}
}

func TestMemberTakesNoGrantThatIsTooOld(t *testing.T) {
	for _, without := range []bool{false, true} {
		k := newMember(t, func(o *Options) { o.withoutEpochs = without })
		k.arrive(1, 1, pdRequest())
		k.hear()
		e := k.envelope(k.grant(1, 1, "p1", "d1")) // it is on its way for long
		k.now = k.now.Add(4500 * time.Millisecond)
		k.m.Tick(k.now)
		k.take()
		k.deliver(e)
		if without {
			if d := k.one(); !d.Granted {
				t.Errorf("decided %+v", d)
			}
			continue
		}
		k.undecided()
		r := k.sent(ItemReport)
		if len(r) != 1 || len(r[0].Body.(*Report).Waiters) != 1 {
			t.Fatalf("reported %+v", r)
		}
		if n := k.m.Status().Counters.Dropped[DropStale]; n != 1 {
			t.Errorf("%d grants were counted as stale", n)
		}
	}
}

func TestMemberOpensANewSessionWhenAnEnvelopeIsMissing(t *testing.T) {
	k := newMember(t, nil)
	k.arrive(1, 1, pdRequest())
	k.arrive(2, 1, pdRequest())
	k.take()
	k.envelope(k.grant(1, 1, "p1", "d1")) // lost
	late := k.envelope(k.grant(2, 1, "p1", "d1"))
	old := k.session
	k.deliver(late)
	k.undecided()
	if r := k.sent(ItemReport); len(r) != 1 || len(r[0].Body.(*Report).Waiters) != 2 {
		t.Fatalf("reported %+v", r)
	}
	if k.session <= old {
		t.Errorf("session %d came after %d", k.session, old)
	}
	k.deliver(late) // of the old session
	k.undecided()
	k.send(k.grant(1, 1, "p1", "d1"))
	if d := k.one(); !d.Granted || d.Number != 1 {
		t.Errorf("decided %+v", d)
	}
	// A beat tells of a gap, too.
	k.envelope(k.grant(2, 1, "p1", "d1"))
	k.send()
	if r := k.sent(ItemReport); len(r) != 1 || len(r[0].Body.(*Report).Holds) != 1 {
		t.Fatalf("reported %+v", r)
	}
}

func TestMemberReportsAgainWhenAskedTo(t *testing.T) {
	k := newMember(t, nil)
	k.now++
	ask := k.envelope()
	ask.Control = []Control{{Kind: ControlResync}}
	k.deliver(ask)
	if n := len(k.sent(ItemReport)); n != 1 {
		t.Fatalf("%d reports", n)
	}
	// The same wish, from before the report came there.
	k.deliver(ask)
	if n := len(k.sent(ItemReport)); n != 0 {
		t.Errorf("%d reports more", n)
	}
}
