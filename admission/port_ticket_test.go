package admission

import (
	"testing"
	"time"
)

// What a port tells of a ticket is what it waits for, and then what it holds.
func TestPortTellsOfATicket(t *testing.T) {
	p := NewPort(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 8, QueueTimeout: time.Second}})
	var add []FleetChange
	for id, role := range map[string]Role{"p": RolePrefill, "d": RoleDecode} {
		add = append(add, FleetChange{Op: AddRank, Add: &RankSpec{ID: id, Generation: 3, Worker: id, Role: role, Models: []string{"m"}, State: RankState{Healthy: true}}})
	}
	p.Do(Step{Op: StepApply, Now: 10, Changes: add})
	r := &Request{Target: TargetSpec{Model: "m", Shape: Disaggregated}, PromptTokens: 100}
	p.Do(Step{Op: StepArrive, Now: 10, Ticket: 1, Request: r})
	p.Do(Step{Op: StepArrive, Now: 20, Ticket: 2, Request: r})
	held, ok := p.Ticket(1)
	if !ok || held.Status != StatusGranted || held.Prefill != (RankRef{"p", 3}) || held.Decode != (RankRef{"d", 3}) ||
		!held.HoldsPrefill || !held.HoldsDecode || held.Tokens != 100 || held.Blocks != 7 {
		t.Errorf("granted: %+v", held)
	}
	waits, _ := p.Ticket(2)
	if waits.Status != StatusQueued || waits.LimitAt != Instant(20).Add(time.Second) || waits.Limit != time.Second ||
		waits.ClassAt != never || waits.Deadline != never || waits.Class != "default" || waits.Place == (Place{}) {
		t.Errorf("queued: %+v", waits)
	}
	if _, ok := p.Ticket(3); ok || !p.PrefillSlots() {
		t.Error("a ticket that never came is known, or slots are not")
	}
	p.Do(Step{Op: StepRelease, Now: 30, Ticket: 1})
	if held, _ = p.Ticket(1); held.HoldsPrefill || held.HoldsDecode || held.Tokens != 0 {
		t.Errorf("released: %+v", held)
	}
}
