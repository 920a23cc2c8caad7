package kv

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/sluice-router/sluice/internal/kv/events"
)

// randomEvent stores up to 100 blocks that nobody else has, after a block that was never told
// if orphan is true.
func randomEvent(rnd *rand.Rand, orphan bool) *events.Stored {
	s := &events.Stored{BlockSize: 4, HasParent: orphan, Parent: rnd.Uint64()}
	for range 1 + rnd.IntN(100) {
		s.Hashes = append(s.Hashes, rnd.Uint64())
		s.Tokens = append(s.Tokens, rnd.Uint32(), 1, 2, 3)
	}
	return s
}

// The bound holds after each step while ranks come and go and no prompt is like another, as
// it must for a router that runs for months: what a rank held that is gone comes back.
func TestTheMemoryStaysUnderItsBound(t *testing.T) {
	const limit = 2 << 20
	x := New(Options{MaxBytes: limit})
	rnd := rand.New(rand.NewPCG(1, 2))
	common := randomChain(rnd, nil, 16)
	var ranks []*Rank
	for range 60 {
		ranks = append(ranks, x.Add(RankSpec{}))
	}
	var streams []*Exact
	for range 4 {
		e := NewExact(x, RankSpec{}, "m")
		streams = append(streams, e)
	}
	for i := range 1500 {
		r := &ranks[rnd.IntN(len(ranks))]
		switch i % 20 {
		case 0:
			x.Drop(*r)
			*r = x.Add(RankSpec{})
		case 1:
			x.Clear(*r)
		}
		x.Store(*r, randomChain(rnd, common, rnd.IntN(200)))
		streams[i%4].Stored(randomEvent(rnd, rnd.IntN(3) == 0))
		if n := x.used.Load(); n > limit {
			t.Fatalf("step %d: %d bytes may be taken", i, n)
		}
		if i%50 == 0 {
			if s := x.Stats(); s.Bytes > limit {
				t.Fatalf("step %d: %d bytes are taken", i, s.Bytes)
			}
		}
	}
	s := x.Stats()
	if s.EvictedMemory == 0 || s.Bytes < limit/2 {
		t.Errorf("the bound was never reached: %+v", s)
	}
	for _, r := range ranks {
		x.Drop(r)
	}
	for _, e := range streams {
		e.Drop()
	}
	for x.graves.waiting.Load() > 0 {
		x.sweep(1000)
	}
	if s := x.Stats(); s.Distinct != 0 || s.Bytes > int64(len(x.table.shards))*(shardBytes+minArena*8) {
		t.Errorf("%+v is left", s)
	}
}

// The rank that holds most gives up its oldest, so that others keep what they have.
func TestTheFullestRankGivesWay(t *testing.T) {
	x := New(Options{MaxBytes: 1 << 20})
	rnd := rand.New(rand.NewPCG(1, 2))
	small, large := x.Add(RankSpec{}), x.Add(RankSpec{})
	kept := randomChain(rnd, nil, 100)
	x.Store(small, kept)
	var last []Key
	for range 1000 {
		last = randomChain(rnd, nil, 100)
		x.Store(large, last)
	}
	if small.Held() != 100 {
		t.Errorf("%d blocks of the small rank are left", small.Held())
	}
	if got := x.Match(last, 0, nil, nil); len(got) != 1 || got[0].Blocks != 100 {
		t.Errorf("of the prompt that came last: %v", got)
	}
}

// What is counted is what the heap has: a bound on the one is a bound on the other.
func TestTheMemoryIsCountedRight(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	common := randomChain(rnd, nil, 32)
	before := heapNow()
	x := New(Options{MaxBytes: 1 << 30})
	for range 50 {
		r := x.Add(RankSpec{})
		e := NewExact(x, RankSpec{}, "m")
		for range 50 {
			x.Store(r, randomChain(rnd, common, 96))
			e.Stored(randomEvent(rnd, false))
		}
	}
	heap, s := heapNow()-before, x.Stats()
	t.Logf("%d bytes of heap, %d counted, %d at worst, for %d blocks held, %d distinct", heap, s.Bytes, x.used.Load(), s.Held, s.Distinct)
	if limit := s.Bytes + s.Bytes/8 + 1<<20; heap > limit {
		t.Errorf("the heap has grown by %d bytes, %d are counted", heap, s.Bytes)
	}
	if s.Bytes > x.used.Load() {
		t.Errorf("%d bytes are taken, %d at worst", s.Bytes, x.used.Load())
	}
	runtime.KeepAlive(x)
}
