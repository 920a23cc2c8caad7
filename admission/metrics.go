package admission

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
// requests. All series without a rank in their labels are there from the start.
type Metrics struct {
	// immutable
	prefillWait    prometheus.Histogram
	prefillRejects [numReasons]prometheus.Counter // nil: not one of SMG's reasons
	waits          [numResults]prometheus.Observer
	dispatches     prometheus.Counter
	rejects        [numReasons]prometheus.Counter

	// atomic
	gate atomic.Pointer[Gate]
}

// waitBuckets reach from a grant at once to the longest sensible queue timeout.
var waitBuckets = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300}

// Results of an Acquire, for the outcome label: granted, canceled, or a reason.
const (
	resultGranted  = int(reasonNone)
	resultCanceled = int(numReasons)
	numResults     = int(numReasons) + 1
)

// NewMetrics registers the metrics of one gate. It panics when reg already has
// them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{}
	m.prefillWait = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "smg_pd_prefill_admission_wait_seconds",
		Help:    "Time in the queue of requests that queued, whatever became of them.",
		Buckets: waitBuckets,
	})
	prefillRejects := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "smg_pd_prefill_admission_rejections_total",
		Help: "Requests refused by the gate in front of prefill.",
	}, []string{"reason"})
	m.prefillRejects[QueueFull] = prefillRejects.WithLabelValues("queue_full")
	m.prefillRejects[QueueTimeout] = prefillRejects.WithLabelValues("queue_timeout")
	m.prefillRejects[NoWorkers] = prefillRejects.WithLabelValues("unavailable")

	waits := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "sluice_admission_wait_seconds",
		Help:    "Time at the gate of every request, and how it ended.",
		Buckets: waitBuckets,
	}, []string{"class", "outcome"})
	dispatches := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_admission_dispatches_total",
		Help: "Grants; an attempt after a failed one counts again.",
	}, []string{"class"})
	rejects := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_admission_rejections_total",
		Help: "Requests that the gate refused.",
	}, []string{"class", "reason"})
	m.waits[resultGranted] = waits.WithLabelValues(defaultClass, "granted")
	m.waits[resultCanceled] = waits.WithLabelValues(defaultClass, "canceled")
	m.dispatches = dispatches.WithLabelValues(defaultClass)
	for r := reasonNone + 1; r < numReasons; r++ {
		m.waits[r] = waits.WithLabelValues(defaultClass, r.String())
		m.rejects[r] = rejects.WithLabelValues(defaultClass, r.String())
	}
	reg.MustRegister(m.prefillWait, prefillRejects, waits, dispatches, rejects, (*ledgerCollector)(m))
	return m
}

// Watch makes the gauges those of g. Before it they read as an empty gate's.
func (m *Metrics) Watch(g *Gate) { m.gate.Store(g) }

// Acquired counts one Acquire.
func (m *Metrics) Acquired(t *Ticket, o Outcome, wait time.Duration) {
	disaggregated := t.Target.shape == Disaggregated
	if t.wasQueue && disaggregated {
		m.prefillWait.Observe(wait.Seconds())
	}
	result := resultGranted
	switch o {
	case Granted:
		m.dispatches.Inc()
	case Canceled:
		result = resultCanceled
	case Refused:
		why := t.refusal.Reason
		result = int(why)
		m.rejects[why].Inc()
		if c := m.prefillRejects[why]; c != nil && disaggregated {
			c.Inc()
		}
	}
	m.waits[result].Observe(wait.Seconds())
}

// ledgerCollector reads the gate when it is scraped.
type ledgerCollector Metrics

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descInflight = desc("smg_pd_prefill_admission_inflight", "Requests in prefill on a rank.", "worker")
	descQueued   = desc("smg_pd_prefill_admission_queued", "Requests that wait for prefill.")

	descDepth      = desc("sluice_admission_queue_depth", "Requests that wait.", "class")
	descOldest     = desc("sluice_admission_queue_oldest_seconds", "How long the one that has waited longest has waited.", "class")
	descQueueLimit = desc("sluice_admission_queue_limit", "Most requests that may wait.")
	descSlots      = desc("sluice_admission_prefill_slots", "Requests in prefill on a rank.", "rank")
	descSlotLimit  = desc("sluice_admission_prefill_slot_limit", "Most requests in prefill on a rank; 0: no limit.", "rank")
	descDecode     = desc("sluice_admission_decode_requests", "Calls booked on a rank that answers clients: pending until they are sent, active until they end.", "rank", "state")
	descClosed     = desc("sluice_admission_closed_seconds_total", "Time in which the head of a queue could not start, by what it lacked, over all queues.", "resource")
	descMissed     = desc("sluice_admission_missed_events_total", "Grants that only the periodic recheck found; each is a fault of the router.")
)

func (c *ledgerCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descInflight, descQueued, descDepth, descOldest, descQueueLimit,
		descSlots, descSlotLimit, descDecode, descClosed, descMissed,
	} {
		ch <- d
	}
}

// rankGauges are the series of one rank id. Two ranks may share an id for as
// long as a worker is being replaced or misconfigured; a series twice would
// fail the whole scrape.
type rankGauges struct {
	id                             string
	prefill, decode                bool
	slots, limit, pending, activeN int
}

func (c *ledgerCollector) Collect(ch chan<- prometheus.Metric) {
	var s Stats
	if g := c.gate.Load(); g != nil {
		s = g.Stats()
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	depth, oldest := 0, time.Duration(0)
	for _, q := range s.Queues {
		depth += q.Depth
		oldest = max(oldest, q.OldestWait)
	}
	gauge(descQueued, float64(s.WaitingBy[Disaggregated]))
	gauge(descDepth, float64(depth), defaultClass)
	gauge(descOldest, oldest.Seconds(), defaultClass)
	gauge(descQueueLimit, float64(s.Limits.QueueSize))
	for by := ResourceNone + 1; by < numResources; by++ {
		if by != ResourceOrder { // nobody's own lack: the head's is counted
			ch <- prometheus.MustNewConstMetric(descClosed, prometheus.CounterValue, s.ClosedFor[by].Seconds(), by.String())
		}
	}
	ch <- prometheus.MustNewConstMetric(descMissed, prometheus.CounterValue, float64(s.MissedEvents))

	for _, r := range mergeRanks(s) {
		if r.prefill {
			gauge(descInflight, float64(r.slots), r.id)
			gauge(descSlots, float64(r.slots), r.id)
			gauge(descSlotLimit, float64(r.limit), r.id)
		}
		if r.decode {
			gauge(descDecode, float64(r.pending), r.id, "pending")
			gauge(descDecode, float64(r.activeN), r.id, "active")
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
			g.limit += max(s.Limits.PrefillSlots, 0)
		case RoleDecode, RoleRegular:
			g.decode = true
			g.pending += r.PendingDecode
			g.activeN += r.ActiveDecode
		}
	}
	return all
}
