package admission

import (
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// The least loaded member of any set, against a scan, while ranks come, go, are
// booked, and the tree grows.
func TestLoadTree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tree loadTree
		n := 64
		scale := rapid.SampledFrom([]int{0, 0, 34, 36}).Draw(t, "scale")
		pace := rapid.SampledFrom([]uint64{1, 1, maxSeq / 7}).Draw(t, "pace")
		group, in := map[int]int{}, map[int]bool{}
		size := map[int]int{}
		for step := range uint64(rapid.IntRange(1, 60).Draw(t, "steps")) {
			i := rapid.IntRange(0, n-1).Draw(t, "rank")
			g, known := group[i]
			switch op := rapid.IntRange(0, 6).Draw(t, "op"); {
			case op == 0 && n < 1024:
				n *= 2
				if tree.leaves > 0 {
					tree.grow(n)
				}
			case op == 1 && known:
				tree.put(i, g, 0, 0, false)
				delete(group, i)
				delete(in, i)
				if size[g]--; size[g] == 0 {
					tree.leave(g)
				}
			default:
				if !known {
					g = rapid.IntRange(0, 2).Draw(t, "group")
					group[i] = g
					size[g]++
					tree.join(g, n)
				}
				in[i] = rapid.IntRange(0, 3).Draw(t, "room") > 0
				tree.put(i, g, int64(rapid.IntRange(0, 3).Draw(t, "load"))<<scale, pace*step*uint64(rapid.IntRange(0, 1).Draw(t, "booked")), in[i])
			}
			set := make(bitmap, n/64)
			members := 0
			keep := rapid.IntRange(0, 3).Draw(t, "keep")
			for i, room := range in {
				if room && (keep == 0 || (i*7+int(step))%4 < keep) {
					set.set(i)
					members++
				}
			}
			for _, count := range []int{members, fewRanks + 1} {
				groups := make([]bitmap, 3)
				for g := range groups {
					groups[g] = make(bitmap, n/64)
				}
				only := -1
				for i, g := range group {
					groups[g].set(i)
					if set.has(i) {
						only = g
					}
				}
				if only >= 0 && (!onlyIn(set, groups[only]) || step%2 == 0) {
					only = -1
				}
				got, want := tree.min(set, count, only, &groups), -1
				for i := range in {
					if set.has(i) && (want < 0 || tree.keys[i] < tree.keys[want]) {
						want = i
					}
				}
				if (got < 0) != (want < 0) || got >= 0 && (!set.has(got) || tree.keys[got] != tree.keys[want]) {
					t.Fatalf("min of %d is %d, want %d", members, got, want)
				}
			}
		}
	})
}

// Ranks of equal load take turns however many bookings there have been: their order has few
// bits, and is renumbered.
func TestLoadTreeOrdersBookingsForever(t *testing.T) {
	var tree loadTree
	const n = 64
	tree.join(0, n)
	all := make(bitmap, 1)
	for i := range n {
		tree.put(i, 0, 0, 0, true)
		all.set(i)
	}
	seq := uint64(1 << 60)
	for turn := range 3 * n {
		got := tree.min(all, n, -1, &[]bitmap{all})
		if got != turn%n {
			t.Fatalf("turn %d is %d", turn, got)
		}
		seq += maxSeq / (3 * n)
		if turn%50 == 49 {
			seq += maxSeq / 8
		}
		tree.put(got, 0, 0, seq, true)
		if tree.load(got) != 0 {
			t.Fatalf("the order of bookings became a load of %d", tree.load(got))
		}
	}
}

// The ranks that fit, against a scan of a fleet of many words, with two block
// sizes, three fractions and capacities that grow.
func TestFittingAgreesWithAScan(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewCore(Options{Classes: &Classes{Root: &Profile{Classes: []Class{
			{Name: "a", Quantum: 1, DecodeBusyFrac: new(0.5)}, {Name: "b", Quantum: 1, DecodeBusyFrac: new(0.9)}, {Name: "c", Quantum: 1, DecodeBusyFrac: new(1.0)},
		}}}})
		var out []*Ticket
		n := rapid.IntRange(1, 300).Draw(t, "ranks")
		sizes := rapid.SampledFrom([][]int64{{16}, {16, 64}}).Draw(t, "block sizes")
		var ranks []*Rank
		attributes := func(i int) RankAttributes {
			return RankAttributes{Models: []string{"m"}, Capacity: Capacity{
				KVBlocks: int64(rapid.IntRange(0, 5000).Draw(t, "blocks")), BlockSize: sizes[i%len(sizes)], MaxRunning: 1,
			}}
		}
		var add []Change
		for i := range n {
			f := attributes(i)
			r := NewRank(RankSpec{ID: strconv.Itoa(i), Role: RoleRegular, Models: f.Models, Capacity: f.Capacity, State: RankState{Healthy: true}})
			ranks = append(ranks, r)
			add = append(add, Change{Op: AddRank, Rank: r})
		}
		c.Apply(1, add, &out)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			i := rapid.IntRange(0, n-1).Draw(t, "rank")
			r := ranks[i]
			switch rapid.IntRange(0, 5).Draw(t, "op") {
			case 0:
				c.Apply(1, []Change{{Op: SetAttributes, Rank: r, Attributes: attributes(i)}}, &out)
			case 1:
				c.Apply(1, []Change{{Op: SetState, Rank: r, State: RankState{Healthy: rapid.Bool().Draw(t, "up")}}}, &out)
			default:
				k := &Ticket{Target: c.models["m"].targets[Aggregated], Decode: r, Legs: rapid.IntRange(1, 3).Draw(t, "legs")}
				k.PromptTokens = int64(rapid.IntRange(0, 30_000).Draw(t, "prompt"))
				c.book(k)
			}
			k := &Ticket{Target: c.models["m"].targets[Aggregated], PromptTokens: int64(rapid.IntRange(0, 90_000).Draw(t, "asks for"))}
			p := c.models["m"].pools[RoleRegular]
			for g := range c.blockThresholds {
				var left candidates
				c.chooser.all(k.Target, &left)
				*left.of(DecodeLeg) = rankSet{set: p.room, n: p.roomN}
				c.chooser.fitting(k, &left, g)
				got, count := left.of(DecodeLeg).set, left.of(DecodeLeg).count()
				want := 0
				for j, o := range ranks {
					need := (k.PromptTokens + o.blockSize() - 1) / o.blockSize()
					fits := o.state.Healthy && plainFits(c, o, c.blockThresholds[g].frac, need)
					if got.has(o.index) != fits {
						t.Fatalf("rank %d of %d: %t, want %t", j, n, !fits, fits)
					}
					want += b2i(fits)
				}
				if count != want {
					t.Fatalf("%d ranks fit, want %d", count, want)
				}
			}
		}
	})
}

func onlyIn(set, group bitmap) bool {
	rest := append(bitmap(nil), set...)
	rest.subtract(rest, group)
	return rest.empty()
}

// The n-th rank with room, with so many ranks that blocks of words are skipped.
func TestNthRoom(t *testing.T) {
	g := benchGate(t, 1500, 1, 0, 1, newLeast)
	p := g.core.models["m"].pools[RolePrefill]
	for i := range 700 {
		k := g.disaggregated()
		k.Target = g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated, Pins: [numLegs]string{"http://prefill-" + strconv.Itoa(i*31%1500), ""}})
		if err := g.Acquire(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	if p.roomN != 800 || p.nthRoom(p.roomN) != -1 {
		t.Fatal(p.roomN)
	}
	if err := checkIndexes(g.core); err != nil {
		t.Fatal(err)
	}
}

func TestBitmap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := make(bitmap, rapid.IntRange(1, 4).Draw(t, "words"))
		var members []int
		for i := range len(b) * 64 {
			if rapid.IntRange(0, 9).Draw(t, "in") == 9 {
				b.set(i)
				members = append(members, i)
			}
		}
		if b.count() != len(members) || b.empty() != (len(members) == 0) {
			t.Fatalf("count %d of %d", b.count(), len(members))
		}
		for n, want := range members {
			if got := b.nth(n); got != want {
				t.Fatalf("nth(%d) = %d, want %d", n, got, want)
			}
		}
		if b.nth(len(members)) != -1 {
			t.Fatal("nth beyond the end")
		}
		after := rapid.IntRange(-2, len(b)*64+1).Draw(t, "after")
		want := -1
		for k := range len(b) * 64 { // the first member after it, in a circle
			i := (max(after, -1) + 1 + k) % (len(b) * 64)
			if after >= len(b)*64 {
				i = k
			}
			if b.has(i) {
				want = i
				break
			}
		}
		if got := b.next(after); got != want {
			t.Fatalf("next(%d) = %d, want %d", after, got, want)
		}
	})
}
