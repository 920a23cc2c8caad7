package admission

import "testing"

// threeTaken is three prefill ranks and a request on each, twoTaken two.
const (
	threeTaken = threeRanks + `
arrive x1 pin=p1 => x1 granted p1 d1
arrive x2 pin=p2 => x2 granted p2 d1
arrive x3 pin=p3 => x3 granted p3 d1
`
	threeRanks = `
add p1 prefill
add p2 prefill
add p3 prefill
add d1 decode
`
	twoTaken = `
add p1 prefill
add p2 prefill
add d1 decode
arrive x1 pin=p1 => x1 granted p1 d1
arrive x2 pin=p2 => x2 granted p2 d1
`
)

// lateBinding are lanes with late binding, and one slot a rank.
const lateBinding = `
order lanes
limits slots=1 queue=100 timeout=60s ahead=32 passes=2 await=3s
`

// threeWide is three prefill ranks with a slot each, in lanes, with late binding.
const threeWide = lateBinding + threeRanks

// fullThree is threeWide with all slots taken.
const fullThree = lateBinding + threeTaken

// The rank that has become free takes the one that has most of its prompt cached there, and
// among equals the one that came first.
func TestLateBindingTakesTheBestOfTheFirst(t *testing.T) {
	story(t, fullThree+`
arrive a tokens=100 => a queued
arrive b tokens=100 held=p1:20 => b queued
arrive c tokens=100 held=p1:40,p2:30 => c queued
arrive d tokens=100 held=p1:40 => d queued
endprefill x1 => c granted p1 d1
endprefill x2 => a granted p2 d1
endprefill c => d granted p1 d1
endprefill x3 => b granted p3 d1
`)
}

// With a lookahead of one, in strict order or in lanes, the head takes what there is.
func TestLateBindingIsOffByDefault(t *testing.T) {
	for _, order := range []string{"strict", "lanes"} {
		story(t, `
order `+order+`
limits slots=1 queue=100 timeout=60s passes=8 await=3s
`+pair+`
arrive x => x granted p1 d1
arrive a tokens=100 => a queued
arrive b tokens=100 held=p1:100 => b queued
endprefill x => a granted p1 d1
`)
	}
}

// In strict order late binding is first in, first out but for passes: a head without room
// still blocks those behind it.
func TestLateBindingInStrictOrder(t *testing.T) {
	story(t, `
order strict
limits slots=1 queue=100 timeout=60s ahead=32 passes=8 await=3s
`+twoTaken+`
arrive a tokens=100 => a queued
arrive b tokens=100 held=p1:20 => b queued
arrive c tokens=100 pin=p2 => c queued
arrive d tokens=100 held=p1:20 => d queued
endprefill x1 => b granted p1 d1
endprefill b => d granted p1 d1
endprefill d => a granted p1 d1
endprefill a
arrive e held=p1:20 tokens=100 => e queued
endprefill x2 => e granted p1 d1; c granted p2 d1
`)
}

// Only the first K are looked at.
func TestLookaheadBoundsWhoIsLookedAt(t *testing.T) {
	story(t, `
order lanes
limits slots=1 queue=100 timeout=60s ahead=2 passes=8 await=3s
`+pair+`
arrive x => x granted p1 d1
arrive a tokens=100 => a queued
arrive b tokens=100 held=p1:10 => b queued
arrive c tokens=100 held=p1:90 => c queued
endprefill x => b granted p1 d1
endprefill b => c granted p1 d1
endprefill c => a granted p1 d1
`)
}

// The first K are counted over all lanes of the class that are not blocked: blocked ones
// take no place of them.
func TestLookaheadGoesOverLanes(t *testing.T) {
	story(t, `
order lanes
limits slots=1 queue=100 timeout=60s ahead=2 passes=8 await=3s
add p1 prefill labels=gpu:a
add p2 prefill
add d1 decode
arrive x1 pin=p1 => x1 granted p1 d1
arrive x2 pin=p2 => x2 granted p2 d1
arrive q1 pin=p2 => q1 queued
arrive q2 pin=p2 => q2 queued
arrive a tokens=100 => a queued
arrive b tokens=100 require=gpu:a held=p1:50 => b queued
endprefill x1 => b granted p1 d1
endprefill b => a granted p1 d1
`)
}

// Each waiter is passed over as often as is allowed, and then no more. Those who are not
// passed over are not counted: what they could not have used does not matter to them.
func TestPassesAreBounded(t *testing.T) {
	story(t, fullThree+`
arrive a tokens=100 => a queued
arrive b tokens=100 require=gpu:none allow=p2 => b refused no_workers worker depth=1 waited=0s retry=1s
arrive c tokens=100 allow=p2,p3 => c queued
arrive d tokens=100 held=p1:100 => d queued
arrive e tokens=100 held=p1:100 => e queued
arrive f tokens=100 held=p1:100 => f queued
endprefill x1 => d granted p1 d1
endprefill d => e granted p1 d1
endprefill e => a granted p1 d1
endprefill a => f granted p1 d1
endprefill x2 => c granted p2 d1
`)
}

// Pinned requests and retries are never passed over by others that could take their rank
// from them.
func TestPinsAndRetriesAreNotPassedOver(t *testing.T) {
	story(t, fullThree+`
arrive a tokens=100 pin=p1 => a queued
arrive b tokens=100 held=p1:100 => b queued
arrive c tokens=100 held=p2:100 => c queued
endprefill x1 => a granted p1 d1
endprefill x2 => c granted p2 d1
release a => b granted p1 d1
`)
	story(t, threeWide+`
arrive a tokens=100 => a granted p1 d1
arrive x2 pin=p2 => x2 granted p2 d1
arrive x3 pin=p3 => x3 granted p3 d1
arrive b tokens=100 pin=p1 => b queued
release a => b granted p1 d1
retry a exclude=p1 => a queued
arrive c tokens=100 held=p2:100 => c queued
endprefill x2 => a granted p2 d1
endprefill a => c granted p2 d1
`)
}

// A request of a higher priority is not passed over by one of a lower, nor one that a
// classifier gave an earlier deadline.
func TestLateBindingKeepsPrioritiesAndDeadlines(t *testing.T) {
	story(t, fullThree+`
arrive low tokens=100 held=p1:100 => low queued
arrive high tokens=100 prio=1 => high queued
endprefill x1 => high granted p1 d1
arrive due tokens=100 cdeadline=30s => due queued
endprefill high => due granted p1 d1
endprefill due => low granted p1 d1
`)
}

// What max_wait_secs of a class gives to its waiters makes no difference among them, until
// one has little of it left.
func TestLateBindingInAClassWithAMaximumWait(t *testing.T) {
	story(t, `
class c wait=10s
order lanes
limits slots=1 queue=100 timeout=60s ahead=32 passes=8 await=3s
`+pair+`
arrive x => x granted p1 d1
arrive a tokens=100 => a queued
sleep 1s
arrive b tokens=100 held=p1:50 => b queued
endprefill x => b granted p1 d1
sleep 5s
arrive c tokens=100 held=p1:50 => c queued
endprefill b => c granted p1 d1
sleep 1s
arrive d tokens=100 held=p1:50 => d queued
# a has 3 s left
endprefill c => a granted p1 d1
endprefill a => d granted p1 d1
`)
}

// A waiter whose holder is full declines other ranks for a time, and then takes what there
// is. The end of that is an event, and what it declines is free for others meanwhile.
func TestDeclining(t *testing.T) {
	story(t, fullThree+`
arrive a tokens=100 held=p1:50 => a queued
sleep 1s
endprefill x2
sleep 2s
print
| waiting 1
| prefill p1 slots=1 pending=0 active=0 no-room
| prefill p2 slots=0 pending=0 active=0
| prefill p3 slots=1 pending=0 active=0 no-room
| decode d1 slots=0 pending=3 active=0
sleep 2s => a granted p2 d1 at 4s
`)
	// The holder comes free first.
	story(t, fullThree+`
arrive a tokens=100 held=p1:50 => a queued
endprefill x2
sleep 2s
endprefill x1 => a granted p1 d1
`)
	// Less than half of the prompt is not worth it.
	story(t, fullThree+`
arrive a tokens=100 held=p1:49 => a queued
endprefill x2 => a granted p2 d1
`)
	// Who comes may take it, a request of a class that never waits, too; or decline as well.
	story(t, `
class c
class never reqs=0
`+fullThree+`
sleep 1s
arrive a tokens=100 held=p1:50 class=c => a queued
endprefill x2
arrive b tokens=100 held=p1:90 class=c => b queued
arrive c tokens=100 class=c => c granted p2 d1
endprefill c
arrive d tokens=100 class=never held=p1:100 => d granted p2 d1
endprefill x1 => b granted p1 d1
sleep 1s
# The clock of a stood while c and d had what it declines.
endprefill d
sleep 3s => a granted p2 d1 at 5s
`)
	// The rank that holds it is no candidate any more, or holds less than was believed.
	story(t, fullThree+`
arrive a tokens=100 held=p1:50 => a queued
arrive b tokens=100 held=p1:50 => b queued
endprefill x2
refresh a held=p1:20 => a granted p2 d1
endprefill x3
set p1 down => b granted p3 d1
`)
}

// An arrival declines only where it may wait.
func TestArrivalsDeclineWhereTheyMayWait(t *testing.T) {
	story(t, `
order lanes
limits slots=1 queue=1 timeout=60s ahead=32 passes=2 await=3s
add p1 prefill
add p2 prefill
add p3 prefill
add d1 decode
arrive x1 pin=p1 => x1 granted p1 d1
arrive a tokens=100 held=p1:50 => a queued
arrive b tokens=100 held=p1:50 => b granted p2 d1
arrive c tokens=100 held=p1:50 => c granted p3 d1
endprefill b
endprefill x1 => a granted p1 d1
drain 30s
arrive d tokens=100 held=p1:50 => d granted p2 d1
`)
}

// Nobody declines when no more than that time is left of a bound on its wait.
func TestDecliningKeepsToBounds(t *testing.T) {
	story(t, fullThree+`
arrive a tokens=100 held=p1:50 deadline=3s => a queued
arrive b tokens=100 held=p1:50 deadline=5s => b queued
endprefill x2 => a granted p2 d1
endprefill x3
sleep 1s
endprefill a
sleep 1s => b granted p2 d1 at 2s
`)
}

// Declining is not being blocked: no fence is set for it, and the queue does not count as
// closed.
func TestDecliningIsNotBeingBlocked(t *testing.T) {
	story(t, `
order lanes
limits slots=1 queue=100 timeout=60s ahead=32 passes=2 await=10s guard=1s
`+twoTaken+`
arrive a tokens=100 held=p1:50 => a queued
endprefill x2
sleep 3s
arrive b => b granted p2 d1
endprefill b
sleep 1s
arrive c => c granted p2 d1
print
| waiting 1
| prefill p1 slots=1 pending=0 active=0 no-room
| prefill p2 slots=1 pending=0 active=0 no-room
| decode d1 slots=0 pending=4 active=0
stats a => class default closed by prefill_slot, 0s in all, fences 0
sleep 900ms
stats a => class default closed by prefill_slot, 900ms in all, fences 0
endprefill x1 => a granted p1 d1
`)
}

// The owner of a fence comes before those with more in the caches, and declines nothing.
func TestFenceOwnersComeFirst(t *testing.T) {
	story(t, `
order lanes
limits slots=1 queue=100 timeout=60s ahead=32 passes=100 await=3s guard=1s
`+twoTaken+`
arrive a tokens=100 => a queued
arrive b tokens=100 held=p1:60 => b queued
arrive c tokens=100 held=p1:60 => c queued
endprefill x1 => b granted p1 d1
sleep 2s
endprefill b => a granted p1 d1
endprefill a => c granted p1 d1
`)
}

// Hints are renewed of those who are looked at soon: when enough have left that they come
// among them, and then every half second.
func TestHintsAreRenewedAheadOfTime(t *testing.T) {
	story(t, `
order lanes
limits slots=1 queue=100 timeout=60s ahead=2 passes=8 await=3s
`+pair+`
arrive x => x granted p1 d1
arrive a renew => a queued
arrive b renew => b queued
arrive c => c queued
arrive d renew => d queued
arrive e renew => e queued
arrive f renew => f queued
sleep 400ms
sleep 200ms => a asked at 500ms; b asked at 500ms; d asked at 500ms
refresh a
sleep 300ms
refresh b
endprefill x => a granted p1 d1
endprefill a => b granted p1 d1; e asked; f asked
sleep 50ms
sleep 250ms => d asked at 1s
`)
}

// Neither a request that starts at once nor a release that looks at many waiters allocates.
func TestNothingIsAllocated(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	for _, lookahead := range []int{1, 32} {
		g := benchGate(t, 4, 1, 100, 1, func(string, Role) Policy { return mostHeld{} })
		g.SetLimits(Limits{PrefillSlots: 1, QueueSize: 100, AffinityLookahead: lookahead, AffinityMaxPasses: 8})
		k := &Ticket{Target: g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated}), PromptTokens: 100}
		k.Hints[PrefillLeg].Holders[0] = Holder{g.core.ranks[0], 50}
		if n := testing.AllocsPerRun(100, func() {
			if err := g.Acquire(t.Context(), k); err != nil {
				t.Fatal(err)
			}
			k.StartDecode()
			k.FirstToken()
			k.EndPrefill()
			k.Release()
		}); n > 0 {
			t.Errorf("lookahead %d: a request that starts at once: %v allocations", lookahead, n)
		}
		c := g.core
		var out, all []*Ticket
		now := Instant(1)
		for i := range 60 {
			k := &Ticket{Target: k.Target, PromptTokens: 100}
			k.Hints[PrefillLeg].Holders[0] = Holder{c.ranks[2*(i%4)], int64(i)}
			now++
			c.Arrive(now, k, &out)
			all = append(all, k)
		}
		if n := testing.AllocsPerRun(100, func() {
			for _, k := range all {
				if k.holdsPrefill {
					now++
					c.Release(now, k, &out)
					out = out[:0]
					c.Arrive(now, k, &out)
					break
				}
			}
		}); n > 0 {
			t.Errorf("lookahead %d: a release: %v allocations", lookahead, n)
		}
	}
}

// Of those that are looked at two wait for the same holder. The others take what there is, so
// that a beginning that is new and that all share comes to be held by more than one rank.
func TestFewWaitForOneHolder(t *testing.T) {
	story(t, threeWide+`
arrive x pin=p1 => x granted p1 d1
arrive a tokens=100 held=p1:80 => a queued
arrive b tokens=100 held=p1:80 => b queued
arrive c tokens=100 held=p1:80 => c granted p2 d1
arrive d tokens=100 held=p1:80 => d granted p3 d1
endprefill x => a granted p1 d1
endprefill c
endprefill a => b granted p1 d1
`)
}
