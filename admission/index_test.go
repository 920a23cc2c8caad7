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
				tree.put(i, g, int64(rapid.IntRange(0, 3).Draw(t, "load")), step*uint64(rapid.IntRange(0, 1).Draw(t, "booked")), in[i])
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

func onlyIn(set, group bitmap) bool {
	rest := append(bitmap(nil), set...)
	rest.andNot(group)
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
