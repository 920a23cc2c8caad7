package dispatch

import (
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// modelMetrics tell of requests by the model that served them and by their class.
// Both are of closed sets: a model of the fleet, a configured class.
type modelMetrics struct {
	requests *prometheus.CounterVec
	ttft     *prometheus.HistogramVec
	tpot     *prometheus.HistogramVec

	// series are those that were needed so far; the map is never changed.
	series atomic.Pointer[map[modelClass]*modelSeries]
	mu     sync.Mutex // guards the replacement of series
}

type modelClass struct{ model, class string }

// modelSeries are the children of one model and class, resolved once.
type modelSeries struct {
	outcomes [numOutcomes]prometheus.Counter
	ttft     prometheus.Observer
	tpot     prometheus.Observer
}

// maxModelSeries bounds the models and classes with series of their own, should
// somebody exchange workers and classes all the time; the rest is told as "other".
const maxModelSeries = 1000

var tpotBuckets = []float64{.001, .0025, .005, .01, .015, .02, .03, .04, .05, .075, .1, .15, .2, .3, .5, 1, 2.5}

// Outcomes of requests, as operators count them against their objectives.
const (
	outcomeOK = iota
	outcomeFailed
	outcomeRefused
	outcomeClientError
	outcomeClientGone
	numOutcomes
)

var outcomeNames = [numOutcomes]string{"ok", "failed", "refused", "client_error", "client_gone"}

func (m *modelMetrics) init(reg prometheus.Registerer) {
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_model_requests_total",
		Help: "Requests that came to the gate and ended: ok; failed (5xx, or an answer that broke off); refused (429 or 529: no room in time); client_error (other 4xx); client_gone.",
	}, []string{"model", "class", "outcome"})
	m.ttft = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sluice_model_time_to_first_token_seconds",
		Help:    "Seconds from a request's arrival to its first token, of those that had one, by model and class.",
		Buckets: latencyBuckets,
	}, []string{"model", "class"})
	m.tpot = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sluice_time_per_output_token_seconds",
		Help:    "Seconds per output token of streams after their first token, of those that had two, by model and class: from the first token to the last, divided by the tokens (as the engine reports them, else the events that have one) less one; of a request for several samples, per sample.",
		Buckets: tpotBuckets,
	}, []string{"model", "class"})
	m.series.Store(&map[modelClass]*modelSeries{})
	reg.MustRegister(m.requests, m.ttft, m.tpot)
}

// observe counts a request that is over.
func (m *modelMetrics) observe(rec *Record) {
	k := modelClass{rec.Model, rec.Class}
	s := (*m.series.Load())[k]
	if s == nil {
		s = m.add(k)
	}
	s.outcomes[rec.outcome()].Inc()
	if rec.TTFT > 0 {
		s.ttft.Observe(rec.TTFT.Seconds())
	}
	if rec.TPOT > 0 {
		s.tpot.Observe(rec.TPOT.Seconds())
	}
}

func (m *modelMetrics) add(k modelClass) *modelSeries {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := *m.series.Load()
	if s := old[k]; s != nil {
		return s
	}
	if len(old) >= maxModelSeries {
		k = modelClass{"other", "other"}
		if s := old[k]; s != nil {
			return s
		}
	}
	model, class := strings.ToValidUTF8(k.model, "\uFFFD"), strings.ToValidUTF8(k.class, "\uFFFD")
	s := &modelSeries{ttft: m.ttft.WithLabelValues(model, class), tpot: m.tpot.WithLabelValues(model, class)}
	for i := range s.outcomes {
		s.outcomes[i] = m.requests.WithLabelValues(model, class, outcomeNames[i])
	}
	next := maps.Clone(old)
	next[k] = s
	m.series.Store(&next)
	return s
}

// outcome sorts the ends of requests.
func (r *Record) outcome() int {
	switch {
	case r.Reason == reasonClientGone:
		return outcomeClientGone
	case r.Status == http.StatusTooManyRequests, r.Status == statusOverloaded:
		return outcomeRefused
	case r.Status >= 500:
		return outcomeFailed
	case r.Status >= 400:
		return outcomeClientError
	case r.Reason != reasonOK:
		return outcomeFailed // it broke off
	}
	return outcomeOK
}

// statusOverloaded is the other status of refusals; see Options.OverloadStatus.
const statusOverloaded = 529
