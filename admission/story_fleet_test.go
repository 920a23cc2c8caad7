package admission

import "testing"

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

// What a request waited for a worker before it came to the gate is part of the same
// time; both used to have the whole of it.
func TestNoWorkerWaitBeforeTheGateCounts(t *testing.T) {
	story(t, `
limits slots=1 queue=5 timeout=60s nowait=3s health=9s
`+pair+`
set p1 down
arrive a before=2s => a queued
arrive b before=3s => b refused no_workers worker depth=1 waited=0s retry=9s
sleep 1s => a refused no_workers worker depth=0 waited=1s retry=9s at 1s
arrive c before=1s => c queued
set p1 up => c granted p1 d1
arrive d before=1s => d queued
set p1 down
sleep 2s => d refused no_workers worker depth=0 waited=2s retry=9s at 3s
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
add p2 prefill models=
add d2 decode models=
arrive x model=zzz => x granted p2 d2
arrive a model=a => a granted p1 d1
arrive y => y queued
endprefill x => y granted p2 d2
`)
}
