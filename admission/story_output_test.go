package admission

import "testing"

// An answer fills what was reserved for it before it books more, each leg its own
// reserve, and what is reserved and not used stays booked until the answer ends.
func TestOutputFillsItsReserve(t *testing.T) {
	story(t, `
class c dfrac=1
limits queue=10 timeout=60s
add p1 prefill
add d1 decode kv=100 block=10
arrive a tokens=95 reserve=20 => a granted p1 d1
print
| waiting 0
| prefill p1 slots=1 pending=0 active=0 tokens=95
| decode d1 slots=0 pending=1 active=0 blocks=12+0
start a
# 95 and 25 are the twelve blocks that it has.
output a 1
output a 20
output a 25
output a 26 => a +1
output a 36 => a +1
# What the engine counts again, or less, takes nothing back.
output a 30
print
| waiting 0
| prefill p1 slots=1 pending=0 active=0 tokens=95
| decode d1 slots=0 pending=0 active=1 blocks=0+14
release a
print
| waiting 0
| prefill p1 slots=0 pending=0 active=0
| decode d1 slots=0 pending=0 active=0
`)
	// Four legs of 25 and 10 have four blocks each: 15 tokens of each fit.
	story(t, `
class c dfrac=1
limits queue=10 timeout=60s
add p1 prefill
add d1 decode kv=100 block=10
arrive a tokens=100 legs=4 reserve=10 => a granted p1 d1
output a 60
output a 61 => a +4
# The reserve of others is not theirs: 80 more do not fit beside 20 blocks.
arrive b tokens=800 reserve=10 => b queued
output a 62
release a => b granted p1 d1
`)
	// A decode leg that moves has the reserve anew, in blocks of where it is now.
	story(t, `
class c dfrac=1
limits queue=10 timeout=60s
add p1 prefill
add d1 decode kv=100 block=10
add d2 decode kv=100 block=16
arrive a tokens=30 reserve=10 => a granted p1 d1
output a 11 => a +1
move a => a moved to d2
output a 18
output a 19 => a +1
`)
}
