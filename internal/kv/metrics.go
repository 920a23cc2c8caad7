package kv

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/metric"
)

// counts are what an index has done so far.
type counts struct {
	stored, removed, found, refused atomic.Uint64
	evictedBlocks, evictedMemory    atomic.Uint64
	unused                          [unusedReasons]atomic.Uint64
}

// Why blocks that events tell of are not used.
const (
	unusedTier    = iota // in a tier that prefill does not use
	unusedGroup          // of a KV cache group that is not followed
	unusedTokens         // without all of their token ids
	unusedParent         // after a block that was never told
	unusedUnknown        // removed, and not known
	unusedReused         // of a hash that stood for another block
	unusedReasons
)

var unusedNames = [unusedReasons]string{"tier", "group", "tokens", "parent", "unknown", "reused"}

// Stats is what an index holds and has done. Counters never go back.
type Stats struct {
	// Ranks are those added and not dropped; Held the blocks they hold, all together, Distinct
	// those without counting a block twice.
	Ranks, Held, Distinct int
	// Bytes is what the blocks take, Limit the bound on what they may take (0: none).
	Bytes, Limit int64
	// Stored and Removed are blocks that ranks were told to hold and not to hold;
	// EvictedBlocks those that went for a rank's bound, EvictedMemory for the index's.
	Stored, Removed, EvictedBlocks, EvictedMemory uint64
	// Refused are prompts that were not recorded, as there was no memory for them.
	Refused uint64
	// Unused are blocks of events that were of no use, by why.
	Unused map[string]uint64
	// Lookups are calls of Match, Found those that found somebody.
	Lookups, Found uint64
}

// Stats returns what the index holds. It takes each lock of the index for a short time.
func (x *Index) Stats() Stats {
	s := Stats{
		Limit:         max(x.opts.MaxBytes, 0),
		Stored:        x.counts.stored.Load(),
		Removed:       x.counts.removed.Load(),
		EvictedBlocks: x.counts.evictedBlocks.Load(),
		EvictedMemory: x.counts.evictedMemory.Load(),
		Refused:       x.counts.refused.Load(),
		Lookups:       x.lookups.Load(),
		Found:         x.counts.found.Load(),
	}
	s.Unused = map[string]uint64{}
	for i, name := range unusedNames {
		s.Unused[name] = x.counts.unused[i].Load()
	}
	s.Bytes, s.Distinct = x.table.bytes()
	s.Bytes += int64(len(x.table.shards)) * emptyBytes
	x.mu.Lock()
	ranks := append([]*Rank(nil), x.ranks...)
	x.mu.Unlock()
	s.Ranks = len(ranks)
	for _, r := range ranks {
		r.mu.Lock()
		s.Held += int(r.held.Load())
		s.Bytes += r.set.bytes()
		r.mu.Unlock()
	}
	s.Bytes += x.graves.bytes()
	return s
}

func (s *graves) bytes() (n int64) {
	s.sweeping.Lock()
	n = s.now.set.bytes()
	s.sweeping.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.sets {
		n += s.sets[i].set.bytes()
	}
	return n
}

// sweepScrape is how many blocks of ranks that are gone are taken out with each scrape, for
// an index into which nothing is stored any more.
const sweepScrape = 100_000

var (
	ranksDesc = metric.Gauge("sluice_kv_index_ranks",
		"Ranks in the index of KV caches: one for what each rank was sent, one more for each that events tell of.")
	heldDesc = metric.Gauge("sluice_kv_index_held_blocks",
		"Blocks that ranks are believed to hold, counted for each rank.")
	distinctDesc = metric.Gauge("sluice_kv_index_distinct_blocks",
		"Different blocks in the index of KV caches.")
	bytesDesc = metric.Gauge("sluice_kv_index_bytes",
		"Memory of the index of KV caches, in bytes.")
	limitDesc = metric.Gauge("sluice_kv_index_bytes_limit",
		"Maximum of sluice_kv_index_bytes (--kv-index-memory); 0: none.")
	storedDesc = metric.Counter("sluice_kv_index_stored_blocks_total",
		"Blocks that a rank was recorded to hold, which it was not known to.")
	removedDesc = metric.Counter("sluice_kv_index_removed_blocks_total",
		"Blocks that an engine's events said a rank does not hold any more.")
	evictedDesc = metric.Counter("sluice_kv_index_evicted_blocks_total",
		"Blocks that were dropped for a bound: rank (what the rank's engine can hold) or memory (--kv-index-memory).", "bound")
	refusedDesc = metric.Counter("sluice_kv_index_refused_total",
		"Prompts and events that were not recorded for want of memory.")
	unusedDesc = metric.Counter("sluice_kv_index_unused_blocks_total",
		"Blocks in engines' events that are of no use, by why: tier (not where prefill looks), group (a KV cache group without full attention, or another one), "+
			"tokens (not all token ids are told), parent (the block before it was never told), unknown (removed and not known), reused (its hash stood for another block; the rank is cleared).", "why")
	lookupsDesc = metric.Counter("sluice_kv_index_lookups_total",
		"Lookups of prompts in the index of KV caches.")
	foundDesc = metric.Counter("sluice_kv_index_found_total",
		"Lookups that found a rank that may be used.")
)

// collector reads an index when it is scraped.
type collector struct{ x *Index }

// NewCollector makes the metrics of an index, to be registered.
func NewCollector(x *Index) prometheus.Collector { return collector{x} }

// Metrics is of metric.Collector.
func (collector) Metrics() metric.Descs {
	return metric.Descs{ranksDesc, heldDesc, distinctDesc, bytesDesc, limitDesc, storedDesc, removedDesc, evictedDesc,
		refusedDesc, unusedDesc, lookupsDesc, foundDesc}
}

// Describe is of prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) { c.Metrics().Describe(ch) }

// Collect is of prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.x.sweep(sweepScrape)
	s := c.x.Stats()
	ch <- ranksDesc.Of(float64(s.Ranks))
	ch <- heldDesc.Of(float64(s.Held))
	ch <- distinctDesc.Of(float64(s.Distinct))
	ch <- bytesDesc.Of(float64(s.Bytes))
	ch <- limitDesc.Of(float64(s.Limit))
	ch <- storedDesc.Of(float64(s.Stored))
	ch <- removedDesc.Of(float64(s.Removed))
	ch <- evictedDesc.Of(float64(s.EvictedBlocks), "rank")
	ch <- evictedDesc.Of(float64(s.EvictedMemory), "memory")
	ch <- refusedDesc.Of(float64(s.Refused))
	for why, n := range s.Unused {
		ch <- unusedDesc.Of(float64(n), why)
	}
	ch <- lookupsDesc.Of(float64(s.Lookups))
	ch <- foundDesc.Of(float64(s.Found))
}
