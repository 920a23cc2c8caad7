package admission

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/metric"
)

// Metrics tells what a gate does. Counters and histograms are written by it as
// the gate's [Observer]; gauges are read from the gate's ledger when somebody
// asks. The gate needs its observer before it exists, so the two are joined in
// two steps:
//
//	m := admission.NewMetrics(registry)
//	gate := admission.NewGate(options, clock, m)
//	m.Watch(gate)
//
// The series smg_pd_prefill_admission_* are those of SMG's per-worker prefill
// limits, by their exact names and reasons; they speak of disaggregated
// requests. All series without a rank
// in their labels are there from the start, but for waits that ended otherwise than
// with a grant.
type Metrics struct {
	// immutable
	prefillWait    prometheus.Histogram
	prefillRejects [numReasons]prometheus.Counter // nil: not one of SMG's reasons
	waits          *prometheus.HistogramVec
	received       *prometheus.CounterVec
	dispatches     *prometheus.CounterVec
	rejects        *prometheus.CounterVec
	pressure       *prometheus.CounterVec
	early          *prometheus.CounterVec

	// atomic
	gate atomic.Pointer[Gate]

	// classes are the series of each class by name: a *classSeries. Names are
	// those of configured classes, never a client's.
	classes sync.Map
}

// classSeries are the series of one class, resolved once.
type classSeries struct {
	// waits are made when they are first needed: a histogram has twenty series, and
	// most classes never see most outcomes.
	waits      [numResults]atomic.Pointer[prometheus.Observer]
	received   prometheus.Counter
	dispatches prometheus.Counter
	rejects    [numResults]prometheus.Counter // nil: not an outcome of a refusal
	pressure   map[LimitKind]prometheus.Counter
	early      prometheus.Counter
}

// limitKinds are those that press back on clients before they wait.
var limitKinds = []LimitKind{LimitRequests, LimitRawTokens, LimitCachedTokens, LimitBytes}

func (m *Metrics) class(name string) *classSeries {
	if s, ok := m.classes.Load(name); ok {
		return s.(*classSeries)
	}
	s := &classSeries{
		received:   m.received.WithLabelValues(name),
		dispatches: m.dispatches.WithLabelValues(name),
		early:      m.early.WithLabelValues(name),
		pressure:   map[LimitKind]prometheus.Counter{},
	}
	m.wait(s, name, resultGranted)
	for r := range numResults {
		if r != resultGranted && r != resultCanceled {
			s.rejects[r] = m.rejects.WithLabelValues(name, resultName(r))
		}
	}
	for _, k := range limitKinds {
		s.pressure[k] = m.pressure.WithLabelValues(name, string(k))
	}
	first, _ := m.classes.LoadOrStore(name, s)
	return first.(*classSeries)
}

// waitBuckets reach from a grant at once to the longest sensible queue timeout.
var waitBuckets = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300}

// Results of an Acquire, for the outcome label: granted, canceled, or the code of a
// refusal; the Reasons come first.
const (
	resultGranted  = int(reasonNone)
	resultCanceled = int(numReasons) + iota - 1
	resultPrefillQueueFull
	resultPrefillQueueTimeout
	numResults
)

func resultName(result int) string {
	switch result {
	case resultGranted:
		return "granted"
	case resultCanceled:
		return "canceled"
	case resultPrefillQueueFull:
		return codePrefillQueueFull
	case resultPrefillQueueTimeout:
		return codePrefillQueueTimeout
	}
	return Reason(result).code()
}

// result is that of Refusal.Code.
func (r *Refusal) result() int {
	switch r.Code() {
	case codePrefillQueueFull:
		return resultPrefillQueueFull
	case codePrefillQueueTimeout:
		return resultPrefillQueueTimeout
	}
	return int(r.Reason)
}

// wait is the histogram of one class and result.
func (m *Metrics) wait(k *classSeries, class string, result int) prometheus.Observer {
	if o := k.waits[result].Load(); o != nil {
		return *o
	}
	o := m.waits.WithLabelValues(class, resultName(result)) // the same for all who come here at once
	k.waits[result].Store(&o)
	return o
}

// NewMetrics registers the metrics of one gate. It panics when reg already has
// them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{}
	m.prefillWait = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "smg_pd_prefill_admission_wait_seconds",
		Help:    "Seconds in the queue of requests that had to wait, whatever their outcome.",
		Buckets: waitBuckets,
	})
	prefillRejects := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "smg_pd_prefill_admission_rejections_total",
		Help: "Requests refused by admission control in front of prefill: queue_full, queue_timeout, or unavailable (no worker).",
	}, []string{"reason"})
	m.prefillRejects[QueueFull] = prefillRejects.WithLabelValues("queue_full")
	m.prefillRejects[QueueTimeout] = prefillRejects.WithLabelValues("queue_timeout")
	m.prefillRejects[NoWorkers] = prefillRejects.WithLabelValues("unavailable")

	m.waits = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sluice_admission_wait_seconds",
		Help:    "Seconds in the admission queue of every request (0 if it did not wait), by outcome: granted, canceled (the client disconnected), or the code of the refusal.",
		Buckets: waitBuckets,
	}, []string{"class", "outcome"})
	m.received = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_admission_received_total",
		Help: "Requests that were admitted, refused or canceled; retries are not counted.",
	}, []string{"class"})
	m.dispatches = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_admission_dispatches_total",
		Help: "Requests that were admitted; retries count again.",
	}, []string{"class"})
	m.rejects = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_admission_rejections_total",
		Help: "Requests that were refused, by the error code sent to the client.",
	}, []string{"class", "reason"})
	m.pressure = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_admission_backpressure_total",
		Help: "Requests refused because a queue was full, by the limit that was reached (of their class's queue, or of the router's).",
	}, []string{"class", "limit"})
	m.early = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_admission_refused_early_total",
		Help: "Requests refused on arrival because they would have waited far beyond their deadline. They are included in the rejections, with the code of that deadline.",
	}, []string{"class"})
	m.class(defaultClass)
	reg.MustRegister(m.prefillWait, prefillRejects, m.waits, m.received, m.dispatches, m.rejects, m.pressure, m.early, (*ledgerCollector)(m))
	return m
}

// Watch makes the gauges those of g. Before it they read as an empty gate's.
func (m *Metrics) Watch(g *Gate) {
	m.gate.Store(g)
	names := g.Classes()
	for _, name := range names {
		m.class(name)
	}
	if !slices.Contains(names, defaultClass) { // it is that of gates without classes
		m.classes.Delete(defaultClass)
		m.forget(defaultClass)
	}
}

// forget ends the series of a class.
func (m *Metrics) forget(class string) {
	of := prometheus.Labels{"class": class}
	m.waits.DeletePartialMatch(of)
	for _, v := range []*prometheus.CounterVec{m.received, m.dispatches, m.rejects, m.pressure, m.early} {
		v.DeletePartialMatch(of)
	}
}

// Acquired counts one Acquire.
func (m *Metrics) Acquired(t *Ticket, o Outcome, wait time.Duration) {
	disaggregated := t.Target.shape == Disaggregated
	if t.wasQueue && disaggregated {
		m.prefillWait.Observe(wait.Seconds())
	}
	class := t.ClassName()
	k := m.class(class)
	if !t.Retry {
		k.received.Inc()
	}
	result := resultGranted
	switch o {
	case Granted:
		k.dispatches.Inc()
	case Canceled:
		result = resultCanceled
	case Refused:
		why := t.refusal.Reason
		result = t.refusal.result()
		k.rejects[result].Inc()
		if t.refusal.Predicted {
			k.early.Inc()
		}
		if why == QueueFull || why == ClassQueueFull {
			if c := k.pressure[t.refusal.LimitKind]; c != nil {
				c.Inc()
			}
		}
		if c := m.prefillRejects[why]; c != nil && disaggregated {
			c.Inc()
		}
	}
	m.wait(k, class, result).Observe(wait.Seconds())
}

// ledgerCollector reads the gate when it is scraped.
type ledgerCollector Metrics

var (
	descInflight = metric.Gauge("smg_pd_prefill_admission_inflight", "Requests in prefill on a rank.", "worker")
	descQueued   = metric.Gauge("smg_pd_prefill_admission_queued", "Requests waiting for prefill.")

	descDepth      = metric.Gauge("sluice_admission_queue_depth", "Requests waiting now.", "class")
	descOldest     = metric.Gauge("sluice_admission_queue_oldest_seconds", "Waiting time, in seconds, of the request that has waited longest; 0: none waits.", "class")
	descTokens     = metric.Gauge("sluice_admission_queue_tokens", "Prompt tokens of the waiting requests: all (prompt), and those that are cached.", "class", "kind")
	descDeficit    = metric.Gauge("sluice_admission_deficit_tokens", "Token credit of a class in the weighted round robin; negative after it was served out of turn.", "class")
	descQueueLimit = metric.Gauge("sluice_admission_queue_limit", "Maximum number of waiting requests.")
	descSlots      = metric.Gauge("sluice_admission_prefill_slots", "Requests in prefill on a rank; each holds a slot.", "rank")
	descSlotLimit  = metric.Gauge("sluice_admission_prefill_slot_limit", "Maximum number of requests in prefill on a rank; 0: no limit.", "rank")
	descDecode     = metric.Gauge("sluice_admission_decode_requests", "Calls booked on a decode (or regular) rank: pending until they are sent to the engine, active until they end.", "rank", "state")
	descPrefill    = metric.Gauge("sluice_admission_prefill_tokens", "Uncached prompt tokens in prefill on a rank.", "rank")
	descBlocks     = metric.Gauge("sluice_admission_decode_blocks", "KV blocks booked on a rank: pending until the call is sent to the engine, active until it ends.", "rank", "state")
	descBlocksCap  = metric.Gauge("sluice_admission_decode_blocks_capacity", "KV blocks that a rank has, to divide sluice_admission_decode_blocks by; absent where that is not known.", "rank")
	descTokensCap  = metric.Gauge("sluice_admission_prefill_tokens_capacity", "Maximum number of prompt tokens that a rank computes in one step (max_num_batched_tokens), to divide sluice_admission_prefill_tokens by; absent where that is not known.", "rank")
	descMissing    = metric.Gauge("sluice_admission_missing_capacity", "1: a class needs a capacity that the rank did not report; its number of requests is used instead.", "rank", "capacity")
	descDrift      = metric.Gauge("sluice_admission_decode_blocks_drift", "KV blocks that the engine of a decode (or regular) rank reports to be in use, less those that were active by the bookings when it was asked: load that came past this router where it is positive. 0 without a report.", "rank")
	descVetoed     = metric.Gauge("sluice_admission_rank_vetoed", "1: a rank has no room because of the load that its engine reports (worker_overload_waiting_requests, worker_overload_token_usage).", "rank")
	descFences     = metric.Counter("sluice_admission_fences_total", "Fences set; each reserves ranks for a request that would otherwise starve.")
	descFenced     = metric.Gauge("sluice_admission_fences", "Active fences.")
	descUnknown    = metric.Counter("sluice_admission_unknown_classes_total", "Requests that named a class or family that is not configured.")
	descClosed     = metric.Counter("sluice_admission_closed_seconds_total", "Seconds during which the request at the head of a queue could not start, by the resource it lacked; all queues together.", "resource")
	descClosedBy   = metric.Counter("sluice_admission_class_closed_seconds_total", "Seconds during which the request at the head of a class's queue could not start, by the resource it lacked.", "class", "resource")
	descLost       = metric.Counter("sluice_admission_cache_tokens_lost_total", "Prompt tokens that admitted requests would have found in the KV cache of a rank that had no room, beyond those of the rank that they were given; --affinity-lookahead makes them fewer.")
	descMissed     = metric.Counter("sluice_admission_missed_events_total", "Requests that were admitted only by the periodic recheck (a missed wake-up); each is a bug in the router.")
)

func (c *ledgerCollector) Describe(ch chan<- *prometheus.Desc) { c.Metrics().Describe(ch) }

// Metrics is of metric.Collector.
func (*ledgerCollector) Metrics() metric.Descs {
	return metric.Descs{
		descInflight, descQueued, descDepth, descOldest, descQueueLimit,
		descSlots, descSlotLimit, descDecode, descClosed, descClosedBy, descMissed,
		descTokens, descDeficit, descPrefill, descTokensCap, descBlocks, descBlocksCap, descDrift, descVetoed, descMissing, descFences, descFenced, descUnknown, descLost,
	}
}

// rankGauges are the series of one rank id. Two ranks may share an id for as
// long as a worker is being replaced or misconfigured; a series twice would
// fail the whole scrape.
type rankGauges struct {
	id                             string
	prefill, decode, regular       bool
	slots, limit, pending, activeN int
	tokens, pendingB, activeB      int64
	tokensCap, blocksCap           int64
	drift                          int64
	noTokens, noBlocks, vetoed     bool
}

// classGauges are the gauges of one class name, over all model groups and profiles.
type classGauges struct {
	depth                int
	oldest               time.Duration
	raw, cached, deficit int64
}

func (c *ledgerCollector) Collect(ch chan<- prometheus.Metric) {
	var s Stats
	classes := map[string]*classGauges{}
	if g := c.gate.Load(); g != nil {
		s = g.Stats()
		for _, name := range g.Classes() {
			classes[name] = &classGauges{}
		}
	} else {
		classes[defaultClass] = &classGauges{}
	}
	send := func(d metric.Desc, v float64, labels ...string) { ch <- d.Of(v, labels...) }
	fences := 0
	for _, q := range s.Queues {
		if q.Fence != nil {
			fences++
		}
		for _, k := range q.Classes {
			g := classes[k.Class]
			if g == nil {
				g = &classGauges{}
				classes[k.Class] = g
			}
			g.depth += k.Depth
			g.oldest = max(g.oldest, k.OldestWait)
			g.raw += k.RawTokens
			g.cached += k.CachedTokens
			g.deficit += k.Deficit
		}
	}
	send(descQueued, float64(s.WaitingBy[Disaggregated]))
	for name, g := range classes {
		send(descDepth, float64(g.depth), name)
		send(descOldest, g.oldest.Seconds(), name)
		send(descTokens, float64(g.raw), name, "prompt")
		send(descTokens, float64(g.cached), name, "cached")
		send(descDeficit, float64(g.deficit), name)
	}
	send(descFenced, float64(fences))
	send(descFences, float64(s.Fences))
	send(descUnknown, float64(s.UnknownClasses))
	send(descQueueLimit, float64(s.Limits.QueueSize))
	for by := ResourceNone + 1; by < numResources; by++ {
		if by != ResourceTurn { // nobody's own lack: the head's is counted
			send(descClosed, s.ClosedFor[by].Seconds(), by.String())
			for class, times := range s.ClosedByClass {
				send(descClosedBy, times[by].Seconds(), class, by.String())
			}
		}
	}
	send(descMissed, float64(s.MissedEvents))
	send(descLost, float64(s.CacheTokensLost))

	for _, r := range mergeRanks(s) {
		if r.prefill {
			send(descInflight, float64(r.slots), r.id)
			send(descSlots, float64(r.slots), r.id)
			send(descSlotLimit, float64(r.limit), r.id)
		}
		if r.prefill || r.regular {
			send(descPrefill, float64(r.tokens), r.id)
			if r.tokensCap > 0 {
				send(descTokensCap, float64(r.tokensCap), r.id)
			}
		}
		send(descVetoed, float64(b2i(r.vetoed)), r.id)
		if r.noTokens {
			send(descMissing, 1, r.id, "max_num_batched_tokens")
		}
		if r.noBlocks {
			send(descMissing, 1, r.id, "kv_blocks")
		}
		if r.decode {
			if r.blocksCap > 0 {
				send(descBlocksCap, float64(r.blocksCap), r.id)
			}
			send(descBlocks, float64(r.pendingB), r.id, "pending")
			send(descBlocks, float64(r.activeB), r.id, "active")
			send(descDrift, float64(r.drift), r.id)
			send(descDecode, float64(r.pending), r.id, "pending")
			send(descDecode, float64(r.activeN), r.id, "active")
		}
	}
}

func mergeRanks(s Stats) []*rankGauges {
	var all []*rankGauges
	byID := make(map[string]*rankGauges, len(s.Ranks))
	for _, r := range s.Ranks {
		id := strings.ToValidUTF8(r.ID, "\uFFFD")
		g := byID[id]
		if g == nil {
			g = &rankGauges{id: id}
			byID[id] = g
			all = append(all, g)
		}
		switch r.Role {
		case RolePrefill:
			g.prefill = true
			g.slots += r.PrefillSlots
			g.limit += r.SlotLimit
		case RoleDecode, RoleRegular:
			g.decode = true
			g.pending += r.PendingDecode
			g.activeN += r.ActiveDecode
			g.regular = g.regular || r.Role == RoleRegular
		}
		g.tokens += r.PrefillTokens
		g.pendingB += r.PendingBlocks
		g.activeB += r.ActiveBlocks
		g.tokensCap = max(g.tokensCap, r.Capacity.MaxBatchedTokens)
		g.blocksCap = max(g.blocksCap, r.Capacity.KVBlocks)
		g.drift += r.Drift()
		g.vetoed = g.vetoed || r.Reported.Vetoed
		g.noTokens = g.noTokens || r.MissingTokens
		g.noBlocks = g.noBlocks || r.MissingBlocks
	}
	return all
}
