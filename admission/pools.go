package admission

import (
	"cmp"
	"slices"
)

// pool is the ranks that serve one model in one role.
type pool struct {
	model  *model
	role   Role
	policy Policy
	// passing chooses for requests that hold nothing; nil before the first.
	passing Policy

	members   bitmap
	cand      bitmap
	room      bitmap
	candN     int
	roomN     int
	warmUp    warmUp
	levels    []level        // by falling priority
	overN     int            // candidates over a reject threshold
	shareless int            // registered ranks of which this gate has no share
	workers   map[string]int // registered ranks by worker
	sum       PoolLoad
	released  rateMeter // ends of holds
	// with room, by block of roomBlock words, so that the n-th is found in
	// few steps
	roomIn []int32
	groups *[]bitmap // the core's
	// by group id: candidates, for "is there a pair at all"
	groupCand []int
	// members by group id; a pool whose members are all of one group is the
	// ordinary case and needs no intersection
	groupSize []int
	groupsN   int
	measure   Measure // of the policy
	load      loadTree
}

// model is the pools of one base model.
type model struct {
	name       string
	pools      [numRoles]*pool
	modelGroup *modelGroup
	queues     *profileQueue // of the model's profile, in the model group
	// free targets; they live as long as the model
	targets [onPrefillOnly + 1]*Target
	ranks   int
	dead    bool
}

// level is the candidates of a pool that have one priority, and its turns.
type level struct {
	priority int
	members  int // registered
	cand     int
	warm     int   // candidates that warm up
	shares   int64 // of all of them
	turn     int64
}

// warmUp is the ranks of a pool that warm up.
type warmUp struct {
	n       int    // of them
	members bitmap // empty before the first
	next    []int64
}

// soleGroup tells whether prefill and decode ranks of m all may be paired, and
// so need no look at groups.
func (m *model) soleGroup() bool {
	p, d := m.pools[RolePrefill], m.pools[RoleDecode]
	if p.groupsN > 1 || d.groupsN > 1 {
		return false
	}
	for g, n := range p.groupSize {
		if n > 0 {
			return g < len(d.groupSize) && d.groupSize[g] > 0
		}
	}
	return false
}

// nthRoom returns the i-th rank with room in index order, 0 ≤ i < roomN.
func (p *pool) nthRoom(i int) int {
	for b, n := range p.roomIn {
		if i < int(n) {
			from := b * roomBlock
			return from<<6 + p.room[from:min(from+roomBlock, len(p.room))].nth(i)
		}
		i -= int(n)
	}
	return -1
}

// roomBlock is the words that one count of roomIn is for.
const roomBlock = 8

// PoolLoad is what the ranks of one pool hold together.
type PoolLoad struct {
	// Ranks are the registered ones, Candidates those that could serve.
	Ranks, Candidates int
	// Requests in prefill, or calls pending and active.
	Requests int64
	// PrefillTokens are the uncached prompt tokens in prefill, BatchedTokens the
	// MaxBatchedTokens of all ranks as far as they are known.
	PrefillTokens, BatchedTokens int64
	// Blocks are the KV blocks pending and active, KVBlocks all that there are
	// as far as that is known.
	Blocks, KVBlocks int64
}

func (p *pool) loads() PoolLoad {
	l := p.sum
	l.Candidates = p.candN
	return l
}

// add counts more of what a rank of the pool holds.
func (l *PoolLoad) add(more rankLoad) {
	l.Requests += more.requests
	l.PrefillTokens += more.tokens
	l.Blocks += more.blocks
}

func (a rankLoad) minus(b rankLoad) rankLoad {
	return rankLoad{requests: a.requests - b.requests, tokens: a.tokens - b.tokens, blocks: a.blocks - b.blocks}
}

// joinLevel enters a rank of p into the level of its priority.
func (p *pool) joinLevel(priority int) {
	at, found := p.findLevel(priority)
	if !found {
		p.levels = slices.Insert(p.levels, at, level{priority: priority})
	}
	p.levels[at].members++
}

func (p *pool) leaveLevel(priority int) {
	at, _ := p.findLevel(priority)
	if p.levels[at].members--; p.levels[at].members == 0 {
		p.levels = slices.Delete(p.levels, at, at+1)
	}
}

func (p *pool) findLevel(priority int) (at int, found bool) {
	return slices.BinarySearchFunc(p.levels, priority, func(x level, v int) int { return cmp.Compare(v, x.priority) })
}

// level returns that of a priority. REQUIRES: a rank of the pool has it.
func (p *pool) level(priority int) *level {
	at, _ := p.findLevel(priority)
	return &p.levels[at]
}

// Allows tells whether the request may now, by what the pools hold.
func (b *BypassRule) Allows(prefill, decode PoolLoad) bool {
	if most := b.DecodeBusy; most != nil && (decode.KVBlocks == 0 || float64(decode.Blocks+b.Blocks) > *most*float64(decode.KVBlocks)) {
		return false
	}
	return b.Short || b.PrefillBusy != nil && prefill.BatchedTokens > 0 &&
		float64(prefill.PrefillTokens) > *b.PrefillBusy*float64(prefill.BatchedTokens)
}

// meter counts the end of a hold, for those who are told when to come again.
func (r *Rank) meter(now Instant) {
	for _, p := range r.pools {
		p.released.add(now)
	}
}
