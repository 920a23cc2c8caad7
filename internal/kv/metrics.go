package kv

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are what an index has done so far.
type counts struct {
	stored, removed, found, refused atomic.Uint64
	evictedBlocks, evictedMemory    atomic.Uint64
}

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

type collector struct {
	index *Index
	descs []*prometheus.Desc
}

// sweepScrape is how many blocks of ranks that are gone are taken out with each scrape, for
// an index into which nothing is stored any more.
const sweepScrape = 100_000

var metrics = []struct {
	name, help string
	kind       prometheus.ValueType
	value      func(Stats) float64
}{
	{"sluice_kv_index_ranks", "Ranks in the index of KV caches: one for what each rank was sent, one more for each stream of events.", prometheus.GaugeValue, func(s Stats) float64 { return float64(s.Ranks) }},
	{"sluice_kv_index_held_blocks", "Blocks that ranks are believed to hold, counted for each rank.", prometheus.GaugeValue, func(s Stats) float64 { return float64(s.Held) }},
	{"sluice_kv_index_distinct_blocks", "Different blocks in the index of KV caches.", prometheus.GaugeValue, func(s Stats) float64 { return float64(s.Distinct) }},
	{"sluice_kv_index_bytes", "Memory of the index of KV caches, in bytes.", prometheus.GaugeValue, func(s Stats) float64 { return float64(s.Bytes) }},
	{"sluice_kv_index_bytes_limit", "Maximum of sluice_kv_index_bytes; 0: none.", prometheus.GaugeValue, func(s Stats) float64 { return float64(s.Limit) }},
	{"sluice_kv_index_stored_blocks_total", "Blocks that were recorded as held by a rank that was not known to hold them.", prometheus.CounterValue, func(s Stats) float64 { return float64(s.Stored) }},
	{"sluice_kv_index_removed_blocks_total", "Blocks that an engine's events said a rank does not hold any more.", prometheus.CounterValue, func(s Stats) float64 { return float64(s.Removed) }},
	{"sluice_kv_index_lookups_total", "Lookups of prompts in the index of KV caches.", prometheus.CounterValue, func(s Stats) float64 { return float64(s.Lookups) }},
	{"sluice_kv_index_found_total", "Lookups that found a rank that may be used.", prometheus.CounterValue, func(s Stats) float64 { return float64(s.Found) }},
	{"sluice_kv_index_refused_total", "Prompts and events that were not recorded for want of memory.", prometheus.CounterValue, func(s Stats) float64 { return float64(s.Refused) }},
}

// NewCollector returns the metrics of an index.
func NewCollector(x *Index) prometheus.Collector {
	c := &collector{index: x}
	for _, m := range metrics {
		c.descs = append(c.descs, prometheus.NewDesc(m.name, m.help, nil, nil))
	}
	c.descs = append(c.descs, prometheus.NewDesc("sluice_kv_index_evicted_blocks_total",
		"Blocks that were dropped for a bound: rank (the blocks that the rank's engine can hold) or memory (--kv-index-memory).",
		[]string{"bound"}, nil))
	return c
}

// Describe is of prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
}

// Collect is of prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.index.sweep(sweepScrape)
	s := c.index.Stats()
	for i, m := range metrics {
		ch <- prometheus.MustNewConstMetric(c.descs[i], m.kind, m.value(s))
	}
	evicted := c.descs[len(metrics)]
	ch <- prometheus.MustNewConstMetric(evicted, prometheus.CounterValue, float64(s.EvictedBlocks), "rank")
	ch <- prometheus.MustNewConstMetric(evicted, prometheus.CounterValue, float64(s.EvictedMemory), "memory")
}
