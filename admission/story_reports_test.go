package admission

import "testing"

// What the engine has in use beyond the bookings keeps a class off by its decode fraction,
// and the report that it is gone lets the waiter start at once.
func TestReportedBlocksCount(t *testing.T) {
	story(t, `
class c dfrac=0.8
limits queue=10 timeout=30s
add p1 prefill
add d1 decode kv=100 block=16
report d1 reqs=3 kv=960
# 60 of 100 blocks are used past this router: 20 are left.
arrive a tokens=320 => a granted p1 d1
arrive b tokens=16 => b queued
release a => b granted p1 d1
arrive c tokens=320 => c queued
report d1 reqs=3 kv=944 => c granted p1 d1
`)
}

// Between two reports bookings count on top of what was unbooked, and what ends is free at
// once: the report is not compared with what is booked later.
func TestReportIsOfItsTime(t *testing.T) {
	story(t, `
class c dfrac=0.8
limits queue=10 timeout=30s
add p1 prefill
add d1 decode kv=100 block=16
arrive a tokens=480 => a granted p1 d1
start a
# 30 blocks of its own among the 60.
report d1 reqs=2 kv=960 active=30
arrive b tokens=480 => b queued
arrive c tokens=160 => c queued
release a => b granted p1 d1; c granted p1 d1
`)
	story(t, `
class c dfrac=0.8
limits queue=10 timeout=30s
add p1 prefill
add d1 decode kv=100 block=16
arrive a tokens=480 => a granted p1 d1
start a
# It ends while the engine is asked: its blocks are in the answer, and nobody's.
release a
report d1 reqs=1 kv=480 active=30
arrive b tokens=1280 => b granted p1 d1
`)
}

// A large request fits alone only where nothing is used past this router; what is left in
// an engine that has no request is its cache.
func TestIdleIsWhatTheEngineSaysToo(t *testing.T) {
	story(t, `
class c dfrac=0.5
limits queue=10 timeout=30s
add p1 prefill
add d1 decode kv=100 block=16
report d1 reqs=1 kv=16
arrive a tokens=1500 => a queued
report d1 kv=800 => a granted p1 d1
release a
report d1 reqs=1 kv=16
arrive b tokens=1500 => b queued
report d1 => b granted p1 d1
`)
}

// Waiting requests in the engine keep everybody off until they are fewer than four fifths
// of the limit, with a reason of its own, and the wait ends as any other.
func TestVetoByWaitingRequests(t *testing.T) {
	story(t, `
limits queue=10 timeout=5s overwait=5
add p1 prefill
add d1 decode
report d1 reqs=9 waiting=4
arrive a => a granted p1 d1
report d1 reqs=10 waiting=5
arrive b => b queued
print
| waiting 1
| prefill p1 slots=1 pending=0 active=0
| decode d1 slots=0 pending=1 active=0 no-room
release a
report d1 reqs=9 waiting=4
report d1 reqs=8 waiting=3 => b granted p1 d1
report d1 reqs=10 waiting=6
arrive c => c queued
sleep 5s => c refused queue_timeout reported_load depth=0 waited=5s retry=3s at 5s
arrive d => d queued
report d1 => d granted p1 d1
report p1 waiting=5
arrive e => e queued
add p2 prefill => e granted p2 d1
`)
}

// The lack is named after the reports only where they take the last of the eligible ranks.
func TestVetoIsNamedWhereItDecides(t *testing.T) {
	story(t, `
limits slots=1 queue=1 timeout=5s overuse=0.9
add p1 prefill
add p2 prefill
add d1 decode
arrive a => a granted p1 d1
report p2 reqs=1 usage=0.95
# p1 has no slot, p2 is vetoed.
arrive b => b queued
sleep 5s => b refused queue_timeout prefill_slot depth=0 waited=5s retry=5s at 5s
arrive c pin=p2 => c queued
sleep 5s => c refused queue_timeout reported_load depth=0 waited=5s retry=10s at 10s
report p2 reqs=1 usage=0.73
arrive d pin=p2 => d queued
limits slots=1 queue=1 timeout=5s overuse=0.95 => d granted p2 d1
`)
}

// A class that never waits is refused, and the queue's size counts.
func TestVetoAndQueueBounds(t *testing.T) {
	story(t, `
class never reqs=0
class c
limits queue=1 timeout=5s overwait=1
add w1 regular
report w1 reqs=2 waiting=1
arrive a agg class=never => a refused class_queue_full reported_load depth=0 waited=0s retry=5s class=never limit=requests:0/0
arrive b agg class=c => b queued
arrive d agg class=c => d refused queue_full reported_load depth=1 waited=0s retry=5s
report w1 => b granted w1
`)
}

// Reports come in one step with other changes, or of a rank that is gone.
func TestReportsAmongChanges(t *testing.T) {
	story(t, `
limits queue=5 timeout=5s overwait=1
add w1 regular
begin
remove w1
add w2 regular
report w1 waiting=3
report w2 waiting=3
commit
arrive a agg => a queued
report w1
begin
report w2
set w2 draining
commit => a refused no_workers worker depth=0 waited=0s retry=1s
`)
}
