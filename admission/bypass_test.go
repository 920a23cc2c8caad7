package admission

import "testing"

// A bypass-shaped request has not passed the prefill gate: it takes the full
// class gate on the decode ranks, waits in its class, takes prefill tokens there
// but no slot.
func TestBypassTakesTheFullGate(t *testing.T) {
	story(t, `
class c tokens=100 dfrac=0.5 reqs=1
class never reqs=0 tokens=100
limits slots=1 queue=10 timeout=30s
add p1 prefill
add d1 decode kv=100 block=16
arrive a bypass tokens=160 => a granted d1
print
| waiting 0
| prefill p1 slots=0 pending=0 active=0
| decode d1 slots=0 pending=1 active=0 tokens=160 blocks=10+0
arrive b bypass tokens=16 => b queued
arrive x bypass => x refused class_queue_full prefill_tokens depth=1 waited=0s retry=2s class=c limit=requests:1/1
arrive y bypass class=never => y refused class_queue_full prefill_tokens depth=0 waited=0s retry=5s class=never limit=requests:0/0
first a => b granted d1
arrive e bypass tokens=700 => e queued
release a => e granted d1
move e => e cannot move
first e
# Prefill is judged on its own ranks, decode by both kinds.
arrive f tokens=96 => f queued
release b => f granted p1 d1
release e
release f
print
| waiting 0
| prefill p1 slots=0 pending=0 active=0
| decode d1 slots=0 pending=0 active=0
`)
}

// It is decided afresh once, when it first reaches the head, by what the pools hold then,
// and keeps its place.
func TestBypassReconsiders(t *testing.T) {
	c := NewCore(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 10}, Classes: &Classes{Root: &Profile{Classes: []Class{
		{Name: "c", Quantum: 1, DecodeBusyFrac: new(0.5)},
	}}}})
	var out []*Ticket
	p := NewRank(RankSpec{ID: "p", Role: RolePrefill, Models: []string{"m"}, State: RankState{Healthy: true}, Capacity: Capacity{MaxBatchedTokens: 1000}})
	d := NewRank(RankSpec{ID: "d", Role: RoleDecode, Models: []string{"m"}, State: RankState{Healthy: true}, Capacity: Capacity{KVBlocks: 100, BlockSize: 16}})
	c.Apply(0, []Change{{Op: AddRank, Rank: p}, {Op: AddRank, Rank: d}}, &out)
	target := func(s Shape) *Target { return c.Resolve(TargetSpec{Model: "m", Shape: s}) }
	send := func(now Instant, rule BypassRule) *Ticket {
		k := &Ticket{Target: target(Bypass), Instead: target(Disaggregated), PromptTokens: 20 * 16, Bypass: &rule}
		c.Arrive(now, k, &out)
		return k
	}
	// Together they hold 160 of 1000 tokens of prefill, and 10 + 40 of 100 blocks.
	pair := &Ticket{Target: target(Disaggregated), PromptTokens: 10 * 16}
	c.Arrive(1, pair, &out)
	full := &Ticket{Target: target(Bypass), PromptTokens: 40 * 16}
	c.Arrive(1, full, &out)
	head := send(2, BypassRule{})
	goes := send(3, BypassRule{PrefillBusy: new(0.16)})
	goesToo := send(4, BypassRule{PrefillBusy: new(0.15), DecodeBusy: new(0.75), Blocks: 26})
	stays := send(5, BypassRule{PrefillBusy: new(0.15), DecodeBusy: new(0.75), Blocks: 25})
	behind := send(6, BypassRule{})
	for _, k := range []*Ticket{head, goes, goesToo, stays, behind} {
		if k.state != stateQueued || k.Target.shape != Bypass {
			t.Fatalf("state %d, %s", k.state, k.Target.shape)
		}
	}
	prefill, decode := p.pools[0].loads(), d.pools[0].loads()
	if want := (PoolLoad{Ranks: 1, Candidates: 1, Requests: 1, PrefillTokens: 160, BatchedTokens: 1000}); prefill != want {
		t.Errorf("the prefill pool holds %+v, want %+v", prefill, want)
	}
	if want := (PoolLoad{Ranks: 1, Candidates: 1, Requests: 2, PrefillTokens: 640, Blocks: 50, KVBlocks: 100}); decode != want {
		t.Errorf("the decode pool holds %+v, want %+v", decode, want)
	}
	c.Cancel(7, head, &out) // it was decided on arrival; those behind it are decided now
	for _, k := range []*Ticket{goes, goesToo} {
		if k.Target.shape != Disaggregated || k.Instead.shape != Bypass || k.state != stateQueued {
			t.Fatalf("%s, state %d", k.Target.shape, k.state)
		}
	}
	if stays.Target.shape != Bypass || behind.Target.shape != Bypass {
		t.Fatalf("%s, %s", stays.Target.shape, behind.Target.shape)
	}
	if err := checkIndexes(c); err != nil {
		t.Fatal(err)
	}
	stays.Bypass = &BypassRule{} // it is not asked again
	c.Release(8, pair, &out)
	c.Release(9, full, &out)
	if goes.state != stateGranted || goes.Prefill == nil || stays.state != stateGranted || stays.Prefill != nil {
		t.Fatalf("states %d and %d", goes.state, stays.state)
	}
	if out[0] != goes {
		t.Error("it lost its place")
	}
}

// A class in which a bypass is decided afresh has waiters all the time: it keeps its
// deficit, and how long somebody has waited in it.
func TestBypassReconsidersWithinItsTurn(t *testing.T) {
	c := NewCore(Options{Limits: Limits{QueueSize: 10}, QueueMode: QueueLanes, Classes: &Classes{Root: &Profile{Classes: []Class{
		{Name: "c", Quantum: 100, DecodeBusyFrac: new(0.5)},
	}}}})
	var out []*Ticket
	d := NewRank(RankSpec{ID: "d", Role: RoleDecode, Models: []string{"m"}, State: RankState{Healthy: true}, Capacity: Capacity{KVBlocks: 100, BlockSize: 16}})
	c.Apply(0, []Change{{Op: AddRank, Rank: rank("p", RolePrefill, "m")}, {Op: AddRank, Rank: d}}, &out)
	target := func(s Shape) *Target { return c.Resolve(TargetSpec{Model: "m", Shape: s}) }
	send := func(now Instant, tokens int64) *Ticket {
		k := &Ticket{Target: target(Bypass), Instead: target(Disaggregated), PromptTokens: tokens, Bypass: &BypassRule{}}
		c.Arrive(now, k, &out)
		return k
	}
	full := send(1, 40*16)
	first, second := send(2, 20*16), send(3, 50*16)
	c.Release(4, full, &out) // first is granted, and its cost is credited in whole quanta
	q := second.queue()
	if first.state != stateGranted || second.Target.shape != Disaggregated || second.state != stateQueued {
		t.Fatalf("states %d and %d, %s", first.state, second.state, second.Target.shape)
	}
	if q.deficit != 4*100-20*16 || q.pace.since != 2 {
		t.Errorf("deficit %d, want %d; waiting since %d, want 2", q.deficit, 4*100-20*16, q.pace.since)
	}
}

// What a retry may be placed on instead is found anew with its target, when its model had
// lost all ranks meanwhile: its bypass is decided afresh as if they had not left.
func TestBypassReconsidersAfterItsRanksLeft(t *testing.T) {
	c := NewCore(Options{Limits: Limits{QueueSize: 10}, Classes: &Classes{Root: &Profile{Classes: []Class{
		{Name: "c", Quantum: 1, DecodeBusyFrac: new(0.5)},
	}}}})
	var out []*Ticket
	var ranks []*Rank
	come := func(now Instant) {
		d := NewRank(RankSpec{ID: "d", Role: RoleDecode, Models: []string{"m"}, State: RankState{Healthy: true}, Capacity: Capacity{KVBlocks: 100, BlockSize: 16}})
		ranks = []*Rank{rank("p", RolePrefill, "m"), d}
		c.Apply(now, []Change{{Op: AddRank, Rank: ranks[0]}, {Op: AddRank, Rank: d}}, &out)
	}
	come(0)
	target := func(s Shape) *Target { return c.Resolve(TargetSpec{Model: "m", Shape: s}) }
	old := &Ticket{Target: target(Bypass), Instead: target(Disaggregated), PromptTokens: 10 * 16, Bypass: &BypassRule{}}
	c.Arrive(1, old, &out)
	c.Apply(2, []Change{{Op: RemoveRank, Rank: ranks[0]}, {Op: RemoveRank, Rank: ranks[1]}}, &out)
	c.Release(3, old, &out)
	come(4)
	full := &Ticket{Target: target(Bypass), PromptTokens: 50 * 16}
	c.Arrive(5, full, &out)
	head := &Ticket{Target: target(Bypass), PromptTokens: 10 * 16, StrictPriority: 1}
	c.Arrive(6, head, &out)
	old.Retry = true
	c.Arrive(7, old, &out)
	if head.state != stateQueued || old.state != stateQueued {
		t.Fatalf("states %d and %d", head.state, old.state)
	}
	c.Cancel(8, head, &out)
	if old.Target != target(Disaggregated) || old.Instead != target(Bypass) {
		t.Errorf("it is %s still", old.Target.shape)
	}
	if err := checkIndexes(c); err != nil {
		t.Fatal(err)
	}
}
