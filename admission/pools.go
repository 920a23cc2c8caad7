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

	members  bitmap
	cand     bitmap
	room     bitmap
	candN    int
	roomN    int
	warmUp   warmUp
	levels   []level        // by falling priority
	overN    int            // candidates over a reject threshold
	workers  map[string]int // registered ranks by worker
	sum      PoolLoad
	released rateMeter // ends of holds
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
	load      loadTree
}

// model returns the pools of a name, making them when they are new.
func (ix *rankIndex) model(name string) *model {
	if m := ix.models[name]; m != nil {
		return m
	}
	m := &model{name: name}
	for role := range numRoles {
		p := &pool{model: m, role: role, policy: ix.newPolicy(name, role), groups: &ix.groups, workers: map[string]int{}}
		p.grow(ix.words, ix.indexCap, len(ix.groupNames))
		m.pools[role] = p
	}
	for s := range onPrefillOnly + 1 {
		m.targets[s] = &Target{model: m, shape: s, free: true}
	}
	ix.models[name] = m
	at, _ := slices.BinarySearchFunc(ix.modelsByName, name, func(m *model, n string) int { return cmp.Compare(m.name, n) })
	ix.modelsByName = slices.Insert(ix.modelsByName, at, m)
	ix.structure++
	return m
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

// rankLoad is what a rank holds, as the loads of its pools count it. It is apart from
// PoolLoad, of which it is the part that bookings change, because they are frequent.
type rankLoad struct{ requests, tokens, blocks int64 }

func (r *Rank) holds() rankLoad {
	return rankLoad{requests: r.load(), tokens: r.tokens, blocks: r.blocksPending + r.blocksActive}
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
