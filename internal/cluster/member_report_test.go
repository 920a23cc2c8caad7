package cluster

import (
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

func TestMemberReportsWhatItHoldsAndWhoWaits(t *testing.T) {
	k := newMember(t, func(o *Options) { o.Generation = 7 })
	for n := uint64(1); n <= 5; n++ {
		r := pdRequest()
		r.Hints[0].Holders = []admission.RequestHolder{{Rank: admission.RankRef{ID: "p2"}, Tokens: 32}}
		r.Exclude[1] = []admission.RankRef{{ID: "d3"}}
		k.arrive(n, 1, r)
	}
	k.hear()
	k.send(k.grant(1, 1, "p1", "d2"), k.grant(2, 1, "p2", "d1"),
		Item{Kind: ItemQueued, Number: 3, Attempt: 1, Place: Place{1, 8}, Body: &Queued{Left: 9 * time.Second, Reason: admission.QueueTimeout, Class: "default"}})
	k.decided()
	k.step(1, admission.StepStartDecode)
	k.step(1, admission.StepFirstToken)
	k.step(1, admission.StepEndPrefill)
	k.m.Step(k.now, 1, 1, admission.StepGrow, 3)
	k.step(5, admission.StepCancel)
	k.send(Item{Kind: ItemShares, Body: &Shares{Version: 3, Committed: []Incarnation{selfID, keeperID}}})
	if it := k.sent(ItemSharesTaken); len(it) != 1 || it[0].Number != 3 {
		t.Fatalf("told %+v", it)
	}
	k.pass(2*time.Second, true)

	k.reports = nil
	k.office = OfficeOpening
	k.summon(Epoch{2, 8})
	k.exchange()
	if len(k.reports) != 1 {
		t.Fatalf("%d reports", len(k.reports))
	}
	r := k.reports[0]
	if !r.First || !r.Last || r.Self.Incarnation != selfID || r.Of != (Epoch{1, keeperID}) || r.Standby || r.Shares.Version != 3 {
		t.Errorf("reported %+v", r)
	}
	if r.Rows == nil || len(r.Rows.Rows) != 5 || r.Observation == nil || len(r.Observation.Ranks) != 5 {
		t.Errorf("ranks: %+v %+v", r.Rows, r.Observation)
	}
	if r.Configuration.Generation != 7 || r.Configuration.Age != 2*time.Second || r.Configuration.Digest == 0 || r.Documents == nil {
		t.Errorf("configuration: %+v", r.Configuration)
	}
	if len(r.Known) < 2 || r.Known[0].Incarnation != selfID {
		t.Errorf("known: %+v", r.Known)
	}
	if len(r.Holds) != 2 || len(r.Waiters) != 2 {
		t.Fatalf("holds %+v, waiters %+v", r.Holds, r.Waiters)
	}
	h := r.Holds[0]
	if h.Ticket != (TicketID{selfID, 1}) || h.Prefill != "p1" || h.Decode != "d2" || h.Hold.HoldsPrefill || !h.Hold.HoldsDecode ||
		!h.Hold.DecodeActive || !h.Hold.FirstToken || h.Hold.Grown != 3 || h.Hold.Tokens != 160 || h.Hold.Blocks != 10 || h.Hold.Age != 2*time.Second {
		t.Errorf("hold: %+v", h)
	}
	if g := r.Holds[1].Hold; !g.HoldsPrefill || !g.HoldsDecode || g.DecodeActive {
		t.Errorf("hold: %+v", g)
	}
	w := r.Waiters[0]
	if w.Number != 3 || w.Place != (Place{1, 8}) || w.Queued.Left != 7*time.Second || w.Ask.Waited != 2*time.Second || w.Ask.Age != 2*time.Second {
		t.Errorf("waiter: %+v", w)
	}
	if w.HolderIDs[0][0] != "p2" || w.Ask.Holders[0][0].Tokens != 32 || w.ExcludeIDs[1][0] != "d3" {
		t.Errorf("ranks of the waiter: %+v", w)
	}
	if w := r.Waiters[1]; w.Number != 4 || w.Place != (Place{}) {
		t.Errorf("waiter: %+v", w)
	}

	// What the keeper before says counts no more.
	old := &Envelope{From: keeperID, To: selfID, Stamp: 1 << 20, Echo: 3, Epoch: Epoch{1, keeperID}, Office: OfficeDeciding, Session: k.session, Seq: 1,
		Items: []Item{k.grant(4, 1, "p1", "d1")}}
	k.deliver(old)
	k.undecided()

	// The new one goes on with the waits.
	k.office = OfficeDeciding
	k.send(k.grant(3, 1, "p1", "d1"))
	if d := k.one(); !d.Granted || d.Number != 3 {
		t.Errorf("decided %+v", d)
	}
}

func TestMemberWithoutTheEpochCheckObeysTheKeeperBefore(t *testing.T) {
	k := newMember(t, func(o *Options) { o.withoutEpochs = true })
	k.arrive(4, 1, pdRequest())
	k.hear()
	old := k.envelope(k.grant(4, 1, "p1", "d1"))
	k.summon(Epoch{2, 8})
	k.deliver(old)
	if d := k.one(); !d.Granted {
		t.Errorf("decided %+v", d)
	}
}

func TestMemberReportsInParts(t *testing.T) {
	k := newMember(t, nil)
	const n = 2*maxReportPart + 7
	for i := uint64(1); i <= n; i++ {
		k.arrive(i, 1, pdRequest())
	}
	k.summon(Epoch{2, 8})
	k.reports = nil
	envelopes := 0
	for k.m.ready(k.m.peers[8]) {
		e := k.m.Take(k.now, 8)
		if envelopes++; len(e.Items) != 1 || e.Seq != uint64(envelopes) {
			t.Fatalf("envelope %d has %d items, number %d", envelopes, len(e.Items), e.Seq)
		}
		k.reports = append(k.reports, e.Items[0].Body.(*Report))
	}
	waiters := 0
	for i, r := range k.reports {
		waiters += len(r.Waiters)
		if r.First != (i == 0) || r.Last != (i == len(k.reports)-1) || len(r.Waiters) > maxReportPart {
			t.Errorf("part %d: first %v, last %v, %d waiters", i, r.First, r.Last, len(r.Waiters))
		}
	}
	if waiters != n || len(k.reports) != 3 {
		t.Errorf("%d waiters in %d parts", waiters, len(k.reports))
	}
}

func TestStandbyRemembersTheHoldsOfOthers(t *testing.T) {
	k := newMember(t, nil)
	const other Incarnation = 5
	entry := func(n uint64) HoldEntry {
		return HoldEntry{Ticket: TicketID{other, n}, Attempt: 1, Prefill: "p1", Decode: "d1",
			Hold: HoldOf{Ask: &Ask{}, HoldsPrefill: true, HoldsDecode: true, Class: "default"}}
	}
	k.send(Item{Kind: ItemHolds, Body: &Holds{First: true, Entries: []HoldEntry{entry(1), entry(2)}}})
	if e := k.m.Take(k.now, keeperID); e.Ack != k.seqOut {
		t.Errorf("acknowledged %d, want %d", e.Ack, k.seqOut)
	}
	if k.m.member.isStandby() {
		t.Error("it is the standby before it knows all holds")
	}
	step := func(n uint64, op admission.StepOp, amount int64) Item {
		return Item{Kind: ItemHold, Member: other, Number: n, Attempt: 1, Op: op, Amount: amount}
	}
	k.send(Item{Kind: ItemHolds, Body: &Holds{Last: true, Entries: []HoldEntry{entry(3)}}},
		Item{Kind: ItemHold, Member: other, Number: 4, Attempt: 2, Prefill: k.at("p2"), Decode: k.at("d2"), Body: &HoldOf{Ask: &Ask{}, HoldsPrefill: true, HoldsDecode: true}},
		step(1, admission.StepEndPrefill, 0), step(1, admission.StepStartDecode, 0), step(1, admission.StepGrow, 5),
		step(2, admission.StepRelease, 0), step(3, admission.StepEndPrefill, 0), step(3, admission.StepEndDecode, 0), step(4, admission.StepRelease, 0))
	if !k.m.member.isStandby() || !k.m.ready(k.m.peers[keeperID]) {
		t.Error("it is not the standby, or does not acknowledge at once")
	}
	k.take()

	k.reports = nil
	k.office = OfficeOpening
	k.summon(Epoch{2, 8})
	k.exchange()
	r := k.reports[0]
	if !r.Standby || len(r.Foreign) != 2 || r.Of != (Epoch{1, keeperID}) {
		t.Fatalf("reported %+v", r)
	}
	if h := r.Foreign[0].Hold; r.Foreign[0].Ticket.Number != 1 || h.HoldsPrefill || !h.DecodeActive || h.Grown != 5 {
		t.Errorf("hold: %+v", r.Foreign[0])
	}
	if h := r.Foreign[1]; h.Ticket.Number != 4 || h.Attempt != 2 || h.Prefill != "p2" || h.Decode != "d2" {
		t.Errorf("hold: %+v", h)
	}
	// Another election follows before the gate has opened: it still knows.
	k.reports = nil
	k.summon(Epoch{3, 7})
	k.exchange()
	if r := k.reports[0]; !r.Standby || len(r.Foreign) != 2 || r.Of != (Epoch{1, keeperID}) {
		t.Errorf("reported %+v", r)
	}
	k.office = OfficeDeciding
	k.exchange()
	if len(k.m.member.log.entries) != 0 || k.m.member.isStandby() {
		t.Error("it remembers holds that the keeper in office knows")
	}
}

// A process that may not be a member is nobody whom a keeper has to wait for.
func TestWhoMayNotBeAMemberIsNotReported(t *testing.T) {
	m := NewMachine(Options{Cluster: "c", Self: Member{Name: "m1", Incarnation: 1, Address: "m1:1", Versions: Versions{1, 1}}, Random: func() uint64 { return 4 }}, 1)
	m.election.refuse(m.addPeer(Member{Name: "m1", Incarnation: 2, Address: "x:1", Versions: Versions{1, 1}}), "the name is taken")
	if known := m.member.known(); len(known) != 1 || known[0].Incarnation != 1 {
		t.Errorf("known: %+v", known)
	}
}
