package admission

import (
	"fmt"
	"testing"
)

// oneASecond is a gate that serves one request a second, at which somebody has waited
// for n seconds; at the end two wait. head is what comes before its ranks are added.
func oneASecond(head string, n int) string {
	s := head + pair + `
sleep 100s
arrive w0 => w0 granted p1 d1
arrive w1 => w1 queued
arrive w2 => w2 queued`
	for i := range n {
		s += fmt.Sprintf(`
sleep 1s
release w%d => w%d granted p1 d1
arrive w%d => w%d queued`, i, i+1, i+3, i+3)
	}
	return s + "\n"
}

// A request that would wait more than 1.5 times as long as it may is refused when it
// comes, with the code of the bound that would have passed first. Two wait, one a
// second is served: the next one starts in 3 s.
func TestRefuseEarly(t *testing.T) {
	const class = `
class c wait=600s
class other
limits slots=1 queue=100 timeout=600s early
`
	story(t, oneASecond(class, 30)+`
arrive a deadline=1900ms => a refused deadline_exceeded prefill_slot depth=2 waited=0s retry=3s predicted=3s/1.9s
# What orders by its deadline is before those who wait, if it is the first.
arrive c prio=1 deadline=1s => c queued
cancel c
# It is before the one that came with it, and behind the other.
arrive j jump=10 deadline=1s => j refused deadline_exceeded prefill_slot depth=2 waited=0s retry=2s predicted=2s/1s
arrive d deadline=2s => d queued
cancel d
# The evidence is the class's own, and nobody waits before it.
arrive e class=other deadline=1s => e queued
cancel e
# The timeout of the queue, of what it is for a new arrival.
limits slots=1 queue=100 timeout=1900ms early
arrive f => f refused queue_timeout prefill_slot depth=2 waited=0s retry=3s predicted=3s/1.9s
arrive g deadline=500ms => g refused deadline_exceeded prefill_slot depth=2 waited=0s retry=3s predicted=3s/500ms
# A full queue is told as such, a place or not; and what is lost comes first.
limits slots=1 queue=2 timeout=1900ms early
arrive h => h refused queue_full prefill_slot depth=2 waited=0s retry=3s
limits slots=1 queue=100 timeout=600s
arrive i deadline=1s => i queued
`)
	// 18 and the one before them: not enough to go by.
	story(t, oneASecond(class, 18)+`
arrive a deadline=100ms => a queued
`)
	story(t, oneASecond(class, 19)+`
arrive a deadline=100ms => a refused deadline_exceeded prefill_slot depth=2 waited=0s retry=3s predicted=3s/100ms
`)
}

// After light load the count of the last half minute is of those who came. A burst is
// not refused for it: somebody has to have waited for a second, and what was served
// in that time, and what runs, counts.
func TestRefuseEarlyIsNotForBursts(t *testing.T) {
	light := `
class c wait=6s
limits slots=4 queue=100 timeout=600s early
` + pair + `
sleep 100s`
	for range 30 {
		light += `
arrive l => l granted p1 d1
sleep 100ms
release l
sleep 900ms`
	}
	burst := light
	for i := range 44 {
		state := "queued"
		if i < 4 {
			state = "granted p1 d1"
		}
		burst += fmt.Sprintf("\narrive b%d deadline=2s => b%d %s", i, i, state)
	}
	// In the first moment nothing is known, and after it 40 a second are served: the
	// count of one a second would have them wait for 40 s.
	story(t, burst+`
arrive x deadline=1s => x queued
cancel x
sleep 1s
arrive y deadline=1s => y refused deadline_exceeded prefill_slot depth=40 waited=0s retry=11s predicted=10.3s/1s
arrive z => z refused deadline_exceeded prefill_slot depth=40 waited=0s retry=11s class=c limit=class_deadline:0/6000000000 predicted=10.3s/6s
cancel b40
cancel b41
cancel b42
cancel b43
arrive z prio=-1 => z refused deadline_exceeded prefill_slot depth=36 waited=0s retry=10s class=c limit=class_deadline:0/6000000000 predicted=9.3s/6s
cancel b39
arrive z => z queued
`)
}
