package admission

import "testing"

// All declining of a request together takes no longer than allowed. Time in which what it
// declined was another's does not count.
func TestDecliningOverAll(t *testing.T) {
	story(t, fullThree+`
arrive a tokens=100 held=p1:50 => a queued
sleep 5s
endprefill x2
sleep 2s
arrive y tokens=100 => y granted p2 d1
sleep 4s
endprefill y
sleep 500ms
arrive z tokens=100 => z granted p2 d1
sleep 4s
endprefill x3
sleep 1s => a granted p3 d1 at 16s
`)
}

// The clock of a waiter that is not the head of its lane stands while it has no room, though
// others of its lane decline what they could use.
func TestTheClockOfDecliningIsEachWaitersOwn(t *testing.T) {
	story(t, `
order strict
limits slots=1 queue=100 timeout=60s ahead=32 passes=2 await=3s
`+threeTaken+`
arrive a tokens=100 allow=p1,p2 held=p1:50 => a queued
arrive b tokens=100 allow=p1,p3 held=p1:50 => b queued
sleep 1s
endprefill x2
endprefill x3
sleep 1s
arrive c tokens=100 pin=p3 => c granted p3 d1
sleep 1s
endprefill c
sleep 1s => a granted p2 d1 at 4s
sleep 2s => b granted p3 d1 at 5s
`)
}

// The clock stands while so many others are before a waiter that it is not looked at.
func TestTheClockOfDecliningStandsBeyondTheLookahead(t *testing.T) {
	story(t, `
order lanes
limits slots=1 queue=100 timeout=60s ahead=2 passes=2 await=3s
`+threeTaken+`
arrive a tokens=100 held=p1:50 => a queued
sleep 1s
endprefill x2
endprefill x3
sleep 1s
arrive b tokens=100 prio=1 held=p1:90 => b queued
arrive c tokens=100 prio=1 held=p1:90 => c queued
sleep 2s
cancel b
cancel c
sleep 3s => a granted p2 d1 at 6s
`)
}

// What a waiter has declined counts after a reload, another lookahead, and a retry.
func TestTheClockOfDecliningGoesOn(t *testing.T) {
	story(t, fullThree+`
arrive a tokens=100 held=p1:50 => a queued
sleep 1s
endprefill x2
sleep 1s
class other
reload
sleep 1s
sleep 2s => a granted p2 d1 at 4s
`)
	story(t, fullThree+`
arrive a tokens=100 held=p1:50 => a queued
sleep 1s
endprefill x2
sleep 1s
limits slots=1 queue=100 timeout=60s ahead=32 passes=2 await=4s
sleep 2s
sleep 2s => a granted p2 d1 at 5s
arrive b tokens=100 held=p1:50 => b queued
endprefill x3
sleep 1s
limits slots=1 queue=100 timeout=60s ahead=1 await=4s => b granted p3 d1
`)
	story(t, fullThree+`
arrive a tokens=100 held=p1:50 => a queued
sleep 1s
endprefill x2
sleep 2s
endprefill x1 => a granted p1 d1
release a
arrive z pin=p1 => z granted p1 d1
retry a => a queued
sleep 2s => a granted p2 d1 at 4s
`)
}

// A rank may hang that holds a prompt. Who waits for it declines what others take at once
// for ten times as long as it may let room lie, and then takes what there is.
func TestDecliningEndsThoughOthersTakeAllThereIs(t *testing.T) {
	story(t, `
order lanes
limits slots=1 queue=100 ahead=32 passes=2 await=1s
add p1 prefill
add p2 prefill
add d1 decode
arrive hangs pin=p1 => hangs granted p1 d1
arrive x2 pin=p2 => x2 granted p2 d1
arrive a tokens=100 held=p1:50 => a queued
arrive b tokens=100 => b queued
sleep 4s
endprefill x2 => b granted p2 d1
arrive c tokens=100 => c queued
sleep 5s
endprefill b => c granted p2 d1
arrive d tokens=100 => d queued
sleep 1s
endprefill c => a granted p2 d1
endprefill a => d granted p2 d1
endprefill d
arrive e tokens=100 held=p1:50 => e queued
sleep 2s => e granted p2 d1 at 11s
`)
	// While it declines, too.
	story(t, `
order lanes
limits slots=1 queue=100 ahead=32 passes=2 await=1s
add p1 prefill
add p2 prefill
add d1 decode
arrive hangs pin=p1 => hangs granted p1 d1
arrive x2 pin=p2 => x2 granted p2 d1
arrive a tokens=100 held=p1:50 => a queued
sleep 9500ms
endprefill x2
sleep 1s => a granted p2 d1 at 10s
`)
}
