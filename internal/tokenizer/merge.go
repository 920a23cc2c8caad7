package tokenizer

import "slices"

// The merging of one word. What is merged next is the pair that stands first in the list of
// merges, of equal ones the leftmost, until no pair is in the list. Short words are searched
// for it again and again, long ones keep their pairs in a heap: n log n for n pieces, so
// that a megabyte of one letter is no attack.

// shortWord is the number of pieces up to which searching is faster than a heap.
const shortWord = 40

// piece is a part of a short word.
type piece struct {
	id           uint32
	rank, merged uint32 // of the pair with the piece behind it; noRank: none
}

// link is a part of a long word.
type link struct {
	id           uint32
	rank, merged uint32
	prev, next   int32 // -1: none
}

// mergeShort merges e.pieces and appends what remains to e.dst.
func (e *encoder) mergeShort(pairs *pairTable) {
	p := e.pieces
	for i := 0; i+1 < len(p); i++ {
		p[i].rank, p[i].merged = pairs.get(p[i].id, p[i+1].id)
	}
	p[len(p)-1].rank = noRank
	for len(p) > 1 {
		at, best := 0, noRank
		for i := range p {
			if r := p[i].rank; r < best {
				at, best = i, r
			}
		}
		if best == noRank {
			break
		}
		p[at].id = p[at].merged
		p[at].rank = noRank
		p = append(p[:at+1], p[at+2:]...)
		if at+1 < len(p) {
			p[at].rank, p[at].merged = pairs.get(p[at].id, p[at+1].id)
		}
		if at > 0 {
			p[at-1].rank, p[at-1].merged = pairs.get(p[at-1].id, p[at].id)
		}
	}
	for i := range p {
		e.dst = append(e.dst, p[i].id)
	}
}

// mergeLong merges e.links and appends what remains to e.dst.
func (e *encoder) mergeLong(pairs *pairTable) {
	l := e.links
	heap := slices.Grow(e.heap[:0], len(l)+len(l)/2)
	for i := range l {
		l[i].prev, l[i].next = int32(i)-1, int32(i)+1
		l[i].rank = noRank
		if i+1 == len(l) {
			l[i].next = -1
			break
		}
		l[i].rank, l[i].merged = pairs.get(l[i].id, l[i+1].id)
		if l[i].rank != noRank {
			heap = append(heap, uint64(l[i].rank)<<32|uint64(i))
		}
		if !e.tick(2) {
			return
		}
	}
	for i := len(heap)/4 + 1; i >= 0 && e.tick(2); i-- {
		heapDown(heap, i)
	}
	pair := func(at int32) {
		rank, merged := pairs.get(l[at].id, l[l[at].next].id)
		l[at].rank, l[at].merged = rank, merged
		if rank != noRank {
			heap = append(heap, uint64(rank)<<32|uint64(at))
			heapUp(heap, len(heap)-1)
		}
	}
	for len(heap) > 0 && e.tick(8) {
		top := heap[0]
		last := len(heap) - 1
		heap[0] = heap[last]
		heap = heap[:last]
		heapDown(heap, 0)
		at := int32(uint32(top))
		// A pair that changed since has another rank: pieces grow, so the pair that is there
		// now spells another text. A piece that is gone has none.
		if l[at].rank != uint32(top>>32) {
			continue
		}
		gone := l[at].next
		l[at].id = l[at].merged
		l[at].rank = noRank
		l[at].next = l[gone].next
		l[gone].rank = noRank
		if n := l[at].next; n >= 0 {
			l[n].prev = at
			pair(at)
		}
		if p := l[at].prev; p >= 0 {
			pair(p)
		}
	}
	e.heap = heap[:0]
	for i := int32(0); i >= 0 && e.tick(1); i = l[i].next {
		e.dst = append(e.dst, l[i].id)
	}
}

// heapDown moves the element at i to its place among those below it: each has four.
func heapDown(h []uint64, i int) {
	for {
		least := i
		for c := 4*i + 1; c <= 4*i+4 && c < len(h); c++ {
			if h[c] < h[least] {
				least = c
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

func heapUp(h []uint64, i int) {
	for i > 0 {
		above := (i - 1) / 4
		if h[above] <= h[i] {
			return
		}
		h[i], h[above] = h[above], h[i]
		i = above
	}
}
