package dispatch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// textMetrics tell of text that became tokens here.
type textMetrics struct {
	seconds prometheus.Histogram
	missed  *prometheus.CounterVec
}

var encodeBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

func (m *textMetrics) init(reg prometheus.Registerer) {
	m.seconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "sluice_text_encode_seconds",
		Help:    "Seconds in which the text of a request became tokens: its chat template and its tokenizer, the wait in the queue for that included.",
		Buckets: encodeBuckets,
	})
	m.missed = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_text_uncounted_total",
		Help: "Prompts for engines that take text that were estimated although the model's tokenizer is here (--tokenizer-path): busy (too much text waits), refused (the template or the tokenizer cannot read the request), failed.",
	}, []string{"reason"})
	reg.MustRegister(m.seconds, m.missed)
}

func (m *textMetrics) encoded(took time.Duration) { m.seconds.Observe(took.Seconds()) }

// uncounted counts a prompt that is estimated because of f.
func (m *textMetrics) uncounted(f *failure) {
	why := "failed"
	switch f.reason {
	case reasonBufferFull:
		why = "busy"
	case reasonBadRequest:
		why = "refused"
	}
	m.missed.WithLabelValues(why).Inc()
}
