package kv

import "testing"

func TestTheLongestHolderIsFirst(t *testing.T) {
	x := New(Options{})
	a, b, c := x.Add(RankSpec{Blocks: 3}), x.Add(RankSpec{}), x.Add(RankSpec{Group: 1})
	var h Hasher
	h.Reset(Scope{Model: "m", Size: 4})
	h.Write([]byte("aaaabbbbccccdddd.."))
	keys := h.Keys()
	x.Store(a, keys)
	x.Store(b, keys[:2])
	x.Store(c, keys)
	got := x.Match(keys, 0, nil, nil)
	if len(keys) != 4 || len(got) != 2 || got[0] != (Holder{a, 3}) || got[1] != (Holder{b, 2}) {
		t.Fatalf("%d keys, %v", len(keys), got)
	}
	got = x.Match(keys, 0, func(r *Rank) bool { return r != a }, got[:0])
	if len(got) != 1 || got[0].Rank != b {
		t.Fatalf("%v", got)
	}
}

// Ranks that hold equally much take turns: else the policy would never see most of those that
// hold a prompt's beginning which all prompts share.
func TestRanksThatHoldEquallyMuchTakeTurns(t *testing.T) {
	x := New(Options{})
	keys := []Key{1, 2, 3}
	for i := range 40 {
		x.Store(x.Add(RankSpec{Data: i}), keys)
	}
	seen := map[any]int{}
	for range 40 {
		for _, h := range x.Match(keys, 0, nil, nil) {
			seen[h.Rank.Data()]++
		}
	}
	for i := range 40 {
		if seen[i] != MaxHolders {
			t.Errorf("rank %d was found %d times, want %d", i, seen[i], MaxHolders)
		}
	}
}

// The ranks that may be used are told apart before the four are chosen, however many others
// hold more.
func TestOnlyRanksThatMayBeUsedCount(t *testing.T) {
	x := New(Options{})
	keys := []Key{1, 2, 3, 4, 5, 6, 7, 8}
	for range 500 {
		x.Store(x.Add(RankSpec{}), keys)
	}
	mine := x.Add(RankSpec{Data: "mine"})
	x.Store(mine, keys[:3])
	asked := 0
	got := x.Match(keys, 0, func(r *Rank) bool { asked++; return r == mine }, nil)
	if len(got) != 1 || got[0] != (Holder{mine, 3}) {
		t.Errorf("%v", got)
	}
	if asked > 501 {
		t.Errorf("%d questions about 501 ranks", asked)
	}
}

func TestMatchAllocatesNothing(t *testing.T) {
	x := New(Options{})
	keys := []Key{1, 2, 3, 4, 5, 6, 7, 8}
	for i := range 20 {
		x.Store(x.Add(RankSpec{}), keys[:1+i%8])
	}
	out := make([]Holder, 0, MaxHolders)
	mayUse := func(*Rank) bool { return true }
	if n := testing.AllocsPerRun(100, func() { out = x.Match(keys, 0, mayUse, out[:0]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
