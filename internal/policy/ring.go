package policy

import (
	"math/bits"
	"slices"

	"github.com/sluice-router/sluice/admission"
)

const (
	// virtualNodes is the number of points a rank has on the ring. The share of
	// keys of a rank varies by about 1/√points: 9 %.
	virtualNodes = 128
	// perBucket is the number of points a bucket is sized for.
	perBucket = 16
)

// ring is a hash ring whose points lie in buckets by their leading bits, sorted
// within the bucket. A point is found, added and removed at the cost of one
// small bucket, however large the ring.
type ring struct {
	buckets [][]point // a power of two of them, none while the ring is empty
	shift   uint      // bucket of hash h: h >> shift
	n       int       // points
}

type point struct {
	hash uint64
	rank int32
}

func (p point) compare(q point) int {
	switch {
	case p.hash < q.hash:
		return -1
	case p.hash > q.hash:
		return 1
	}
	return int(p.rank) - int(q.rank)
}

func pointHash(id uint64, k int) uint64 { return mix(id + uint64(k)*0x9e3779b97f4a7c15) }

func (r *ring) add(rank int, id string) {
	r.grow(r.n + virtualNodes)
	h := HashKey(id)
	for k := range virtualNodes {
		r.insert(point{hash: pointHash(h, k), rank: int32(rank)})
	}
}

func (r *ring) insert(p point) {
	b := &r.buckets[p.hash>>r.shift]
	at, _ := slices.BinarySearchFunc(*b, p, point.compare)
	*b = slices.Insert(*b, at, p)
	r.n++
}

func (r *ring) remove(rank int, id string) {
	h := HashKey(id)
	for k := range virtualNodes {
		p := point{hash: pointHash(h, k), rank: int32(rank)}
		b := &r.buckets[p.hash>>r.shift]
		if at, ok := slices.BinarySearchFunc(*b, p, point.compare); ok {
			*b = slices.Delete(*b, at, at+1)
			r.n--
		}
	}
	if r.n == 0 {
		*r = ring{}
	}
}

// grow makes room for n points. Doubling makes it cheap over all additions.
func (r *ring) grow(n int) {
	if n <= len(r.buckets)*perBucket {
		return
	}
	size := 1 << bits.Len(uint(n/perBucket))
	old := r.buckets
	r.buckets = make([][]point, size)
	r.shift = 64 - uint(bits.TrailingZeros(uint(size)))
	r.n = 0
	for _, b := range old {
		for _, p := range b { // in order: each goes to the end of its bucket
			r.insert(p)
		}
	}
}

// walk returns the rank of the first point from hash key on, around the ring,
// that is in v; -1 when there is none within steps points.
func (r *ring) walk(key uint64, steps int, v *admission.View) int {
	if r.n == 0 {
		return -1
	}
	i := int(key >> r.shift)
	b := r.buckets[i]
	at, _ := slices.BinarySearchFunc(b, point{hash: key, rank: -1}, point.compare)
	for steps = min(steps, r.n); ; i++ {
		if i == len(r.buckets) {
			i = -1
			at = 0
			continue
		}
		for b = r.buckets[i]; at < len(b); at++ {
			if v.Has(int(b[at].rank)) {
				return int(b[at].rank)
			}
			if steps--; steps == 0 {
				return -1
			}
		}
		at = 0
	}
}

// namedRing is a ring that remembers the ids of its ranks.
type namedRing struct {
	ring
	ids []string // by rank index
}

func (r *namedRing) add(i int, id string) {
	for len(r.ids) <= i {
		r.ids = append(r.ids, "")
	}
	r.ids[i] = id
	r.ring.add(i, id)
}

func (r *namedRing) remove(i int) {
	if i >= len(r.ids) {
		return
	}
	r.ring.remove(i, r.ids[i])
	r.ids[i] = ""
}
