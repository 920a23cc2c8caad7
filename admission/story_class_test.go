package admission

import "testing"

// One class with both fractions over one pair: 1000 prefill tokens at most and,
// of 100 blocks of 16 tokens, 80.
const bothFractions = `
class c quantum=512 frac=1 dfrac=0.8
`

const bigPair = `
add p1 prefill batched=1000
add d1 decode kv=100 block=16
`

// With decode full a new prefill waits at the prefill hop, and freed KV releases
// it. What is pending counts.
func TestDecodeFullHoldsPrefill(t *testing.T) {
	story(t, bothFractions+`
limits queue=10 timeout=30s
`+bigPair+`
arrive a tokens=640 => a granted p1 d1
first a
arrive b tokens=640 => b granted p1 d1
first b
print
| waiting 0
| prefill p1 slots=2 pending=0 active=0
| decode d1 slots=0 pending=2 active=0 blocks=80+0
arrive c tokens=16 => c queued
start a
# The end of a prefill is no signal for the decode pool.
endprefill a
endprefill b
enddecode a => c granted p1 d1
print
| waiting 0
| prefill p1 slots=1 pending=0 active=0 tokens=16
| decode d1 slots=0 pending=2 active=0 blocks=41+0
`)
}

// A class without a decode fraction never looks at the decode pool.
func TestNoDecodeFractionIgnoresDecode(t *testing.T) {
	story(t, `
class c frac=1
class d dfrac=0.5
limits queue=10 timeout=30s
`+bigPair+`
arrive a tokens=1600 class=c => a granted p1 d1
first a
arrive b tokens=1600 class=c => b granted p1 d1
arrive e tokens=16 class=d => e queued
arrive f tokens=16 class=c => f queued
first b => f granted p1 d1
release a
release b => e granted p1 d1
`)
}

// Prefill tokens before the booking count: a rank is busy when it has more than
// the threshold, and the end of prefill or the first token makes room.
func TestPrefillFraction(t *testing.T) {
	story(t, bothFractions+`
limits queue=10 timeout=30s
`+bigPair+`
arrive a tokens=1600 held=p1:600 => a granted p1 d1
release a
arrive b tokens=16 => b granted p1 d1
arrive c tokens=1004 held=p1:3 => c granted p1 d1
arrive d tokens=16 => d queued
start c
first c => d granted p1 d1
first c
print
| waiting 0
| prefill p1 slots=3 pending=0 active=0 tokens=32
| decode d1 slots=0 pending=2 active=1 blocks=2+63
`)
}

// Room that no hold's end tells of is found all the same: a rank comes, gets
// well, or is found to be larger.
func TestRoomWithoutASignal(t *testing.T) {
	story(t, bothFractions+`
limits queue=10 timeout=30s
`+bigPair+`
arrive a tokens=1280 => a granted p1 d1
endprefill a
arrive b tokens=160 => b queued
attributes d1 kv=112 block=16
attributes d1 kv=113 block=16 => b granted p1 d1
arrive c tokens=160 => c queued
add d2 decode kv=10 block=16 => c granted p1 d2
set d2 down
arrive d tokens=16 => d queued
release c
set d2 up => d granted p1 d2
`)
}

// With a queue of size zero the ends of holds are seen by the next arrival.
func TestReleaseIsSeenWithoutAQueue(t *testing.T) {
	story(t, bothFractions+`
limits queue=0
`+bigPair+`
arrive a tokens=1280 => a granted p1 d1
arrive b tokens=16 => b refused queue_full prefill_tokens depth=0 waited=0s retry=1s
endprefill a
arrive b tokens=16 => b refused queue_full decode_blocks depth=0 waited=0s retry=1s
release a
arrive b tokens=16 => b granted p1 d1
`)
}

// Pins, allowed sets, labels, adapters and domains narrow the decode ranks that
// count, for each prefill rank.
func TestFiltersNarrowTheDecodeRanks(t *testing.T) {
	story(t, bothFractions+`
limits queue=10 timeout=30s
add p1 prefill batched=1000 topology=r1 adapters=x labels=gpu:a
add d1 decode kv=100 block=16 topology=r1 labels=gpu:a
add d2 decode kv=100 block=16 topology=r2 labels=gpu:b adapters=x
arrive a tokens=800 dpin=d1 => a granted p1 d1
endprefill a
arrive b tokens=800 dallow=d1 => b queued
arrive c tokens=800 drequire=gpu:a => c queued
arrive d tokens=800 topology=required => d queued
arrive e tokens=800 dpin=d1 => e queued
arrive f tokens=800 adapter=x => f granted p1 d2
arrive g tokens=16 dallow= => g refused no_workers worker depth=4 waited=0s retry=1s
arrive h tokens=16 require=gpu:b => h refused no_workers worker depth=4 waited=0s retry=1s
endprefill f
# All four become possible together; the oldest goes first.
release a => b granted p1 d1
release b => c granted p1 d1
release c => d granted p1 d1
attributes d1 kv=100 block=16 topology=r9
release d => e granted p1 d1
`)
}

// A domain that is required pairs ranks exactly, whatever the single pools have.
func TestRequiredDomainIsExact(t *testing.T) {
	story(t, bothFractions+`
limits queue=10 timeout=30s
add p1 prefill batched=100 topology=r1
add p2 prefill batched=100 topology=r2
add d1 decode kv=100 block=16 topology=r1
add d2 decode kv=100 block=16 topology=r2
arrive a tokens=1280 held=p1:1280 topology=required => a granted p1 d1
arrive b tokens=160 topology=required => b granted p2 d2
# p1 and d2 have room, but are not in one domain; p2 is busy, d1 full.
arrive c tokens=16 topology=required => c queued
arrive d tokens=16 => d granted p1 d2
first b => c granted p2 d2
`)
}

// Preferred labels and domains choose among what has room, never keep waiting,
// and count for both ranks together.
func TestPreferencesChooseThePair(t *testing.T) {
	story(t, `
limits slots=1 queue=10 timeout=30s
add p1 prefill topology=r1
add p2 prefill topology=r2 labels=gpu:b
add p3 prefill topology=r3 labels=gpu:b
add d1 decode topology=r1
add d2 decode topology=r9
add d3 decode topology=r3 labels=gpu:b
arrive a prefer=gpu:b*1 dprefer=gpu:b*1 topology=preferred => a granted p3 d3
arrive b prefer=gpu:b*1 dprefer=gpu:b*1 topology=preferred => b granted p2 d3
arrive c prefer=gpu:b*1 topology=preferred => c granted p1 d1
arrive d prefer=gpu:b*9 => d queued
endprefill c => d granted p1 d1
`)
}

// A class that does not queue is refused by a full decode pool exactly as by a
// full prefill pool, and told when what it lacked will come free.
func TestNeverQueue(t *testing.T) {
	story(t, `
class c frac=1 dfrac=0.8 reqs=0
class raw frac=1 dfrac=0.8 raw=0
class slots reqs=0
limits slots=2 queue=10 timeout=30s
`+bigPair+`
sleep 10s
arrive a tokens=1280 => a granted p1 d1
arrive b tokens=16 => b refused class_queue_full prefill_tokens depth=0 waited=0s retry=5s class=c limit=requests:0/0
endprefill a
arrive c tokens=16 => c refused class_queue_full decode_blocks depth=0 waited=0s retry=5s class=c limit=requests:0/0
arrive d tokens=16 class=raw => d refused class_queue_full decode_blocks depth=0 waited=0s retry=5s class=raw limit=raw_isl_tokens:0/0
arrive e class=slots => e granted p1 d1
arrive f class=slots => f granted p1 d1
arrive g class=slots => g refused class_queue_full prefill_slot depth=0 waited=0s retry=10s class=slots limit=requests:0/0
release a
arrive h tokens=16 => h refused class_queue_full prefill_slot depth=0 waited=0s retry=10s class=c limit=requests:0/0
endprefill e
arrive i tokens=16 => i granted p1 d1
# A retry of it is not kept waiting either.
arrive j class=slots => j refused class_queue_full prefill_slot depth=0 waited=0s retry=5s class=slots limit=requests:0/0
release i
retry i => i granted p1 d1
arrive k class=slots => k refused class_queue_full prefill_slot depth=0 waited=0s retry=4s class=slots limit=requests:0/0
`)
}

// The limits of a class are tested before adding, count workers and not ranks,
// and come before the router-wide ones.
func TestClassQueueLimits(t *testing.T) {
	story(t, `
class c reqs=1
class r raw=100
class k cached=10
class small reqs=0.1
class free
limits slots=1 queue=7 timeout=30s bytes=100
add p1 prefill worker=w
add p2 prefill worker=w
add d1 decode
arrive x => x granted p1 d1
arrive y => y granted p2 d1
arrive a class=c => a queued
arrive b class=c => b refused class_queue_full prefill_slot depth=1 waited=0s retry=1s class=c limit=requests:1/1
arrive d class=small => d queued
arrive e class=small => e refused class_queue_full prefill_slot depth=1 waited=0s retry=30s class=small limit=requests:1/1
arrive f class=r tokens=99 => f queued
arrive g class=r tokens=1000 => g queued
arrive h class=r tokens=1 => h refused class_queue_full prefill_slot depth=2 waited=0s retry=30s class=r limit=raw_isl_tokens:1099/100
arrive i class=k tokens=30 uncached=19 => i queued
arrive j class=k tokens=1 => j refused class_queue_full prefill_slot depth=1 waited=0s retry=30s class=k limit=cached_tokens:11/10
arrive l class=free bytes=60 => l queued
arrive m class=free bytes=41 => m refused queue_full prefill_slot depth=6 waited=0s retry=4s class=free limit=bytes:60/100
arrive n class=free bytes=40 => n queued
arrive o class=free => o refused queue_full prefill_slot depth=7 waited=0s retry=4s
arrive p class=c => p refused class_queue_full prefill_slot depth=1 waited=0s retry=1s class=c limit=requests:1/1
`)
}

// The earliest deadline ends the wait and names the code; only those of classes
// and classifiers order.
func TestClassDeadlines(t *testing.T) {
	story(t, `
class c wait=3s
class n
limits slots=1 queue=10 timeout=5s
`+pair+`
arrive x class=n => x granted p1 d1
arrive a => a queued
arrive b deadline=2s => b queued
arrive d cdeadline=1s => d queued
arrive e class=n => e queued
arrive f class=n cdeadline=4s => f queued
sleep 10s => d refused deadline_exceeded prefill_slot depth=2 waited=1s retry=2s class=c limit=class_deadline:0/1000000000 at 1s; b refused deadline_exceeded prefill_slot depth=1 waited=2s retry=1s at 2s; a refused deadline_exceeded prefill_slot depth=0 waited=3s retry=5s class=c limit=class_deadline:0/3000000000 at 3s; f refused deadline_exceeded prefill_slot depth=1 waited=4s retry=8s class=n limit=class_deadline:0/4000000000 at 4s; e refused queue_timeout prefill_slot depth=0 waited=5s retry=5s at 5s
`)
}

// Strict priority, then deadlines of the class or classifier, then the order.
func TestOrderInAClass(t *testing.T) {
	story(t, `
class c
limits slots=1 queue=20 timeout=600s
`+pair+`
arrive x => x granted p1 d1
arrive a => a queued
sleep 1s
arrive b => b queued
sleep 1s
arrive e jump=1.5 => e queued
arrive f deadline=100s => f queued
arrive g cdeadline=200s => g queued
arrive h cdeadline=100s => h queued
arrive i prio=1 => i queued
arrive j prio=-1 => j queued
release x => i granted p1 d1
release i => h granted p1 d1
release h => g granted p1 d1
release g => a granted p1 d1
release a => e granted p1 d1
release e => b granted p1 d1
release b => f granted p1 d1
release f => j granted p1 d1
`)
	story(t, `
class w order=wspt quantum=1000
class l order=lcfs
limits slots=1 queue=20 timeout=600s
`+pair+`
arrive x => x granted p1 d1
arrive a tokens=300 uncached=100 => a queued
arrive b tokens=50 => b queued
arrive c tokens=300 jump=6 => c queued
arrive d class=l => d queued
sleep 1s
arrive e class=l => e queued
release x => c granted p1 d1
release c => b granted p1 d1
release b => a granted p1 d1
release a => e granted p1 d1
release e => d granted p1 d1
`)
}

// Families by bucket of uncached tokens, explicit classes by name, what means
// nothing to the default family; a model's own profile replaces the root's whole.
func TestClassOfARequest(t *testing.T) {
	story(t, `
default f
bucket lo 0
bucket hi 100
class f-lo family=f bucket=lo reqs=0
class f-hi family=f bucket=hi reqs=0
class g-lo family=g bucket=lo reqs=0
class g-hi family=g bucket=hi reqs=0
class gold reqs=0
profile n
class own reqs=0
limits slots=1 queue=20 timeout=60s
add p1 prefill models=m,n
add d1 decode models=m,n
arrive x model=n => x granted p1 d1
arrive a tokens=99 => a refused class_queue_full prefill_slot depth=0 waited=0s retry=5s class=f-lo limit=requests:0/0
arrive a tokens=100 => a refused class_queue_full prefill_slot depth=0 waited=0s retry=5s class=f-hi limit=requests:0/0
arrive a tokens=1000 uncached=99 class=g => a refused class_queue_full prefill_slot depth=0 waited=0s retry=5s class=g-lo limit=requests:0/0
arrive a tokens=100 class=g => a refused class_queue_full prefill_slot depth=0 waited=0s retry=5s class=g-hi limit=requests:0/0
arrive a tokens=100 class=gold => a refused class_queue_full prefill_slot depth=0 waited=0s retry=5s class=gold limit=requests:0/0
arrive a class=f-lo => a refused class_queue_full prefill_slot depth=0 waited=0s retry=5s class=f-lo limit=requests:0/0
arrive a class=gold model=n => a refused class_queue_full prefill_slot depth=0 waited=0s retry=5s class=own limit=requests:0/0
`)
}
