package kv

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func keysOf(s Scope, write func(h *Hasher)) []Key {
	var h Hasher
	h.Reset(s)
	write(&h)
	return h.Keys()
}

func TestKeysDependOnAllThatIsBefore(t *testing.T) {
	body := []byte(strings.Repeat("0123456789abcdef", 8))
	base := Scope{Model: "m", Adapter: "a", Salt: "s", Form: 'c', Size: 16}
	keys := func(s Scope, b []byte) []Key { return keysOf(s, func(h *Hasher) { h.Write(b) }) }
	want := keys(base, body)
	if len(want) != 8 {
		t.Fatalf("%d keys", len(want))
	}
	seen := map[Key]bool{}
	for _, k := range want {
		if seen[k] {
			t.Error("blocks of the same bytes have the same key")
		}
		seen[k] = true
	}
	for _, s := range []Scope{
		{Model: "n", Adapter: "a", Salt: "s", Form: 'c', Size: 16},
		{Model: "m", Adapter: "as", Salt: "", Form: 'c', Size: 16}, // the words run together the same
		{Model: "m", Adapter: "", Salt: "as", Form: 'c', Size: 16},
		{Model: "m", Adapter: "a", Salt: "s", Form: 'd', Size: 16},
		{Model: "m", Adapter: "a", Salt: "s", Form: 'c', Size: 32},
	} {
		for _, k := range keys(s, body) {
			if seen[k] {
				t.Errorf("%+v shares a key", s)
			}
		}
	}
	changed := bytes.Clone(body)
	changed[3*16+5]++
	for i, k := range keys(base, changed) {
		if (k == want[i]) != (i < 3) {
			t.Errorf("key %d, with a change in block 3", i)
		}
	}
	if got := keys(base, body[:len(body)-1]); !slices.Equal(got, want[:7]) {
		t.Error("a block that is not whole has a key")
	}
}

func TestKeysDoNotDependOnThePieces(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	body := make([]byte, 5000)
	for i := range body {
		body[i] = byte(rnd.Uint32())
	}
	s := Scope{Model: "m", Size: 64}
	whole := keysOf(s, func(h *Hasher) { h.Write(body) })
	for range 100 {
		pieces := keysOf(s, func(h *Hasher) {
			for b := body; len(b) > 0; {
				n := min(len(b), rnd.IntN(200))
				h.Write(b[:n])
				b = b[n:]
			}
		})
		if !slices.Equal(pieces, whole) {
			t.Fatal("other keys")
		}
	}
	ids := make([]uint32, 300)
	s = Scope{Model: "m", Form: FormTokens, Size: 16}
	all := keysOf(s, func(h *Hasher) { h.WriteTokens(ids) })
	two := keysOf(s, func(h *Hasher) { h.WriteTokens(ids[:7]); h.WriteTokens(ids[7:]) })
	if len(all) != 300/16 || !slices.Equal(all, two) {
		t.Errorf("%d keys of 300 ids, %d in two pieces", len(all), len(two))
	}
}

func TestAnItemCountsByItsWeight(t *testing.T) {
	s := Scope{Model: "m", Size: 64}
	item := func(ref string, weight int) []Key {
		return keysOf(s, func(h *Hasher) {
			h.WriteItem([]byte(ref), weight)
			h.Write(make([]byte, 64))
		})
	}
	a, b := item("http://a", 640), item("http://b", 640)
	if len(a) != 11 || len(b) != 11 {
		t.Fatalf("%d and %d keys, want 11", len(a), len(b))
	}
	for i := range a {
		if a[i] == b[i] {
			t.Errorf("key %d does not depend on the item", i)
		}
	}
	if got := item(strings.Repeat("x", 1<<20), 64); len(got) != 2 {
		t.Errorf("%d keys of an item of 64 bytes", len(got))
	}
}

func TestTheLimitOfKeysHolds(t *testing.T) {
	var h Hasher
	h.Limit = 5
	h.Reset(Scope{Size: 16})
	h.Write(make([]byte, 100))
	h.WriteItem(nil, 1<<40)
	h.Write(make([]byte, 1<<20))
	if n := len(h.Keys()); n != 5 || cap(h.part) > 64 {
		t.Errorf("%d keys, %d bytes are kept", n, cap(h.part))
	}
}

func TestKeysOfTwoProcessesMeetOnlyWithTheSameSecret(t *testing.T) {
	s := Scope{Model: "m", Size: 16}
	keys := func() []Key { return keysOf(s, func(h *Hasher) { h.Write(make([]byte, 64)) }) }
	t.Cleanup(func() { SetHashKey(randomKey()) })
	random := keys()
	SetHashKey([]byte("secret"))
	first := keys()
	SetHashKey([]byte("another"))
	other := keys()
	SetHashKey([]byte("secret"))
	if again := keys(); !slices.Equal(again, first) {
		t.Error("the same secret gives other keys")
	}
	if first[0] == random[0] || first[0] == other[0] {
		t.Error("another secret gives the same keys")
	}
}

func TestHashingAllocatesNothing(t *testing.T) {
	body := make([]byte, 10_000)
	ids := make([]uint32, 1000)
	var h Hasher
	n := testing.AllocsPerRun(100, func() {
		h.Reset(Scope{Model: "m", Size: 256})
		h.Write(body)
		h.WriteItem(body, 1000)
		h.Reset(Scope{Model: "m", Form: FormTokens, Size: 16})
		h.WriteTokens(ids)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
