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
func conversations(t *testing.T, believed, real int) float64 {
	t.Helper()
	const tokens = 64 // a block
	rnd := rand.New(rand.NewPCG(1, 2))
	common := randomChain(rnd, nil, 8)
	var prompts [200][]Key
	for i := range prompts {
		prompts[i] = randomChain(rnd, common, 40+rnd.IntN(40))
	}
	e := newEngine(real)
	x := newIndex(Options{}, 4)
	r := x.Add(RankSpec{Blocks: believed})
	sum, n := 0, 0
	for turn := range 12_000 {
		p := &prompts[rnd.IntN(len(prompts))]
		*p = randomChain(rnd, *p, rnd.IntN(3))
		if len(*p) > 100 {
			*p = (*p)[:60]
		}
		held := 0
		for _, h := range x.Match(*p, 0, nil, nil) {
			held = h.Blocks
		}
		x.Record(r, *p)
		x.Correct(r, int64(held*tokens), int64(e.run(*p)*tokens))
		if turn > 6_000 {
			sum += r.Bound()
			n++
		}
	}
	return float64(sum) / float64(n) / float64(real)
}

func TestTheCapacityIsCorrectedByReports(t *testing.T) {
	const real = 5_000
	for _, c := range []struct {
		name     string
		believed int
		from, to float64
	}{
		{"as told", real, 0.9, 1.35},
		{"half of what was told", 2 * real, 0.9, 1.4},
		{"a tenth of what was told", 10 * real, 0.9, 1.4},
		{"double what was told", real / 2, 0.75, 1.35},
		{"not told", 0, 0.9, 1.6},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := conversations(t, c.believed, real)
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
