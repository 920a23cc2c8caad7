package kv

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// table knows for each key the numbers of the ranks that hold its block. It is an
// open-addressed hash table in shards.
//
// Writers lock a shard for one key. Readers lock nothing: they read a shard's words one by
// one, atomically, and again if its sequence says that slots or lists moved meanwhile. What
// they read is a table that is not written any more once it is replaced, so growth does
// not hold them up.
type table struct {
	shards []shard
	bits   int // log2(len(shards))
}

// shard is a part of a table. Its slots are between minFill and maxFill full, but for the
// smallest.
type shard struct {
	view atomic.Pointer[view]
	seq  atomic.Uint32 // odd while slots or lists move

	mu    sync.Mutex // for writers
	used  int        // slots in use
	lists arena

	_ [64]byte // no two shards share a cache line
}

// view is what readers of a shard read. The slices stay; their words change.
type view struct {
	slots []slot
	words []uint64 // of the arena
}

// slot is a block that some rank holds; key 0 is an empty one.
type slot struct {
	key, holders uint64
}

// A slot's holders: their number n in the lowest 16 bits. Up to three are in the 48 bits
// above. More are in a list, whose offset in the arena follows in 32 bits and its class in 8.
const (
	inlineHolders = 3
	maxRanks      = 1 << 16
)

const (
	minSlots  = 16
	slotBytes = 16
	// A shard grows by a quarter at 0.8 and shrinks below 0.56.
	slotsFull, slotsEmpty = 0.8, 0.56
	slotsAfter            = 0.68
	// slotCost is what a block takes at most in a shard, with the slots that are empty.
	slotCost = 29
)

func (t *table) init(shards int) {
	t.shards = make([]shard, shards)
	t.bits = bits.Len(uint(shards)) - 1
	for i := range t.shards {
		t.shards[i].view.Store(&view{slots: make([]slot, minSlots)})
	}
}

// spread is odd, so that a product with it tells keys apart as they are.
const spread = 0x9e3779b97f4a7c15

// shardBytes is what an empty shard takes, emptyBytes without its slots.
const (
	emptyBytes = 192 + 48
	shardBytes = emptyBytes + minSlots*slotBytes
)

// place returns the shard of a key and what its place there is computed from.
func (t *table) place(k Key) (*shard, uint64) {
	h := uint64(k) * spread // small numbers are keys in tests
	return &t.shards[h>>(64-t.bits)], h << t.bits
}

// home is where a search for a key begins.
func (v *view) home(h uint64) int {
	hi, _ := bits.Mul64(h, uint64(len(v.slots)))
	return int(hi)
}

// find returns the slot of a key, or the empty one where it would be.
func (v *view) find(k Key, h uint64) (int, bool) {
	for i := v.home(h); ; {
		switch atomic.LoadUint64(&v.slots[i].key) {
		case uint64(k):
			return i, true
		case 0:
			return i, false
		}
		if i++; i == len(v.slots) {
			i = 0
		}
	}
}

// read returns the holders of a key, none if nobody has it, and what it was read from: while
// the sequence of s is seq, lists in v are as the holders say.
func (s *shard) read(k Key, h uint64) (holders uint64, v *view, seq uint32) {
	for range 64 {
		seq = s.seq.Load()
		if seq&1 != 0 {
			continue
		}
		v = s.view.Load()
		holders = v.lookUp(k, h)
		if s.seq.Load() == seq {
			return holders, v, seq
		}
	}
	s.mu.Lock() // the writer was interrupted
	defer s.mu.Unlock()
	v = s.view.Load()
	return v.lookUp(k, h), v, s.seq.Load()
}

// lookUp is find for readers: slots may move while it looks, so it ends after one round.
func (v *view) lookUp(k Key, h uint64) uint64 {
	i := v.home(h)
	for range v.slots {
		s := &v.slots[i]
		switch atomic.LoadUint64(&s.key) {
		case uint64(k):
			return atomic.LoadUint64(&s.holders)
		case 0:
			return 0
		}
		if i++; i == len(v.slots) {
			i = 0
		}
	}
	return 0
}

// warm reads what find will for a key. The memory of several keys is fetched at once by
// processors if they are warmed one after another, and what is in a cache then is found ten
// times faster.
func (t *table) warm(k Key) uint64 {
	s, h := t.place(k)
	v := s.view.Load()
	return atomic.LoadUint64(&v.slots[v.home(h)].key)
}

func holderCount(holders uint64) int { return int(holders & 0xffff) }

// holder returns the i-th of the holders.
func (v *view) holder(holders uint64, i int) uint16 {
	if holderCount(holders) <= inlineHolders {
		return uint16(holders >> (16 + 16*i))
	}
	at := listAt(holders) + i/4
	if at >= len(v.words) { // a list that moved
		return 0
	}
	return uint16(atomic.LoadUint64(&v.words[at]) >> (16 * (i % 4)))
}

// index returns where id is among the holders, -1 if it is not.
func (v *view) index(holders uint64, id uint16) int {
	n := holderCount(holders)
	if n <= inlineHolders {
		for i := range n {
			if v.holder(holders, i) == id {
				return i
			}
		}
		return -1
	}
	const low, high = 0x0001000100010001, 0x8000800080008000
	same := uint64(id) * low
	at := listAt(holders)
	if at+(n+3)/4 > len(v.words) {
		return -1
	}
	for i := 0; i < n; i += 4 {
		w := atomic.LoadUint64(&v.words[at+i/4]) ^ same
		if zero := (w - low) &^ w & high; zero != 0 { // the lowest is right, those above may not be
			if i += bits.TrailingZeros64(zero) / 16; i < n {
				return i
			}
			return -1
		}
	}
	return -1
}

// change is what a step did to the memory of an index, in bytes.
type change struct{ bytes int64 }

// add records that rank id holds the block of a key. It must not be known to, unless check
// is true; then add tells whether it was not.
func (t *table) add(k Key, id uint16, check bool, c *change) bool {
	s, h := t.place(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.view.Load()
	i, ok := v.find(k, h)
	if !ok {
		if float64(s.used+1) > slotsFull*float64(len(v.slots)) {
			v = s.resize(max(int(float64(s.used+1)/slotsAfter), minSlots), t.bits)
			i, _ = v.find(k, h)
		}
		s.used++
		c.bytes += slotCost
		// Readers find the key when its holders are there.
		atomic.StoreUint64(&v.slots[i].holders, 1|uint64(id)<<16)
		atomic.StoreUint64(&v.slots[i].key, uint64(k))
		return true
	}
	at := &v.slots[i].holders
	w := *at
	if check && v.index(w, id) >= 0 {
		return false
	}
	n := holderCount(w)
	if n < inlineHolders {
		atomic.StoreUint64(at, w+1|uint64(id)<<(16+16*n))
		return true
	}
	before := s.lists.bytes()
	s.seq.Add(1)
	w = s.lists.append(w, id)
	atomic.StoreUint64(at, w)
	s.showLists(v)
	s.seq.Add(1)
	c.bytes += s.lists.bytes() - before
	return true
}

// remove records that rank id does not hold the block of a key any more.
func (t *table) remove(k Key, id uint16, c *change) {
	s, h := t.place(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.view.Load()
	i, ok := v.find(k, h)
	if !ok {
		return
	}
	at := &v.slots[i].holders
	w := *at
	j := v.index(w, id)
	if j < 0 {
		return
	}
	n := holderCount(w)
	switch {
	case n == 1:
		s.seq.Add(1)
		v.vacate(i, t.bits)
		s.seq.Add(1)
		s.used--
		c.bytes -= slotCost
		if len(v.slots) > minSlots && float64(s.used) < slotsEmpty*float64(len(v.slots)) {
			s.resize(max(int(float64(s.used)/slotsAfter), minSlots), t.bits)
		}
	case n <= inlineHolders:
		last := w >> (16 * n) & 0xffff
		w &^= 0xffff<<(16+16*j) | 0xffff<<(16*n)
		if j != n-1 {
			w |= last << (16 + 16*j)
		}
		atomic.StoreUint64(at, w-1)
	default:
		before := s.lists.bytes()
		s.seq.Add(1)
		atomic.StoreUint64(at, s.lists.remove(w, j))
		s.showLists(v)
		s.seq.Add(1)
		if s.lists.sparse() {
			s.compact()
		}
		c.bytes += s.lists.bytes() - before
	}
}

// showLists gives readers the words of the arena, if it has grown.
func (s *shard) showLists(v *view) {
	if len(v.words) != len(s.lists.words) {
		s.view.Store(&view{slots: v.slots, words: s.lists.words})
	}
}

// vacate empties a slot and moves those behind it up that belong before it.
func (v *view) vacate(i, shift int) {
	n := len(v.slots)
	for j := i; ; {
		if j++; j == n {
			j = 0
		}
		k := v.slots[j].key
		if k == 0 {
			break
		}
		home := v.home(k * spread << shift)
		// The slot at j may move to i if its home is not behind i on the way to j.
		if (j-home+n)%n >= (j-i+n)%n {
			atomic.StoreUint64(&v.slots[i].holders, v.slots[j].holders)
			atomic.StoreUint64(&v.slots[i].key, k)
			i = j
		}
	}
	atomic.StoreUint64(&v.slots[i].key, 0)
	atomic.StoreUint64(&v.slots[i].holders, 0)
}

// resize replaces the slots by n; readers read the old ones until the new are ready.
func (s *shard) resize(n, shift int) *view {
	was := s.view.Load()
	v := &view{slots: make([]slot, n), words: was.words}
	for _, o := range was.slots {
		if o.key == 0 {
			continue
		}
		i := v.home(o.key * spread << shift)
		for v.slots[i].key != 0 {
			if i++; i == n {
				i = 0
			}
		}
		v.slots[i] = o
	}
	s.seq.Add(1) // a reader of the old slots must not miss what is written to the new ones
	s.view.Store(v)
	s.seq.Add(1)
	return v
}

// compact moves the lists of a shard into a new arena without the unused ones.
func (s *shard) compact() {
	was := s.view.Load()
	var a arena
	a.words = make([]uint64, 0, s.lists.live+s.lists.live/4)
	slots := make([]slot, len(was.slots))
	for i, o := range was.slots {
		if holderCount(o.holders) > inlineHolders {
			o.holders = a.copyOf(&s.lists, o.holders)
		}
		slots[i] = o
	}
	a.words = a.words[:cap(a.words)]
	s.lists = a
	s.seq.Add(1)
	s.view.Store(&view{slots: slots, words: a.words})
	s.seq.Add(1)
}

// bytes returns what the table takes.
func (t *table) bytes() (bytes int64, blocks int) {
	for i := range t.shards {
		s := &t.shards[i]
		s.mu.Lock()
		bytes += int64(len(s.view.Load().slots))*slotBytes + s.lists.bytes()
		blocks += s.used
		s.mu.Unlock()
	}
	return bytes, blocks
}
