package fleet

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/sluice-router/sluice/admission"
)

// share is what a worker tells of one of its data-parallel ranks. Zero: not told.
type share struct {
	kvTokens, maxRunning int64
}

// RankLoad is what an engine says about the work on one data-parallel rank, from
// whomever it comes (SGLang's GET /v1/loads, vLLM's GET /metrics).
type RankLoad struct {
	// Running and Waiting are requests, WaitingTokens the prompt tokens to compute
	// of those that wait.
	Running, Waiting, WaitingTokens int64
	// UsedTokens are those in its KV cache that requests hold.
	UsedTokens int64
}

// loads is an answer of SGLang's /v1/loads or of vLLM's /metrics.
type loads struct {
	// what only vLLM's tell: 0 and empty when not told. external counts what came
	// from other engines in tokens and bytes; it only grows while the engine lives.
	blockSize     int64
	started       float64 // as in Facts
	cacheType     string
	external      float64
	tellsExternal bool

	shares []share // by data-parallel rank
	load   []RankLoad
	at     admission.Instant
}

// readLoads reads an answer of /v1/loads. Of ranks that it leaves out nothing is
// known.
func readLoads(body []byte) (*loads, error) {
	var in struct {
		Loads []lenient `json:"loads"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, err
	}
	l := &loads{}
	for i, o := range in.Loads {
		dp, ok := rankOf(o, i)
		if !ok {
			continue
		}
		l.shares = grown(l.shares, dp)
		l.load = grown(l.load, dp)
		l.shares[dp] = share{kvTokens: o.amount("max_total_num_tokens"), maxRunning: o.amount("max_running_requests")}
		l.load[dp] = RankLoad{
			Running: o.amount("num_running_reqs"), Waiting: o.amount("num_waiting_reqs"),
			WaitingTokens: o.amount("num_waiting_uncached_tokens"), UsedTokens: o.amount("num_used_tokens"),
		}
	}
	if len(l.load) == 0 {
		return nil, errors.New("it has no loads")
	}
	return l, nil
}

// rankOf returns the rank that the i-th object of a list is about.
func rankOf(o lenient, i int) (dp int, ok bool) {
	if _, told := o["dp_rank"]; told {
		var n int
		if json.Unmarshal(o["dp_rank"], &n) == nil {
			i = n
		}
	}
	return i, i >= 0 && i < maxDPSize
}

func grown[T any](s []T, i int) []T {
	if i < len(s) {
		return s
	}
	return append(s, make([]T, i+1-len(s))...)
}

// addStates reads /server_info's internal_states, one for each data-parallel rank.
func (f *Facts) addStates(l lenient) {
	var states []lenient
	if json.Unmarshal(l["internal_states"], &states) != nil {
		return
	}
	for i, o := range states {
		dp, ok := rankOf(o, i)
		if !ok {
			continue
		}
		tokens := o.amount("token_capacity")
		if tokens == 0 {
			tokens = o.object("memory_usage").amount("token_capacity")
		}
		f.states = grown(f.states, dp)
		f.states[dp] = share{kvTokens: tokens, maxRunning: o.amount("effective_max_running_requests_per_dp")}
	}
}

// share is what is known of one rank, from the surest source that tells it.
func (f *Facts) share(dp int) share {
	var s share
	for _, told := range [][]share{f.loads, f.states} {
		if dp < len(told) {
			s.kvTokens = orElse(s.kvTokens, told[dp].kvTokens)
			s.maxRunning = orElse(s.maxRunning, told[dp].maxRunning)
		}
	}
	s.kvTokens = orElse(s.kvTokens, f.MaxTotalTokens)
	if s.maxRunning == 0 {
		s.maxRunning = f.MaxRunningRequests
		if f.DPAttention && f.DPSize > 1 {
			s.maxRunning /= int64(f.DPSize) // SGLang shares it out
		}
	}
	return s
}

func orElse[T comparable](v, other T) T {
	if v != *new(T) {
		return v
	}
	return other
}

// unitBlock is the size of KV blocks to count in where a worker tells its tokens
// but not its blocks.
const unitBlock = 16

// capacity is what the worker says a rank can take: rank dp, or all of them
// together if dp is negative.
func (f *Facts) capacity(dp int, set admission.Capacity) admission.Capacity {
	first, n := dp, 1
	if dp < 0 {
		first, n = 0, max(f.DPSize, len(f.loads), 1)
	}
	c := admission.Capacity{
		// With data-parallel attention SGLang reports what is left for each rank.
		MaxBatchedTokens: orElse(f.ChunkedPrefillSize, f.MaxPrefillTokens) * int64(n),
		BlockSize:        orElse(set.BlockSize, f.PageSize),
	}
	var tokens int64
	blind, unbounded := false, false
	for i := range n {
		s := f.share(first + i)
		tokens += s.kvTokens
		c.MaxRunning += s.maxRunning
		blind = blind || s.kvTokens == 0
		unbounded = unbounded || s.maxRunning == 0
	}
	if unbounded {
		c.MaxRunning = 0 // a part is no bound of the whole
	}
	if !blind && set.KVBlocks == 0 {
		c.BlockSize = orElse(c.BlockSize, unitBlock)
		c.KVBlocks = tokens / c.BlockSize
	}
	c.MaxBatchedTokens = orElse(set.MaxBatchedTokens, c.MaxBatchedTokens)
	c.KVBlocks = orElse(set.KVBlocks, c.KVBlocks)
	c.MaxRunning = orElse(set.MaxRunning, c.MaxRunning)
	return c
}

// Capacity returns what the rank can take: as registered, else as its worker
// says. Zero is unknown.
func (r *Rank) Capacity() admission.Capacity {
	return r.worker.Facts().capacity(r.dp, capacityOf(&r.worker.spec))
}

// Reported returns what the engine last said about the rank's load, and when. ok
// is false when it never did.
func (r *Rank) Reported() (load RankLoad, at admission.Instant, ok bool) {
	l := r.worker.loads.Load()
	if l == nil {
		return RankLoad{}, 0, false
	}
	if r.dp >= 0 {
		if r.dp >= len(l.load) {
			return RankLoad{}, 0, false
		}
		return l.load[r.dp], l.at, true
	}
	for _, one := range l.load {
		load.Running += one.Running
		load.Waiting += one.Waiting
		load.WaitingTokens += one.WaitingTokens
		load.UsedTokens += one.UsedTokens
	}
	return load, l.at, true
}

// Names of capacities, as settings of a worker have them.
const (
	capBatched = "max_num_batched_tokens"
	capBlocks  = "total_kv_blocks"
)

// lacks names the capacities that classes go by and that are not known of a rank
// of the role.
func lacks(role admission.Role, c admission.Capacity) (names []string) {
	if role != admission.RoleDecode && c.MaxBatchedTokens == 0 {
		names = append(names, capBatched)
	}
	if role != admission.RolePrefill && c.KVBlocks == 0 {
		names = append(names, capBlocks)
	}
	return names
}

// lacks names what is not known of some rank of the worker.
func (w *Worker) lacks() (names []string) {
	for _, r := range w.Ranks() {
		for _, n := range lacks(w.role, r.Capacity()) {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	return names
}

// adapters are the LoRA adapters of the worker's ranks: those it was registered
// with and those that it tells of.
func (w *Worker) adapters() []string {
	told := w.Facts().Adapters
	if len(told) == 0 {
		return w.spec.Adapters
	}
	all := slices.Clone(w.spec.Adapters)
	for _, a := range told {
		all = append(all, a.ID)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	return all[:min(len(all), maxAdapters)]
}

// rankFacts are what the gate is to know of each rank of the worker, without its
// capacity.
func (w *Worker) rankFacts(models []string) admission.RankFacts {
	return admission.RankFacts{
		Models: models, PairGroup: w.pairGroup(), Topology: w.spec.TopologyDomain,
		Labels: w.spec.Labels, Adapters: w.adapters(),
	}
}
