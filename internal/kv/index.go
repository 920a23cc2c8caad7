package kv

import (
	"slices"
	"sync"
)

// Key stands for a block of a prompt and all blocks before it.
type Key uint64

// Options configure an Index.
type Options struct {
	// MaxBytes bounds the memory of the index as a whole; zero or less is no bound.
	MaxBytes int64
}

// Group tells apart ranks that are never looked for together, such as those of prefill and
// of decode. There are 8 at most.
type Group uint8

// RankSpec describes a rank to the index.
type RankSpec struct {
	Group Group
	// Blocks is how many blocks it holds at most; zero or less: not known.
	Blocks int
	// Data is handed back to the caller, who finds the rank by it.
	Data any
}

// Rank is one rank in the index. A rank that comes again is a new one.
type Rank struct {
	spec RankSpec
	held map[Key]uint64 // when each was stored last
	gone bool
}

// Data returns what the rank was added with.
func (r *Rank) Data() any { return r.spec.Data }

// Holder is a rank that holds so many of the first blocks of a chain.
type Holder struct {
	Rank   *Rank
	Blocks int
}

// MaxHolders is how many ranks Match finds at most.
const MaxHolders = 4

// Index knows which ranks hold which blocks. All methods are safe for concurrent use.
type Index struct {
	opts Options

	mu    sync.RWMutex
	ranks []*Rank
	clock uint64
}

// New makes an empty index.
func New(o Options) *Index { return &Index{opts: o} }

// Add adds a rank that holds nothing.
func (x *Index) Add(s RankSpec) *Rank {
	x.mu.Lock()
	defer x.mu.Unlock()
	r := &Rank{spec: s, held: map[Key]uint64{}}
	x.ranks = append(x.ranks, r)
	return r
}

// Drop removes a rank with all it holds. What is stored for it later is ignored.
func (x *Index) Drop(r *Rank) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r.gone = true
	clear(r.held)
	x.ranks = slices.DeleteFunc(x.ranks, func(o *Rank) bool { return o == r })
}

// SetBlocks changes how many blocks a rank holds at most. Over that, the ones that were
// stored least recently go.
func (x *Index) SetBlocks(r *Rank, blocks int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	r.spec.Blocks = blocks
	r.evict()
}

// Store records that r holds the blocks of keys, which are consecutive blocks of a chain in
// order, and uses them now. Within one call the earlier blocks count as used later, as
// engines drop a chain's end first.
func (x *Index) Store(r *Rank, keys []Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.storeLocked(r, keys)
}

func (x *Index) storeLocked(r *Rank, keys []Key) {
	if r.gone {
		return
	}
	for _, k := range slices.Backward(keys) {
		x.clock++
		r.held[k] = x.clock
	}
	r.evict()
}

func (r *Rank) evict() {
	for r.spec.Blocks > 0 && len(r.held) > r.spec.Blocks {
		first, at := Key(0), uint64(0)
		for k, t := range r.held {
			if at == 0 || t < at {
				first, at = k, t
			}
		}
		delete(r.held, first)
	}
}

// Remove records that r does not hold the blocks of keys any more.
func (x *Index) Remove(r *Rank, keys []Key) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, k := range keys {
		delete(r.held, k)
	}
}

// Clear records that r holds nothing.
func (x *Index) Clear(r *Rank) {
	x.mu.Lock()
	defer x.mu.Unlock()
	clear(r.held)
}

// Match appends to out the ranks of a group that hold the most first blocks of a chain, at
// most MaxHolders, the one that holds most first. Only ranks for which mayUse is true count;
// nil is all. It allocates nothing if out has room.
func (x *Index) Match(keys []Key, g Group, mayUse func(*Rank) bool, out []Holder) []Holder {
	x.mu.RLock()
	defer x.mu.RUnlock()
	from := len(out)
	for _, r := range x.ranks {
		n := 0
		for n < len(keys) && r.has(keys[n]) {
			n++
		}
		if n == 0 || r.spec.Group != g || mayUse != nil && !mayUse(r) {
			continue
		}
		at := len(out)
		for at > from && out[at-1].Blocks < n {
			at--
		}
		out = slices.Insert(out, at, Holder{r, n})
		out = out[:min(len(out), from+MaxHolders)]
	}
	return out
}

func (r *Rank) has(k Key) bool {
	_, ok := r.held[k]
	return ok
}

// Version changes whenever what some rank holds changes.
func (x *Index) Version() uint64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.clock
}
