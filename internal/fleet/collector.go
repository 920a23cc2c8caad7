package fleet

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/metric"
)

var (
	missingDesc = metric.Gauge("sluice_ranks_missing_capacity",
		"Registered ranks of which a capacity that classes go by is not known; they are taken to have room by their number of requests.",
		"role", "capacity")
	silentDesc = metric.Gauge("sluice_workers_without_kv_transfer",
		"Decode workers to which prompts were handed over and at which no KV cache arrived.")
	barredDesc = metric.Gauge("sluice_pairs_barred",
		"Pairs of a prefill and a decode rank that are kept apart for a while because they kept failing to hand KV cache over.")
	barredTotalDesc = metric.Counter("sluice_pairs_barred_total",
		"Times that a pair of a prefill and a decode rank was barred.")
)

// collector reads the fleet when it is scraped.
type collector struct{ f *Fleet }

// NewCollector makes the metrics of a fleet, to be registered.
func NewCollector(f *Fleet) prometheus.Collector { return collector{f} }

func (c collector) Describe(ch chan<- *prometheus.Desc) { c.Metrics().Describe(ch) }

// Metrics is of metric.Collector.
func (collector) Metrics() metric.Descs {
	return metric.Descs{missingDesc, silentDesc, barredDesc, barredTotalDesc}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	type series struct {
		role     admission.Role
		capacity string
	}
	all := []series{
		{admission.RoleRegular, capBatched}, {admission.RoleRegular, capBlocks},
		{admission.RolePrefill, capBatched}, {admission.RoleDecode, capBlocks},
	}
	n := map[series]int{}
	silent := 0
	for _, w := range c.f.List() {
		if w.transfers.silent.Load() {
			silent++
		}
		for _, r := range w.Ranks() {
			for _, name := range lacks(w.Role(), r.Capacity()) {
				n[series{w.Role(), name}]++
			}
		}
	}
	for _, s := range all {
		ch <- missingDesc.Of(float64(n[s]), s.role.String(), s.capacity)
	}
	q := &c.f.quarantine
	q.mu.Lock()
	barred := q.barred
	q.mu.Unlock()
	ch <- silentDesc.Of(float64(silent))
	ch <- barredDesc.Of(float64(barred))
	ch <- barredTotalDesc.Of(float64(q.total.Load()))
}
