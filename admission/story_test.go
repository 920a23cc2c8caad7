package admission

import "testing"

const pair = `
add p1 prefill
add d1 decode
`

func TestStrictFIFO(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
`+pair+`
arrive a => a granted p1 d1
arrive b => b queued
arrive c => c queued
arrive d => d queued
print
| waiting 3
| prefill p1 slots=1 pending=0 active=0 no-room
| decode d1 slots=0 pending=1 active=0
start a
endprefill a => b granted p1 d1
endprefill b => c granted p1 d1
release c => d granted p1 d1
release d
release a
release b
print
| waiting 0
| prefill p1 slots=0 pending=0 active=0
| decode d1 slots=0 pending=0 active=0
`)
}

// A request that could run at once does not pass a pinned one that cannot.
func TestNoBypass(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
`+pair+`
add p2 prefill
arrive a pin=p1 => a granted p1 d1
arrive b pin=p1 => b queued
arrive c => c queued
arrive d pin=p2 => d queued
endprefill a => b granted p1 d1; c granted p2 d1
endprefill b
endprefill c => d granted p2 d1
`)
}

func TestQueueFullTimeoutAndSums(t *testing.T) {
	story(t, `
limits slots=1 queue=1 timeout=2s
`+pair+`
arrive a => a granted p1 d1
arrive b => b queued
arrive c => c refused queue_full prefill_slot depth=1 waited=0s retry=2s
sleep 1999ms
sleep 1ms => b refused queue_timeout prefill_slot depth=0 waited=2s retry=2s at 2s
arrive d => d queued
endprefill a => d granted p1 d1
`)
}

// All waits of a request count against one timeout; the time it ran does not.
func TestTimeoutOverAllWaits(t *testing.T) {
	story(t, `
limits slots=1 queue=5 timeout=10s
`+pair+`
arrive a => a granted p1 d1
arrive b => b queued
sleep 6s
endprefill a => b granted p1 d1
sleep 100s
release b
arrive c => c granted p1 d1
retry b => b queued
sleep 3s
release c => b granted p1 d1
release b
arrive e => e granted p1 d1
retry b => b queued
sleep 999ms
sleep 1ms => b refused retry_refused prefill_slot depth=0 waited=10s retry=10s at 1m50s
retry b => b refused retry_refused prefill_slot depth=0 waited=10s retry=10s
release e
# Nothing is refused that need not wait.
retry b => b granted p1 d1
`)
}

func TestOwnDeadline(t *testing.T) {
	story(t, `
limits slots=1 queue=5 timeout=10s
`+pair+`
arrive a => a granted p1 d1
arrive b deadline=3s => b queued
arrive c => c queued
sleep 3s => b refused deadline_exceeded prefill_slot depth=1 waited=3s retry=6s at 3s
arrive d deadline=0s => d refused deadline_exceeded prefill_slot depth=1 waited=0s retry=6s
endprefill a => c granted p1 d1
endprefill c
arrive e deadline=0s => e granted p1 d1
`)
}

// What ends first names the reason, also when both are over by the time the
// core is told.
func TestEarliestEndNamesTheReason(t *testing.T) {
	story(t, `
limits slots=1 queue=5 timeout=10s nowait=5s health=7s
`+pair+`
arrive a => a granted p1 d1
arrive b deadline=3s => b queued
set p1 down
arrive c deadline=6s => c queued
sleep 20s => b refused deadline_exceeded worker depth=1 waited=3s retry=6s at 3s; c refused no_workers worker depth=0 waited=5s retry=7s at 5s
`)
}

func TestCancelWakesTheNext(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
`+pair+`
add p2 prefill
arrive a pin=p1 => a granted p1 d1
arrive b pin=p1 => b queued
arrive c => c queued
arrive d => d queued
cancel d
cancel d => d was decided
cancel b => c granted p2 d1
cancel c => c was decided
print
| waiting 0
| prefill p1 slots=1 pending=0 active=0 no-room
| decode d1 slots=0 pending=2 active=0
| prefill p2 slots=1 pending=0 active=0 no-room
`)
}

// An expired head lets those behind it pass.
func TestTimeoutWakesTheNext(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
`+pair+`
add p2 prefill
arrive a pin=p1 => a granted p1 d1
arrive b pin=p1 deadline=5s => b queued
arrive c => c queued
sleep 5s => b refused deadline_exceeded prefill_slot depth=1 waited=5s retry=10s at 5s; c granted p2 d1 at 5s
`)
}

// A waiter is bound to no worker: when the one it would have had goes, it
// takes another.
func TestChoosesAnewAfterTheWorkerVanished(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
`+pair+`
arrive a => a granted p1 d1
arrive b => b queued
begin
remove p1
add p2 prefill
commit => b granted p2 d1
arrive c => c queued
add p3 prefill => c granted p3 d1
arrive d => d queued
set p2 down
endprefill b
set p2 up => d granted p2 d1
endprefill a
`)
}

// A batch of prompts or samples is one request: one slot, many legs.
func TestOneSlotForAllLegs(t *testing.T) {
	story(t, `
limits slots=2 queue=10 timeout=30s
`+pair+`
arrive batch legs=8 => batch granted p1 d1
arrive samples legs=4 => samples granted p1 d1
arrive c => c queued
start batch
print
| waiting 1
| prefill p1 slots=2 pending=0 active=0 no-room
| decode d1 slots=0 pending=4 active=8
endprefill batch => c granted p1 d1
endprefill batch
release samples
release batch
release batch
release c
print
| waiting 0
| prefill p1 slots=0 pending=0 active=0
| decode d1 slots=0 pending=0 active=0
`)
}

func TestZeroSizeQueueNeverWaits(t *testing.T) {
	story(t, `
limits slots=1 queue=0
`+pair+`
arrive a => a granted p1 d1
arrive b => b refused queue_full prefill_slot depth=0 waited=0s retry=1s
endprefill a
arrive c => c granted p1 d1
# A retry that would have to wait gets the failure it had.
release a
retry a => a refused retry_refused prefill_slot depth=0 waited=0s retry=1s
release c
retry a => a granted p1 d1
`)
}

// The slot goes to the waiter within the release; who arrives next finds it
// taken.
func TestReleaseCannotBeStolen(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
`+pair+`
arrive a => a granted p1 d1
arrive b => b queued
endprefill a => b granted p1 d1
arrive c => c queued
cancel b => b was decided
release b => c granted p1 d1
`)
}

// Without a candidate everybody is told so at once, the oldest first, head or
// not; those who still have one stay.
func TestNoWorkersForHeadsAndThoseBehind(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s health=7s
`+pair+`
add p2 prefill
add d2 decode
arrive a pin=p1 => a granted p1 d1
arrive a2 pin=p2 => a2 granted p2 d1
arrive b => b queued
arrive c pin=p1 => c queued
arrive d dpin=d2 => d queued
set d2 open => d refused no_workers worker depth=2 waited=0s retry=7s
set p1 down => c refused no_workers worker depth=1 waited=0s retry=7s
arrive e pin=p1 => e refused no_workers worker depth=1 waited=0s retry=7s
arrive f => f queued
set d1 draining => b refused no_workers worker depth=1 waited=0s retry=7s; f refused no_workers worker depth=0 waited=0s retry=7s
arrive g => g refused no_workers worker depth=0 waited=0s retry=7s
remove p1
remove p2
remove d2
remove d1
arrive h => h unknown model
release a
release a2
`)
}

// Keeps away: decode is dispatched though prefill's breaker is open, and a
// half-open breaker whose probe is never given back.
func TestCase_B018_DeadPrefillGivesDecodeNothing(t *testing.T) {
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
func TestCase_B092_NoWorkersIsNotBusy(t *testing.T) {
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
func TestCase_B093_QueueBoundsTheWaiters(t *testing.T) {
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

// The wait for a worker counts only while it is unbroken.
func TestNoWorkerWaitIsUnbroken(t *testing.T) {
	story(t, `
limits slots=1 queue=5 timeout=60s nowait=3s health=9s
`+pair+`
arrive a => a granted p1 d1
arrive b => b queued
set p1 down
sleep 2s
set p1 up
sleep 2s
set p1 down
sleep 2s
remove p1
sleep 1s => b refused no_workers worker depth=0 waited=7s retry=9s at 7s
`)
}

// Replacing a worker is one step: nobody is ended in between, a pin by URL
// follows the new generation, and holds on the old one end there.
func TestReplacedWorker(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s health=1s
`+pair+`
arrive a pin=p1 => a granted p1 d1
start a
arrive b pin=p1 => b queued
arrive c pin=p1 => c queued
begin
remove p1
add p1 prefill
commit => b granted p1 d1
old p1 => slots=1 pending=0 active=0
endprefill a
old p1 => slots=0 pending=0 active=0
print
| waiting 1
| prefill p1 slots=1 pending=0 active=0 no-room
| decode d1 slots=0 pending=1 active=1
# The new one may also be added before the old one goes.
begin
add p1 prefill
remove d1
add d1 decode
commit => c granted p1 d1
release a
release b
release c
old d1 => slots=0 pending=0 active=0
`)
}

// A half-open rank whose probes are taken is a candidate without room: the
// next waits for it and is not refused. What an earlier half-open time still
// holds gives nothing back to the present one.
func TestProbes(t *testing.T) {
	story(t, `
limits slots=9 queue=10 timeout=30s health=1s
add p1 prefill half=2
add d1 decode
arrive a => a granted p1 d1
arrive b => b granted p1 d1
arrive c => c queued
endprefill a => c granted p1 d1
arrive d => d queued
set p1 open => d refused no_workers worker depth=0 waited=0s retry=1s
set p1 half=1
arrive e => e granted p1 d1
arrive f => f queued
release b
release c
print
| waiting 1
| prefill p1 slots=1 pending=0 active=0 no-room
| decode d1 slots=0 pending=2 active=0
release e => f granted p1 d1
arrive g => g queued
set p1 half=2 => g granted p1 d1
`)
	// The decode leg's probe lasts as long as the leg.
	story(t, `
limits slots=9 queue=10 timeout=30s
add p1 prefill
add d1 decode half=1
arrive a => a granted p1 d1
arrive b => b queued
start a
endprefill a
print
| waiting 1
| prefill p1 slots=0 pending=0 active=0
| decode d1 slots=0 pending=0 active=1 no-room
release a => b granted p1 d1
`)
}

func TestDrainingRankTakesNothingNew(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
`+pair+`
add p2 prefill
arrive a pin=p1 => a granted p1 d1
set p1 draining
arrive b => b granted p2 d1
arrive c => c queued
release a
print
| waiting 1
| prefill p1 slots=0 pending=0 active=0 no-candidate
| decode d1 slots=0 pending=1 active=0
| prefill p2 slots=1 pending=0 active=0 no-room
set p1 up => c granted p1 d1
`)
}

// A prefill rank is chosen only when a decode rank that may follow it has room,
// and is a candidate only when there is one at all.
func TestPairGroups(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s health=1s
add p1 prefill group=x
add p2 prefill group=y
add d2 decode group=y
arrive a => a granted p2 d2
arrive b => b queued
# p1 has room all the time, but nobody to pair with.
add d1 decode group=x half=1 => b granted p1 d1
endprefill b
arrive c => c queued
print
| waiting 1
| prefill p1 slots=0 pending=0 active=0
| prefill p2 slots=1 pending=0 active=0 no-room
| decode d2 slots=0 pending=1 active=0
| decode d1 slots=0 pending=1 active=0 no-room
release b => c granted p1 d1
arrive d pin=p1 dpin=d2 => d refused no_workers worker depth=0 waited=0s retry=1s
arrive e dpin=d2 => e queued
release a => e granted p2 d2
arrive f => f queued
remove d1
remove p2 => f refused no_workers worker depth=0 waited=0s retry=1s
`)
}

func TestFamiliesDoNotBlockEachOther(t *testing.T) {
	story(t, `
limits slots=1 queue=2 timeout=30s
add p1 prefill models=a
add d1 decode models=a
add p2 prefill models=b
add d2 decode models=b
add r1 regular models=a
arrive a1 model=a => a1 granted p1 d1
arrive a2 model=a => a2 queued
arrive b1 model=b => b1 granted p2 d2
arrive agg model=a agg => agg queued
# The bound is over all families.
arrive b2 model=b => b2 refused queue_full prefill_slot depth=2 waited=0s retry=2s
cancel a2 => agg granted r1
`)
}

// A rank that serves two models makes one queue of theirs, in the order of
// arrival, and two again when it goes.
func TestSharedRankJoinsFamilies(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
add p1 prefill models=a
add d1 decode models=a
add p2 prefill models=b
add d2 decode models=b
arrive a1 model=a => a1 granted p1 d1
arrive b1 model=b => b1 granted p2 d2
arrive b2 model=b => b2 queued
arrive a2 model=a => a2 queued
arrive b3 model=b => b3 queued
add p3 prefill models=a,b => b2 granted p3 d2
endprefill a1 => a2 granted p1 d1
arrive a3 model=a => a3 queued
# b3 is the head; p1 serves only a.
endprefill a2
remove p3 => a3 granted p1 d1
endprefill b1 => b3 granted p2 d2
arrive b4 model=b => b4 queued
endprefill b2
`)
}

// A rank of unknown model serves the names that no other pool has.
func TestUnknownModelPool(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
add p1 prefill models=a
add d1 decode models=a
arrive x model=zzz => x unknown model
`)
}

// A retry comes with its first arrival: before those who came later. It holds
// nothing while it waits, and is not refused by the bound that it counts in.
func TestRetryKeepsItsPlace(t *testing.T) {
	story(t, `
limits slots=1 queue=2 timeout=30s
`+pair+`
arrive a => a granted p1 d1
sleep 1s
arrive b => b queued
sleep 1s
arrive c => c queued
release a => b granted p1 d1
arrive d => d queued
retry a => a queued
print
| waiting 3
| prefill p1 slots=1 pending=0 active=0 no-room
| decode d1 slots=0 pending=1 active=0
arrive e => e refused queue_full prefill_slot depth=3 waited=0s retry=4s
release b => a granted p1 d1
retry b => b queued
release a => b granted p1 d1
release b => c granted p1 d1
`)
}

// A retry that is older than a blocked head does not wait behind it.
func TestRetryPassesABlockedHead(t *testing.T) {
	story(t, `
limits slots=1 queue=5 timeout=30s
`+pair+`
add p2 prefill
arrive a pin=p2 => a granted p2 d1
arrive b pin=p1 => b granted p1 d1
sleep 1s
arrive c pin=p1 => c queued
release a
limits slots=1 queue=0 timeout=30s
retry a => a granted p2 d1
release a
`)
}

// The failed rank is avoided while another candidate is left, room or not, on
// each leg by itself.
func TestRetryExclusion(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s health=1s
`+pair+`
add p2 prefill
add d2 decode
arrive a => a granted p1 d1
release a
retry a exclude=p1 => a granted p2 d1
release a
arrive b pin=p2 => b granted p2 d1
# p1 has room, but p2 is a candidate: the retry waits for it.
retry a => a queued
set p2 down => a granted p1 d1
release a
# Nothing else is left of the prefill side; the decode side has another.
retry a dexclude=d1 => a granted p1 d2
release a
set d2 down
retry a => a granted p1 d1
release a
set p1 down
retry a => a refused retry_refused worker depth=0 waited=0s retry=1s
`)
	story(t, `
limits slots=1 queue=10 timeout=30s
add r1 regular
add r2 regular
arrive a agg => a granted r1
release a
retry a dexclude=r1 => a granted r2
release a
set r2 half=0
retry a => a queued
remove r2 => a granted r1
`)
}

// Excluded on both sides, over pairing groups: what is left must be a pair.
func TestRetryExclusionOfPairs(t *testing.T) {
	story(t, `
limits slots=2 queue=10 timeout=30s
add p1 prefill group=x
add d1 decode group=x
add p2 prefill group=y
add d2 decode group=y
arrive a => a granted p1 d1
release a
retry a exclude=p1 => a granted p2 d2
release a
retry a dexclude=d2 => a granted p2 d2
release a
set d2 down
retry a => a granted p1 d1
`)
}

// The pool's only worker was replaced in two steps while the first attempt
// ran: the retry finds the new one.
func TestRetryFindsTheModelAgain(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s health=1s
`+pair+`
arrive a => a granted p1 d1
remove p1
remove d1
release a
retry a => a refused retry_refused worker depth=0 waited=0s retry=1s
add p1 prefill
add d1 decode
retry a => a granted p1 d1
`)
}

// Pace: (depth + 1) / admissions a second over the last half minute, between a
// second and a minute; the head's remaining wait when nothing was admitted.
func TestRetryAfter(t *testing.T) {
	story(t, `
limits slots=1 queue=3 timeout=50s
`+pair+`
arrive a => a granted p1 d1
sleep 40s
arrive b => b queued
sleep 1s
arrive c => c queued
arrive d => d queued
arrive e => e refused queue_full prefill_slot depth=3 waited=0s retry=49s
endprefill a => b granted p1 d1
arrive f => f queued
# 4 to serve, 1 in 30 s: the clamp holds.
arrive g => g refused queue_full prefill_slot depth=3 waited=0s retry=1m0s
endprefill b => c granted p1 d1
endprefill c => d granted p1 d1
endprefill d => f granted p1 d1
arrive h => h queued
arrive i => i queued
arrive j => j queued
arrive k => k refused queue_full prefill_slot depth=3 waited=0s retry=30s
sleep 28s
arrive k => k refused queue_full prefill_slot depth=3 waited=0s retry=30s
sleep 3s
arrive k => k refused queue_full prefill_slot depth=3 waited=0s retry=19s
`)
	// A full queue is everybody's: without a waiter of one's own the first end
	// of a wait tells.
	story(t, `
limits slots=1 queue=1 timeout=50s
`+pair+`
add p2 prefill models=b half=0
add d2 decode models=b
add p3 prefill models=c half=0
add d3 decode models=c
arrive a model=b => a queued
sleep 20s
arrive b model=c => b refused queue_full prefill_slot depth=1 waited=0s retry=30s
`)
}

func TestShuttingDown(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
`+pair+`
arrive a => a granted p1 d1
arrive b => b queued
arrive c => c queued
arrive d => d queued
stop
arrive e => e refused draining none depth=3 waited=0s retry=1s
release a => b granted p1 d1
# What was admitted before may still be tried again.
retry a => a queued
release b => a granted p1 d1
sleep 5s
refusewaiters => c refused draining none depth=1 waited=5s retry=1s; d refused draining none depth=0 waited=5s retry=1s
retry b => b refused draining none depth=0 waited=0s retry=1s
release a
retry b => b granted p1 d1
`)
}

func TestLimitsChange(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
`+pair+`
arrive a => a granted p1 d1
arrive b => b queued
arrive c => c queued
arrive d => d queued
limits slots=2 queue=10 timeout=30s => b granted p1 d1
# Lowered: what is over the limit stays, and closes the gate until it is under.
limits slots=1 queue=1 timeout=5s
arrive e => e refused queue_full prefill_slot depth=2 waited=0s retry=2s
endprefill a
endprefill b => c granted p1 d1
sleep 30s => d refused queue_timeout prefill_slot depth=0 waited=30s retry=5s at 30s
limits slots=0 queue=0
arrive f => f granted p1 d1
arrive g => g granted p1 d1
limits slots=-1 queue=5 timeout=1s
arrive h => h granted p1 d1
`)
}

// No options of the gate: served as they come, and the load is known.
func TestGateOff(t *testing.T) {
	story(t, `
limits slots=-1
`+pair+`
arrive a legs=8 => a granted p1 d1
arrive b => b granted p1 d1
arrive c => c granted p1 d1
start a
endprefill b
print
| waiting 0
| prefill p1 slots=2 pending=0 active=0
| decode d1 slots=0 pending=2 active=8
`)
}

// Nothing but a request's own end changes a load: not health, not breakers,
// not the passing of any time.
func TestCase_B006_HealthChecksLeaveLoadsAlone(t *testing.T) {
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
