package kv

import (
	"math/rand/v2"
	"sync"
	"testing"
)

// Readers meet writers of all kinds. What a rank is credited with is of a prompt that it was
// sent some time, and those that nobody writes are credited with what they hold.
func TestReadersBesideWriters(t *testing.T) {
	x := newIndex(Options{}, 4)
	rnd := rand.New(rand.NewPCG(1, 1))
	common := randomChain(rnd, nil, 8)
	var chains [][]Key
	for range 32 {
		chains = append(chains, randomChain(rnd, common, 1+rnd.IntN(40)))
	}
	calm := x.Add(RankSpec{Group: 1})
	for _, c := range chains {
		x.Store(calm, c)
	}
	ranks := make([]*Rank, 40) // more than fit into a slot
	var mu sync.Mutex
	for i := range ranks {
		ranks[i] = x.Add(RankSpec{Blocks: 200})
	}
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	for w := range 3 {
		writers.Go(func() {
			rnd := rand.New(rand.NewPCG(2, uint64(w)))
			for range 4000 {
				mu.Lock()
				i := rnd.IntN(len(ranks))
				r := ranks[i]
				if rnd.IntN(50) == 0 {
					ranks[i] = x.Add(RankSpec{Blocks: 200})
					mu.Unlock()
					x.Drop(r)
					continue
				}
				mu.Unlock()
				c := chains[rnd.IntN(len(chains))]
				switch rnd.IntN(8) {
				case 0:
					x.Clear(r)
				case 1:
					x.Remove(r, c[len(c)-1:])
				case 2:
					x.Undo(r, c, x.Record(r, c))
				case 3:
					x.SetBlocks(r, 50+rnd.IntN(200))
				case 4:
					x.Remove(r, c[3:4]) // leaves those after it
				default:
					x.Store(r, c)
				}
			}
		})
	}
	for w := range 2 {
		readers.Go(func() {
			rnd := rand.New(rand.NewPCG(3, uint64(w)))
			var out []Holder
			for {
				select {
				case <-stop:
					return
				default:
				}
				c := chains[rnd.IntN(len(chains))]
				out = x.Match(c, 0, func(r *Rank) bool { return r != calm }, out[:0])
				for i, h := range out {
					if h.Rank == calm || h.Blocks < 1 || h.Blocks > len(c) || i > 0 && h.Blocks > out[i-1].Blocks {
						t.Errorf("%d of %d blocks, %v", h.Blocks, len(c), out)
					}
				}
				out = x.Match(c, 1, nil, out[:0])
				if len(out) != 1 || out[0] != (Holder{calm, len(c)}) {
					t.Errorf("a rank that nobody writes: %v of %d blocks", out, len(c))
				}
				x.Stats()
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	for _, r := range ranks {
		x.Drop(r)
	}
	x.Drop(calm)
	x.sweepNext(1 << 30)
	if s := x.Stats(); s.Distinct != 0 || s.Ranks != 0 {
		t.Errorf("%+v is left", s)
	}
	if n := x.uneven.Load(); n != 0 {
		t.Errorf("%d uneven ranks are left", n)
	}
}
