package kv

import (
	"math/bits"
	"slices"
)

// set is the blocks of one rank: found by a number, in the order in which they were stored,
// each with the one before it in its prompt. The number is the block's key, or, where events
// tell of blocks, the engine's hash.
//
// A block that was removed while blocks after it stay is kept as a ghost until they go: the
// index relies on ranks whose blocks all have those before them, and treats others apart.
type set struct {
	entries []entry // entries[0] is both ends of the list
	keys    []Key   // by entry, where the number is not the key
	index   []uint32
	live    int    // entries in use, ghosts among them
	free    uint32 // the first unused entry; older links to the next
	byHash  bool   // numbers are hashes of an engine
}

// entry is a block. The list goes from the one stored last to the oldest.
type entry struct {
	number       uint64
	newer, older uint32
	parent       uint32 // the block before it; 0: none
	kids         uint32 // how many blocks are after it; flags
}

const (
	kidsMask  = 1<<28 - 1
	freeFlag  = 1 << 31
	ghostFlag = 1 << 30 // removed, but kids stay
	aliasFlag = 1 << 29 // another entry of the rank has the same key and is what the table knows
)

// maxEntries is how many blocks a rank can have: 24 bits of a slot of the index say where.
const maxEntries = 1<<24 - 2

const (
	minEntries = 16
	entryBytes = 24
	// A set grows by a quarter when full, and is packed when less than 0.75 is used.
	entriesEmpty = 0.75
	// entryCost is what a block takes at most in a set: 24 bytes and 1.25 slots of an index
	// of 4 bytes, at worst with a quarter unused; hashCost, what the engine's hash adds.
	entryCost, hashCost = 39, 11
	// setCost is what a set takes that is not empty.
	setCost = 1024
)

func (s *set) cost() int64 {
	if s.byHash {
		return entryCost + hashCost
	}
	return entryCost
}

// bytes returns what the set takes.
func (s *set) bytes() int64 {
	return int64(cap(s.entries))*entryBytes + int64(cap(s.keys))*8 + int64(len(s.index))*4
}

func (s *set) key(e uint32) Key {
	if s.byHash {
		return s.keys[e]
	}
	return Key(s.entries[e].number)
}

func (s *set) is(e, flag uint32) bool { return s.entries[e].kids&flag != 0 }

func (s *set) kids(e uint32) uint32 { return s.entries[e].kids & kidsMask }

// home is where the search for a number begins. Numbers may be chosen by an engine.
func (s *set) home(number uint64) uint64 {
	hi, lo := bits.Mul64(number^placing.left, placing.right|1)
	hi, _ = bits.Mul64(hi^lo, uint64(len(s.index)))
	return hi
}

// The index is a Robin Hood table: a slot has how far it is from its home in the highest 8
// bits, and the entry in the others; 0 is an empty one. Slots are in the order of their
// homes, so that a search compares the numbers of its own home only.

// find returns the entry of a number, 0 if there is none.
func (s *set) find(number uint64) uint32 {
	if s.live == 0 {
		return 0
	}
	i := s.home(number)
	for far := uint32(0); ; far++ {
		w := s.index[i]
		if w == 0 || w>>24 < far {
			return 0
		}
		if w>>24 == far && s.entries[w&0xffffff].number == number {
			return w & 0xffffff
		}
		if i++; i == uint64(len(s.index)) {
			i = 0
		}
	}
}

// warm reads what find will for a number; see table.warm.
func (s *set) warm(number uint64) uint32 {
	if s.live == 0 {
		return 0
	}
	return s.index[s.home(number)]
}

// enter puts an entry into the index. It fails if it would be too far from its home.
func (s *set) enter(e uint32) bool {
	i := s.home(s.entries[e].number)
	for w := e; ; w += 1 << 24 {
		if at := s.index[i]; at == 0 {
			s.index[i] = w
			return true
		} else if at>>24 < w>>24 {
			s.index[i], w = w, at
		}
		if w>>24 == 0xff {
			return false
		}
		if i++; i == uint64(len(s.index)) {
			i = 0
		}
	}
}

// leave takes an entry out of the index.
func (s *set) leave(e uint32) {
	n := uint64(len(s.index))
	i := s.home(s.entries[e].number)
	for s.index[i]&0xffffff != e {
		if i++; i == n {
			i = 0
		}
	}
	for {
		j := i + 1
		if j == n {
			j = 0
		}
		w := s.index[j]
		if w>>24 == 0 { // empty, or at home
			s.index[i] = 0
			return
		}
		s.index[i] = w - 1<<24
		i = j
	}
}

// insert makes an entry after parent in its prompt, which follows newer in the list. There
// must be less than maxEntries.
func (s *set) insert(number uint64, k Key, parent, newer uint32) uint32 {
	if s.free == 0 && len(s.entries) == cap(s.entries) {
		s.grow()
	}
	e := s.free
	if e != 0 {
		s.free = s.entries[e].older
	} else {
		e = uint32(len(s.entries))
		s.entries = s.entries[:e+1]
	}
	s.live++
	s.entries[e] = entry{number: number, parent: parent}
	if s.byHash {
		s.keys[e] = k
	}
	s.link(e, newer)
	if parent != 0 {
		s.entries[parent].kids++
	}
	if !s.enter(e) {
		s.reindex(len(s.index) + len(s.index)/4)
	}
	return e
}

// delete takes an entry without kids out of the set.
func (s *set) delete(e uint32) {
	s.leave(e)
	s.unlink(e)
	if p := s.entries[e].parent; p != 0 {
		s.entries[p].kids--
	}
	s.entries[e] = entry{kids: freeFlag, older: s.free}
	s.free = e
	s.live--
	if s.live == 0 {
		*s = set{byHash: s.byHash}
	}
}

func (s *set) link(e, newer uint32) {
	older := s.entries[newer].older
	s.entries[e].newer, s.entries[e].older = newer, older
	s.entries[newer].older, s.entries[older].newer = e, e
}

func (s *set) unlink(e uint32) {
	newer, older := s.entries[e].newer, s.entries[e].older
	s.entries[newer].older, s.entries[older].newer = older, newer
}

// touch moves an entry behind newer in the list.
func (s *set) touch(e, newer uint32) {
	if s.entries[e].newer != newer {
		s.unlink(e)
		s.link(e, newer)
	}
}

// oldest returns the entry at the end of the list, 0 if there is none.
func (s *set) oldest() uint32 {
	if s.live == 0 {
		return 0
	}
	return s.entries[0].newer
}

// settle puts each entry behind the one before it in its prompt, as if all of the prompt had
// been stored when the last of it was.
func (s *set) settle() {
	seen := make([]bool, len(s.entries))
	seen[0] = true
	order := make([]uint32, 0, s.live)
	for e := s.entries[0].older; e != 0; e = s.entries[e].older {
		from := len(order)
		for p := e; !seen[p]; p = s.entries[p].parent {
			seen[p] = true
			order = append(order, p)
		}
		slices.Reverse(order[from:])
	}
	newer := uint32(0)
	for _, e := range order {
		s.entries[e].newer, s.entries[newer].older = newer, e
		newer = e
	}
	s.entries[newer].older, s.entries[0].newer = 0, newer
}

// grow makes room for a quarter more entries.
func (s *set) grow() {
	n := max(minEntries, cap(s.entries)+cap(s.entries)/4)
	entries := make([]entry, max(len(s.entries), 1), n)
	copy(entries, s.entries)
	s.entries = entries
	if s.byHash {
		keys := make([]Key, n)
		copy(keys, s.keys)
		s.keys = keys
	}
	s.reindex(n + n/4)
}

func (s *set) reindex(n int) {
	for {
		s.index = make([]uint32, n)
		if s.enterAll() {
			return
		}
		n += n / 4
	}
}

func (s *set) enterAll() bool {
	for e := 1; e < len(s.entries); e++ {
		if s.entries[e].kids&freeFlag == 0 && !s.enter(uint32(e)) {
			return false
		}
	}
	return true
}

// sparse tells whether much of the set is unused.
func (s *set) sparse() bool {
	return cap(s.entries) > minEntries && float64(s.live+1) < entriesEmpty*float64(cap(s.entries))
}

// pack moves the entries together, in the order of the list. All numbers of entries change.
func (s *set) pack() {
	n := max(minEntries, (s.live+1)*9/8)
	to := make([]uint32, len(s.entries))
	next := uint32(1)
	for e := s.entries[0].older; e != 0; e = s.entries[e].older {
		to[e] = next
		next++
	}
	was := *s
	s.entries = make([]entry, next, n)
	if s.byHash {
		s.keys = make([]Key, n)
	}
	for e := range was.entries {
		at := to[e]
		if at == 0 && e != 0 {
			continue
		}
		o := was.entries[e]
		o.newer, o.older, o.parent = to[o.newer], to[o.older], to[o.parent]
		s.entries[at] = o
		if s.byHash {
			s.keys[at] = was.keys[e]
		}
	}
	s.free = 0
	s.reindex(n + n/4)
}
