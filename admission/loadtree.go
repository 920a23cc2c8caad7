package admission

// loadTree is a tournament over the ranks of a pool that have room, ordered by
// (booked load, time of the last booking). The winner is found at the root; a
// booking moves one leaf in O(log n).
type loadTree struct {
	keys []uint64 // by rank index: load<<seqBits | order of the last booking
	win  []int32  // win[1] is the root; leaf i is win[leaves+i]; -1: nobody
	n    int      // leaves, a power of two
}

const (
	seqBits = 40
	seqMask = 1<<seqBits - 1
)

func (t *loadTree) grow(n int) {
	leaves := 1
	for leaves < n {
		leaves *= 2
	}
	if leaves <= t.n {
		return
	}
	old := *t
	t.n = leaves
	t.keys = make([]uint64, leaves)
	t.win = make([]int32, 2*leaves)
	copy(t.keys, old.keys)
	for i := range t.win {
		t.win[i] = -1
	}
	for i := 0; i < old.n; i++ {
		t.win[leaves+i] = old.win[old.n+i]
	}
	for i := leaves - 1; i >= 1; i-- {
		t.win[i] = t.better(t.win[2*i], t.win[2*i+1])
	}
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

func (t *loadTree) load(i int) int64 { return int64(t.keys[i] >> seqBits) }

// put sets rank i's load and whether it takes part. seq orders bookings; zero
// keeps the order the rank has.
func (t *loadTree) put(i int, load int64, seq uint64, in bool) {
	if seq == 0 {
		seq = t.keys[i]
	}
	t.keys[i] = uint64(load)<<seqBits | seq&seqMask
	w := int32(-1)
	if in {
		w = int32(i)
	}
	p := t.n + i
	t.win[p] = w
	for p >>= 1; p >= 1; p >>= 1 {
		a, b := t.win[2*p], t.win[2*p+1]
		w := t.better(a, b)
		if w == t.win[p] && w != int32(i) {
			return
		}
		t.win[p] = w
	}
}

// min returns the winner among set, or -1. It is the root unless set leaves
// the root's winner out, which takes a pin, an exclusion or a second pairing
// group.
func (t *loadTree) min(set bitmap) int {
	if w := t.win[1]; w >= 0 && set.has(int(w)) {
		return int(w)
	}
	return int(t.search(1, set, -1))
}

func (t *loadTree) search(p int, set bitmap, best int32) int32 {
	w := t.win[p]
	if w < 0 || best >= 0 && t.keys[best] <= t.keys[w] {
		return best
	}
	if set.has(int(w)) {
		return w
	}
	if p >= t.n {
		return best
	}
	a, b := 2*p, 2*p+1
	if t.win[b] == w { // descend to the better half first
		a, b = b, a
	}
	return t.search(b, set, t.search(a, set, best))
}
