package admission

import "testing"

// Keeps away: decode is dispatched though prefill's breaker is open, and a
// half-open breaker whose probe is never given back.
func TestDeadPrefillGivesDecodeNothing(t *testing.T) {
	story(t, `
limits slots=4 queue=10 timeout=30s health=3s
`+pair+`
set p1 open
arrive a => a refused no_workers worker depth=0 waited=0s retry=3s
print
| waiting 0
| prefill p1 slots=0 pending=0 active=0 no-candidate
| decode d1 slots=0 pending=0 active=0
set p1 half=1
arrive b => b granted p1 d1
arrive c => c queued
# The probe fails: the breaker opens, later tries again.
set p1 open => c refused no_workers worker depth=0 waited=0s retry=3s
release b
set p1 half=1
arrive d => d granted p1 d1
arrive e => e queued
endprefill d => e granted p1 d1
arrive f => f queued
set p1 closed => f granted p1 d1
`)
}

// With no worker at all it is 503, never 429, also when the queue could take
// the request.
func TestNoWorkersIsNotBusy(t *testing.T) {
	story(t, `
limits slots=1 queue=1 timeout=5s health=5s
`+pair+`
set p1 down
arrive a => a refused no_workers worker depth=0 waited=0s retry=5s
limits slots=1 queue=1 timeout=5s nowait=2s
arrive b => b queued
sleep 1s
set p1 up => b granted p1 d1
endprefill b
set p1 down
arrive c => c queued
sleep 1s
set p1 up => c granted p1 d1
endprefill c
set p1 down
arrive d => d queued
sleep 2s => d refused no_workers worker depth=0 waited=2s retry=5s at 4s
`)
	// Nobody may wait: 503 all the same.
	story(t, `
limits slots=1 queue=0 nowait=2s health=5s
`+pair+`
set p1 down
arrive a => a refused no_workers worker depth=0 waited=0s retry=5s
`)
}

// Limit 2, queue 3, queue time 2 s, 20 at once: 2 run, 3 wait, 15 are refused;
// who leaves makes a place; a slot frees only at the end of the body.
func TestQueueBoundsTheWaiters(t *testing.T) {
	story(t, `
limits slots=2 queue=3 timeout=2s
`+pair+`
arrive a => a granted p1 d1
arrive b => b granted p1 d1
arrive c => c queued
arrive d => d queued
arrive e => e queued
arrive f => f refused queue_full prefill_slot depth=3 waited=0s retry=2s
sleep 1s
cancel d
arrive g => g queued
start a
sleep 1s => c refused queue_timeout prefill_slot depth=2 waited=2s retry=3s at 2s; e refused queue_timeout prefill_slot depth=1 waited=2s retry=2s at 2s
endprefill a => g granted p1 d1
`)
}

// Nothing but a request's own end changes a load: not health, not breakers,
// not the passing of any time.
func TestHealthChecksLeaveLoadsAlone(t *testing.T) {
	story(t, `
limits slots=4 queue=1 timeout=5s
`+pair+`
arrive a => a granted p1 d1
start a
set p1 down
set d1 open
set p1 up
set d1 half=1
sleep 2h
set d1 closed
print
| waiting 0
| prefill p1 slots=1 pending=0 active=0
| decode d1 slots=0 pending=0 active=1
release a
print
| waiting 0
| prefill p1 slots=0 pending=0 active=0
| decode d1 slots=0 pending=0 active=0
`)
}

// Keeps away: an aborted request leaves a load behind, and a restarted worker
// that looks idle for ever gets everything.
func TestAbortsLeaveNoLoad(t *testing.T) {
	c := NewCore(Options{Limits: Limits{PrefillSlots: -1}, NewPolicy: newLeast})
	var out []*Ticket
	ranks := map[string]*Rank{}
	add := func(id string, role Role) Change {
		ranks[id] = rank(id, role, "m")
		return Change{Op: AddRank, Rank: ranks[id]}
	}
	c.Apply(0, []Change{add("pa", RolePrefill), add("pb", RolePrefill), add("da", RoleDecode), add("db", RoleDecode)}, &out)
	target := c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
	var all []*Ticket
	for i := range 300 {
		k := &Ticket{Target: target, Legs: 1 + i%3}
		c.Arrive(Instant(i), k, &out)
		all = append(all, k)
	}
	for i, k := range all {
		if i%2 == 0 {
			c.StartDecode(k)
		}
		c.Release(400, k, &out)
	}
	for id, r := range ranks {
		if !r.idle() {
			t.Errorf("%s: %+v", id, r.stats())
		}
	}
	old := Change{Op: RemoveRank, Rank: ranks["pb"]}
	c.Apply(500, []Change{old, add("pb", RolePrefill)}, &out)
	for i := range 100 {
		c.Arrive(Instant(600+i), &Ticket{Target: target}, &out)
	}
	for id, r := range ranks {
		if r.load() != 50 {
			t.Errorf("%s has load %d, want 50", id, r.load())
		}
	}
}

// Keeps away: a reaper that forgets requests which were silent for long, so
// that the gate sees room that is not there.
func TestSilentRequestsKeepTheirHolds(t *testing.T) {
	story(t, `
limits slots=1 queue=10
`+pair+`
arrive a => a granted p1 d1
start a
arrive b => b queued
sleep 24h
print
| waiting 1
| prefill p1 slots=1 pending=0 active=0 no-room
| decode d1 slots=0 pending=0 active=1
release a => b granted p1 d1
release b
print
| waiting 0
| prefill p1 slots=0 pending=0 active=0
| decode d1 slots=0 pending=0 active=0
`)
}

// Keeps away: load that ends with the headers, and failure paths that subtract
// twice and take from others.
func TestEachHoldEndsOnce(t *testing.T) {
	story(t, `
limits slots=4 queue=10
`+pair+`
arrive a => a granted p1 d1
arrive b => b granted p1 d1
start a
endprefill a
endprefill a
print
| waiting 0
| prefill p1 slots=1 pending=0 active=0
| decode d1 slots=0 pending=1 active=1
enddecode a
enddecode a
release a
release a
start a
print
| waiting 0
| prefill p1 slots=1 pending=0 active=0
| decode d1 slots=0 pending=1 active=0
retry a => a granted p1 d1
release a
release a
print
| waiting 0
| prefill p1 slots=1 pending=0 active=0
| decode d1 slots=0 pending=1 active=0
`)
}
