package admission

import (
	"cmp"
	"slices"
)

// RankSpec describes a rank to the gate.
type RankSpec struct {
	// ID is the rank's name, unique among registered ranks: the worker's URL,
	// or url@rank for one data-parallel rank.
	ID string
	// Generation tells the ranks apart that have had this ID. Zero: the gate counts.
	Generation uint64 `json:",omitempty"`
	// Worker names the worker the rank belongs to, for pins; ranks of one
	// worker share it.
	Worker string
	Role   Role
	// Models are the base models whose pools the rank belongs to. The empty
	// name is the pool of ranks whose model is unknown; it serves any name
	// that no other pool has.
	Models []string
	// PairGroup: a prefill and a decode rank may be paired when theirs are
	// equal (one dialect, one connector, one KV layout).
	PairGroup string
	// Topology is the rank's KV-transfer domain, Labels what targets may ask
	// for, Adapters its LoRA adapters, Capacity what it can take.
	Topology string
	Labels   map[string]string
	Adapters []string
	Capacity Capacity
	State    RankState
	// Data is handed back to the caller, who finds the engine by it.
	Data any `json:"-"`
}

// Rank is one registered rank and the ledger of the holds on it. The pointer is
// the rank's generation: a worker that is registered anew gets new ranks, and
// holds on the old ones end there.
type Rank struct {
	// immutable
	id         string
	generation uint64 // set when it is added, unless it came with one
	worker     string
	role       Role
	data       any

	// guarded by the gate's lock (or owned by the core's caller)
	models      []string
	group       string
	topology    string
	labels      map[string]string
	adapters    []string
	capacity    Capacity
	parked      []parkedLane // blocked lanes whose heads need this rank, or one of few
	quarantined []*Rank      // decode ranks that a prefill rank is not paired with
	index       int
	groupID     int
	domainID    int
	sizeID      int
	pools       []*pool
	state       RankState
	present     bool
	cand        bool
	room        bool
	over        bool     // a reject threshold
	counted     PoolLoad // what the pools' sums have of it
	epoch       uint32   // of the half-open state; probes belong to one

	slots   int // requests in prefill
	prefill int // prefill legs
	pending int // decode legs booked but not dispatched
	active  int // decode legs dispatched
	probes  int // requests granted in this half-open epoch
	passed  int // requests that hold nothing

	tokens        int64 // prefill tokens active
	blocksPending int64 // KV blocks booked but not dispatched
	blocksActive  int64
}

// NewRank makes a rank that [Change] can add.
func NewRank(spec RankSpec) *Rank {
	r := &Rank{
		id: spec.ID, generation: spec.Generation, worker: spec.Worker, role: spec.Role,
		state: spec.State, data: spec.Data, index: -1,
	}
	r.setFacts(RankFacts{
		Models: spec.Models, PairGroup: spec.PairGroup, Topology: spec.Topology,
		Labels: spec.Labels, Adapters: spec.Adapters, Capacity: spec.Capacity,
	})
	return r
}

// ID returns the rank's name.
func (r *Rank) ID() string { return r.id }

// Worker returns the name of the rank's worker.
func (r *Rank) Worker() string { return r.worker }

// Role returns the rank's role.
func (r *Rank) Role() Role { return r.role }

// Data returns what the rank was registered with.
func (r *Rank) Data() any { return r.data }

// load is what policies balance.
func (r *Rank) load() int64 {
	if r.role == RolePrefill {
		return int64(r.prefill)
	}
	return int64(r.pending + r.active)
}

func (r *Rank) idle() bool {
	return r.slots == 0 && r.prefill == 0 && r.pending == 0 && r.active == 0 &&
		r.tokens == 0 && r.blocksPending == 0 && r.blocksActive == 0
}

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

// model is the pools of one base model.
type model struct {
	name   string
	pools  [numRoles]*pool
	family *family
	queues *profileQueue // of the model's profile, in the family
	// free targets; they live as long as the model
	targets [onPrefillOnly + 1]*Target
	ranks   int
	dead    bool
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

// family is the models whose requests compete for the same ranks.
type family struct {
	profiles   []*profileQueue
	waiting    int
	grants     uint64
	fence      fence
	fenceAt    Instant // when the next fence may be due
	fenceWaits bool    // it is due with the next grant
}

// ChangeOp is what a [Change] does.
type ChangeOp uint8

// The changes. Those of one Apply take effect together: a worker is replaced by
// removing its old ranks and adding the new ones in one call.
const (
	AddRank ChangeOp = iota
	RemoveRank
	SetState
	// SetFacts replaces what is known of a rank: models, pairing, labels,
	// adapters, capacity. Its holds stay.
	SetFacts
	// BarPair keeps the pair of the prefill rank Rank and the decode rank Other
	// from new grants while another pair is left to a request: both work with
	// others, but not together. UnbarPair ends that, and so does the removal of
	// one of them. At most 64 pairs are quarantined, the oldest is forgotten first.
	BarPair
	UnbarPair
)

// Change is one fleet event.
type Change struct {
	Op    ChangeOp
	Rank  *Rank
	State RankState // for SetState
	Facts RankFacts // for SetFacts
	Other *Rank     // for BarPair and UnbarPair
}

func (ix *rankIndex) setState(r *Rank, s RankState) {
	if s.Breaker == BreakerHalfOpen && r.state.Breaker != BreakerHalfOpen {
		r.epoch++
		r.probes = 0
	}
	r.state = s
	ix.refresh(r, 0)
}

// refresh brings the indexes in line with the rank's state and holds. seq is
// not zero when the rank was just booked.
func (ix *rankIndex) refresh(r *Rank, seq uint64) {
	if r.index < 0 {
		return // gone: its holds end without a trace in the indexes
	}
	cand := r.present && r.state.candidate()
	room := cand
	if r.role == RolePrefill && ix.limits.PrefillSlots > 0 && r.slots >= ix.limits.PrefillSlots {
		room = false
	}
	if r.state.Breaker == BreakerHalfOpen && r.probes >= r.state.Probes {
		room = false
	}
	over := ix.rejecting && ix.overloaded(r)
	if over {
		room = false
		if !r.over {
			ix.overTurns++
		}
	}
	ix.over.put(r.index, over)
	ix.refreshThresholds(r)
	load := r.load()
	overDelta := b2i(cand && over) - b2i(r.cand && r.over)
	sums := r.sums()
	for _, p := range r.pools {
		p.sum.move(&r.counted, &sums)
		p.overN += overDelta
		if cand != r.cand {
			p.cand.put(r.index, cand)
			d := 1
			if !cand {
				d = -1
			}
			p.candN += d
			p.groupCand[r.groupID] += d
		}
		if room != r.room {
			p.room.put(r.index, room)
			d := 1
			if !room {
				d = -1
			}
			p.roomN += d
			p.roomIn[r.index/(64*roomBlock)] += int32(d)
		}
		p.load.put(r.index, r.groupID, load, seq, room)
	}
	r.cand, r.room, r.over, r.counted = cand, room, over, sums
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
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

// roomBlock is the words that one count of roomIn is for.
const roomBlock = 8

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
