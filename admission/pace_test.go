package admission

import "testing"

// A full gate that has just filled tells when a slot comes free by what runs, not
// the end of somebody's patience; and after a quiet time not by how few came.
func TestRetryAfterByWhatRuns(t *testing.T) {
	// Nothing has ended yet: a hold is taken to last twice its age, at least 5 s.
	story(t, `
limits slots=1 queue=1 timeout=60s
`+pair+`
sleep 100s
arrive a => a granted p1 d1
arrive b => b queued
arrive c => c refused queue_full prefill_slot depth=1 waited=0s retry=10s
sleep 2s
arrive c => c refused queue_full prefill_slot depth=1 waited=0s retry=10s
sleep 2s
arrive c => c refused queue_full prefill_slot depth=1 waited=0s retry=16s
# One has: it took 4 s, and so will the next; until it is older than that.
endprefill a => b granted p1 d1
arrive d => d queued
arrive e => e refused queue_full prefill_slot depth=1 waited=0s retry=8s
sleep 3s
arrive e => e refused queue_full prefill_slot depth=1 waited=0s retry=8s
sleep 6s
arrive e => e refused queue_full prefill_slot depth=1 waited=0s retry=18s
`)
	// Two slots are twice as fast.
	story(t, `
limits slots=1 queue=1 timeout=60s
`+pair+`
add p2 prefill
sleep 100s
arrive a => a granted p1 d1
arrive b => b granted p2 d1
arrive c => c queued
arrive d => d refused queue_full prefill_slot depth=1 waited=0s retry=5s
`)
	// Where decode is what lacks, its holds tell, however short prefill is.
	story(t, `
class c dfrac=1 reqs=1
limits queue=10 timeout=60s
add p1 prefill
add d1 decode kv=10 block=1
sleep 100s
arrive a tokens=10 => a granted p1 d1
endprefill a
sleep 20s
arrive b tokens=10 => b queued
arrive c tokens=10 => c refused class_queue_full decode_blocks depth=1 waited=0s retry=1m0s class=c limit=requests:1/1
release a => b granted p1 d1
sleep 1s
endprefill b
arrive d tokens=10 => d queued
arrive e tokens=10 => e refused class_queue_full decode_blocks depth=1 waited=0s retry=30s class=c limit=requests:1/1
`)
}

// Twenty admissions in half a minute are enough to go by.
func TestRetryAfterByCount(t *testing.T) {
	script := `
limits slots=1 queue=1 timeout=60s
` + pair + `
sleep 100s
`
	for range 19 {
		script += `
arrive a => a granted p1 d1
sleep 100ms
release a`
	}
	story(t, script+`
arrive a => a granted p1 d1
arrive b => b queued
# 2 to serve, 20 in 30 s; what runs would say 10 a second.
arrive c => c refused queue_full prefill_slot depth=1 waited=0s retry=3s
`)
	story(t, script+`
sleep 1s
arrive b => b granted p1 d1
sleep 29s
arrive c => c queued
# The 20 are out of the window but for the last.
arrive d => d refused queue_full prefill_slot depth=1 waited=0s retry=58s
`)
}
