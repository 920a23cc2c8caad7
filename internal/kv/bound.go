package kv

import (
	"sync"
	"sync/atomic"
)

// The memory of an index is counted as what it may take at worst: each block of a rank and
// each distinct one at its share of a table that is as empty as tables get, lists of ranks as
// they are. So what blocks give back when they go counts at once, and what is counted is
// never less than what is taken. Room is reserved before a Store takes any lock.

// listCost is what a block may add to the lists of ranks.
const listCost = 16

// reserve takes memory for so many blocks, and gives up others' for it. It returns for how
// many there is room, and what is to be given back when they are stored.
func (x *Index) reserve(blocks int, entry int64) (most int, bytes int64) {
	limit := x.opts.MaxBytes
	if limit <= 0 || blocks == 0 {
		return blocks, 0
	}
	each := entry + slotCost + listCost
	most = min(blocks, int(limit/8/each)) // a prompt may not drive out all others
	bytes = setCost + int64(most)*each
	if most > 0 && (x.used.Add(bytes) <= limit || x.shed()) {
		return most, bytes
	}
	if most > 0 {
		x.used.Add(-bytes)
	}
	x.counts.refused.Add(1)
	return 0, 0
}

// shed brings the memory under its bound: what is left of ranks that are gone goes first,
// then an eighth of the rank that holds most, its oldest blocks. So those that hold less than
// others keep all.
func (x *Index) shed() bool {
	x.shedding.Lock()
	defer x.shedding.Unlock()
	for x.used.Load() > x.opts.MaxBytes {
		if x.graves.waiting.Load() > 0 {
			x.sweepNext(shedStep)
			continue
		}
		r := x.fullest()
		if r == nil {
			return false
		}
		before := r.held.Load()
		for left := max(before/8, shedLeast); left > 0; left -= shedStep {
			r.mu.Lock()
			s := step{x: x, r: r}
			s.evictTo(0, int(min(left, shedStep)))
			x.counts.evictedMemory.Add(uint64(s.evicted))
			s.evicted = 0
			s.end()
			r.mu.Unlock()
		}
		if r.held.Load() >= before {
			x.Clear(r) // only blocks with others after them at its end
		}
	}
	return true
}

const (
	shedStep  = 256 // blocks for which a rank's lock is held
	shedLeast = 64
)

// fullest returns the rank that holds most; nil if none holds anything.
func (x *Index) fullest() *Rank {
	x.mu.Lock()
	defer x.mu.Unlock()
	var best *Rank
	most := int64(0)
	for _, r := range x.ranks {
		if n := r.held.Load(); n > most {
			best, most = r, n
		}
	}
	return best
}

// graves are the sets of ranks that were dropped or cleared, whose blocks are still to be
// taken out of the table. Nobody finds them there: their seats are empty. The work is done
// bit by bit, with each Store, so that no call takes long and nothing runs by itself.
type graves struct {
	waiting atomic.Int64 // blocks

	mu   sync.Mutex
	sets []grave

	sweeping sync.Mutex
	now      grave // guarded by sweeping
}

type grave struct {
	set  set
	seat uint16
	next int // the entry to go on from
}

const (
	sweepNow  = 512 // blocks at once when a rank is dropped or cleared
	sweepWith = 64  // with each Store, and 4 more for each of its blocks
)

// buryLocked takes all blocks from a rank, whose lock is held.
func (x *Index) buryLocked(r *Rank) {
	was, seat := r.set, r.seat
	r.set = set{byHash: was.byHash}
	r.held.Store(0)
	if r.uneven.Swap(0) > 0 {
		x.uneven.Add(-1)
	}
	if was.live > 0 {
		x.version.Add(1)
		x.seats.vacate(seat)
		x.graves.waiting.Add(int64(was.live))
		x.graves.mu.Lock()
		x.graves.sets = append(x.graves.sets, grave{set: was, seat: seat, next: 1})
		x.graves.mu.Unlock()
		r.seat = 0
	}
	switch {
	case r.gone && r.seat != 0:
		x.seats.release(r.seat)
		r.seat = 0
	case !r.gone && r.seat == 0:
		r.seat = x.seats.take(r)
	}
}

// sweep takes so many blocks of ranks that are gone out of the table, unless another does.
func (x *Index) sweep(blocks int) {
	if x.graves.waiting.Load() > 0 && x.graves.sweeping.TryLock() {
		x.sweepLocked(blocks)
		x.graves.sweeping.Unlock()
	}
}

// sweepNext is sweep that waits for others.
func (x *Index) sweepNext(blocks int) {
	x.graves.sweeping.Lock()
	defer x.graves.sweeping.Unlock()
	x.sweepLocked(blocks)
}

func (x *Index) sweepLocked(blocks int) {
	var c change
	g := &x.graves.now
	for ; blocks > 0; blocks-- {
		if g.seat == 0 && !x.graves.next(g) {
			break
		}
		e := uint32(g.next)
		if g.next++; !g.set.is(e, freeFlag) {
			if !g.set.is(e, ghostFlag|aliasFlag) {
				x.table.remove(g.set.key(e), g.seat, &c)
			}
			c.bytes -= g.set.cost()
			x.graves.waiting.Add(-1)
		}
		if g.next == len(g.set.entries) {
			c.bytes -= setCost
			x.seats.release(g.seat)
			*g = grave{}
		}
	}
	x.used.Add(c.bytes)
}

// next moves the next of the sets to g.
func (s *graves) next(g *grave) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.sets)
	if n == 0 {
		return false
	}
	*g, s.sets[n-1] = s.sets[n-1], grave{}
	if s.sets = s.sets[:n-1]; n == 1 {
		s.sets = nil
	}
	return true
}
