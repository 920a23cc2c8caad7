package dispatch

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokens"
)

// Metrics of requests. Every label is of a closed set.
type Metrics struct {
	inflight *prometheus.GaugeVec
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	ttft     *prometheus.HistogramVec
	queue    prometheus.Histogram
	prefill  prometheus.Histogram
	retries  *prometheus.CounterVec
	handOffs *prometheus.CounterVec

	promptTokens, completionTokens prometheus.Counter

	models       modelMetrics
	caches       cacheMetrics
	text         textMetrics
	tokenMetrics *tokens.Metrics

	byRoute [numRoutes]routeMetrics
}

// routeMetrics are the children of one route, resolved once.
type routeMetrics struct {
	inflight prometheus.Gauge
	// The others are nil until there is something to tell, so that routes that nobody
	// uses have no series. answered counts the requests that ended well.
	duration, ttft atomic.Pointer[prometheus.Observer]
	answered       atomic.Pointer[prometheus.Counter]
}

// observe takes a time of a route.
func observe(child *atomic.Pointer[prometheus.Observer], of *prometheus.HistogramVec, r openai.Route, d time.Duration) {
	o := child.Load()
	if o == nil {
		made := of.WithLabelValues(r.String()) // the same for all who come here at once
		o = &made
		child.Store(o)
	}
	(*o).Observe(d.Seconds())
}

const numRoutes = int(openai.NumRoutes)

var latencyBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800}

// NewMetrics registers the metrics of requests.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		inflight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_requests_in_flight", Help: "Requests in progress: between their arrival and the last byte of their answer.",
		}, []string{"route"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_requests_total", Help: "Requests that ended, by the HTTP status sent (499: the client disconnected before a status was sent; other: an engine's status that is not valid in HTTP) and by reason (docs/operations.md lists them).",
		}, []string{"route", "status", "reason"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sluice_request_duration_seconds", Help: "Seconds from a request's arrival to the last byte of its answer.", Buckets: latencyBuckets,
		}, []string{"route"}),
		ttft: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sluice_time_to_first_token_seconds", Help: "Seconds from a request's arrival to its first output token (text, reasoning, a piece of a tool call; an opening event has none), or to the end of an answer that does not stream, of those that had one.", Buckets: latencyBuckets,
		}, []string{"route"}),
		queue: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sluice_queue_wait_seconds", Help: "Seconds a request spent in the admission queue, all its attempts together.", Buckets: latencyBuckets,
		}),
		prefill: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sluice_prefill_leg_seconds", Help: "Seconds from sending a prefill leg to the end of its answer, of those that succeeded.", Buckets: latencyBuckets,
		}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_retries_total", Help: "Attempts after the first one of a request, by what ended the one before.",
		}, []string{"reason"}),
		handOffs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_kv_handoffs_total", Help: "Outcome of the KV cache hand-over from a prefill leg to the decode leg after it: handed_over, recomputed (the prefill gave nothing and decode computed the prompt), missing (the same, and the request was ended), unusable, stale, samples (n>1: no prefill leg).",
		}, []string{"connector", "outcome"}),
	}
	tokenCounts := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_tokens_total", Help: "Tokens that engines reported in answers: those of prompts, and those of completions.",
	}, []string{"kind"})
	m.promptTokens, m.completionTokens = tokenCounts.WithLabelValues("prompt"), tokenCounts.WithLabelValues("completion")
	reg.MustRegister(m.inflight, m.requests, m.duration, m.ttft, m.queue, m.prefill, m.retries, tokenCounts, m.handOffs)
	m.models.init(reg)
	m.caches.init(reg)
	m.text.init(reg)
	m.tokenMetrics = tokens.NewMetrics(reg)
	for r := range m.byRoute {
		name := openai.Route(r).String()
		by := &m.byRoute[r]
		by.inflight = m.inflight.WithLabelValues(name)
	}
	return m
}

func (m *Metrics) begin(r openai.Route) { m.byRoute[r].inflight.Inc() }
func (m *Metrics) end(r openai.Route)   { m.byRoute[r].inflight.Dec() }

func (m *Metrics) handOff(connector, outcome string) {
	m.handOffs.WithLabelValues(connector, outcome).Inc()
}
func (m *Metrics) retry(reason string) { m.retries.WithLabelValues(reason).Inc() }
func (m *Metrics) prefillLeg(rank *fleet.Rank, took time.Duration) {
	m.prefill.Observe(took.Seconds())
	rank.NotePrefill(took)
}

func (m *Metrics) observe(c *Call, took time.Duration) {
	rec := &c.Record
	by := &m.byRoute[c.Route]
	m.ended(c.Route, rec)
	observe(&by.duration, m.duration, c.Route, took)
	if rec.TTFT > 0 {
		observe(&by.ttft, m.ttft, c.Route, rec.TTFT)
	}
	if rec.Class != "" {
		m.models.observe(rec)
	}
	m.queue.Observe(rec.Queued.Seconds())
	if n := rec.Usage.PromptTokens; n > 0 {
		m.promptTokens.Add(float64(n))
	}
	if n := rec.Usage.CompletionTokens; n > 0 {
		m.completionTokens.Add(float64(n))
	}
}

// ended counts a request. The ordinary end is not looked up each time.
func (m *Metrics) ended(r openai.Route, rec *Record) {
	if rec.Status != http.StatusOK || rec.Reason != reasonOK {
		m.requests.WithLabelValues(r.String(), statusLabel(rec.Status), rec.Reason).Inc()
		return
	}
	answered := &m.byRoute[r].answered
	c := answered.Load()
	if c == nil {
		child := m.requests.WithLabelValues(r.String(), statusLabel(http.StatusOK), reasonOK)
		c = &child
		answered.Store(c)
	}
	(*c).Inc()
}

// Refused counts a request that ended before dispatch saw it: a bad key or body.
// reason must be of a closed set.
func (m *Metrics) Refused(r openai.Route, status int, reason string) {
	m.requests.WithLabelValues(r.String(), statusLabel(status), reason).Inc()
}

// statusLabel keeps engines from making series with statuses of their own.
func statusLabel(s int) string {
	if s < 200 || s > 599 {
		return "other"
	}
	return strconv.Itoa(s)
}
