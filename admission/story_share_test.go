package admission

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// shares keeps a backlog in each class of a fleet with one slot and returns the
// tokens that each was served over n grants.
func shares(t *testing.T, n int, cost map[string]int64, classes ...Class) map[string]int64 {
	t.Helper()
	c := NewCore(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 10000}, Classes: &Classes{Root: &Profile{Classes: classes}}})
	var out []*Ticket
	c.Apply(0, []Change{{Op: AddRank, Rank: rank("p", RolePrefill, "m")}, {Op: AddRank, Rank: rank("d", RoleDecode, "m")}}, &out)
	target := c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
	now := Instant(1)
	running := &Ticket{Target: target, Class: classes[0].Name}
	c.Arrive(now, running, &out)
	arrive := func(class string) {
		now++
		k := &Ticket{Target: target, Class: class, PromptTokens: cost[class]}
		if c.Arrive(now, k, &out); k.state != stateQueued {
			t.Fatalf("not queued: %d", k.state)
		}
	}
	for _, cl := range classes {
		for range 5 {
			if cost[cl.Name] > 0 {
				arrive(cl.Name)
			}
		}
	}
	got := map[string]int64{}
	for range n {
		now++
		c.Release(now, running, &out)
		if len(out) != 1 {
			t.Fatalf("%d grants for one slot", len(out))
		}
		running = out[0]
		out = out[:0]
		name := running.class.Name
		got[name] += cost[name]
		arrive(name)
	}
	return got
}

// Two classes with quanta 512 and 128 share the tokens 4:1 under backlog,
// whatever the sizes of their requests.
func TestSharesFollowQuanta(t *testing.T) {
	a, b := Class{Name: "a", Quantum: 512}, Class{Name: "b", Quantum: 128}
	for _, cost := range []map[string]int64{
		{"a": 256, "b": 256}, {"a": 100, "b": 700}, {"a": 3000, "b": 10}, {"a": 10, "b": 3000}, {"a": 1, "b": 1},
	} {
		got := shares(t, 60_000, cost, a, b)
		if ratio := float64(got["a"]) / float64(got["b"]); math.Abs(ratio-4) > 0.2 {
			t.Errorf("sizes %v: %v, %.3f:1", cost, got, ratio)
		}
	}
}

// A request of a million tokens is neither starved nor served before its share,
// and crediting it does not take a loop of as many rounds.
func TestLargeRequestInItsTurn(t *testing.T) {
	got := shares(t, 50_000, map[string]int64{"huge": 1_000_000, "small": 100}, Class{Name: "huge", Quantum: 1}, Class{Name: "small", Quantum: 1})
	if n := got["huge"] / 1_000_000; n < 4 || n > 6 { // 50 000 × 100 is 5 of them
		t.Errorf("%d large requests were served beside %d tokens of small ones", n, got["small"])
	}
	got = shares(t, 10, map[string]int64{"huge": 1 << 39}, Class{Name: "huge", Quantum: 1})
	if got["huge"] != 10<<39 {
		t.Errorf("alone it was served %d", got["huge"])
	}
}

// An idle class gains nothing: it does not come back with credit for the time it
// was away, nor with a debt.
func TestIdleClassGainsNothing(t *testing.T) {
	script := `
class a quantum=100
class b quantum=100
limits slots=1 queue=100 timeout=600s
` + pair + `
arrive x => x granted p1 d1
`
	last := "x"
	for i := range 20 { // a alone, for long
		script += fmt.Sprintf("arrive a%d class=a tokens=100 => a%d queued\nrelease %s => a%d granted p1 d1\n", i, i, last, i)
		last = fmt.Sprintf("a%d", i)
	}
	for i := range 6 {
		script += fmt.Sprintf("arrive b%d class=b tokens=100 => b%d queued\narrive c%d class=a tokens=100 => c%d queued\n", i, i, i, i)
	}
	for i := range 6 {
		script += fmt.Sprintf("release %s => b%d granted p1 d1\nrelease b%d => c%d granted p1 d1\n", last, i, i, i)
		last = fmt.Sprintf("c%d", i)
	}
	story(t, script)
}

// A class that cannot start keeps what it has and gains nothing meanwhile.
func TestBlockedClassGainsNothing(t *testing.T) {
	c := NewCore(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 100}, Classes: &Classes{Root: &Profile{Classes: []Class{
		{Name: "a", Quantum: 300}, {Name: "b", Quantum: 100, DecodeBusyFrac: new(0.5)},
	}}}})
	var out []*Ticket
	d := NewRank(RankSpec{ID: "d", Role: RoleDecode, Models: []string{"m"}, State: RankState{Healthy: true}, Capacity: Capacity{KVBlocks: 100, BlockSize: 16}})
	c.Apply(0, []Change{{Op: AddRank, Rank: rank("p", RolePrefill, "m")}, {Op: AddRank, Rank: d}}, &out)
	target := c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
	send := func(class string, tokens int64) *Ticket {
		k := &Ticket{Target: target, Class: class, PromptTokens: tokens}
		c.Arrive(1, k, &out)
		return k
	}
	full := send("a", 50*16) // all that b may use
	c.StartDecode(full)
	b := send("b", 250)
	running := full
	qb := b.queue()
	for range 10 {
		a := send("a", 100)
		c.EndPrefill(2, running, &out)
		if a.state != stateGranted || qb.deficit != 0 {
			t.Fatalf("a: state %d; b has a deficit of %d", a.state, qb.deficit)
		}
		running = a
	}
	a := send("a", 100)
	c.Release(3, full, &out)
	c.EndPrefill(3, running, &out)
	// Each has what one round gives: a goes on with what is left of its turn.
	if a.state != stateGranted {
		t.Fatalf("a: %d, b: %d", a.state, b.state)
	}
}

// A decode leg whose prefill is running or done is never held: it passes a full
// class limit, a backlog and its deadline, and meets reject thresholds only when
// it has to choose again.
func TestStagedLegs(t *testing.T) {
	story(t, `
class c frac=1 dfrac=0.5 reqs=0.5 wait=1s
limits slots=1 queue=3 timeout=30s
add p1 prefill batched=1000
add d1 decode kv=100 block=16
add d2 decode kv=100 block=16
add d3 decode kv=100 block=16 group=other
arrive a tokens=800 => a granted p1 d1
arrive e tokens=16 => e queued
sleep 1s => e refused deadline_exceeded prefill_slot depth=0 waited=1s retry=1s class=c limit=class_deadline:0/1000000000 at 1s
arrive b tokens=16 => b queued
arrive x tokens=16 => x refused class_queue_full prefill_slot depth=1 waited=0s retry=2s class=c limit=requests:1/1
begin
remove d1
commit
# Beyond the fraction of its class, past the one who waits, after its deadline.
move a => a moved to d2
start a
print
| waiting 1
| prefill p1 slots=1 pending=0 active=0 tokens=800 no-room
| decode d2 slots=0 pending=0 active=1 blocks=0+50
| decode d3 slots=0 pending=0 active=0
endprefill a
# d2 is at its fraction now: what waits for it waits in prefill.
move a => a cannot move
add d4 decode kv=40 block=16 => b granted p1 d4
move a exclude=d4 => a cannot move
reject blocks=0.03
move a => a moved to d4
# Now d4 is over it, and d2 too small.
move a => a moved to d2
grow a 2
move b => b cannot move
release b
print
| waiting 0
| prefill p1 slots=0 pending=0 active=0
| decode d4 slots=0 pending=0 active=0
| decode d2 slots=0 pending=1 active=0 blocks=52+0 no-room
| decode d3 slots=0 pending=0 active=0
release a
move a => a cannot move
`)
}

// A staged leg whose model lost all ranks finds those that came since.
func TestStagedLegOfARevivedModel(t *testing.T) {
	story(t, `
limits slots=1 queue=3 timeout=30s
`+pair+`
arrive a => a granted p1 d1
begin
remove p1
remove d1
commit
move a => a cannot move
add p2 prefill
add d2 decode
move a => a moved to d2
release a
`)
}

// The decode ranks that a staged leg leaves are free at once for a head that
// waits for them, and it never waits for what a head has not got.
func TestStagedLegFreesItsRank(t *testing.T) {
	story(t, `
class c dfrac=0.5
limits queue=10 timeout=30s
add p1 prefill
add d1 decode kv=100 block=16 topology=x
add d2 decode kv=100 block=16 topology=y
arrive a tokens=800 => a granted p1 d1
arrive f tokens=800 dpin=d2 => f granted p1 d2
arrive b tokens=800 dpin=d1 => b queued
arrive e tokens=800 dpin=d2 => e queued
quarantine p1 d2
move a => a moved to d2; b granted p1 d1
endQuarantine p1 d2
move b => b cannot move
move a => a moved to d1
release f => e granted p1 d2
release b
`)
}

// Reloading: waiters keep arrival, cost and deadline; those whose class is gone
// are resolved again; new limits bind new arrivals; lowered thresholds close the
// gate until holds are under them.
func TestReload(t *testing.T) {
	story(t, `
default f
bucket lo 0
bucket hi 100
class f-lo family=f bucket=lo wait=10s
class f-hi family=f bucket=hi
class gold quantum=1000
limits slots=1 queue=20 timeout=60s
`+pair+`
arrive x => x granted p1 d1
arrive a tokens=50 => a queued
arrive b tokens=500 class=gold => b queued
arrive c tokens=500 => c queued
arrive e tokens=50 => e queued
sleep 1s
default g
bucket all 0
class g family=g bucket=all quantum=1000
class f-lo reqs=0
reload
# a and e are of f-lo still, with their deadline; b and c are of g now.
arrive n class=f-lo => n refused class_queue_full prefill_slot depth=2 waited=0s retry=9s class=f-lo limit=requests:2/0
release x => b granted p1 d1
sleep 8s
release b => c granted p1 d1
sleep 1s => a refused deadline_exceeded prefill_slot depth=1 waited=10s retry=1s class=f-lo limit=class_deadline:0/10000000000 at 10s; e refused deadline_exceeded prefill_slot depth=0 waited=10s retry=5s class=f-lo limit=class_deadline:0/10000000000 at 10s
class only tokens=10
reload
release c
arrive h tokens=50 => h granted p1 d1
limits slots=3 queue=20 timeout=60s
arrive i => i queued
class only tokens=60
reload => i granted p1 d1
class only tokens=0
reload
arrive j => j queued
first h => j granted p1 d1
`)
}

// Waiters are in the order in which they came whatever the class allowed or allows them to
// wait: those who came before it did so are not behind all who come after.
func TestReloadKeepsTheOrderOfArrival(t *testing.T) {
	for _, of := range []struct{ before, after string }{{"", "wait=10s"}, {"wait=10s", ""}, {"wait=10s", "wait=30s"}} {
		story(t, `
class c tokens=10 `+of.before+`
class gone tokens=10
limits queue=20 timeout=600s
`+pair+`
arrive x tokens=50 => x granted p1 d1
arrive a tokens=50 class=gone => a queued
arrive b tokens=50 class=c => b queued
sleep 1s
class c tokens=10 `+of.after+`
reload
arrive n tokens=50 class=c => n queued
release x => a granted p1 d1
release a => b granted p1 d1
release b => n granted p1 d1
`)
	}
}

// A fence stands through a reload.
func TestReloadKeepsTheFence(t *testing.T) {
	story(t, `
class big dfrac=1
class small dfrac=1
limits queue=20 timeout=600s guard=5s
add p1 prefill
add d1 decode kv=100 block=1
arrive a tokens=60 class=small => a granted p1 d1
arrive b tokens=90 class=big => b queued
sleep 6s
arrive c tokens=10 class=small => c granted p1 d1
arrive d tokens=10 class=small => d queued
class small dfrac=1
class big dfrac=0.95
reload
arrive e tokens=10 class=small => e queued
release c
release a => b granted p1 d1; d granted p1 d1
`)
}

// A waiter's last place in the round robin and its deficit outlive a reload.
func TestReloadKeepsDeficits(t *testing.T) {
	cs := &Classes{Root: &Profile{Classes: []Class{{Name: "a", Quantum: 1000}, {Name: "b", Quantum: 1000}}}}
	c := NewCore(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 100, QueueTimeout: time.Minute}, Classes: cs})
	var out []*Ticket
	c.Apply(0, []Change{{Op: AddRank, Rank: rank("p", RolePrefill, "m")}, {Op: AddRank, Rank: rank("d", RoleDecode, "m")}}, &out)
	target := c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
	var all []*Ticket
	for i := range 5 {
		k := &Ticket{Target: target, Class: []string{"a", "b"}[i%2], PromptTokens: 300}
		c.Arrive(Instant(1+i), k, &out)
		all = append(all, k)
	}
	c.Release(10, all[0], &out)
	before := all[2].queue().deficit + 7*all[1].queue().deficit
	c.SetClasses(11, cs, &out)
	if after := all[4].queue().deficit + 7*all[3].queue().deficit; after != before || before == 0 {
		t.Errorf("deficits %d, before %d", after, before)
	}
	if err := checkIndexes(c); err != nil {
		t.Fatal(err)
	}
}
