package admission

import "math/bits"

// A rank that has just come, or come back, is given less than the others for a while:
// its caches are cold, and nobody knows yet whether it holds. Each pool counts turns, in
// which every full rank of it gets one request on average; a rank that warms up gets one
// in as many turns as its share says.

// warmUp is the ranks of a pool that warm up.
type warmUp struct {
	n       int    // of them
	shares  int64  // of all of them
	members bitmap // empty before the first
	next    []int64
	turn    int64
}

const (
	// oneTurn is a turn, and fullShare the share of a rank that does not warm up.
	oneTurn   = 1 << 20
	fullShare = 1000
	// maxSaved is how many requests a rank can make up for that it was due and did not
	// get.
	maxSaved = 4
)

// share is that of a candidate in this state; 0: it does not warm up.
func (s RankState) share() uint16 {
	if s.Share >= fullShare {
		return 0
	}
	return s.Share
}

func (u *warmUp) grow(words int) {
	if u.members == nil {
		return
	}
	u.members = u.members.grow(words)
	next := make([]int64, words*64)
	copy(next, u.next)
	u.next = next
}

// refreshShare begins, changes or ends the warm-up of a rank in its pools.
func (ix *rankIndex) refreshShare(r *Rank, cand bool) {
	share := uint16(0)
	if cand {
		share = r.state.share()
	}
	if share == r.share {
		return
	}
	for _, p := range r.pools {
		u := &p.warmUp
		if u.members == nil {
			u.members, u.next = make(bitmap, ix.words), make([]int64, ix.words*64)
		}
		u.shares += int64(share) - int64(r.share)
		switch {
		case r.share == 0:
			u.n++
			u.members.set(r.index)
			u.next[r.index] = u.turn
		case share == 0:
			u.n--
			u.members.clear(r.index)
		}
	}
	r.share = share
}

// booked tells the pool that a choice of its policy was booked.
func (p *pool) booked(r *Rank, h Hint) {
	p.policy.Booked(r.index, h)
	if p.warmUp.n > 0 {
		p.warmUp.take(p, r)
	}
}

// take counts a request that r got. Some ranks of p warm up.
func (u *warmUp) take(p *pool, r *Rank) {
	u.turn += oneTurn * fullShare / (int64(p.candN-u.n)*fullShare + u.shares)
	if r.share > 0 {
		one := oneTurn * fullShare / int64(r.share)
		u.next[r.index] = max(u.next[r.index], u.turn-maxSaved*one) + one
	}
}

// leaveWarm takes the ranks from the candidates of a leg that have had their share, if
// others are left.
func (ch *chooser) leaveWarm(s *candidates, l Leg) {
	u, set := &s.pool(l).warmUp, s.of(l).set
	some, others := uint64(0), uint64(0)
	for w, word := range set {
		some |= word & u.members[w]
		others |= word &^ u.members[w]
	}
	if some == 0 || others == 0 {
		return
	}
	for w, warm := range u.members {
		for word := warm & set[w]; word != 0; word &= word - 1 {
			if i := w<<6 + bits.TrailingZeros64(word); u.next[i] > u.turn {
				ch.drop(s, l, ch.index.ranks[i])
			}
		}
	}
}
