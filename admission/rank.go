package admission

import "strings"

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
	// Data is handed back to the caller, who finds the engine by it.
	Data any `json:"-"`
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
