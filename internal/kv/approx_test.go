package kv

import (
	"math/rand/v2"
	"testing"
)

// engine is the cache of an engine: blocks of prompts, of which the one used least recently
// goes first, the end of a prompt before its beginning.
type engine struct {
	x *Index
	r *Rank
}

func newEngine(blocks int) *engine {
	x := newIndex(Options{}, 4)
	return &engine{x, x.Add(RankSpec{Blocks: blocks})}
}

// run returns how many of a prompt's first blocks were cached.
func (e *engine) run(prompt []Key) (cached int) {
	for _, h := range e.x.Match(prompt, 0, nil, nil) {
		cached = h.Blocks
	}
	e.x.Store(e.r, prompt)
	return cached
}

// conversations runs turns of random conversations with a common beginning on an engine and
// tells a rank of an index about them, which is believed to hold as much as believed says. It
// returns for how many blocks the index takes it in the end, on the average of some time.
func conversations(t *testing.T, believed, holds int) float64 {
	t.Helper()
	const tokens = 64 // a block
	rnd := rand.New(rand.NewPCG(1, 2))
	common := randomChain(rnd, nil, 4)
	var prompts [120][]Key
	for i := range prompts {
		prompts[i] = randomChain(rnd, common, 10+rnd.IntN(10))
	}
	e := newEngine(holds)
	x := newIndex(Options{}, 4)
	r := x.Add(RankSpec{Blocks: believed})
	sum, n := 0, 0
	for turn := range 3_000 {
		p := &prompts[rnd.IntN(len(prompts))]
		*p = randomChain(rnd, *p, rnd.IntN(3))
		if len(*p) > 30 {
			*p = (*p)[:15]
		}
		held := 0
		for _, h := range x.Match(*p, 0, nil, nil) {
			held = h.Blocks
		}
		x.Record(r, *p)
		x.Correct(r, int64(held*tokens), int64(e.run(*p)*tokens))
		if turn > 1_500 {
			sum += r.Bound()
			n++
		}
	}
	return float64(sum) / float64(n) / float64(holds)
}

func TestTheCapacityIsCorrectedByReports(t *testing.T) {
	const holds = 700
	for _, c := range []struct {
		name     string
		believed int
		from, to float64
	}{
		{"as told", holds, 0.9, 1.35},
		{"half of what was told", 2 * holds, 0.9, 1.4},
		{"a tenth of what was told", 10 * holds, 0.9, 1.4},
		{"double what was told", holds / 2, 0.75, 1.35},
		{"not told", 0, 0.9, 1.6},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := conversations(t, c.believed, holds)
			t.Logf("%.2f of the real capacity", got)
			if got < c.from || got > c.to {
				t.Errorf("the rank is taken for %.2f of what it holds, want %v to %v", got, c.from, c.to)
			}
		})
	}
}

func TestAnUndoneRecordLeavesNothing(t *testing.T) {
	x := New(Options{})
	r := x.Add(RankSpec{})
	rnd := rand.New(rand.NewPCG(1, 2))
	first := randomChain(rnd, nil, 4)
	if n := x.Record(r, first); n != 4 {
		t.Fatalf("%d blocks are new", n)
	}
	second := randomChain(rnd, first, 3)
	n := x.Record(r, second)
	third := randomChain(rnd, second[:5], 2)
	more := x.Record(r, third)
	if n != 3 || more != 2 {
		t.Fatalf("%d and %d blocks are new", n, more)
	}
	x.Undo(r, second, n) // the third prompt went on from its first new block
	for _, c := range []struct {
		keys []Key
		want int
	}{{first, 4}, {second, 5}, {third, 7}} {
		if got := x.Match(c.keys, 0, nil, nil); len(got) != 1 || got[0].Blocks != c.want {
			t.Errorf("%v, want %d blocks", got, c.want)
		}
	}
	x.Undo(r, third, 3)
	if r.Held() != 4 {
		t.Errorf("%d blocks are left", r.Held())
	}
}
