// Package metric holds metrics that are read from their owner when somebody
// asks: a name with its kind, so that a document can tell the kind where there is
// no series yet. What is counted as it happens is Prometheus's own.
package metric

import "github.com/prometheus/client_golang/prometheus"

// Desc describes a metric.
type Desc struct {
	*prometheus.Desc
	kind prometheus.ValueType
}

// Counter describes a metric that only grows.
func Counter(name, help string, labels ...string) Desc {
	return Desc{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

// Gauge describes a metric that goes up and down.
func Gauge(name, help string, labels ...string) Desc {
	return Desc{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

// Kind is "counter" or "gauge".
func (d Desc) Kind() string {
	if d.kind == prometheus.CounterValue {
		return "counter"
	}
	return "gauge"
}

// Of is a series of the metric with its value.
func (d Desc) Of(v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d.Desc, d.kind, v, labels...)
}

// Descs are all metrics of a collector.
type Descs []Desc

// Describe does what prometheus.Collector asks for.
func (all Descs) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range all {
		ch <- d.Desc
	}
}

// Collector is a prometheus.Collector that tells the kinds of its metrics.
type Collector interface {
	prometheus.Collector
	Metrics() Descs
}
