package fleet

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/admission"
)

var missingDesc = prometheus.NewDesc("sluice_ranks_missing_capacity",
	"Registered ranks of which a capacity that classes go by is not known; they are taken to have room by their number of requests.",
	[]string{"role", "capacity"}, nil)

var (
	silentDesc = prometheus.NewDesc("sluice_workers_without_kv_transfer",
		"Decode workers to which prompts were handed over and at which no KV cache arrived.", nil, nil)
	barredDesc = prometheus.NewDesc("sluice_pairs_barred",
		"Pairs of a prefill and a decode rank that are kept apart for a while because they kept failing to hand KV cache over.", nil, nil)
	barredTotalDesc = prometheus.NewDesc("sluice_pairs_barred_total",
		"Times that a pair of a prefill and a decode rank was barred.", nil, nil)
)

// collector reads the fleet when it is scraped.
type collector struct{ f *Fleet }

// NewCollector makes the metrics of a fleet, to be registered.
func NewCollector(f *Fleet) prometheus.Collector { return collector{f} }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{missingDesc, silentDesc, barredDesc, barredTotalDesc} {
		ch <- d
	}
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
		ch <- prometheus.MustNewConstMetric(missingDesc, prometheus.GaugeValue, float64(n[s]), s.role.String(), s.capacity)
	}
	q := &c.f.quarantine
	q.mu.Lock()
	barred := q.barred
	q.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(silentDesc, prometheus.GaugeValue, float64(silent))
	ch <- prometheus.MustNewConstMetric(barredDesc, prometheus.GaugeValue, float64(barred))
	ch <- prometheus.MustNewConstMetric(barredTotalDesc, prometheus.CounterValue, float64(q.total.Load()))
}
