package fleet

import (
	"cmp"
	"slices"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
)

// rankCapacity is what is known of one rank, from the most reliable source that
// reports it.
func (f *Facts) rankCapacity(dp int) engine.RankCapacity {
	var s engine.RankCapacity
	for _, told := range [][]engine.RankCapacity{f.loads, f.States} {
		if dp < len(told) {
			s.KVTokens = cmp.Or(s.KVTokens, told[dp].KVTokens)
			s.MaxRunning = cmp.Or(s.MaxRunning, told[dp].MaxRunning)
		}
	}
	s.KVTokens = cmp.Or(s.KVTokens, f.MaxTotalTokens)
	if s.MaxRunning == 0 {
		s.MaxRunning = f.MaxRunningRequests
		if f.DPAttention && f.DPSize > 1 {
			s.MaxRunning /= int64(f.DPSize) // SGLang shares it out
		}
	}
	return s
}

// unitBlock is the KV block size to assume where a worker reports its tokens but not
// its block size.
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
		MaxBatchedTokens: cmp.Or(f.ChunkedPrefillSize, f.MaxPrefillTokens) * int64(n),
		BlockSize:        cmp.Or(set.BlockSize, f.PageSize),
	}
	var tokens int64
	blind, unbounded := false, false
	for i := range n {
		s := f.rankCapacity(first + i)
		tokens += s.KVTokens
		c.MaxRunning += s.MaxRunning
		blind = blind || s.KVTokens == 0
		unbounded = unbounded || s.MaxRunning == 0
	}
	if unbounded {
		c.MaxRunning = 0 // a part is no bound of the whole
	}
	if !blind && set.KVBlocks == 0 {
		c.BlockSize = cmp.Or(c.BlockSize, unitBlock)
		c.KVBlocks = tokens / c.BlockSize
	}
	c.MaxBatchedTokens = cmp.Or(set.MaxBatchedTokens, c.MaxBatchedTokens)
	c.KVBlocks = cmp.Or(set.KVBlocks, c.KVBlocks)
	c.MaxRunning = cmp.Or(set.MaxRunning, c.MaxRunning)
	return c
}

// Capacity returns what the rank can take: as registered, else as its worker
// says. Zero is unknown.
func (r *Rank) Capacity() admission.Capacity {
	return r.worker.Facts().capacity(r.dp, capacityOf(r.worker.spec.Load()))
}

// Names of capacities, as settings of a worker have them.
const (
	capBatched = "max_num_batched_tokens"
	capBlocks  = "total_kv_blocks"
)

// missingCapacity names the capacities that classes go by and that are not known of a rank
// of the role.
func missingCapacity(role admission.Role, c admission.Capacity) (names []string) {
	if role != admission.RoleDecode && c.MaxBatchedTokens == 0 {
		names = append(names, capBatched)
	}
	if role != admission.RolePrefill && c.KVBlocks == 0 {
		names = append(names, capBlocks)
	}
	return names
}

// missingCapacity names what is not known of some rank of the worker.
func (w *Worker) missingCapacity() (names []string) {
	for _, r := range w.Ranks() {
		for _, n := range missingCapacity(w.role, r.Capacity()) {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
	}
	return names
}
