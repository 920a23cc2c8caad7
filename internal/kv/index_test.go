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
