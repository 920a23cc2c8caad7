package policy

import "github.com/sluice-router/sluice/admission"

// maxWalk bounds the search for a rank with room along the ring. Half of the
// ranks being full costs two steps on average; the bound is met only when almost
// the whole fleet is.
const maxWalk = 64

// consistentHashing sends equal keys to one rank as long as that rank has room,
// and to the next one on a hash ring while it has not. A rank that joins or
// leaves moves only the keys it gets or had. Points on the ring come from the
// rank's id, so a rank that is registered again gets its keys back. Requests
// without a key are spread at random.
type consistentHashing struct {
	rng  rng
	ring namedRing
}

func newConsistentHashing(r rng) *consistentHashing { return &consistentHashing{rng: r} }

func (p *consistentHashing) Pick(v *admission.View, h *admission.Hint) int {
	if !h.HasKey {
		return v.Nth(p.rng.below(v.Len()))
	}
	if i := p.ring.walk(h.Key, maxWalk, v); i >= 0 {
		return i
	}
	// Almost nobody has room. Going on from an index that the key gives is still
	// the same choice for the same key, and changes only with its neighbours.
	if len(p.ring.ids) == 0 {
		return v.Next(-1)
	}
	start := rng{state: h.Key}
	return v.Next(start.below(len(p.ring.ids)) - 1)
}

func (*consistentHashing) Booked(int, *admission.Hint) {}

func (p *consistentHashing) RankAdded(i int, id string) { p.ring.add(i, id) }

func (p *consistentHashing) RankRemoved(i int) { p.ring.remove(i) }
