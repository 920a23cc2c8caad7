package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

func (k *fakeKeeper) moved() Moved {
	k.t.Helper()
	k.gather()
	if len(k.out.Moved) != 1 {
		k.t.Fatalf("moved: %+v, want one", k.out.Moved)
	}
	m := k.out.Moved[0]
	k.out.Moved = nil
	return m
}

// staged makes a member with a ticket that decodes on d1.
func staged(t *testing.T) *fakeKeeper {
	k := newMember(t, nil)
	k.arrive(1, 1, pdRequest())
	k.send(k.grant(1, 1, "p1", "d1"))
	k.one()
	k.take()
	return k
}

func TestMoveByTheKeeper(t *testing.T) {
	k := staged(t)
	k.m.Move(k.now, 1, 1, []string{"d2", "unknown"})
	it := k.sent(ItemMove)
	if len(it) != 1 || !slices.Equal(it[0].Body.([]RankAt), []RankAt{k.at("d2")}) {
		t.Fatalf("asked %+v", it)
	}
	k.send(Item{Kind: ItemMoved, Granted: true, Number: 1, Attempt: 1, Decode: k.at("d3")})
	if m := k.moved(); !m.Granted || m.Decode != "d3" {
		t.Errorf("moved %+v", m)
	}
	k.m.Move(k.now, 1, 1, nil)
	k.send(Item{Kind: ItemMoved, Number: 1, Attempt: 1})
	if m := k.moved(); m.Granted {
		t.Errorf("moved %+v", m)
	}
	k.m.Move(k.now, 2, 1, nil)
	k.m.Move(k.now, 1, 2, nil)
	k.gather()
	if len(k.out.Moved) != 2 || k.out.Moved[0].Granted || k.out.Moved[1].Granted {
		t.Errorf("moved %+v", k.out.Moved)
	}
}

func TestMoveAloneWhenTheKeeperIsSlow(t *testing.T) {
	k := staged(t)
	rows := testRows()
	rows.Full = false
	rows.Rows[3].Load.Active = 9 // d2
	k.send(Item{Kind: ItemRows, Body: rows})
	k.m.Move(k.now, 1, 1, nil)
	k.take()
	k.pass(190*time.Millisecond, true)
	if len(k.out.Moved) > 0 {
		t.Fatal("it did not wait for the keeper")
	}
	k.pass(11*time.Millisecond, true)
	if m := k.moved(); !m.Granted || m.Decode != "d3" {
		t.Errorf("moved %+v", m)
	}
	if it := k.sent(ItemMovedAlone); len(it) != 1 || it[0].Decode != k.at("d3") {
		t.Errorf("told %+v", it)
	}
	// The answer comes after all, and then that to the next question.
	k.m.Move(k.now, 1, 1, nil)
	k.send(Item{Kind: ItemMoved, Granted: true, Number: 1, Attempt: 1, Decode: k.at("d2")})
	k.gather()
	if len(k.out.Moved) > 0 {
		t.Fatalf("moved %+v", k.out.Moved)
	}
	k.send(Item{Kind: ItemMoved, Granted: true, Number: 1, Attempt: 1, Decode: k.at("d1")})
	if m := k.moved(); m.Decode != "d1" {
		t.Errorf("moved %+v", m)
	}
}

func TestMoveWithoutKeeper(t *testing.T) {
	k := staged(t)
	k.pass(time.Second, false)
	k.m.Move(k.now, 1, 1, []string{"d2"})
	if m := k.moved(); m.Decode != "d3" {
		t.Errorf("moved %+v", m)
	}
	k.m.Move(k.now, 1, 1, []string{"d2", "d1"})
	if m := k.moved(); m.Granted {
		t.Errorf("moved %+v", m)
	}
	down := rankObserved("d1", admission.RoleDecode)
	down.Spec.State.Healthy, down.Checks = false, Failed
	k.m.Observe(k.now, Observation{Ranks: []RankObservation{down}})
	k.m.Move(k.now, 1, 1, []string{"d2"})
	if m := k.moved(); m.Granted {
		t.Errorf("moved %+v", m)
	}
}

func TestDraining(t *testing.T) {
	k := newMember(t, nil)
	k.arrive(1, 1, pdRequest())
	k.m.StopArrivals(k.now)
	k.arrive(2, 1, pdRequest())
	k.refusedFor(admission.Draining)
	r := pdRequest()
	r.Retry = true
	k.arrive(3, 1, r)
	k.undecided()
	k.take()
	k.m.DrainWithin(k.now, time.Second)
	k.pass(900*time.Millisecond, true)
	k.undecided()
	k.pass(200*time.Millisecond, true)
	if all := k.decided(); len(all) != 2 || all[0].Refusal.Reason != admission.Draining || all[1].Refusal.Reason != admission.Draining {
		t.Fatalf("decided %+v", all)
	}
	if it := k.sent(ItemStep); len(it) != 2 || it[0].Op != admission.StepCancel {
		t.Errorf("told %+v", it)
	}
	// A retry may still be granted at once, but not wait.
	k.arrive(4, 1, r)
	k.undecided()
	k.send(Item{Kind: ItemQueued, Number: 4, Attempt: 1, Place: Place{1, 1}, Body: &Queued{}})
	k.refusedFor(admission.Draining)
}
