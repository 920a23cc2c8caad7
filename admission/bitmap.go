package admission

import (
	"iter"
	"math/bits"
)

// bitmap is a set of rank indexes. All bitmaps of one core have the same
// number of words, so that they can be combined word by word.
type bitmap []uint64

func (b bitmap) has(i int) bool { return b[i>>6]&(1<<(uint(i)&63)) != 0 }
func (b bitmap) set(i int)      { b[i>>6] |= 1 << (uint(i) & 63) }
func (b bitmap) clear(i int)    { b[i>>6] &^= 1 << (uint(i) & 63) }

func (b bitmap) put(i int, on bool) {
	if on {
		b.set(i)
	} else {
		b.clear(i)
	}
}

func (b bitmap) count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

func (b bitmap) empty() bool {
	for _, w := range b {
		if w != 0 {
			return false
		}
	}
	return true
}

func (b bitmap) intersects(c bitmap) bool {
	for i, w := range b {
		if w&c[i] != 0 {
			return true
		}
	}
	return false
}

// within tells whether all members of b are in c.
func (b bitmap) within(c bitmap) bool {
	for i, w := range b {
		if w&^c[i] != 0 {
			return false
		}
	}
	return true
}

// shares tells whether b, c and d have a member in common; a nil one has all.
func (b bitmap) shares(c, d bitmap) bool {
	if c == nil {
		c = b
	}
	if d == nil {
		d = b
	}
	for i, w := range b {
		if w&c[i]&d[i] != 0 {
			return true
		}
	}
	return false
}

// intersect makes b what c and d share, and counts it.
func (b bitmap) intersect(c, d bitmap) int {
	c, d = c[:len(b)], d[:len(b)] // so that the loop checks no bounds
	n := 0
	for i := range b {
		w := c[i] & d[i]
		b[i] = w
		n += bits.OnesCount64(w)
	}
	return n
}

func ones(w uint64) int { return bits.OnesCount64(w) }

func (b bitmap) copyFrom(c bitmap) { copy(b, c) }

// and makes b what c and d share. It tells whether that is anything.
func (b bitmap) and(c, d bitmap) bool {
	c, d = c[:len(b)], d[:len(b)]
	some := uint64(0)
	for i := range b {
		w := c[i] & d[i]
		b[i] = w
		some |= w
	}
	return some != 0
}

// subtract makes b what c has and d has not.
func (b bitmap) subtract(c, d bitmap) {
	c, d = c[:len(b)], d[:len(b)]
	for i := range b {
		b[i] = c[i] &^ d[i]
	}
}

// nth returns the i-th member in index order, or -1.
func (b bitmap) nth(i int) int {
	for w, word := range b {
		n := bits.OnesCount64(word)
		if i >= n {
			i -= n
			continue
		}
		for ; i > 0; i-- {
			word &= word - 1
		}
		return w<<6 + bits.TrailingZeros64(word)
	}
	return -1
}

// next returns the first member after index i in cyclic order, or -1 when the
// set is empty. It returns i itself when i is the only member.
func (b bitmap) next(i int) int {
	if len(b) == 0 {
		return -1
	}
	start := i + 1
	if start < 0 || start >= len(b)<<6 {
		start = 0
	}
	w := start >> 6
	if word := b[w] >> (uint(start) & 63); word != 0 {
		return start + bits.TrailingZeros64(word)
	}
	for k := 1; k <= len(b); k++ {
		j := w + k
		if j >= len(b) {
			j -= len(b)
		}
		if b[j] != 0 {
			return j<<6 + bits.TrailingZeros64(b[j])
		}
	}
	return -1
}

// all yields the members in index order.
func (b bitmap) all() iter.Seq[int] {
	return func(yield func(int) bool) {
		for w, word := range b {
			for ; word != 0; word &= word - 1 {
				if !yield(w<<6 + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}

// grow returns b with room for words words.
func (b bitmap) grow(words int) bitmap {
	if len(b) >= words {
		return b
	}
	nb := make(bitmap, words)
	copy(nb, b)
	return nb
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
