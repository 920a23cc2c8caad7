package admission

import (
	"math"
	"math/bits"
)

// loadTree finds the least loaded rank of a pool among those with room, ordered
// by (booked load, time of the last booking). It is one tournament a pairing
// group, so that a set of ranks that may be paired is served from the roots of
// its groups; a booking moves one leaf in O(log n).
type loadTree struct {
	leaves int       // a power of two; 0: the pool has no ranks
	keys   []loadKey // by rank index
	total  int64     // load of all
	oldest uint64    // the booking that order 0 stands for
	wins   [][]int32 // by group id; nil: the pool has no rank of the group
}

// loadKey orders ranks: by load, which is in what the pool's policy goes by, and then by
// the order of their last bookings. It is load<<seqBits | order.
type loadKey uint64

const (
	seqBits = 28
	maxSeq  = 1<<seqBits - 1
	maxLoad = 1<<(64-seqBits) - 1 // loads beyond it are equal
)

func (k loadKey) load() int64 { return int64(k >> seqBits) }
func (k loadKey) seq() uint64 { return uint64(k & maxSeq) }

// In a tournament win, win[1] is the root and leaf i is win[leaves+i]; nobody
// is -1.

// fewRanks is up to how many ranks looking at each is cheaper than a tree.
const fewRanks = 16

// join makes place for ranks of a group, with indexes below n.
func (t *loadTree) join(group, n int) {
	t.grow(n)
	for len(t.wins) <= group {
		t.wins = append(t.wins, nil)
	}
	if t.wins[group] == nil {
		t.wins[group] = newTournament(t.leaves)
	}
}

// forget takes the load of rank i, which does not take part any more, out of the total.
func (t *loadTree) forget(i int) {
	t.total -= t.keys[i].load()
	t.keys[i] &= maxSeq
}

// renumber makes place for the orders of booking seq and many more, and returns that of
// seq. The ranks that were not booked for the longest time become equal; no rank comes
// before another that it came after.
func (t *loadTree) renumber(seq uint64) uint64 {
	by := seq - t.oldest - maxSeq/2
	t.oldest += by
	for i, k := range t.keys {
		t.keys[i] = k - loadKey(min(k.seq(), by))
	}
	return seq - t.oldest
}

// leave forgets a group that has no rank left in the pool.
func (t *loadTree) leave(group int) {
	t.wins[group] = nil
	for _, w := range t.wins {
		if w != nil {
			return
		}
	}
	*t = loadTree{}
}

// grow makes place for indexes below n.
func (t *loadTree) grow(n int) {
	leaves := 1
	for leaves < n {
		leaves *= 2
	}
	if leaves <= t.leaves {
		return
	}
	keys := make([]loadKey, leaves)
	copy(keys, t.keys)
	old := t.leaves
	t.keys, t.leaves = keys, leaves
	for g, win := range t.wins {
		if win == nil {
			continue
		}
		w := newTournament(leaves)
		copy(w[leaves:], win[old:])
		for i := leaves - 1; i >= 1; i-- {
			w[i] = t.better(w[2*i], w[2*i+1])
		}
		t.wins[g] = w
	}
}

func newTournament(leaves int) []int32 {
	w := make([]int32, 2*leaves)
	for i := range w {
		w[i] = -1
	}
	return w
}

func (t *loadTree) better(a, b int32) int32 {
	switch {
	case a < 0:
		return b
	case b < 0:
		return a
	case t.keys[b] < t.keys[a]:
		return b
	}
	return a
}

func (t *loadTree) load(i int) int64 { return t.keys[i].load() }

// put sets the load of rank i of a group and whether it takes part. seq orders
// bookings; zero keeps the order the rank has.
func (t *loadTree) put(i, group int, load int64, seq uint64, in bool) {
	load = min(load, maxLoad)
	old := t.keys[i]
	order := old.seq()
	if seq != 0 {
		if order = seq - t.oldest; order > maxSeq {
			order = t.renumber(seq)
		}
	}
	t.total += load - old.load()
	t.keys[i] = loadKey(load)<<seqBits | loadKey(order)
	leaf := int32(-1)
	if in {
		leaf = int32(i)
	}
	win := t.wins[group]
	p := t.leaves + i
	win[p] = leaf
	for p >>= 1; p >= 1; p >>= 1 {
		w := t.better(win[2*p], win[2*p+1])
		if w == win[p] && w != int32(i) {
			return // the winner is another as before: nothing changes above
		}
		win[p] = w
	}
}

// min returns the least loaded member of set, which has n members; -1 when it
// is empty. only is the group of all members, or -1; groups are the members of
// each. The answer is the best of the roots unless set leaves a root's winner
// out, which takes a pin (few ranks), an exclusion (few steps), a group that
// may not be paired (none of it is in set), or labels and priorities, where what is left
// out may be less loaded than all of set: then each word of set is looked at.
func (t *loadTree) min(set bitmap, n, only int, groups *[]bitmap) int {
	best := int32(-1)
	if n <= fewRanks {
		for w, word := range set {
			if word != 0 {
				best = t.scan(w, word, best)
			}
		}
		return int(best)
	}
	if only >= 0 {
		return int(t.search(t.wins[only], 1, set, set, best))
	}
	for g, win := range t.wins {
		switch {
		case win == nil || win[1] < 0:
		case set.has(int(win[1])):
			best = t.better(best, win[1])
		case (*groups)[g].intersects(set):
			best = t.search(win, 1, set, (*groups)[g], best)
		}
	}
	return int(best)
}

// search returns the better of best and the best member of set and group under node p. It
// does not go into a subtree whose winner is no better.
func (t *loadTree) search(win []int32, p int, set, group bitmap, best int32) int32 {
	w := win[p]
	if w < 0 || best >= 0 && t.keys[best] <= t.keys[w] {
		return best
	}
	if set.has(int(w)) {
		return w
	}
	if words := max(t.leaves/64, 1); p >= words { // below are the ranks of one word
		return t.scan(p-words, set[p-words]&group[p-words], best)
	}
	a, b := 2*p, 2*p+1
	if win[b] == w { // the half the winner is not in may be settled at once
		a, b = b, a
	}
	best = t.search(win, b, set, group, best)
	return t.search(win, a, set, group, best)
}

// scan returns the better of best and the ranks of a word of a set.
func (t *loadTree) scan(at int, word uint64, best int32) int32 {
	keys := t.keys[at<<6:]
	least := loadKey(math.MaxUint64)
	if best >= 0 {
		least = t.keys[best]
	}
	for ; word != 0; word &= word - 1 {
		i := bits.TrailingZeros64(word)
		if k := keys[i]; k < least || best < 0 {
			best, least = int32(at<<6+i), k
		}
	}
	return best
}
