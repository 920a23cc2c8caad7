package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// lonely makes a member that has a share, with a fake keeper that falls silent; n is how many
// members there are.
func lonely(t *testing.T, n int, change func(*Options)) *fakeKeeper {
	k := newMember(t, change)
	list := []Incarnation{selfID}
	for i := 1; i < n; i++ {
		list = append(list, keeperID+Incarnation(i))
	}
	set := k.m.member.config.settings
	k.send(Item{Kind: ItemShares, Body: &Shares{Version: 1, Committed: list, CommittedSettings: &set}})
	k.exchange()
	k.take()
	return k
}

// share is how many requests in prefill the member may have on a rank by itself.
func (k *fakeKeeper) share(id string) int64 {
	x := k.m.member.shared.rank(k.m.ranks.find(id).Spec, selfID)
	if x.None {
		return 0
	}
	return x.Slots
}

func TestMemberWithoutKeeperRefuses(t *testing.T) {
	k := lonely(t, 2, func(o *Options) { o.Fallback = FallbackRefuse })
	k.pass(time.Second, true)
	k.arrive(1, 1, pdRequest())
	k.send(k.grant(1, 1, "p1", "d1"))
	k.one()
	k.arrive(2, 1, pdRequest())
	k.pass(4900*time.Millisecond, false)
	k.undecided()
	k.pass(200*time.Millisecond, false)
	if x := k.refusedFor(admission.GateUnavailable); x.RetryAfter < time.Second || x.Code() != "gate_unavailable" {
		t.Errorf("refused: %+v", x)
	}
	k.arrive(3, 1, pdRequest())
	k.refusedFor(admission.GateUnavailable)
	r := pdRequest()
	r.Retry = true
	k.arrive(4, 1, r)
	k.refusedFor(admission.RetryRefused)
	if s := k.m.Status(); s.Role != "alone" || s.Fallback != "refuse" {
		t.Errorf("role %q, fallback %q", s.Role, s.Fallback)
	}
	// What was granted goes on, and is reported when the keeper is back.
	k.step(1, admission.StepEndPrefill)
	k.take()
	k.send()
	k.exchange()
	if rep := k.reports[len(k.reports)-1]; len(rep.Holds) != 1 || rep.Holds[0].Hold.HoldsPrefill {
		t.Errorf("reported %+v", rep)
	}
	if s := k.m.Status(); s.Role != "member" || s.Fallback != "" || s.Counters.FallbackFor <= 0 {
		t.Errorf("role %q, fallback %q, for %v", s.Role, s.Fallback, s.Counters.FallbackFor)
	}
	k.arrive(5, 1, pdRequest())
	k.undecided()
}

func TestMemberThatNeverJoinedHasNoShare(t *testing.T) {
	k := newMember(t, nil)
	k.arrive(1, 1, pdRequest())
	k.pass(6*time.Second, false)
	k.refusedFor(admission.GateUnavailable)
	if s := k.m.Status(); s.Fallback != "refuse" {
		t.Errorf("fallback %q", s.Fallback)
	}
}

func TestMemberDecidesAloneOnItsShare(t *testing.T) {
	k := lonely(t, 2, func(o *Options) { o.Gate.Limits.PrefillSlots = 3 })
	want := k.share("p1") + k.share("p2")
	if want < 2 || want > 4 {
		t.Fatalf("its share is %d of 6", want)
	}
	// One slot of it is taken by what the keeper granted.
	k.arrive(1, 1, pdRequest())
	k.send(k.grant(1, 1, "p1", "d1"))
	k.one()
	for n := uint64(2); n <= 8; n++ {
		k.arrive(n, 1, pdRequest())
	}
	k.pass(5100*time.Millisecond, false)
	held := map[string]int64{"p1": 1}
	for _, d := range k.decided() {
		if !d.Granted || d.Number != uint64(len(held))+1 && len(held) > 8 {
			t.Fatalf("decided %+v %v", d, d.Refusal)
		}
		held[d.Prefill]++
	}
	for id, n := range held {
		if n > k.share(id) {
			t.Errorf("%d requests in prefill on %s, its share is %d", n, id, k.share(id))
		}
	}
	if held["p1"]+held["p2"] != want {
		t.Errorf("%d requests in prefill, its share is %d", held["p1"]+held["p2"], want)
	}
	// A slot that ends is given to the next that waits.
	k.step(1, admission.StepEndPrefill)
	if d := k.one(); !d.Granted || d.Prefill != "p1" {
		t.Errorf("decided %+v", d)
	}
	// The keeper is back: it decides from now on, and is told.
	k.take()
	k.send()
	k.take()
	rep := k.reports[len(k.reports)-1]
	if int64(len(rep.Holds)) != want+1 || len(rep.Waiters) != 8-len(rep.Holds) {
		t.Fatalf("reported %d holds and %d waiters", len(rep.Holds), len(rep.Waiters))
	}
	for _, h := range rep.Holds {
		if h.Hold.Blocks != 10 || h.Hold.Tokens != 160 {
			t.Errorf("hold %+v", h)
		}
	}
	k.step(rep.Holds[1].Ticket.Number, admission.StepEndPrefill)
	k.undecided()
}

func TestWaitersKeepTheirBoundsWhenTheKeeperIsLost(t *testing.T) {
	k := lonely(t, 2, nil)
	for n := uint64(1); n <= 20; n++ {
		k.arrive(n, 1, pdRequest())
	}
	k.hear()
	for n := uint64(1); n <= 20; n++ {
		k.send(Item{Kind: ItemQueued, Number: n, Attempt: 1, Place: Place{1, 21 - n}, Body: &Queued{Left: 10 * time.Second, Reason: admission.QueueTimeout, Class: "default"}})
	}
	k.pass(5100*time.Millisecond, false)
	granted := k.decided()
	for i, d := range granted { // by place
		if d.Number != uint64(20-i) {
			t.Errorf("grant %d is that of %d", i, d.Number)
		}
	}
	k.pass(4800*time.Millisecond, false)
	k.undecided()
	k.pass(200*time.Millisecond, false)
	if refused := k.decided(); len(granted) == 0 || len(refused) != 20-len(granted) || refused[0].Refusal.Reason != admission.QueueTimeout {
		t.Errorf("%d granted, %d refused after ten seconds", len(granted), len(refused))
	}
}

func TestMemberAloneUsesNoRankThatFailsItself(t *testing.T) {
	k := lonely(t, 1, nil)
	k.pass(5100*time.Millisecond, false)
	down := rankObserved("p1", admission.RolePrefill)
	down.Spec.State.Healthy, down.Checks = false, Failed
	k.m.Observe(k.now, Observation{Ranks: []RankObservation{down}})
	k.m.Observe(k.now, Observation{Ranks: []RankObservation{{ID: "d1", Gone: true}, {ID: "d2", Gone: true}}})
	k.pass(200*time.Millisecond, false)
	k.arrive(1, 1, pdRequest())
	if d := k.one(); !d.Granted || d.Prefill != "p2" || d.Decode != "d3" {
		t.Errorf("decided %+v", d)
	}
	for _, id := range []string{"p2"} {
		down := rankObserved(id, admission.RolePrefill)
		down.Spec.State.Healthy, down.Checks = false, Failed
		k.m.Observe(k.now, Observation{Ranks: []RankObservation{down}})
	}
	k.arrive(2, 1, pdRequest())
	k.refusedFor(admission.NoWorkers)
}

func TestMemberIsToldToEndOldPrefillLegs(t *testing.T) {
	k := lonely(t, 2, func(o *Options) { o.Lost = 20 * time.Second })
	for n := uint64(1); n <= 3; n++ {
		k.arrive(n, 1, pdRequest())
		k.send(k.grant(n, 1, "p1", "d1"))
	}
	k.step(2, admission.StepEndPrefill)
	k.decided()
	begun := k.now
	k.pass(6*time.Second, false)
	k.arrive(4, 1, pdRequest()) // alone
	k.pass(11*time.Second, false)
	if len(k.out.Revoked) > 0 {
		t.Fatalf("revoked %v after %v", k.out.Revoked, time.Duration(k.now-begun))
	}
	k.pass(2900*time.Millisecond-600*time.Millisecond, false)
	if want := []uint64{1, 3}; !slices.Equal(k.out.Revoked, want) {
		t.Fatalf("revoked %v, want %v", k.out.Revoked, want)
	}
	k.pass(time.Minute, false)
	if len(k.out.Revoked) != 2 {
		t.Errorf("revoked %v", k.out.Revoked)
	}
}

func TestMemberIsLostToItsKeeperBeforeItFallsBack(t *testing.T) {
	k := lonely(t, 2, nil)
	k.pass(time.Second, true)
	echo := k.m.peers[keeperID].echo
	// The keeper's envelopes arrive, and answer nothing that was sent here lately.
	for range 49 {
		k.now = k.now.Add(100 * time.Millisecond)
		k.m.Tick(k.now)
		k.send()
		k.gather()
	}
	late := k.m.peers[keeperID].echo
	if k.m.member.alone.on || late > echo+6 {
		t.Errorf("alone %v, echoes stamp %d after %d", k.m.member.alone.on, late, echo)
	}
	for range 6 {
		k.now = k.now.Add(100 * time.Millisecond)
		k.m.Tick(k.now)
		k.send()
	}
	if !k.m.member.alone.on || k.m.peers[keeperID].echo != late {
		t.Errorf("alone %v, echoes stamp %d after %d", k.m.member.alone.on, k.m.peers[keeperID].echo, late)
	}
	// When the link is whole again, it is heard within two beats.
	k.exchange()
	k.exchange()
	if k.m.member.alone.on || k.m.peers[keeperID].echo != k.stamp {
		t.Errorf("alone %v, echoes stamp %d of %d", k.m.member.alone.on, k.m.peers[keeperID].echo, k.stamp)
	}
}

func TestMemberAloneHasItsShareOfEveryBound(t *testing.T) {
	// Of a limit of one, most members have nothing.
	none := 0
	for self := Incarnation(100); self < 108; self++ {
		list := []Incarnation{}
		for m := Incarnation(100); m < 108; m++ {
			list = append(list, m)
		}
		k := lonely(t, 1, func(o *Options) { o.Gate.Limits.PrefillSlots, o.Self.Incarnation = 1, selfID })
		k.m.member.shared.Committed = append([]Incarnation{selfID}, list[:self-100]...)
		k.pass(5100*time.Millisecond, false)
		k.arrive(1, 1, pdRequest())
		d := k.one()
		if has := k.share("p1")+k.share("p2") > 0; has != d.Granted {
			t.Errorf("it has a share: %v, decided %+v %v", has, d, d.Refusal)
		}
		if !d.Granted {
			none++
			if d.Refusal.Reason != admission.GateUnavailable {
				t.Errorf("refused: %v", d.Refusal)
			}
		}
	}
	if none == 0 {
		t.Error("every member had a share")
	}

	// A queue of ten for two has five places here.
	k := lonely(t, 2, func(o *Options) { o.Gate.Limits.QueueSize = 10 })
	k.pass(5100*time.Millisecond, false)
	for n := uint64(1); n <= 20; n++ {
		k.arrive(n, 1, pdRequest())
	}
	granted, refused := 0, 0
	for _, d := range k.decided() {
		granted += b2i(d.Granted)
		refused += b2i(d.Refusal != nil && d.Refusal.Reason == admission.QueueFull)
	}
	if want := int(k.share("p1") + k.share("p2")); granted != want || refused != 20-5-want {
		t.Errorf("%d granted, %d refused, want %d granted and five waiting", granted, refused, want)
	}
	// What waits keeps its place when the core is made anew.
	k.m.Observe(k.now, Observation{Ranks: []RankObservation{rankObserved("d9", admission.RoleDecode)}})
	k.pass(300*time.Millisecond, false)
	k.undecided()
	k.step(1, admission.StepRelease)
	if d := k.one(); !d.Granted || d.Number != uint64(granted+1) {
		t.Errorf("decided %+v", d)
	}
}
