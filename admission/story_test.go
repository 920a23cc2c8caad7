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

// What fails one rank of a process often fails all of them: a retry takes one of another
// worker.
func TestRetryPrefersAnotherWorker(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
add a0 regular worker=a
add a1 regular worker=a
add b0 regular worker=b
arrive x agg => x granted a0
release x
retry x dexclude=a0 => x granted b0
release x
set b0 down
retry x => x granted a1
`)
	story(t, `
limits slots=1 queue=10 timeout=30s
add p0 prefill worker=p
add p1 prefill worker=p
add q0 prefill worker=q
add d0 decode worker=d
add d1 decode worker=d
add e0 decode worker=e
arrive x => x granted p0 d0
release x
retry x exclude=p0 => x granted q0 d0
release x
retry x exclude=q0 dexclude=d0 => x granted p1 e0
release x
retry x exclude=p1 => x granted p0 e0
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

// The ranks of one worker share its process: a retry goes to another worker while one is
// left, room or not, then to another rank of the worker that failed, and last to the rank.
func TestRetryAvoidsTheWorker(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
add p@0 prefill worker=p
add p@1 prefill worker=p
add q@0 prefill worker=q
add d@0 decode worker=d
add d@1 decode worker=d
add e@0 decode worker=e
arrive a => a granted p@0 d@0
release a
retry a exclude=p@0 => a granted q@0 d@0
release a
# The decode worker is avoided for itself.
retry a dexclude=d@0 => a granted q@0 e@0
release a
arrive b pin=q dpin=d@1 => b granted q@0 d@1
retry a => a queued
set q@0 down => a granted p@1 e@0
release a
# Of the decode workers only the failed one is left: its other rank serves.
set e@0 down
retry a => a granted p@1 d@1
release a
set d@1 down
set p@1 down
retry a => a granted p@0 d@0
release a
`)
	story(t, `
limits queue=10 timeout=30s
add a@0 regular worker=a
add a@1 regular worker=a
add b@0 regular worker=b
arrive x agg => x granted a@0
release x
retry x dexclude=a@0 => x granted b@0
release x
# A worker that was removed and comes again is another one.
remove a@0
remove b@0
add a@0 regular worker=a
retry x => x granted a@1
release x
`)
}

// A decode leg that moves does not go to the process that it leaves, while there is room
// at another.
func TestMoveDecodeAvoidsTheWorker(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
add p prefill
add d@0 decode worker=d
add d@1 decode worker=d
add e@0 decode worker=e
arrive a => a granted p d@0
move a => a moved to e@0
release a
arrive b => b granted p d@0
set e@0 down
move b => b moved to d@1
release b
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

// Pace: (depth + 1) / admissions a second, between a second and a minute: those
// over the last half minute, or what runs in the time that it takes.
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
arrive e => e refused queue_full prefill_slot depth=3 waited=0s retry=1m0s
endprefill a => b granted p1 d1
arrive f => f queued
# 4 to serve, each in the 41 s of the one before: the clamp holds.
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
arrive k => k refused queue_full prefill_slot depth=3 waited=0s retry=1m0s
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
sleep 30s => d refused queue_timeout prefill_slot depth=0 waited=30s retry=30s at 30s
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
