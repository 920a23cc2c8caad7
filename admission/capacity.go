package admission

import (
	"maps"
	"slices"
)

// Capacity is what an engine said, or the operator, a rank can take. Zero is
// unknown.
type Capacity struct {
	// MaxBatchedTokens is the most prompt tokens of one prefill batch: vLLM's
	// max_num_batched_tokens, SGLang's chunked_prefill_size or else
	// max_prefill_tokens.
	MaxBatchedTokens int64
	// KVBlocks is all KV blocks of the rank, BlockSize the tokens of one.
	KVBlocks, BlockSize int64
	// MaxRunning is the most sequences that run at once.
	MaxRunning int64
}

const (
	// assumedBlockSize counts the blocks of ranks that did not tell the size
	// of theirs.
	assumedBlockSize = 16
	// assumedMaxRequests is how many requests a rank of unknown capacity has
	// room for when the options do not say.
	assumedMaxRequests = 64
	// maxAmount bounds every amount of one request, so that no sum overflows.
	maxAmount = 1 << 40
)

// RankAttributes are what is known of a rank and that may change while requests hold it; see
// [SetAttributes].
type RankAttributes struct {
	Models    []string
	PairGroup string
	// Topology is the KV-transfer domain of the rank, for requests that want
	// both of their ranks in one.
	Topology string
	Labels   map[string]string
	// Adapters are the LoRA adapters that the rank can serve.
	Adapters []string
	Capacity Capacity
	Limits   RankLimits
	// Priority: of the ranks with room for a request, those of the highest are used.
	Priority int
}

// RankLimits bound what is booked on one rank. Zero is no limit of its own.
type RankLimits struct {
	// PrefillSlots is the most requests in prefill on a prefill rank, in place of
	// [Limits.PrefillSlots].
	PrefillSlots int
	// Running is how many calls may be booked on the rank: it has room for a request,
	// whatever its calls, while there are fewer.
	Running int64
}

func (f RankAttributes) clone() RankAttributes {
	f.Models = slices.Clone(f.Models)
	f.Labels = maps.Clone(f.Labels)
	f.Adapters = slices.Clone(f.Adapters)
	c := &f.Capacity
	for _, v := range []*int64{&c.MaxBatchedTokens, &c.KVBlocks, &c.BlockSize, &c.MaxRunning} {
		*v = min(max(*v, 0), maxAmount)
	}
	f.Limits.PrefillSlots, f.Limits.Running = max(f.Limits.PrefillSlots, 0), max(f.Limits.Running, 0)
	return f
}

func (r *Rank) ownSlots() bool { return r.role == RolePrefill && r.bounds.PrefillSlots > 0 }

// slotLimit is how many requests may be in prefill on a prefill rank; zero or less: any
// number.
func (l *Limits) slotLimit(r *Rank) int {
	if n := r.bounds.PrefillSlots; n > 0 {
		return n
	}
	return l.PrefillSlots
}

// full tells whether r has reached a limit of its own, or of its prefill slots, with
// slots and calls more than it has.
func (l *Limits) full(r *Rank, slots int, calls int64) bool {
	if r.role == RolePrefill {
		if n := l.slotLimit(r); n > 0 && r.slots+slots >= n {
			return true
		}
	}
	return r.bounds.Running > 0 && r.load()+calls >= r.bounds.Running
}

func (r *Rank) blockSize() int64 {
	if r.capacity.BlockSize > 0 {
		return r.capacity.BlockSize
	}
	return assumedBlockSize
}

// blockSize is one size of KV blocks and the ranks that have it. Fleets have one
// or two; each takes one more comparison when decode ranks are sought.
type blockSize struct {
	tokens  int64
	members bitmap
	n       int
	need    uint32 // memory: blocks of the request that is being placed, encoded
}

// blockSizes are those that some rank has, or had.
type blockSizes []blockSize

func (x *blockSizes) join(r *Rank, words int) {
	at := -1
	for i := range *x {
		switch s := &(*x)[i]; {
		case s.tokens == r.blockSize():
			at = i
		case s.n == 0 && at < 0:
			at = i
		}
	}
	if at < 0 {
		at = len(*x)
		*x = append(*x, blockSize{members: make(bitmap, words)})
	}
	s := &(*x)[at]
	s.tokens = r.blockSize()
	s.members.set(r.index)
	s.n++
	r.sizeID = at
}

func (x blockSizes) leave(r *Rank) {
	s := &x[r.sizeID]
	s.members.clear(r.index)
	s.n--
}

// blocks returns the KV blocks that the legs of t need on a rank with blocks of
// size tokens: each leg has its own prompt, all alike, and its reserve.
func (t *Ticket) blocks(size int64) int64 {
	legs := int64(t.legs())
	prompt := min(max(t.PromptTokens, 0), maxAmount)
	leg := (prompt+legs-1)/legs + min(max(t.ReserveTokens, 0), maxAmount)
	return legs * ((leg + size - 1) / size)
}

// uncached returns the prompt tokens that prefill has to compute.
func (t *Ticket) uncached() int64 {
	return min(max(t.PromptTokens-max(t.CachedTokens, 0), 0), maxAmount)
}

// domain interns a pairing group and topology domain, the pairing of requests
// that require both ranks in one domain. A domain without ranks is used again.
func (ix *rankIndex) domain(key domainKey) int {
	free := -1
	for i, k := range ix.domainKeys {
		switch {
		case k == key:
			return i
		case free < 0 && ix.domains[i].empty():
			free = i
		}
	}
	if free < 0 {
		free = len(ix.domainKeys)
		ix.domainKeys = append(ix.domainKeys, domainKey{})
		ix.domains = append(ix.domains, make(bitmap, ix.words))
	}
	ix.domainKeys[free] = key
	return free
}

type domainKey struct{ group, topology string }
