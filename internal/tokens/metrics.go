package tokens

import (
	"math"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/metric"
)

// Metrics are the metrics of the estimates' quality. Nil means none.
type Metrics struct {
	// immutable
	errors  prometheus.Histogram
	reasons [numIgnored]prometheus.Counter

	// atomic
	estimator atomic.Pointer[Estimator]
}

const (
	ignoredMissing     = iota // no count in the answer
	ignoredUnclear            // the count may be of something else
	ignoredImplausible        // no tokenizer makes so many tokens of the prompt
	numIgnored
)

// NewMetrics registers the metrics of one estimator. It panics when reg already
// has them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{errors: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "sluice_prompt_estimate_error_ratio",
		Help:    "Error of estimated prompt tokens, as a ratio: estimate / engine's count - 1. 0 is exact.",
		Buckets: []float64{-0.5, -0.25, -0.1, -0.05, -0.02, 0, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2, 5},
	})}
	ignored := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_prompt_estimate_ignored_total",
		Help: "Answers whose token count could not be used: none, a count of something else, or an impossible one.",
	}, []string{"reason"})
	for i, reason := range [numIgnored]string{"missing", "unclear", "implausible"} {
		m.reasons[i] = ignored.WithLabelValues(reason)
	}
	reg.MustRegister(m.errors, ignored, (*collector)(m))
	return m
}

func (m *Metrics) watch(e *Estimator) {
	if m != nil {
		m.estimator.Store(e)
	}
}

func (m *Metrics) ignored(reason int) {
	if m != nil {
		m.reasons[reason].Inc()
	}
}

func (m *Metrics) observed(estimated, reported int64) {
	if m != nil {
		m.errors.Observe(float64(estimated)/float64(reported) - 1)
	}
}

var (
	ratioDesc = metric.Gauge("sluice_prompt_tokens_per_byte",
		"Current estimate of tokens per byte, for ASCII text and for other text; for a bounded number of models.",
		"model", "text")
	deviationDesc = metric.Gauge("sluice_prompt_estimate_deviation",
		"The usual deviation of estimates from engines' counts: the median of |ln(count / estimate)|; 0.1 is about 10 percent.",
		"model")
	reportsDesc = metric.Counter("sluice_prompt_estimate_reports_total",
		"Token counts of engines that were used for learning.", "model")
)

// collector reads what was learned when it is scraped, so that series end with
// their model.
type collector Metrics

func (c *collector) Describe(ch chan<- *prometheus.Desc) { c.Metrics().Describe(ch) }

// Metrics implements metric.Collector.
func (*collector) Metrics() metric.Descs {
	return metric.Descs{ratioDesc, deviationDesc, reportsDesc}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	e := c.estimator.Load()
	if e == nil {
		return
	}
	for name, m := range *e.models.Load() {
		ch <- ratioDesc.Of(math.Float64frombits(m.coefs[perASCII].Load()), name, "ascii")
		ch <- ratioDesc.Of(math.Float64frombits(m.coefs[perOther].Load()), name, "other")
		ch <- deviationDesc.Of(math.Float64frombits(m.deviation.Load()), name)
		ch <- reportsDesc.Of(float64(m.reports.Load()), name)
	}
}
