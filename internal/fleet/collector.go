package fleet

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/admission"
)

var missingDesc = prometheus.NewDesc("sluice_ranks_missing_capacity",
	"Registered ranks of which a capacity that classes go by is not known; they are taken to have room by their number of requests.",
	[]string{"role", "capacity"}, nil)

// collector reads the fleet when it is scraped.
type collector struct{ f *Fleet }

// NewCollector makes the metrics of a fleet, to be registered.
func NewCollector(f *Fleet) prometheus.Collector { return collector{f} }

func (c collector) Describe(ch chan<- *prometheus.Desc) { ch <- missingDesc }

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
	for _, w := range c.f.List() {
		for _, r := range w.Ranks() {
			for _, name := range lacks(w.Role(), r.Capacity()) {
				n[series{w.Role(), name}]++
			}
		}
	}
	for _, s := range all {
		ch <- prometheus.MustNewConstMetric(missingDesc, prometheus.GaugeValue, float64(n[s]), s.role.String(), s.capacity)
	}
}
