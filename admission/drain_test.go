package admission

import "testing"

// When the router stops, waiters who cannot start before the end of its drain are
// refused at once, by the pace of what runs; those who might go on, until time shows
// that they cannot either.
func TestDrainWithin(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=600s
`+pair+`
sleep 100s
arrive a => a granted p1 d1
sleep 4s
endprefill a
arrive b => b granted p1 d1
arrive c => c queued
arrive d => d queued
arrive e => e queued
arrive f => f queued
# A prefill takes 4 s: c starts in about 4, d in 8, e in 12.
drain 9s => e refused draining none depth=3 waited=0s retry=1s; f refused draining none depth=2 waited=0s retry=1s
# Nobody has said yet that arrivals are refused: who would have to wait too long is.
arrive g => g refused draining none depth=2 waited=0s retry=1s
stop
# b takes longer, and so d has to wait longer than there is time for. That is looked
# at once a second. c may start whenever b ends.
sleep 6s => d refused draining none depth=1 waited=5s retry=1s at 1m49s
endprefill b => c granted p1 d1
`)
}

// Nobody is refused before the end while the pace is not known, or waits for a
// worker; and it is each class's own pace that counts.
func TestDrainWithinKnowsNothing(t *testing.T) {
	story(t, `
class fast
class slow
limits slots=2 queue=20 timeout=600s nowait=60s
`+pair+`
sleep 100s
arrive a class=slow => a granted p1 d1
arrive b class=slow => b granted p1 d1
arrive c class=fast => c queued
arrive d class=fast pin=p1 => d queued
arrive e class=slow require=gpu:a => e queued
drain 1s
sleep 30s
refusewaiters => c refused draining none depth=1 waited=30s retry=1s; d refused draining none depth=0 waited=30s retry=1s; e refused draining none depth=0 waited=30s retry=1s
`)
}
