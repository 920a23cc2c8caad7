package kv

import (
	"sync"
	"sync/atomic"
)

// Key stands for a block of a prompt and all blocks before it.
type Key uint64

// Options configure an Index.
type Options struct {
	// MaxBytes bounds the memory of the index as a whole; zero or less is no bound. Over it,
	// the rank that holds most loses its oldest blocks first.
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

	byHash bool // its blocks are found by an engine's hashes
}

// Holder is a rank that holds so many of the first blocks of a chain.
type Holder struct {
	Rank   *Rank
	Blocks int
}

// MaxHolders is how many ranks Match finds at most.
const MaxHolders = 4

// Index knows which ranks hold which blocks. All methods are safe for concurrent use. Those
// that write take the lock of their rank and, for each block, of a part of the table; Match
// takes none. Lock order: Index.shedding, Rank.mu, Index.mu and Index.graves.mu, shard.mu.
type Index struct {
	opts  Options
	table table
	seats seats

	mu    sync.Mutex
	ranks []*Rank // guarded by mu; not those that are gone

	graves   graves
	shedding sync.Mutex

	used    atomic.Int64 // bytes, at worst; see bound.go
	version atomic.Uint64
	uneven  atomic.Int32  // ranks with uneven blocks
	lookups atomic.Uint64 // Match calls
	counts  counts
}

// New makes an empty index.
func New(o Options) *Index {
	shards := maxShards
	if o.MaxBytes > 0 {
		for shards > 1 && int64(shards)*shardBytes > o.MaxBytes/16 {
			shards /= 2
		}
	}
	return newIndex(o, shards)
}

func newIndex(o Options, shards int) *Index {
	x := &Index{opts: o}
	x.table.init(shards)
	x.used.Store(int64(shards) * shardBytes)
	return x
}

// maxShards bounds how many parts the table has: writers of different parts do not meet.
const maxShards = 1024

// Add adds a rank that holds nothing.
func (x *Index) Add(s RankSpec) *Rank {
	r := &Rank{group: s.Group, data: s.Data, at: -1}
	r.limit.Store(int64(s.Blocks))
	r.set.byHash = s.byHash
	r.scale = 1
	r.boundLocked()
	r.seat = x.seats.take(r)
	x.mu.Lock()
	defer x.mu.Unlock()
	r.at = len(x.ranks)
	x.ranks = append(x.ranks, r)
	return r
}

// Drop removes a rank with all it holds. What is stored for it later is ignored.
func (x *Index) Drop(r *Rank) {
	x.mu.Lock()
	if r.at < 0 {
		x.mu.Unlock()
		return
	}
	last := x.ranks[len(x.ranks)-1]
	x.ranks[r.at], last.at = last, r.at
	x.ranks[len(x.ranks)-1] = nil
	x.ranks = x.ranks[:len(x.ranks)-1]
	r.at = -1
	x.mu.Unlock()

	r.mu.Lock()
	r.gone = true
	x.buryLocked(r)
	r.mu.Unlock()
	x.sweep(sweepNow)
}

// Clear records that r holds nothing. Its cost does not grow with what r held.
func (x *Index) Clear(r *Rank) {
	r.mu.Lock()
	x.buryLocked(r)
	r.mu.Unlock()
	x.sweep(sweepNow)
}

// SetBlocks changes how many blocks a rank holds at most. Over that, the ones that were
// stored least recently go: a few thousand now, more with each Store.
func (x *Index) SetBlocks(r *Rank, blocks int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.limit.Store(int64(blocks))
	r.boundLocked()
	s := step{x: x, r: r}
	s.evictTo(r.bound.Load(), evictNow)
	s.end()
}

// evictNow is how many blocks a lowered bound takes at once.
const evictNow = 4096

// Store records that r holds the blocks of keys, which are the first blocks of a chain in
// order, and uses them now. The earlier blocks count as used later, as engines drop a
// chain's end first.
func (x *Index) Store(r *Rank, keys []Key) { x.Record(r, keys) }

// Remove records that r does not hold the blocks of keys any more. What it holds after them
// in a chain counts again once they are stored again.
func (x *Index) Remove(r *Rank, keys []Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := step{x: x, r: r}
	for _, k := range keys {
		s.remove(number(k))
	}
	s.end()
}

// Version changes whenever what some rank holds changes.
func (x *Index) Version() uint64 { return x.version.Load() }

// number is a key as the table has it: 0 is an empty slot there.
func number(k Key) uint64 { return max(uint64(k), 1) }
