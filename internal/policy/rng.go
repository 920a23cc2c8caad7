package policy

import "math/bits"

// rng is the splitmix64 generator: eight bytes of state and a few cycles a
// number, which is all that spreading requests asks for.
type rng struct{ state uint64 }

func (r *rng) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	return mix(r.state)
}

// below returns a number in [0, n), n > 0. The bias of not rejecting is below
// n/2^64.
func (r *rng) below(n int) int {
	hi, _ := bits.Mul64(r.next(), uint64(n))
	return int(hi)
}

// mix is the finalizer of splitmix64: every bit of the result depends on every
// bit of x.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// HashKey hashes what binds requests together: a routing key, a session, a
// user. It is the same in every process, so that routers side by side send one
// key to one rank.
func HashKey[T string | []byte](s T) uint64 {
	h := uint64(0xcbf29ce484222325) // FNV-1a, then mixed: alone its high bits are poor
	for i := 0; i < len(s); i++ {
		h = (h ^ uint64(s[i])) * 0x100000001b3
	}
	return mix(h)
}
