package admission

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A head that needs most of a pool is served within the guard and one drain
// while small requests keep arriving.
func TestFenceServesALargeHead(t *testing.T) {
	c := NewCore(Options{
		Limits:    Limits{QueueSize: 1000, StarvationGuard: 5 * time.Second},
		QueueMode: QueueLanes,
		Classes: &Classes{Root: &Profile{Classes: []Class{
			{Name: "big", Quantum: 512, DecodeBusyFrac: new(1.0)}, {Name: "small", Quantum: 512, DecodeBusyFrac: new(1.0)},
		}}},
	})
	var out []*Ticket
	p := rank("p", RolePrefill, "m")
	d := NewRank(RankSpec{ID: "d", Role: RoleDecode, Models: []string{"m"}, State: RankState{Healthy: true}, Capacity: Capacity{KVBlocks: 800, BlockSize: 16}})
	c.Apply(0, []Change{{Op: AddRank, Rank: p}, {Op: AddRank, Rank: d}}, &out)
	target := c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})

	// Each small request takes 10 blocks for 2 s; one comes every 20 ms, so that
	// up to 100 would run: 1000 blocks.
	const every, runs = 20 * time.Millisecond, 2 * time.Second
	type running struct {
		t   *Ticket
		end Instant
	}
	var run []running
	ends := map[*Ticket]Instant{}
	now := Instant(0)
	var big *Ticket
	bigAt := Instant(10 * time.Second)
	small := 0
	for now < Instant(40*time.Second) {
		now += Instant(every)
		for len(run) > 0 && run[0].end <= now {
			c.Release(now, run[0].t, &out)
			run = run[1:]
		}
		k := &Ticket{Target: target, PromptTokens: 160, Class: "small"}
		c.Arrive(now, k, &out)
		if k.state == stateGranted {
			out = append(out, k)
		}
		if big == nil && now >= bigAt {
			big = &Ticket{Target: target, PromptTokens: 700 * 16, Class: "big"}
			if c.Arrive(now, big, &out); big.state != stateQueued {
				t.Fatal("the large request did not have to wait")
			}
		}
		for _, g := range out {
			c.EndPrefill(now, g, &[]*Ticket{})
			if g == big {
				if waited := now.Sub(bigAt); waited > 5*time.Second+runs+2*every {
					t.Fatalf("served after %s", waited)
				}
				if c.fences != 1 || c.modelGroups[0].fence.owner != nil {
					t.Fatalf("%d fences; one is left: %t", c.fences, c.modelGroups[0].fence.owner != nil)
				}
				if small == 0 {
					t.Fatal("no small request was served meanwhile")
				}
				return
			}
			if big != nil {
				small++
			}
			ends[g] = now.Add(runs)
			run = append(run, running{g, now.Add(runs)})
		}
		out = out[:0]
	}
	t.Fatal("never served")
}

// The fence as a story: who may pass it, who may not, that it moves, and that it
// ends with its owner.
func TestFence(t *testing.T) {
	const begin = `
class big dfrac=1
class small dfrac=1
class tiny dfrac=1
class now dfrac=1 reqs=0
limits queue=20 timeout=600s guard=5s
add p1 prefill
add d1 decode kv=100 block=1
arrive a tokens=60 class=small => a granted p1 d1
arrive b tokens=90 class=big => b queued
sleep 4s
arrive c tokens=10 class=small => c granted p1 d1
sleep 2s
`
	story(t, begin+`
# Others were granted while b was blocked: d1 is fenced.
arrive d tokens=10 class=small => d queued
arrive e tokens=10 class=now => e refused class_queue_full fence depth=0 waited=0s retry=5s class=now limit=requests:0/0
release c
# b would still fit beside it: 90 of 100 and 10.
arrive f tokens=1 class=tiny => f queued
release a => b granted p1 d1; f granted p1 d1
release f => d granted p1 d1
`)
	story(t, begin+`
arrive d tokens=10 class=small => d queued
add d2 decode kv=120 block=1 => b granted p1 d2; d granted p1 d1
`)
	story(t, begin+`
arrive d tokens=10 class=small => d queued
# The owner leaves: what it kept is free.
cancel b => d granted p1 d1
`)
	story(t, begin+`
arrive d tokens=10 class=small => d queued
# The fenced rank is lost: the fence moves, and what took its place fits b.
begin
remove d1
add d3 decode kv=80 block=1
commit => b granted p1 d3
arrive e tokens=1 class=small => e queued
release b => d granted p1 d3; e granted p1 d3
`)
	// The guard off: small ones pass for ever.
	story(t, `
class big dfrac=1
class small dfrac=1
limits queue=20 timeout=600s
add p1 prefill
add d1 decode kv=100 block=1
arrive a tokens=60 class=small => a granted p1 d1
arrive b tokens=90 class=big => b queued
sleep 100s
arrive c tokens=10 class=small => c granted p1 d1
sleep 100s
arrive d tokens=10 class=small => d granted p1 d1
`)
}

// A head that waits for a worker to come cannot have a fence, and keeps nobody else from
// having one. When its worker has come, it is overtaken like others.
func TestFenceIsNotForAHeadWithoutCandidate(t *testing.T) {
	story(t, `
class big dfrac=1 tokens=0
class small dfrac=1
limits queue=20 timeout=600s guard=5s nowait=600s
add p1 prefill
add d1 decode kv=100 block=1
arrive x tokens=90 class=big dpin=d2 => x queued
arrive a tokens=60 class=small => a granted p1 d1
arrive b tokens=90 class=big => b queued
sleep 4s
arrive c tokens=10 class=small => c granted p1 d1
sleep 2s
arrive d tokens=10 class=small => d queued
release c
release a => b granted p1 d1; d granted p1 d1
release b
release d
arrive f tokens=10 class=small => f granted p1 d1
add d2 decode kv=100 block=1
# Others were granted since x is blocked.
arrive e tokens=10 class=small => e queued
release f => x granted p1 d2; e granted p1 d1
`)
}

// A pair in quarantine is not served while another is left: a fence on it moves.
func TestFenceLeavesAPairInQuarantine(t *testing.T) {
	story(t, `
class big dfrac=1
class small dfrac=1
limits queue=20 timeout=600s guard=5s
add p1 prefill
add d1 decode kv=100 block=1
add d2 decode kv=80 block=1
arrive a tokens=60 class=small => a granted p1 d1
arrive x tokens=50 class=small => x granted p1 d2
arrive b tokens=90 class=big => b queued
sleep 4s
arrive c tokens=10 class=small => c granted p1 d1
sleep 2s
# d1 is fenced, where b lacks 60 of 100 blocks; on d2 it lacks 60 of 80.
arrive d tokens=10 class=small => d granted p1 d2
quarantine p1 d1
arrive e tokens=10 class=small => e queued
release x
release d => b granted p1 d2
endQuarantine p1 d1 => e granted p1 d1
`)
}

// When a drain refuses the owner of a fence, who was kept off by it starts in the same
// step, also where the queue was looked at before.
func TestFenceEndsWithARefusedOwner(t *testing.T) {
	story(t, `
class big dfrac=1
class small dfrac=1
limits slots=2 queue=20 timeout=600s guard=5s
add p1 prefill
add d1 decode kv=100 block=1
add d2 decode kv=100 block=1
arrive a tokens=60 class=small dpin=d1 => a granted p1 d1
endprefill a
arrive b tokens=90 class=big dpin=d1 => b queued
sleep 4s
arrive c tokens=10 class=small dpin=d1 => c granted p1 d1
sleep 2s
# The last slot of p1 is kept for b.
arrive d tokens=10 class=small dpin=d2 => d queued
reject blocks=0.5 => b refused all_overloaded overloaded depth=0 waited=6s retry=5s; d granted p1 d2
`)
}

// fencePolicy checks each booking on a fenced rank: its owner must still fit.
type fencePolicy struct {
	leastLoaded
	w *fenceWorld
}

func (p *fencePolicy) Booked(i int, _ *Hint) {
	c := p.w.core
	r := c.ranks[i]
	for _, f := range c.modelGroups {
		x := f.fence
		if x.owner == nil || x.prefill != r && x.decode != r || !p.w.was[x.owner] {
			continue
		}
		m, fence := p.w.look()
		if !m.ownerFits(fence[f], m.find(r)) && p.w.bad == nil {
			p.w.bad = fmt.Errorf("%s was booked, though then the fence's owner does not fit", r.id)
		}
	}
}

// fenceWorld drives a core with a guard. The reference only looks: at what waits
// though it could start, at whom a fence is taken from, at what is booked
// inside.
type fenceWorld struct {
	core    *Core
	now     Instant
	tickets []*refTicket
	was     map[*Ticket]bool // owners of a fence before this step
	bad     error
	fences  int
}

// look is the reference's view of the core.
func (w *fenceWorld) look() (*reference, map[*modelGroup]*refFence) {
	c := w.core
	m := &reference{limits: c.limits, strict: !c.laned}
	for _, r := range c.ranks {
		if r != nil {
			m.ranks = append(m.ranks, &refRank{
				real: r, state: r.state, slots: r.slots, legs: r.prefill, pending: r.pending, active: r.active,
				tokens: r.tokens, blocks: [2]int64{r.blocksPending, r.blocksActive}, probes: r.probes,
			})
		}
	}
	for _, k := range w.tickets {
		if k.queued = k.real.state == stateQueued; k.queued || k.real.class != nil {
			k.target = k.real.Target
			k.class, k.orderBy, k.weight, k.arrival, k.seq = &k.real.class.Class, k.real.orderBy, k.real.weight, k.real.arrival, k.real.seq
		}
		if k.queued {
			k.queue = k.key()
			m.waiters = append(m.waiters, k)
		}
	}
	fences := map[*modelGroup]*refFence{}
	for _, f := range c.modelGroups {
		if o := f.fence.owner; o != nil {
			x := &refFence{owner: w.ref(o)}
			if f.fence.prefill != nil {
				x.prefill = m.find(f.fence.prefill)
			}
			if f.fence.decode != nil {
				x.decode = m.find(f.fence.decode)
			}
			fences[f] = x
		}
	}
	return m, fences
}

func (w *fenceWorld) ref(t *Ticket) *refTicket {
	for _, k := range w.tickets {
		if k.real == t {
			return k
		}
	}
	return nil
}

func (w *fenceWorld) check(t *rapid.T) {
	if w.bad != nil {
		t.Fatal(w.bad)
	}
	if err := checkIndexes(w.core); err != nil {
		t.Fatal(err)
	}
	m, fences := w.look()
	owners := map[*Ticket]bool{}
	for _, x := range fences {
		owners[x.owner.real] = true
		if !w.was[x.owner.real] {
			w.fences++
		}
	}
	for o := range w.was {
		if o.state == stateQueued && !owners[o] {
			t.Fatal("a fence was taken from its owner")
		}
	}
	w.was = owners
	for _, k := range m.waiters {
		x := fences[k.target.model.modelGroup]
		h := m.laneHead(k)
		if (h == nil || k.ahead(h) || x != nil && x.owner == k) && len(m.openTo(k, x)) > 0 {
			t.Fatalf("a head waits though it has room (fence: %t)", x != nil)
		}
	}
	if w.core.missed != 0 {
		t.Fatal("an event was missed")
	}
}

// TestFenceModel is a hunt for lost wake-ups, overbooked fences and fences taken
// away, under random steps.
func TestFenceModel(t *testing.T) {
	fences := 0
	rapid.Check(t, func(rt *rapid.T) {
		w := &fenceWorld{now: 1}
		o := Options{
			Limits:    Limits{QueueSize: 30, StarvationGuard: time.Second, PrefillSlots: rapid.IntRange(0, 3).Draw(rt, "slots")},
			QueueMode: rapid.SampledFrom([]QueueMode{QueueLanes, QueueAuto}).Draw(rt, "order"),
			NewPolicy: func(string, Role) Policy { return &fencePolicy{w: w} },
			Classes: &Classes{Root: &Profile{Classes: []Class{
				{Name: "a", Quantum: 100, DecodeBusyFrac: new(0.8), PrefillBusyTokens: maybe[int64](rt, "tokens", 100, 300), BusyWorkerRatio: maybe(rt, "ratio", 0.5)},
				{Name: "b", Quantum: 10, DecodeBusyFrac: maybe(rt, "blocks", 0.4, 1), PrefillBusyTokens: maybe[int64](rt, "tokens", 0, 500)},
				{Name: "n", Quantum: 10, DecodeBusyFrac: new(1.0), RequestLimitPerWorker: new(0.0)},
			}}},
		}
		w.core = NewCore(o)
		var all []*Rank
		add := func(role Role) Change {
			r := NewRank(RankSpec{
				ID: fmt.Sprint(role, len(all)), Role: role, State: RankState{Healthy: true},
				Models:    rapid.SampledFrom([][]string{{"m"}, {"m"}, {"m"}, {"m", "n"}}).Draw(rt, "models"),
				PairGroup: rapid.SampledFrom([]string{"x", "x", "x", "y"}).Draw(rt, "group"),
				Topology:  rapid.SampledFrom([]string{"r", "s"}).Draw(rt, "topology"),
				Capacity:  Capacity{KVBlocks: rapid.SampledFrom([]int64{40, 30, 0}).Draw(rt, "blocks"), BlockSize: 16, MaxRunning: 3},
			})
			all = append(all, r)
			return Change{Op: AddRank, Rank: r}
		}
		var first []Change
		for _, role := range []Role{RolePrefill, RolePrefill, RoleDecode, RoleDecode, RoleRegular} {
			first = append(first, add(role))
		}
		w.core.Apply(w.now, first, &[]*Ticket{})
		some := func(ok func(*refTicket) bool) *refTicket {
			var of []*refTicket
			for _, k := range w.tickets {
				if ok(k) {
					of = append(of, k)
				}
			}
			if len(of) == 0 {
				rt.Skip("nobody")
			}
			return of[rapid.IntRange(0, len(of)-1).Draw(rt, "request")]
		}
		granted := func(k *refTicket) bool { return k.real.state == stateGranted }
		arrive := func(rt *rapid.T) {
			spec := TargetSpec{Model: "m", Shape: rapid.SampledFrom([]Shape{Disaggregated, Disaggregated, Disaggregated, Aggregated, Bypass}).Draw(rt, "shape")}
			spec.Topology = rapid.SampledFrom([]Topology{TopologyAny, TopologyAny, TopologyRequired}).Draw(rt, "domain")
			target := w.core.Resolve(spec)
			if target == nil {
				rt.Skip("no rank")
			}
			k := &refTicket{model: "m", real: &Ticket{
				Target: target, Class: rapid.SampledFrom([]string{"a", "b", "n"}).Draw(rt, "class"),
				PromptTokens: rapid.SampledFrom([]int64{16, 32, 100, 450}).Draw(rt, "prompt"),
			}}
			w.tickets = append(w.tickets, k)
			w.core.Arrive(w.now, k.real, &[]*Ticket{})
		}
		end := func(rt *rapid.T) { w.core.Release(w.now, some(granted).real, &[]*Ticket{}) }
		rt.Repeat(map[string]func(*rapid.T){
			"arrive":     arrive,
			"arrive too": arrive,
			"and again":  arrive,
			"release":    end,
			"prefilled":  func(rt *rapid.T) { w.core.EndPrefill(w.now, some(granted).real, &[]*Ticket{}) },
			"first":      func(rt *rapid.T) { w.core.FirstToken(w.now, some(granted).real, &[]*Ticket{}) },
			"grow":       func(rt *rapid.T) { w.core.Grow(w.now, some(granted).real, 3, &[]*Ticket{}) },
			"cancel": func(rt *rapid.T) {
				w.core.Cancel(w.now, some(func(k *refTicket) bool { return k.real.state == stateQueued }).real, &[]*Ticket{})
			},
			"pass": func(rt *rapid.T) { w.now = w.now.Add(700 * time.Millisecond) },
			"recheck": func(rt *rapid.T) {
				w.now = w.now.Add(400 * time.Millisecond)
				w.core.Advance(w.now, &[]*Ticket{})
			},
			"fleet": func(rt *rapid.T) {
				i := rapid.IntRange(0, len(all)-1).Draw(rt, "rank")
				old := all[i]
				if !old.present {
					rt.Skip("gone")
				}
				switch rapid.IntRange(0, 3).Draw(rt, "change") {
				case 0:
					w.core.Apply(w.now, []Change{{Op: RemoveRank, Rank: old}, add(old.role)}, &[]*Ticket{})
				case 1:
					w.core.Apply(w.now, []Change{add(old.role)}, &[]*Ticket{})
				case 2:
					w.core.Apply(w.now, []Change{{Op: SetState, Rank: old, State: RankState{Healthy: rapid.Bool().Draw(rt, "up")}}}, &[]*Ticket{})
				case 3:
					if slices.ContainsFunc(all, func(r *Rank) bool { return r != old && r.role == old.role && r.present }) {
						w.core.Apply(w.now, []Change{{Op: RemoveRank, Rank: old}}, &[]*Ticket{})
					}
				}
			},
			"": w.check,
		})
		for _, k := range w.tickets {
			w.core.Cancel(w.now, k.real, &[]*Ticket{})
		}
		for _, k := range w.tickets {
			w.core.Release(w.now, k.real, &[]*Ticket{})
		}
		for _, r := range all {
			if !r.idle() {
				rt.Fatalf("%s still holds: %+v", r.id, r.stats())
			}
		}
		fences += w.fences
	})
	t.Logf("%d fences", fences)
	if fences == 0 && !t.Failed() {
		t.Error("the test tests nothing")
	}
}
