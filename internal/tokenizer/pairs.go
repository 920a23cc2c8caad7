package tokenizer

import (
	"math/bits"
	"math/rand/v2"
)

// pairTable finds what two tokens that stand beside each other become: a hash table with
// open addressing. Its factor is drawn at random, so that no file can be written to make
// its pairs collide.
type pairTable struct {
	slots  []pairSlot
	factor uint64
	shift  uint
	n      int
}

type pairSlot struct {
	key    uint64 // left<<32 | right, + 1; 0 is free
	rank   uint32 // the place in the list of merges
	merged uint32
}

// noRank is the rank of a pair that is not merged.
const noRank = ^uint32(0)

// newPairTable makes a table with room for n pairs.
func newPairTable(n int) *pairTable {
	size := bits.Len(uint(max(n+n/2, 15)))
	return &pairTable{
		slots:  make([]pairSlot, 1<<size),
		factor: rand.Uint64() | 1,
		shift:  uint(64 - size),
	}
}

// slot returns the slot of a pair, free or taken.
func (p *pairTable) slot(left, right uint32) *pairSlot {
	key := uint64(left)<<32 | uint64(right)
	h := key * p.factor
	h ^= h >> 32
	for i := h * p.factor >> p.shift; ; i = (i + 1) & uint64(len(p.slots)-1) {
		if s := &p.slots[i]; s.key == key+1 || s.key == 0 {
			return s
		}
	}
}

// set sets what a pair becomes. Of a pair set twice the last one counts.
func (p *pairTable) set(left, right, rank, merged uint32) {
	s := p.slot(left, right)
	if s.key == 0 {
		p.n++
	}
	*s = pairSlot{key: uint64(left)<<32 | uint64(right) + 1, rank: rank, merged: merged}
}

// get returns the rank of a pair and what it becomes, noRank if it is not merged.
func (p *pairTable) get(left, right uint32) (rank, merged uint32) {
	if s := p.slot(left, right); s.key != 0 {
		return s.rank, s.merged
	}
	return noRank, 0
}

// has reports whether the pair is there.
func (p *pairTable) has(left, right uint32) bool { return p.slot(left, right).key != 0 }

func (p *pairTable) bytes() int64 { return int64(len(p.slots)) * 16 }
