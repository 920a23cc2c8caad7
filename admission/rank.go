package admission

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
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
	Limits   RankLimits
	Priority int
	State    RankState
	// Reported is what its engine was last known to report.
	Reported ReportedLoad `json:",omitzero"`
	// Aside is what is set aside; see [SetAside].
	Aside Aside `json:",omitzero"`
	// Data is handed back to the caller, who finds the engine by it.
	Data any `json:"-"`
}

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

// RankLimits bound what is booked on one rank. Zero is no limit of its own.
type RankLimits struct {
	// PrefillSlots is the most requests in prefill on a prefill rank, in place of
	// [Limits.PrefillSlots].
	PrefillSlots int
	// Running is how many calls may be booked on the rank: it has room for a request,
	// whatever its calls, while there are fewer.
	Running int64
	// Share is what of all bounds this gate has, where it is one of several that decide on
	// their own.
	Share RankShare `json:",omitzero"`
}

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

func (f RankAttributes) clone() RankAttributes {
	f.Models = slices.Clone(f.Models)
	f.Labels = maps.Clone(f.Labels)
	f.Adapters = slices.Clone(f.Adapters)
	c := &f.Capacity
	for _, v := range []*int64{&c.MaxBatchedTokens, &c.KVBlocks, &c.BlockSize, &c.MaxRunning} {
		*v = min(max(*v, 0), maxAmount)
	}
	f.Limits.PrefillSlots, f.Limits.Running = max(f.Limits.PrefillSlots, 0), max(f.Limits.Running, 0)
	f.Limits.Share.Parts = max(f.Limits.Share.Parts, 0)
	return f
}

// Rank is one registered rank and the ledger of the holds on it. The pointer is
// the rank's generation: a worker that is registered anew gets new ranks, and
// holds on the old ones end there.
type Rank struct {
	// What every booking and choice reads or writes comes first, on as few lines of
	// cache as may be: in a large fleet most of it is not in the cache.

	// guarded by the gate's lock (or owned by the core's caller), but for the role,
	// which is immutable
	role    Role
	present bool
	cand    bool
	room    bool
	over    bool   // a reject threshold
	limited bool   // bounds has any
	stub    bool   // only mentioned, and never registered
	changed bool   // its load, since somebody asked last
	share   uint16 // see RankState.Share; 0 while it is no candidate
	epoch   uint32 // of the half-open state; probes belong to one
	vetoed  bool   // by its report
	state   RankState
	index   int
	groupID int
	pools   []*pool

	slots   int // requests in prefill
	prefill int // prefill legs
	pending int // decode legs booked but not dispatched
	active  int // decode legs dispatched
	probes  int // requests granted in this half-open epoch

	tokens        int64 // prefill tokens active
	blocksPending int64 // KV blocks booked but not dispatched
	blocksActive  int64
	unbooked      int64 // KV blocks in use beyond the active ones, by its report

	capacity Capacity
	counted  rankLoad     // what the pools' sums have of it
	parked   []parkedLane // blocked lanes whose heads need this rank, or one of few

	aside       Aside // a part of the holds
	report      RankReport
	passed      int     // requests that hold nothing
	quarantined []*Rank // decode ranks that a prefill rank is not paired with
	models      []string
	group       string
	topology    string
	labels      map[string]string
	adapters    []string
	domainID    int
	sizeID      int
	priority    int
	bounds      RankLimits

	// immutable
	id         string
	generation uint64 // set when it is added, unless it came with one
	worker     string
	number     string // "@3" for a data-parallel rank; of a whole worker, which has one, "@0"
	data       any

	facts atomic.Pointer[rankFacts] // while it is registered; what it has is never changed
}

// NewRank makes a rank that [Change] can add.
func NewRank(spec RankSpec) *Rank {
	r := &Rank{
		id: spec.ID, generation: spec.Generation, worker: spec.Worker, role: spec.Role,
		number: "@0", state: spec.State, data: spec.Data, index: -1,
		report: spec.Reported.RankReport, unbooked: spec.Reported.Unbooked, vetoed: spec.Reported.Vetoed,
	}
	if _, _, ok := SplitRankID(r.id); ok && r.id != r.worker {
		r.number = r.id[strings.LastIndexByte(r.id, '@'):]
	}
	r.setAttributes(RankAttributes{
		Models: spec.Models, PairGroup: spec.PairGroup, Topology: spec.Topology,
		Labels: spec.Labels, Adapters: spec.Adapters, Capacity: spec.Capacity, Limits: spec.Limits, Priority: spec.Priority,
	})
	r.addAside(spec.Aside.clean(r.role))
	return r
}

func (r *Rank) setAttributes(f RankAttributes) {
	f = f.clone()
	r.models, r.group, r.topology = f.Models, f.PairGroup, f.Topology
	r.labels, r.adapters, r.capacity = f.Labels, f.Adapters, f.Capacity
	r.bounds, r.limited, r.priority = f.Limits, f.Limits != RankLimits{}, f.Priority
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

// rankLoad is what a rank holds, as the loads of its pools count it. It is apart from
// PoolLoad, of which it is the part that bookings change, because they are frequent.
type rankLoad struct{ requests, tokens, blocks int64 }

func (r *Rank) holds() rankLoad {
	return rankLoad{requests: r.load(), tokens: r.tokens, blocks: r.blocksPending + r.blocksActive}
}

func (r *Rank) idle() bool {
	return r.slots == 0 && r.prefill == 0 && r.pending == 0 && r.active == 0 &&
		r.tokens == 0 && r.blocksPending == 0 && r.blocksActive == 0
}

// check stops the process when the ledger has gone wrong: a negative hold means
// that a later request would be admitted into room that is not there.
func (r *Rank) check() {
	if r.slots < 0 || r.prefill < 0 || r.pending < 0 || r.active < 0 || r.probes < 0 ||
		r.tokens < 0 || r.blocksPending < 0 || r.blocksActive < 0 {
		panic(fmt.Sprintf("BUG: negative hold on %s: slots %d, prefill %d, pending %d, active %d, probes %d, tokens %d, blocks %d and %d",
			r.id, r.slots, r.prefill, r.pending, r.active, r.probes, r.tokens, r.blocksPending, r.blocksActive))
	}
}
