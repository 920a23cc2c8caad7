package kv

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model is an index as plain as can be: what the real one must agree with.
type model struct {
	ranks []*modelRank
}

type modelRank struct {
	group Group
	bound int
	// order has the blocks from the one stored last to the oldest, ghosts among them.
	order []*modelBlock
}

type modelBlock struct {
	key    Key
	parent *modelBlock
	ghost  bool
}

func (r *modelRank) find(k Key) *modelBlock {
	for _, b := range r.order {
		if b.key == k {
			return b
		}
	}
	return nil
}

func (r *modelRank) kids(b *modelBlock) (n int) {
	for _, o := range r.order {
		if o.parent == b {
			n++
		}
	}
	return n
}

func (r *modelRank) store(keys []Key) (added int) {
	added = len(keys)
	var before *modelBlock
	for i, k := range keys {
		b := r.find(k)
		switch {
		case b != nil && !b.ghost:
			if added == len(keys)-i {
				added--
			}
		case b == nil:
			for r.bound > 0 && len(r.order) >= r.bound {
				last := r.order[len(r.order)-1]
				if last == before || r.kids(last) > 0 {
					return added
				}
				r.drop(last)
			}
			b = &modelBlock{key: k, parent: before}
		}
		b.ghost = false
		r.order = slices.DeleteFunc(r.order, func(o *modelBlock) bool { return o == b })
		r.order = slices.Insert(r.order, slices.Index(r.order, before)+1, b)
		before = b
	}
	return added
}

func (r *modelRank) drop(b *modelBlock) {
	r.order = slices.DeleteFunc(r.order, func(o *modelBlock) bool { return o == b })
	if p := b.parent; p != nil && p.ghost && r.kids(p) == 0 {
		r.drop(p)
	}
}

func (r *modelRank) remove(k Key) {
	if b := r.find(k); b != nil && !b.ghost {
		if b.ghost = r.kids(b) > 0; !b.ghost {
			r.drop(b)
		}
	}
}

func (r *modelRank) undo(keys []Key, added int) {
	for i := len(keys) - 1; i >= len(keys)-added; i-- {
		b := r.find(keys[i])
		if b == nil {
			continue
		}
		if r.kids(b) > 0 {
			return
		}
		r.drop(b)
	}
}

func (r *modelRank) depth(keys []Key) (n int) {
	for n < len(keys) {
		if b := r.find(keys[n]); b == nil || b.ghost {
			break
		}
		n++
	}
	return n
}

func (r *modelRank) setBound(n int) {
	r.bound = n
	for n > 0 && len(r.order) > n {
		r.drop(r.order[len(r.order)-1])
	}
}

// chain draws the keys of a prompt: there are few, with common beginnings.
func chain(t *rapid.T) []Key {
	h := uint64(0)
	var keys []Key
	for range rapid.IntRange(1, 24).Draw(t, "length") {
		turn := uint64(0)
		if len(keys)%4 == 0 {
			turn = rapid.Uint64Range(0, 1).Draw(t, "turn")
		}
		h = (h*4 + turn + 1) * 0xff51afd7ed558ccd
		h ^= h >> 33
		keys = append(keys, Key(h))
	}
	return keys
}

func TestTheIndexAgreesWithAPlainOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := newIndex(Options{}, 2)
		var ranks []*Rank
		var m model
		pick := func(t *rapid.T) int { return rapid.IntRange(0, len(ranks)-1).Draw(t, "rank") }
		add := func(t *rapid.T) {
			g, n := Group(rapid.IntRange(0, 1).Draw(t, "group")), rapid.SampledFrom([]int{0, 0, 3, 10, 30}).Draw(t, "bound")
			ranks = append(ranks, x.Add(RankSpec{Group: g, Blocks: n}))
			m.ranks = append(m.ranks, &modelRank{group: g, bound: n})
		}
		add(t)
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				if len(ranks) < 12 {
					add(t)
				}
			},
			"drop": func(t *rapid.T) {
				if len(ranks) > 1 {
					i := pick(t)
					x.Drop(ranks[i])
					x.Store(ranks[i], chain(t)) // ignored
					ranks, m.ranks = slices.Delete(ranks, i, i+1), slices.Delete(m.ranks, i, i+1)
				}
			},
			"clear": func(t *rapid.T) {
				i := pick(t)
				x.Clear(ranks[i])
				m.ranks[i].order = nil
			},
			"store": func(t *rapid.T) {
				i, keys := pick(t), chain(t)
				got, want := x.Record(ranks[i], keys), m.ranks[i].store(keys)
				if got != want {
					t.Fatalf("Record: %d new, want %d", got, want)
				}
			},
			"recordAndUndo": func(t *rapid.T) {
				i, keys, more := pick(t), chain(t), chain(t)
				got, want := x.Record(ranks[i], keys), m.ranks[i].store(keys)
				if rapid.Bool().Draw(t, "another") {
					x.Store(ranks[i], more)
					m.ranks[i].store(more)
				}
				x.Undo(ranks[i], keys, got)
				m.ranks[i].undo(keys, want)
			},
			"remove": func(t *rapid.T) {
				i, keys := pick(t), chain(t)
				at := rapid.IntRange(0, len(keys)-1).Draw(t, "from")
				x.Remove(ranks[i], keys[at:])
				for _, k := range keys[at:] {
					m.ranks[i].remove(k)
				}
			},
			"removeOne": func(t *rapid.T) {
				i, keys := pick(t), chain(t)
				at := rapid.IntRange(0, len(keys)-1).Draw(t, "at")
				x.Remove(ranks[i], keys[at:at+1])
				m.ranks[i].remove(keys[at])
			},
			"bound": func(t *rapid.T) {
				i, n := pick(t), rapid.SampledFrom([]int{0, 1, 5, 20}).Draw(t, "blocks")
				x.SetBlocks(ranks[i], n)
				m.ranks[i].setBound(n)
			},
			"": func(t *rapid.T) {
				for range 3 {
					compare(t, x, ranks, m.ranks, chain(t))
				}
				held := 0
				distinct := map[Key]bool{}
				for i, r := range m.ranks {
					n := 0
					for _, b := range r.order {
						if !b.ghost {
							n++
							distinct[b.key] = true
						}
					}
					if ranks[i].Held() != n {
						t.Fatalf("rank %d holds %d blocks, want %d", i, ranks[i].Held(), n)
					}
					held += n
				}
				x.sweepNext(1 << 30)
				if s := x.Stats(); s.Held != held || s.Distinct != len(distinct) || x.used.Load() < s.Bytes {
					t.Fatalf("%+v, want %d blocks, %d distinct; %d bytes are counted", s, held, len(distinct), x.used.Load())
				}
			},
		})
		for len(ranks) > 0 {
			x.Drop(ranks[0])
			ranks = ranks[1:]
		}
		x.sweepNext(1 << 30)
		if s := x.Stats(); s.Distinct != 0 || x.used.Load() != int64(len(x.table.shards))*shardBytes+listsLeft(x) {
			t.Fatalf("empty: %+v, %d bytes are counted", s, x.used.Load())
		}
	})
}

func listsLeft(x *Index) (n int64) {
	for i := range x.table.shards {
		n += x.table.shards[i].lists.bytes()
	}
	return n
}

// compare looks a prompt up in both.
func compare(t interface{ Fatalf(string, ...any) }, x *Index, ranks []*Rank, plain []*modelRank, keys []Key) {
	for g := range Group(2) {
		for _, odd := range []bool{false, true} {
			mayUse := func(r *Rank) bool { return !odd || slices.Index(ranks, r)%2 == 1 }
			var want []int
			deep := map[*Rank]int{}
			for i, r := range plain {
				if n := r.depth(keys); n > 0 && r.group == g && mayUse(ranks[i]) {
					want = append(want, n)
					deep[ranks[i]] = n
				}
			}
			slices.SortFunc(want, func(a, b int) int { return b - a })
			want = want[:min(len(want), MaxHolders)]
			var got []int
			for _, h := range x.Match(keys, g, mayUse, nil) {
				got = append(got, h.Blocks)
				if deep[h.Rank] != h.Blocks {
					t.Fatalf("%d blocks are credited, %d held", h.Blocks, deep[h.Rank])
				}
				delete(deep, h.Rank)
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("group %d: found %v, want %v", g, got, want)
			}
		}
	}
}
