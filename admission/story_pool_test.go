package admission

import (
	"fmt"
	"slices"
	"testing"
)

// Both fractions are judged on the one rank of an aggregated request.
func TestAggregatedFractions(t *testing.T) {
	story(t, bothFractions+`
limits queue=10 timeout=30s
add w1 regular batched=1000 kv=100 block=16
add w2 regular batched=1000 kv=200 block=16
arrive a agg tokens=1280 dpin=w1 => a granted w1
arrive b agg tokens=16 dpin=w1 => b queued
arrive c agg tokens=1100 => c granted w2
arrive d agg tokens=16 => d queued
# w1 is calm now but full, w2 has blocks but is busy.
first a
first c => d granted w2
print
| waiting 1
| regular w1 slots=0 pending=1 active=0 blocks=80+0
| regular w2 slots=0 pending=2 active=0 tokens=16 blocks=70+0
release a => b granted w1
`)
}

// Both designs on: slot and thresholds must pass, and a class without thresholds
// waits for a slot.
func TestSlotsAndThresholds(t *testing.T) {
	story(t, `
class c frac=1 dfrac=0.8
class free
limits slots=1 queue=10 timeout=30s
`+bigPair+`
arrive a tokens=1600 class=free => a granted p1 d1
arrive b class=free => b queued
arrive c => c queued
# The slot is free, but for c the blocks of decode are not.
endprefill a => b granted p1 d1
endprefill b
release a => c granted p1 d1
`)
}

// The part of busy ranks that keeps a class waiting though others are not busy.
func TestBusyWorkerRatio(t *testing.T) {
	story(t, `
class c tokens=0 ratio=0.5
class all tokens=0
limits queue=10 timeout=30s
add p1 prefill
add p2 prefill
add p3 prefill
add d1 decode
arrive a tokens=10 => a granted p1 d1
arrive b tokens=10 => b granted p2 d1
arrive c tokens=10 => c queued
arrive d tokens=10 class=all => d granted p3 d1
arrive e tokens=10 class=all => e queued
first a => e granted p1 d1
first b
first d => c granted p2 d1
`)
}

// A rank that did not tell its capacity is judged by its requests, and said to
// be, where a class needs to know.
func TestMissingCapacity(t *testing.T) {
	story(t, bothFractions+`
limits queue=10 timeout=30s
add p1 prefill running=2
add d1 decode running=3
arrive a tokens=100000 => a granted p1 d1
arrive b tokens=100000 => b granted p1 d1
arrive c => c queued
endprefill a => c granted p1 d1
endprefill b
endprefill c
arrive d => d queued
release a => d granted p1 d1
`)
	c := NewCore(Options{Classes: &Classes{Root: &Profile{Classes: []Class{{Name: "c", DecodeBusyFrac: new(0.5)}}}}, Limits: Limits{QueueSize: 1}, AssumedMaxRequests: 1})
	var out []*Ticket
	p, d := rank("p", RolePrefill, "m"), rank("d", RoleDecode, "m")
	c.Apply(0, []Change{{Op: AddRank, Rank: p}, {Op: AddRank, Rank: d}}, &out)
	if s := rankStats(c, d); !s.MissingBlocks || s.MissingTokens || rankStats(c, p).MissingTokens {
		t.Errorf("missing capacity: %+v", s)
	}
	for i, want := range []ticketState{stateGranted, stateQueued} {
		k := &Ticket{Target: c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})}
		if c.Arrive(1, k, &out); k.state != want {
			t.Errorf("request %d: state %d", i, k.state)
		}
	}
}

// Keeps away: when what is known of the workers goes stale everything reads as
// full, and nothing is dispatched any more.
func TestUnknownIsNotFull(t *testing.T) {
	story(t, bothFractions+`
limits queue=10 timeout=30s
`+bigPair+`
arrive a tokens=1280 => a granted p1 d1
endprefill a
arrive b tokens=1280 => b queued
attributes d1 => b granted p1 d1
attributes d1 kv=100 block=16
arrive c => c queued
release a
release b => c granted p1 d1
`)
}

// One request alone always fits; output that grows closes the gate and breaks
// nothing; several legs count each; a reserve is booked in advance.
func TestBlocks(t *testing.T) {
	story(t, bothFractions+`
limits queue=10 timeout=30s
`+bigPair+`
arrive a tokens=100000 held=p1:100000 => a granted p1 d1
arrive b => b queued
release a => b granted p1 d1
grow b 100
arrive c tokens=1 => c queued
start b
grow b 1
print
| waiting 1
| prefill p1 slots=1 pending=0 active=0
| decode d1 slots=0 pending=0 active=1 blocks=0+101
enddecode b => c granted p1 d1
grow b 5
release c
release b
arrive d tokens=34 legs=2 reserve=15 => d granted p1 d1
print
| waiting 0
| prefill p1 slots=1 pending=0 active=0 tokens=34
| decode d1 slots=0 pending=2 active=0 blocks=4+0
release d
print
| waiting 0
| prefill p1 slots=0 pending=0 active=0
| decode d1 slots=0 pending=0 active=0
`)
}

// A burst of simultaneous prefills never takes decode over its fraction: what is
// pending counts.
func TestBurstNeverOvershoots(t *testing.T) {
	script := `
class c dfrac=0.5
limits queue=100 timeout=30s
add p1 prefill
add d1 decode kv=100 block=16
add d2 decode kv=120 block=16
`
	// 10 blocks each: 5 on d1, 6 on d2.
	for i := range 64 {
		switch {
		case i < 5:
			script += fmt.Sprintf("arrive r%d tokens=160 => r%d granted p1 d1\n", i, i)
		case i < 11:
			script += fmt.Sprintf("arrive r%d tokens=160 => r%d granted p1 d2\n", i, i)
		default:
			script += fmt.Sprintf("arrive r%d tokens=160 => r%d queued\n", i, i)
		}
	}
	script += `
print
| waiting 53
| prefill p1 slots=11 pending=0 active=0 tokens=1760
| decode d1 slots=0 pending=5 active=0 blocks=50+0
| decode d2 slots=0 pending=6 active=0 blocks=60+0
start r3
enddecode r3 => r11 granted p1 d1
release r8 => r12 granted p1 d2
`
	story(t, script)
}

// Reject thresholds: not chosen, and refused at once when every candidate is
// over; heads too, when they would choose.
func TestRejectThresholds(t *testing.T) {
	story(t, `
limits slots=3 queue=10 timeout=30s
add p1 prefill batched=1000
add p2 prefill
add d1 decode kv=100 block=16
reject blocks=0.5 frac=0.1
arrive a tokens=160 => a granted p1 d1
arrive b tokens=800 => b granted p2 d1
arrive c => c refused all_overloaded overloaded depth=0 waited=0s retry=1s
first a
arrive d dpin=d1 => d refused all_overloaded overloaded depth=0 waited=0s retry=1s
add d2 decode
arrive e => e granted p1 d2
arrive f pin=p2 dpin=d1 => f refused all_overloaded overloaded depth=0 waited=0s retry=1s
reject
arrive f dpin=d1 => f granted p1 d1
arrive g pin=p2 => g granted p2 d1
arrive h pin=p2 => h granted p2 d1
arrive i pin=p2 => i queued
reject tokens=700 => i refused all_overloaded overloaded depth=0 waited=0s retry=1s
arrive j pin=p2 => j refused all_overloaded overloaded depth=0 waited=0s retry=1s
arrive k => k queued
cancel k
# What runs grows over it: who would choose is refused.
reject blocks=0.9
arrive l => l queued
grow a 40 
set d2 down => l refused all_overloaded overloaded depth=0 waited=0s retry=1s
`)
}

// What grows over a threshold ends the waits of those for whom it was the last
// decode rank, though they lack a prefill slot.
func TestGrowthOverAThresholdRefusesHeads(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
`+bigPair+`
reject blocks=0.5
arrive a tokens=160 => a granted p1 d1
arrive b => b queued
grow a 41 => b refused all_overloaded overloaded depth=0 waited=0s retry=1s
`)
}

// An overloaded decode rank is a candidate: where a prefill rank could start but for it,
// the end of its overload is the signal.
func TestFreePrefillWaitsForOverloadedDecode(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
add p1 prefill group=x
add d1 decode group=x kv=100 block=16
add p2 prefill group=y
add d2 decode group=y kv=100 block=16
reject blocks=0.5
arrive a pin=p1 => a granted p1 d1
arrive b pin=p2 tokens=960 => b granted p2 d2
endprefill b
arrive c => c queued
release b => c granted p2 d2
`)
}

// Where prefill ranks are calm but the decode ranks that may follow them are
// not free, and the other way round, the end of a decode is the signal.
func TestCalmPrefillWaitsForItsOwnDecode(t *testing.T) {
	story(t, `
class c tokens=10
limits queue=10 timeout=30s
add p1 prefill group=x
add p2 prefill group=y
add d1 decode group=x half=1
add d2 decode group=y
arrive a pin=p1 => a granted p1 d1
arrive b pin=p2 tokens=11 => b granted p2 d2
# p1 is calm, but d1 takes no second probe; d2 is free, but p2 is busy.
arrive c allow=p1,p2 => c queued
enddecode a => c granted p1 d1
`)
}

// A pinned head delays only those that need the same rank; in strict order it
// delays everybody.
func TestLanes(t *testing.T) {
	const script = `
limits slots=1 queue=20 timeout=60s
` + pair + `
add p2 prefill
arrive a pin=p1 => a granted p1 d1
arrive b pin=p1 => b queued
`
	story(t, "class c\n"+script+`
arrive c => c granted p2 d1
arrive d => d queued
arrive e pin=p2 => e queued
arrive f pin=p1 => f queued
# Of those who need p2 the oldest goes first, whatever lane it is in.
endprefill c => d granted p2 d1
endprefill d => e granted p2 d1
endprefill a => b granted p1 d1
cancel f
`)
	story(t, "class c\norder strict\n"+script+`
arrive c => c queued
endprefill a => b granted p1 d1; c granted p2 d1
`)
	story(t, "order lanes\n"+script+`
arrive c => c granted p2 d1
`)
}

// What a retry excludes is part of its lane.
func TestRetryLane(t *testing.T) {
	story(t, `
class c
limits slots=1 queue=20 timeout=60s
`+pair+`
add p2 prefill
arrive a => a granted p1 d1
arrive b => b granted p2 d1
arrive c => c queued
release a => c granted p1 d1
arrive d => d queued
# a avoids p1: it is older than d, but d may have p1.
retry a exclude=p1 => a queued
release c => d granted p1 d1
release b => a granted p2 d1
`)
}

// Beyond so many lanes the rest share one.
func TestLanesAreBounded(t *testing.T) {
	c := NewCore(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 5000}, QueueMode: QueueLanes})
	var out []*Ticket
	const n = maxLanes + 100
	changes := []Change{{Op: AddRank, Rank: rank("d", RoleDecode, "m")}}
	for i := range n {
		changes = append(changes, Change{Op: AddRank, Rank: rank(fmt.Sprint("p", i), RolePrefill, "m")})
	}
	c.Apply(0, changes, &out)
	var waiters, holders []*Ticket
	for i := range 2 * n {
		k := &Ticket{Target: c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated, Pins: [numLegs]string{fmt.Sprint("p", i%n), ""}})}
		c.Arrive(Instant(i+1), k, &out)
		if i < n {
			holders = append(holders, k)
		} else {
			waiters = append(waiters, k)
		}
	}
	if q := waiters[0].lane.queue; c.lanes != maxLanes || q.all.Len() != maxLanes+1 || c.waiting != n {
		t.Fatalf("%d lanes, %d in the class, %d wait", c.lanes, q.all.Len(), c.waiting)
	}
	if err := checkIndexes(c); err != nil {
		t.Fatal(err)
	}
	// Out of order: those with a lane are served at once, the others when the
	// one before them is.
	for i, k := range slices.Backward(holders) {
		c.Release(Instant(3*n), k, &out)
		if w := waiters[i]; i < maxLanes && w.state != stateGranted {
			t.Fatalf("waiter %d was not served", i)
		}
	}
	if c.waiting != 0 || c.lanes != 0 {
		t.Fatalf("%d wait in %d lanes", c.waiting, c.lanes)
	}
	if err := checkIndexes(c); err != nil {
		t.Fatal(err)
	}
}

// A pair that is quarantined is not granted while another is left, room or not; both
// ranks go on working with others.
func TestQuarantinedPair(t *testing.T) {
	story(t, `
limits slots=2 queue=10 timeout=60s
add p1 prefill
add p2 prefill
add d1 decode
add d2 decode
quarantine p1 d1
arrive a => a granted p1 d2
quarantine p1 d2
arrive b => b granted p2 d1
arrive c => c granted p2 d1
# p1 has room, but not with anybody.
arrive d => d queued
endQuarantine p1 d2 => d granted p1 d2
# The only pair that is left is used all the same.
arrive e pin=p1 dpin=d1 => e queued
endprefill a => e granted p1 d1
set d2 down
set p2 down
endprefill d
arrive f => f granted p1 d1
begin
remove d1
add d1 decode
commit
set p2 up
endprefill e
arrive g => g granted p1 d1
`)
}

// Attributes change in place: holds stay, the rank serves what it is now, and pools
// that it left and came to know.
func TestAttributesChangeInPlace(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=60s
`+pair+`
add p2 prefill models=n
add d2 decode models=n
arrive a => a granted p1 d1
arrive b model=n => b granted p2 d2
arrive c model=n => c queued
attributes p1 models=n
arrive d => d refused no_workers worker depth=0 waited=0s retry=1s
# Its slot is still a's.
release a => c granted p1 d2
attributes p1 models=m
arrive e => e queued
release c => e granted p1 d1
release b
release e
print
| waiting 0
| prefill p1 slots=0 pending=0 active=0
| decode d1 slots=0 pending=0 active=0
| prefill p2 slots=0 pending=0 active=0
| decode d2 slots=0 pending=0 active=0
`)
}
