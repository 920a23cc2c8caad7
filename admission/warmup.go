package admission

import "math/bits"

// A rank that has just come, or come back, is given less than the others for a while:
// its caches are cold, and nobody knows yet whether it holds. Turns are counted for each
// priority of a pool: in a turn every rank of the priority would get one request on
// average. A rank that warms up gets one in as many turns as its share says; the rest go
// to the full ranks of its priority, or to lower ones.

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

// booked tells the pool that a choice of its policy was booked.
func (p *pool) booked(r *Rank, h *Hint) {
	p.policy.Booked(r.index, h)
	if p.warmUp.n > 0 {
		p.countTurns(r)
	}
}

// countTurns counts a request that r got. Some ranks of p warm up. The request would have
// gone to a rank of a higher priority if there had been one that was not held back, but
// not to one of a lower priority.
func (p *pool) countTurns(r *Rank) {
	anyFull := p.warmUp.n < p.candN
	for i := range p.levels {
		v := &p.levels[i]
		if v.priority < r.priority {
			break
		}
		switch full := v.cand - v.warm; {
		case full > 0 || !anyFull && v.warm > 0: // what is held back goes to the others
			v.turn += oneTurn * fullShare / (int64(full)*fullShare + v.shares)
		case v.warm > 0:
			v.turn += oneTurn / int64(v.warm)
		}
	}
	if r.share > 0 {
		u, turn := &p.warmUp, p.level(r.priority).turn
		one := oneTurn * fullShare / int64(r.share)
		u.next[r.index] = max(u.next[r.index], turn-maxSaved*one) + one
	}
}

// due tells whether a rank of set and one priority is not held back by its warm-up.
func (u *warmUp) due(set bitmap, x *priorityLevel, turn int64) bool {
	for w, word := range set {
		word &= x.members[w]
		if word&^u.members[w] != 0 {
			return true
		}
		for ; word != 0; word &= word - 1 {
			if u.next[w<<6+bits.TrailingZeros64(word)] <= turn {
				return true
			}
		}
	}
	return false
}
