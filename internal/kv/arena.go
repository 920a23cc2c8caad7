package kv

import "sync/atomic"

// arena holds the lists of ranks of blocks that more than a few hold. A list takes a power of
// two of words, of four ranks each. It is written by the holder of its shard's lock between
// two steps of the shard's sequence; readers may read it meanwhile and read again.
type arena struct {
	words []uint64
	next  int                 // words[next:] were never used
	live  int                 // words of lists in use
	free  [listClasses]uint32 // offset+1 of an unused list, whose first word has that of the next
}

const (
	listClasses = 14 // 8 ranks to 65,536
	// minArena is how many words an arena has at least, if it has lists.
	minArena = 64
)

// classWords is how many words a list of a class takes.
func classWords(class int) int { return 2 << class }

func listAt(holders uint64) int    { return int(holders >> 16 & 0xffffffff) }
func listClass(holders uint64) int { return int(holders >> 48 & 0xff) }

func listOf(n, at, class int) uint64 {
	return uint64(n) | uint64(at)<<16 | uint64(class)<<48
}

func (a *arena) bytes() int64 { return int64(len(a.words)) * 8 }

// alloc returns where a list of a class is.
func (a *arena) alloc(class int) int {
	n := classWords(class)
	a.live += n
	if f := a.free[class]; f != 0 {
		a.free[class] = uint32(a.words[f-1])
		return int(f - 1)
	}
	if a.next+n > len(a.words) {
		words := make([]uint64, max(minArena, a.next+n, len(a.words)+len(a.words)/4))
		copy(words, a.words)
		a.words = words
	}
	a.next += n
	return a.next - n
}

func (a *arena) release(at, class int) {
	a.live -= classWords(class)
	atomic.StoreUint64(&a.words[at], uint64(a.free[class]))
	a.free[class] = uint32(at) + 1
}

// set writes the i-th rank of the list at an offset.
func (a *arena) set(at, i int, id uint16) {
	w := &a.words[at+i/4]
	shift := 16 * (i % 4)
	atomic.StoreUint64(w, *w&^(0xffff<<shift)|uint64(id)<<shift)
}

func (a *arena) get(at, i int) uint16 { return uint16(a.words[at+i/4] >> (16 * (i % 4))) }

// move copies n ranks to a list of another class.
func (a *arena) move(at, class, n, to int) int {
	dst := a.alloc(to)
	for i := range (n + 3) / 4 {
		atomic.StoreUint64(&a.words[dst+i], a.words[at+i])
	}
	a.release(at, class)
	return dst
}

// append adds a rank to holders, which are three in the slot or more in a list.
func (a *arena) append(holders uint64, id uint16) uint64 {
	n := holderCount(holders)
	if n == inlineHolders {
		at := a.alloc(0)
		atomic.StoreUint64(&a.words[at], holders>>16|uint64(id)<<48)
		return listOf(n+1, at, 0)
	}
	at, class := listAt(holders), listClass(holders)
	if n == 4*classWords(class) {
		at = a.move(at, class, n, class+1)
		class++
	}
	a.set(at, n, id)
	return listOf(n+1, at, class)
}

// remove takes the j-th rank out of a list.
func (a *arena) remove(holders uint64, j int) uint64 {
	n, at, class := holderCount(holders)-1, listAt(holders), listClass(holders)
	a.set(at, j, a.get(at, n))
	if n == inlineHolders {
		w := a.words[at] << 16
		a.release(at, class)
		return w | inlineHolders
	}
	for class > 0 && n <= classWords(class) { // a quarter of what it has room for
		at = a.move(at, class, n, class-1)
		class--
	}
	return listOf(n, at, class)
}

// sparse tells whether most of the arena is unused.
func (a *arena) sparse() bool { return len(a.words) > minArena && a.live < a.next/2 }

// copyOf appends the list of holders of another arena, within the capacity of a's words.
func (a *arena) copyOf(from *arena, holders uint64) uint64 {
	n, at, class := holderCount(holders), listAt(holders), listClass(holders)
	words := classWords(class)
	a.words = append(a.words, from.words[at:at+words]...)
	a.live += words
	a.next += words
	return listOf(n, a.next-words, class)
}
