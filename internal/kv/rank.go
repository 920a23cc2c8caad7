package kv

import (
	"sync"
	"sync/atomic"
)

// Rank is one rank in the index. A rank that comes again is a new one.
type Rank struct {
	group Group // immutable
	data  any   // immutable
	at    int   // in Index.ranks, -1: not there; guarded by Index.mu

	limit atomic.Int64 // what SetBlocks says; written with mu held
	bound atomic.Int64 // blocks it holds at most; written with mu held
	held  atomic.Int64 // blocks it holds; written with mu held
	// uneven is how many of its blocks are not as they are in others: see set. Match takes
	// more care of a rank that has some. Written with mu held.
	uneven atomic.Int32

	mu   sync.Mutex
	set  set
	seat uint16 // its number in the table; 0: none was left
	gone bool
	correction
}

// Data returns what the rank was added with.
func (r *Rank) Data() any { return r.data }

// Held returns how many blocks the rank holds.
func (r *Rank) Held() int { return int(r.held.Load()) }

// Bound returns how many blocks the rank can hold at most.
func (r *Rank) Bound() int { return int(r.bound.Load()) }

// boundLocked sets bound from what is known.
func (r *Rank) boundLocked() {
	b := int64(maxEntries)
	if n := r.limit.Load(); n > 0 && r.set.byHash {
		b = min(b, n+n/8+slackBlocks)
	} else if n > 0 {
		b = min(b, max(int64(float64(n)*r.scale), 1))
	} else if r.learned > 0 {
		b = min(b, max(int64(float64(r.learned)*r.scale), 1))
	}
	r.bound.Store(b)
}

// slackBlocks is what a rank that events tell of may hold beyond an eighth more than its
// engine.
const slackBlocks = 16

// step is a change to one rank, whose lock is held.
type step struct {
	x *Index
	r *Rank
	change
	changed bool
	evicted int
	warmth  uint64 // keeps reads for their effect from being left out
}

// end tells the rest of the index what the step did.
func (s *step) end() {
	r := s.r
	if r.set.sparse() && r.set.live > 0 {
		r.set.pack()
	}
	if s.bytes != 0 {
		s.x.used.Add(s.bytes)
	}
	if s.changed {
		s.x.version.Add(1)
	}
	if s.evicted > 0 {
		s.x.counts.evictedBlocks.Add(uint64(s.evicted))
	}
}

// store stores the first blocks of a chain and returns how many of them were held.
func (s *step) store(keys []Key) (held int) {
	if !s.seated() {
		return 0
	}
	at, added := uint32(0), 0
	for i, k := range keys {
		if i%warmed == 0 {
			s.warm(keys[i:min(i+warmed, len(keys))])
		}
		n := number(k)
		e, isNew := s.put(s.r.set.find(n), n, Key(n), at, at)
		if e == 0 {
			break
		}
		if isNew {
			added++
		} else if added == 0 {
			held++
		}
		at = e
	}
	s.x.counts.stored.Add(uint64(added))
	return held
}

// warmed is how many blocks are warmed together.
const warmed = 16

func (s *step) warm(keys []Key) {
	for _, k := range keys {
		s.warmth += uint64(s.r.set.warm(number(k))) + s.x.table.warm(Key(number(k)))
	}
}

// warmKeys is warm for blocks that are found by their hashes, see warmHashes.
func (s *step) warmKeys(keys []Key) {
	for _, k := range keys {
		s.warmth += s.x.table.warm(k)
	}
}

func (s *step) warmHashes(hashes []uint64) {
	for _, h := range hashes {
		s.warmth += uint64(s.r.set.warm(h))
	}
}

// seated tells whether the rank can hold something.
func (s *step) seated() bool {
	if s.r.seat == 0 && !s.r.gone {
		s.r.seat = s.x.seats.take(s.r)
	}
	return s.r.seat != 0 && !s.r.gone
}

// put stores a block after parent and puts it behind newer in the order of use; was is what
// find returns for it. It returns 0 if there is no room, and whether the block was not held.
func (s *step) put(was uint32, n uint64, k Key, parent, newer uint32) (e uint32, isNew bool) {
	set := &s.r.set
	if e = was; e != 0 {
		if set.is(e, ghostFlag) {
			set.entries[e].kids &^= ghostFlag
			s.smooth()
			s.publish(e)
			isNew = true
		}
		set.touch(e, newer)
		return e, isNew
	}
	if !s.evictFor(parent) {
		return 0, false
	}
	if set.live == 0 {
		s.bytes += setCost
	}
	e = set.insert(n, k, parent, newer)
	s.bytes += set.cost()
	s.publish(e)
	return e, true
}

// publish makes the table know that the rank holds a block.
func (s *step) publish(e uint32) {
	set := &s.r.set
	s.changed = true
	s.r.held.Add(1)
	if !s.x.table.add(set.key(e), s.r.seat, set.byHash, &s.change) {
		set.entries[e].kids |= aliasFlag
		s.roughen()
	}
}

// conceal is the reverse of publish.
func (s *step) conceal(e uint32) {
	set := &s.r.set
	s.changed = true
	s.r.held.Add(-1)
	if set.is(e, aliasFlag) {
		set.entries[e].kids &^= aliasFlag
		s.smooth()
		return
	}
	s.x.table.remove(set.key(e), s.r.seat, &s.change)
}

func (s *step) roughen() {
	if s.r.uneven.Add(1) == 1 {
		s.x.uneven.Add(1)
	}
}

func (s *step) smooth() {
	if s.r.uneven.Add(-1) == 0 {
		s.x.uneven.Add(-1)
	}
}

// remove records that the block of a number is not held.
func (s *step) remove(n uint64) bool {
	set := &s.r.set
	e := set.find(n)
	if e == 0 || set.is(e, ghostFlag) {
		return false
	}
	s.x.counts.removed.Add(1)
	if set.kids(e) == 0 {
		s.drop(e)
		return true
	}
	s.conceal(e)
	set.entries[e].kids |= ghostFlag
	s.roughen()
	return true
}

// drop takes a block without kids out of the set, and ghosts before it that lose their last.
func (s *step) drop(e uint32) {
	set := &s.r.set
	for {
		p := set.entries[e].parent
		if set.is(e, ghostFlag) {
			s.smooth()
		} else {
			s.conceal(e)
		}
		set.delete(e)
		s.bytes -= set.cost()
		if set.live == 0 {
			s.bytes -= setCost
			return
		}
		if p == 0 || set.kids(p) > 0 || !set.is(p, ghostFlag) {
			return
		}
		e = p
	}
}

// evictFor makes room for a block after parent.
func (s *step) evictFor(parent uint32) bool {
	set := &s.r.set
	bound := int(s.r.bound.Load())
	if set.live < bound {
		return true
	}
	if parent != 0 {
		set.entries[parent].kids++ // it is not to be evicted
		defer func() { set.entries[parent].kids-- }()
	}
	// A bound that was lowered by much is reached over several steps.
	for range evictWith {
		if !s.evict() {
			return false
		}
		if set.live < bound {
			return true
		}
	}
	return set.live < bound
}

// evictWith is how many blocks go at most for one that comes.
const evictWith = 16

// evict drops the block that was stored least recently among those that no other is after:
// the last of the list, if a chain was stored from its first block on. What events tell of is
// put into that order when it is needed, and then an eighth goes at once, so that it is not
// needed soon again.
func (s *step) evict() bool {
	if s.evictOldest() {
		return true
	}
	set := &s.r.set
	if !set.byHash || set.live == 0 {
		return false // the last block is before the one that comes, as all are
	}
	set.settle()
	was := set.live
	for set.live >= was-was/8 && s.evictOldest() {
	}
	return set.live < was
}

func (s *step) evictOldest() bool {
	set := &s.r.set
	if s.evicted%warmed == 0 {
		e := set.oldest()
		for i := 0; i < warmed && e != 0; i++ {
			s.warmth += uint64(set.warm(set.entries[e].number)) + s.x.table.warm(set.key(e))
			e = set.entries[e].newer
		}
	}
	e := set.oldest()
	if e == 0 || set.kids(e) > 0 {
		return false
	}
	s.drop(e)
	s.evicted++
	return true
}

// evictTo drops blocks until the rank has no more than bound, but at most so many.
func (s *step) evictTo(bound int64, most int) {
	for ; most > 0 && int64(s.r.set.live) > bound && s.evict(); most-- {
	}
}
