package admission

import (
	"math"
	"math/bits"
)

// unlimited is a limit that nothing reaches.
const unlimited = math.MaxInt64

// prefillThreshold is one pair of prefill thresholds that classes use, and the ranks
// that are not busy by it.
type prefillThreshold struct {
	tokens *int64
	frac   *float64
	ok     bitmap
}

// limit returns the most active prefill tokens with which r is not busy.
// counted is false when r is judged by its requests, because its capacity is
// not known.
func (g *prefillThreshold) limit(r *Rank) (limit int64, counted bool) {
	limit, counted = unlimited, true
	if g.tokens != nil {
		limit = r.part(*g.tokens)
	}
	if g.frac != nil {
		if r.capacity.MaxBatchedTokens == 0 {
			return limit, false
		}
		limit = min(limit, r.part(partOf(*g.frac, r.capacity.MaxBatchedTokens)))
	}
	return limit, counted
}

// partOf is the greatest whole number that is not more than frac × whole. The
// fraction is written in decimal, so what floating point lacks to a whole number
// is added.
func partOf(frac float64, whole int64) int64 {
	v := math.Floor(frac*float64(whole) + 1e-6)
	if v >= maxAmount<<10 {
		return maxAmount << 10
	}
	return int64(max(v, -1))
}

func (ix *rankIndex) assumed(r *Rank) int64 {
	if r.capacity.MaxRunning > 0 {
		return r.count(r.capacity.MaxRunning)
	}
	if ix.assumedMax > 0 {
		return r.count(int64(ix.assumedMax))
	}
	return r.count(assumedMaxRequests)
}

// notBusy tells whether r is not busy by gate g with tokens more of prefill and
// requests more.
func (ix *rankIndex) notBusy(g *prefillThreshold, r *Rank, tokens, requests int64) bool {
	limit, counted := g.limit(r)
	return r.tokens+tokens <= limit && (counted || r.load()+requests < ix.assumed(r))
}

// blockThreshold is one decode fraction that classes use, and for each rank how many
// blocks a request may need to fit under it. The numbers are stored in slices of
// one bit, the highest first, 64 ranks to a word: "which of these ranks have room
// for n blocks" is then a comparison of 64 ranks at a time, exact, and settled
// after the highest bits in which they differ from n. Sets of the ranks with at
// least each power of two leave few for it to compare.
type blockThreshold struct {
	frac   float64
	bits   int
	values []uint32 // by rank index
	cells  []uint64 // by word, then by bit
	levels []bitmap // by k: the ranks whose value is at least 2^k
	none   bitmap
}

// Values are headroom+1, 0 for ranks that have no room at all, and all ones for
// ranks where everything fits.

func (g *blockThreshold) all() uint32 { return 1<<g.bits - 1 }

func (g *blockThreshold) encode(headroom int64) uint32 {
	if headroom == unlimited {
		return g.all()
	}
	return uint32(min(max(headroom+1, 0), int64(g.all()>>1)))
}

// encodeNeed is the least value of a rank that n blocks fit on.
func (g *blockThreshold) encodeNeed(n int64) uint32 {
	if n >= int64(g.all()>>1) {
		return g.all()
	}
	return uint32(n + 1)
}

func (g *blockThreshold) put(i int, v uint32) {
	old := g.values[i]
	diff := old ^ v
	if diff == 0 {
		return
	}
	g.values[i] = v
	for k := bits.Len32(old); k < bits.Len32(v); k++ {
		g.levels[k].set(i)
	}
	for k := bits.Len32(v); k < bits.Len32(old); k++ {
		g.levels[k].clear(i)
	}
	for ; diff != 0; diff &= diff - 1 {
		g.cells[i>>6*g.bits+g.bits-1-bits.TrailingZeros32(diff)] ^= 1 << (uint(i) & 63)
	}
}

// atLeast returns those of the ranks in mask, in word w, whose value is at least
// need.
func (g *blockThreshold) atLeast(w int, need uint32, mask uint64) uint64 {
	more, equal := uint64(0), mask
	cells := g.cells[w*g.bits : (w+1)*g.bits]
	for k, cell := range cells {
		if need>>(g.bits-1-k)&1 != 0 {
			equal &= cell
		} else {
			more |= equal & cell
			equal &^= cell
		}
		if equal == 0 {
			break
		}
	}
	return more | equal
}

// among leaves in dst the ranks of src whose value is at least need, which is not
// zero, and counts them. dst and src may be one.
func (g *blockThreshold) among(dst, src bitmap, need uint32) int {
	k := bits.Len32(need) - 1
	some := g.levels[k] // with at least 2^k
	all := some         // of which these are enough
	if need != 1<<k {
		if all = g.none; k+1 < g.bits {
			all = g.levels[k+1]
		}
	}
	n := 0
	for w, word := range src {
		if word != 0 {
			enough := word & all[w]
			if rest := word & some[w] &^ enough; rest != 0 {
				enough |= g.atLeast(w, need, rest)
			}
			word = enough
			n += bits.OnesCount64(word)
		}
		dst[w] = word
	}
	return n
}

func (g *blockThreshold) grow(words int) {
	for len(g.levels) < g.bits {
		g.levels = append(g.levels, nil)
	}
	for k := range g.levels {
		g.levels[k] = g.levels[k].grow(words)
	}
	g.none = g.none.grow(words)
	values := make([]uint32, words*64)
	copy(values, g.values)
	cells := make([]uint64, words*g.bits)
	copy(cells, g.cells)
	g.values, g.cells = values, cells
}

// blockLimit returns the most blocks of r under frac; ok is false when its
// capacity is not known.
func blockLimit(frac float64, r *Rank) (limit int64, ok bool) {
	if r.capacity.KVBlocks == 0 {
		return 0, false
	}
	return r.part(partOf(frac, r.capacity.KVBlocks)), true
}

// headroom returns the blocks that a request may need on r under frac, once more
// blocks are booked on it by a request of legs more legs; unlimited when
// everything fits, negative when nothing does.
func (ix *rankIndex) headroom(frac float64, r *Rank, more, legs int64) int64 {
	used := r.blocksPending + r.blocksActive + r.unbooked + more
	if r.pending+r.active == 0 && legs == 0 && used == 0 && r.first() {
		return unlimited // one request alone always fits
	}
	limit, ok := blockLimit(frac, r)
	switch {
	case ok:
		return limit - used
	case int64(r.pending+r.active)+legs < ix.assumed(r):
		return unlimited
	}
	return -1
}

// setThresholds keeps the thresholds that classes use, and gives each class the place
// of its own.
func (ix *rankIndex) setThresholds(profiles []*profile) {
	ix.prefillThresholds, ix.blockThresholds = nil, nil
	for _, p := range profiles {
		for _, cl := range p.classes {
			cl.prefillThreshold, cl.blockThreshold = -1, -1
			if cl.PrefillBusyTokens != nil || cl.PrefillBusyFrac != nil {
				cl.prefillThreshold = ix.prefillThresholdOf(cl)
			}
			if cl.DecodeBusyFrac != nil {
				cl.blockThreshold = ix.blockThresholdOf(*cl.DecodeBusyFrac)
			}
		}
	}
	for _, r := range ix.ranks {
		if r != nil {
			ix.growBlockThresholds(r)
			ix.refresh(r, 0)
		}
	}
}

func same[T comparable](a, b *T) bool { return a == b || a != nil && b != nil && *a == *b }

func (ix *rankIndex) prefillThresholdOf(cl *class) int {
	for i, g := range ix.prefillThresholds {
		if same(g.tokens, cl.PrefillBusyTokens) && same(g.frac, cl.PrefillBusyFrac) {
			return i
		}
	}
	ix.prefillThresholds = append(ix.prefillThresholds, &prefillThreshold{tokens: cl.PrefillBusyTokens, frac: cl.PrefillBusyFrac, ok: make(bitmap, ix.words)})
	return len(ix.prefillThresholds) - 1
}

func (ix *rankIndex) blockThresholdOf(frac float64) int {
	for i, g := range ix.blockThresholds {
		if g.frac == frac {
			return i
		}
	}
	g := &blockThreshold{frac: frac, bits: 2}
	g.grow(ix.words)
	ix.blockThresholds = append(ix.blockThresholds, g)
	return len(ix.blockThresholds) - 1
}

// growBlockThresholds makes place in the gates for the numbers of r.
func (ix *rankIndex) growBlockThresholds(r *Rank) {
	for _, g := range ix.blockThresholds {
		limit, _ := blockLimit(g.frac, r)
		limit = min(limit, 1<<29)
		if need := bits.Len64(uint64(limit+1)) + 1; need > g.bits {
			g.bits = need
			g.values, g.cells, g.levels = nil, nil, nil
			g.grow(ix.words)
			for _, o := range ix.ranks {
				if o != nil && o.decodes() {
					g.put(o.index, g.encode(ix.headroom(g.frac, o, 0, 0)))
				}
			}
		}
	}
}

// gated tells whether decode fractions judge the rank.
func (r *Rank) decodes() bool { return r.role == RoleDecode || r.role == RoleRegular }

// refreshThresholds brings the gates in line with what r holds.
func (ix *rankIndex) refreshThresholds(r *Rank) {
	for _, g := range ix.prefillThresholds {
		g.ok.put(r.index, ix.notBusy(g, r, 0, 0))
	}
	if !r.decodes() {
		return
	}
	for _, g := range ix.blockThresholds {
		g.put(r.index, g.encode(ix.headroom(g.frac, r, 0, 0)))
	}
}

// overloaded tells whether a rank is over one of the router-wide thresholds.
// What is not known is not over.
func (ix *rankIndex) overloaded(r *Rank) bool {
	h := &ix.reject
	if v := h.ActivePrefillTokens; v != nil && r.tokens > r.part(*v) {
		return true
	}
	if v := h.ActivePrefillTokensFrac; v != nil && r.capacity.MaxBatchedTokens > 0 && r.tokens > r.part(partOf(*v, r.capacity.MaxBatchedTokens)) {
		return true
	}
	if v := h.ActiveDecodeBlocks; v != nil && r.decodes() && r.capacity.KVBlocks > 0 &&
		r.blocksPending+r.blocksActive > r.part(partOf(*v, r.capacity.KVBlocks)) {
		return true
	}
	return false
}

func (ix *rankIndex) setReject(h RejectThresholds) {
	ix.reject = h
	ix.rejecting = h.ActiveDecodeBlocks != nil || h.ActivePrefillTokens != nil || h.ActivePrefillTokensFrac != nil
}
