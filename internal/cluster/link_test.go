package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// Steps wait for an envelope that goes out anyway, a moment at most; while somebody waits at
// the keeper they are told at once.
func TestStepsWaitWhileNobodyWaitsForThem(t *testing.T) {
	k := newMember(t, nil)
	ready := func() bool { return slices.Contains(k.m.Ready(nil), k.id) }
	hears := func(wanted bool) {
		e := k.envelope()
		e.Wanted = wanted
		k.m.Receive(k.now, e)
	}
	k.arrive(1, 1, pdRequest())
	if !ready() {
		t.Fatal("an arrival waits")
	}
	k.take()
	k.send(k.grant(1, 1, "p1", "d1"))
	k.take()

	hears(false)
	k.step(1, admission.StepStartDecode)
	if ready() {
		t.Error("a step goes out alone, though nobody waits for it")
	}
	if due := k.m.NextTick(); due > k.now+lazyTime {
		t.Errorf("it is due in %v", time.Duration(due-k.now))
	}
	k.arrive(2, 1, pdRequest())
	if items := k.take(); len(items) != 2 || items[0].Kind != ItemStep || items[1].Kind != ItemArrive {
		t.Errorf("with the next arrival there went %+v", items)
	}

	k.step(1, admission.StepFirstToken)
	k.now += lazyTime
	k.m.Tick(k.now)
	if items := k.take(); len(items) != 1 {
		t.Errorf("after %v there went %+v", time.Duration(lazyTime), items)
	}

	k.step(1, admission.StepEndPrefill)
	if ready() {
		t.Error("it goes out at once")
	}
	hears(true)
	if !ready() {
		t.Error("it waits, though somebody waits for it")
	}
	k.take()
	k.step(1, admission.StepEndDecode)
	if !ready() {
		t.Error("a step waits, though somebody waits for it")
	}
}
