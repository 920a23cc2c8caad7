package discovery

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/metric"
)

var (
	workersDesc = metric.Gauge("sluice_source_workers",
		"Registered workers of a source, those that it has dropped and that are held included.", "source")
	declaredDesc = metric.Gauge("sluice_source_declared_workers",
		"Workers that a source declares, held ones included: also those that cannot be registered, that another source owns, and that were removed by request.", "source")
	heldDesc = metric.Gauge("sluice_source_held_workers",
		"Workers that a source has dropped and that stay for now, because it dropped suspiciously many at once.", "source")
	failingDesc = metric.Gauge("sluice_source_failing",
		"1 while a source cannot be read; its last workers stay. Else 0.", "source")
	readingsDesc = metric.Counter("sluice_source_readings_total",
		"Readings of a source, by result: ok or failed.", "source", "result")
	ageDesc = metric.Gauge("sluice_source_last_success_age_seconds",
		"Seconds since a source was last read. No series before the first time.", "source")
	warningsDesc = metric.Gauge("sluice_source_warnings",
		"Warnings about what a source declares; GET /workers and the log have their texts.", "source")
)

// collector reads a manager when it is scraped.
type collector struct{ m *Manager }

// NewCollector makes the metrics of the sources, to be registered.
func NewCollector(m *Manager) prometheus.Collector { return collector{m} }

// Metrics is of metric.Collector.
func (collector) Metrics() metric.Descs {
	return metric.Descs{workersDesc, declaredDesc, heldDesc, failingDesc, readingsDesc, ageDesc, warningsDesc}
}

func (c collector) Describe(ch chan<- *prometheus.Desc) { c.Metrics().Describe(ch) }

func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.m.mu.Lock()
	sources := append([]*state{}, c.m.sources...)
	c.m.mu.Unlock()
	now := time.Now()
	for _, s := range sources {
		s.statusMu.Lock()
		st := s.status
		s.statusMu.Unlock()
		ch <- workersDesc.Of(float64(c.m.opts.Fleet.Owned(s.name)), s.name)
		ch <- declaredDesc.Of(float64(st.Declared), s.name)
		ch <- heldDesc.Of(float64(st.HeldCount), s.name)
		failing := 0.0
		if st.err != nil {
			failing = 1
		}
		ch <- failingDesc.Of(failing, s.name)
		ch <- readingsDesc.Of(float64(st.Readings), s.name, "ok")
		ch <- readingsDesc.Of(float64(st.Failures), s.name, "failed")
		if !st.lastSuccess.IsZero() {
			ch <- ageDesc.Of(max(0, now.Sub(st.lastSuccess).Seconds()), s.name)
		}
		ch <- warningsDesc.Of(float64(len(st.Warnings)), s.name)
	}
}
