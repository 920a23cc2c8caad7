package admission

import "math"

// Hint is what a policy may know of the request it places. Everything in it
// was computed before the gate's lock was taken.
type Hint struct {
	// Holders are ranks that are believed to have cached the beginning of the prompt,
	// the most tokens first. A nil rank ends them.
	Holders [MaxHolders]Holder
	// PromptTokens are those of the leg that Holders' tokens are a part of.
	PromptTokens int64
	// Key is the hash of what binds requests together (a routing key, a
	// session); valid when HasKey is set.
	Key uint64
	// PrefixKey is the hash of the beginning of the prompt; valid when HasPrefix is set.
	PrefixKey         uint64
	HasKey, HasPrefix bool
	// Sharing is how many other requests came lately whose prompts were found to begin as far
	// alike as this one's, which is as far as Holders know it.
	Sharing int32
}

// MaxHolders is how many ranks a [Hint] names at most.
const MaxHolders = 4

// Holder is a rank that is believed to have cached so many of the first tokens of a
// prompt.
type Holder struct {
	Rank   *Rank
	Tokens int64
}

// Cached returns how many of the first tokens of the prompt r is believed to hold.
func (h *Hint) Cached(r *Rank) int64 {
	for i := range h.Holders {
		switch h.Holders[i].Rank {
		case r:
			return h.Holders[i].Tokens
		case nil:
			return 0
		}
	}
	return 0
}

// Policy chooses one rank of one pool. There is one instance a pool and role.
//
// All methods are called under the gate's lock: they must not block, allocate
// (Pick and Booked), call back into the gate, or take time that grows with the
// fleet. A policy changes its own state in Booked only, that is for choices
// that succeeded.
type Policy interface {
	// Pick returns a member of v, which has at least one.
	Pick(v *View, h *Hint) int
	// Booked tells that the choice of rank index i was booked.
	Booked(i int, h *Hint)
	// RankAdded and RankRemoved follow the pool's members. An index may be
	// used again for another rank after its removal.
	RankAdded(i int, id string)
	RankRemoved(i int)
}

// View is the set of ranks a policy may choose from: candidates with room that
// are eligible for the request. It is valid only during the call it is handed
// to. Indexes are those of RankAdded.
type View struct {
	set   bitmap
	n     int
	pool  *pool
	whole bool    // set is all of the pool's ranks with room
	group int     // all ranks are of this pairing group; -1: of any
	ranks []*Rank // the core's, by index
	// passing: passed requests count
	passing bool
}

// Len returns the number of ranks to choose from.
func (v *View) Len() int { return v.n }

// Has tells whether rank index i may be chosen.
func (v *View) Has(i int) bool { return i >= 0 && i < len(v.set)<<6 && v.set.has(i) }

// Nth returns the i-th rank to choose from, 0 ≤ i < Len, in index order.
func (v *View) Nth(i int) int {
	if v.whole {
		return v.pool.nthRoom(i)
	}
	return v.set.nth(i)
}

// Next returns the first rank to choose from after index i in cyclic order.
// Next(-1) is the first.
func (v *View) Next(i int) int { return v.set.next(i) }

// Load returns the booked load of rank index i: requests in prefill for a
// prefill rank, pending and active ones for the others, one unit a leg.
// Choices for passed requests count those, too.
func (v *View) Load(i int) int64 {
	l := v.pool.load.load(i)
	if v.pool.measure != ByRequests {
		l = v.ranks[i].load()
	}
	if v.passing {
		l += int64(v.ranks[i].passed)
	}
	return l
}

// Min returns the rank with the least booked, by the measure of the pool's policy (see
// [Measured]); among equals the one that was booked least recently. It is for ranks with
// room, and not for choices where Passing is true.
func (v *View) Min() int { return v.pool.load.min(v.set, v.n, v.group, v.pool.groups) }

// Amount returns what is booked on rank index i, by the measure of the pool's policy, up to
// 2^36.
func (v *View) Amount(i int) int64 { return v.pool.load.load(i) }

// MeanAmount returns the mean of Amount over the candidates of the pool, whether they have
// room and may be chosen or not.
func (v *View) MeanAmount() float64 {
	return float64(v.pool.load.total) / float64(max(v.pool.candN, 1))
}

// MeanLoad returns the mean of Load over the same ranks, without passed requests.
func (v *View) MeanLoad() float64 {
	return float64(v.pool.sum.Requests) / float64(max(v.pool.candN, 1))
}

// BookedBefore tells whether the last booking of rank index i is longer ago than that of
// j.
func (v *View) BookedBefore(i, j int) bool {
	return v.pool.load.keys[i].seq() < v.pool.load.keys[j].seq()
}

// Tokens returns the uncached prompt tokens that are booked on rank index i and not
// computed yet.
func (v *View) Tokens(i int) int64 { return v.ranks[i].tokens }

// Index returns the rank index of r, if it may be chosen; else -1.
func (v *View) Index(r *Rank) int {
	if r == nil || !v.Has(r.index) || v.ranks[r.index] != r {
		return -1
	}
	return r.index
}

// Passing tells whether the choice is for a request that holds nothing (see
// [Gate.Pass]): the ranks may have no room, and Load counts such requests too.
func (v *View) Passing() bool { return v.passing }

// Measured is a policy that has the ranks of its pool ordered by another measure than
// ByRequests.
type Measured interface {
	Policy
	// Measure is called once, before the pool has any rank.
	Measure() Measure
}

// Measure is what of the bookings of a rank [View.Min] and [View.Amount] go by.
type Measure uint8

// The measures.
const (
	// ByRequests is what [View.Load] returns, without passed requests.
	ByRequests Measure = iota
	// ByTokens is what [View.Tokens] returns.
	ByTokens
	// ByTokensAndKV is TokenWeight times those, and the tokens for which KV blocks are
	// booked, for ranks that decode.
	ByTokensAndKV
)

// TokenWeight is how many tokens that a rank keeps while it generates are as much work
// for it as one token of a prompt that it has yet to compute. A step of decode reads the
// KV blocks of all requests: an answer of some hundred tokens reads a token that is kept
// some hundred times, which takes a tenth to a half of the time to compute one.
const TokenWeight = 4

func measureOf(p Policy) Measure {
	if m, ok := p.(Measured); ok {
		return m.Measure()
	}
	return ByRequests
}

// amount is what is booked on r.
func (r *Rank) amount(m Measure) int64 {
	switch m {
	case ByTokens:
		return r.tokens
	case ByTokensAndKV:
		return TokenWeight*r.tokens + r.kvTokens()
	}
	return r.load()
}

// kvTokens is the tokens for which KV blocks of r are booked, up to a bound that keeps sums
// from overflow.
func (r *Rank) kvTokens() int64 {
	size := r.blockSize()
	return min(r.blocksPending+r.blocksActive, math.MaxInt64/4/size) * size
}

// PolicyFactory makes the policy of one pool.
type PolicyFactory func(model string, role Role) Policy

// firstFit takes the rank with the lowest index. It is the policy of cores
// that were given none.
type firstFit struct{}

func (firstFit) Pick(v *View, _ *Hint) int { return v.Next(-1) }
func (firstFit) Booked(int, *Hint)         {}
func (firstFit) RankAdded(int, string)     {}
func (firstFit) RankRemoved(int)           {}
