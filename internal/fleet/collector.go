package fleet

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/metric"
)

var (
	upDesc = metric.Gauge("sluice_worker_up",
		"1 while a worker is ready and receives requests, else 0.", "worker", "worker_id", "role")
	stateDesc = metric.Gauge("sluice_worker_state",
		"1 for the current state of a worker, 0 for the others: pending (not healthy yet, or misconfigured), ready, unhealthy, not_ready (its source says that it must not be chosen), drained (by request), draining (it is being removed).",
		"worker", "worker_id", "role", "state")
	suspectDesc = metric.Gauge("sluice_worker_suspect",
		"1 from a worker's first failed health check until the next successful one, unless it sends bytes meanwhile, and while one of its ranks makes no progress and its scheduler is being probed; else 0. It may still receive requests.", "worker", "worker_id", "role")
	wedgedDesc = metric.Gauge("sluice_rank_wedged",
		"1 while a rank is wedged: its HTTP server may answer, but its scheduler makes no progress, and it receives no requests; else 0.", "rank", "role")
	wedgesDesc = metric.Counter("sluice_rank_wedged_total",
		"Times that a rank was found wedged.", "rank", "role")
	warmingDesc = metric.Gauge("sluice_rank_warming",
		"1 while a rank warms up: it receives only a share of the requests, if others have room (--worker-warmup-secs); else 0.", "rank", "role")
	quietDesc = metric.Gauge("sluice_rank_quiet_seconds",
		"How long a rank has made no progress, in seconds; 0 while it has no request that could make any.", "rank", "role")
	oldestPrefillDesc = metric.Gauge("sluice_rank_oldest_prefill_seconds",
		"Age of the oldest request under way whose prompt a rank computes, in seconds; 0 if there is none.", "rank", "role")
	oldestDecodeDesc = metric.Gauge("sluice_rank_oldest_decode_seconds",
		"Age of the oldest request under way whose answer a rank computes, in seconds; 0 if there is none.", "rank", "role")
	deadDesc = metric.Gauge("sluice_worker_dead",
		"1 while a worker is dead: it answers nothing at all, and its requests were moved to other workers or ended. Its state is unhealthy.", "worker", "worker_id", "role")
	workersDesc = metric.Gauge("sluice_workers",
		"Registered workers by role and state.", "role", "state")
	breakerDesc = metric.Gauge("sluice_rank_breaker_state",
		"1 for the current state of a rank's circuit breaker, 0 for the others: closed, open, half_open.", "rank", "role", "state")
	legsDesc = metric.Counter("sluice_worker_requests_total",
		"Requests to a worker that ended (each leg of a request by itself, further attempts too): ok; failed (an error of the engine); other (a client's error, an engine that is busy, a request that was canceled).",
		"worker", "role", "outcome")
	prefillsDesc = metric.Counter("sluice_worker_prefills_total",
		"Successful prefill legs on a worker; the divisor of sluice_worker_prefill_seconds_total.", "worker")
	prefillTimeDesc = metric.Counter("sluice_worker_prefill_seconds_total",
		"Total duration, in seconds, of the successful prefill legs on a worker, from sending to the end of the answer.", "worker")
	firstsDesc = metric.Counter("sluice_worker_first_tokens_total",
		"Requests on a worker that produced a first token; the divisor of sluice_worker_first_token_seconds_total. One with separate prefill and decode workers counts for both.", "worker", "role")
	firstTimeDesc = metric.Counter("sluice_worker_first_token_seconds_total",
		"Total time, in seconds, from the start of the successful attempt to the first token; waiting in the queue is not included.", "worker", "role")
	loadUnknownDesc = metric.Gauge("sluice_worker_load_unknown",
		"1 while a worker that is healthy does not report its load: its engine has no route for it, answers in a form that cannot be read, or has not answered for three intervals. Only its bookings count then.", "worker", "worker_id", "role")
	reportedRequestsDesc = metric.Gauge("sluice_rank_reported_requests",
		"Requests that the engine of a rank reports, whoever sent them: running, and waiting inside the engine. Absent while there is no report that counts.", "rank", "role", "state")
	reportedTokensDesc = metric.Gauge("sluice_rank_reported_kv_tokens",
		"Tokens of its KV cache that the engine of a rank reports to be in use. Absent while there is no report that counts.", "rank", "role")
	reportedUsageDesc = metric.Gauge("sluice_rank_reported_kv_usage_ratio",
		"The part of its KV cache that the engine of a rank reports to be in use, from 0 to 1. Absent while there is no report that counts.", "rank", "role")
	textStateDesc = metric.Gauge("sluice_worker_tokenizer",
		"1 for the current state of the tokenizer of a worker that takes token ids, 0 for the others: loading (its files are being read), failed (they cannot be used), unchecked, checked (the engine makes the same tokens of some texts), mismatch (it makes others).", "worker", "worker_id", "role", "state")
	textModelsDesc = metric.Gauge("sluice_tokenizer_models",
		"Tokenizers in memory whose files engines have given; workers with the same files share one.")
	textBytesDesc = metric.Gauge("sluice_tokenizer_memory_bytes",
		"Memory of these tokenizers, in bytes, about.")
	missingDesc = metric.Gauge("sluice_ranks_missing_capacity",
		"Registered ranks with an unknown capacity that classes need; their number of requests is used instead.",
		"role", "capacity")
	silentDesc = metric.Gauge("sluice_workers_without_kv_transfer",
		"Decode workers that were handed prompts but received no KV cache.")
	quarantinedDesc = metric.Gauge("sluice_pairs_barred",
		"Pairs of a prefill and a decode rank that are not used together for a while because KV transfers between them kept failing.")
	quarantinesDesc = metric.Counter("sluice_pairs_barred_total",
		"Times that a pair of a prefill and a decode rank was quarantined because KV transfers between them kept failing.")
)

// collector reads the fleet when it is scraped.
type collector struct{ f *Fleet }

// NewCollector makes the metrics of a fleet, to be registered.
func NewCollector(f *Fleet) prometheus.Collector { return collector{f} }

func (c collector) Describe(ch chan<- *prometheus.Desc) { c.Metrics().Describe(ch) }

// Metrics is of metric.Collector.
func (collector) Metrics() metric.Descs {
	return append(metric.Descs{upDesc, stateDesc, suspectDesc, wedgedDesc, wedgesDesc, warmingDesc, quietDesc, oldestPrefillDesc, oldestDecodeDesc, deadDesc, workersDesc, breakerDesc, legsDesc, prefillsDesc, prefillTimeDesc, firstsDesc, firstTimeDesc, loadUnknownDesc, reportedRequestsDesc, reportedTokensDesc, reportedUsageDesc, textStateDesc, textModelsDesc, textBytesDesc, missingDesc, silentDesc, quarantinedDesc, quarantinesDesc}, kvDescs...)
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
			for _, name := range missingCapacity(w.Role(), r.Capacity()) {
				n[series{w.Role(), name}]++
			}
		}
	}
	c.states(ch)
	c.kvCaches(ch)
	held := c.f.texts.store.Stats()
	ch <- textModelsDesc.Of(float64(held.Models))
	ch <- textBytesDesc.Of(float64(held.Bytes))
	for _, s := range all {
		ch <- missingDesc.Of(float64(n[s]), s.role.String(), s.capacity)
	}
	q := &c.f.quarantine
	q.mu.Lock()
	quarantined := q.quarantined
	q.mu.Unlock()
	ch <- silentDesc.Of(float64(silent))
	ch <- quarantinedDesc.Of(float64(quarantined))
	ch <- quarantinesDesc.Of(float64(q.total.Load()))
}

// Statuses and breaker states in the order in which they are reported.
var (
	allStatuses = [...]Status{StatusPending, StatusReady, StatusUnhealthy, StatusNotReady, StatusDrained, StatusDraining}
	allBreakers = [...]admission.Breaker{admission.BreakerClosed, admission.BreakerOpen, admission.BreakerHalfOpen}
	allRoles    = [...]admission.Role{admission.RoleRegular, admission.RolePrefill, admission.RoleDecode}
)

// states reports the state of each worker and each breaker. A removed worker has no
// series any more.
func (c collector) states(ch chan<- prometheus.Metric) {
	type group struct {
		role   admission.Role
		status Status
	}
	type one struct {
		w       *Worker
		status  Status
		suspect bool
		dead    bool
		unknown bool // its load
		text    string
		ranks   []rankProgress
	}
	f := c.f
	f.mu.Lock()
	now := f.clock.Now()
	workers := make([]one, 0, len(f.workers))
	for _, w := range f.workers {
		text := ""
		if w.takesTokens() {
			text = w.text.state()
		}
		workers = append(workers, one{w, w.statusLocked(), w.suspectLocked(now) != nil, w.health.dead, w.loadUnknownLocked() != "", text, f.progressOfLocked(w, now)})
	}
	f.mu.Unlock()

	counts := map[group]int{}
	for _, o := range workers {
		counts[group{o.w.Role(), o.status}]++
		url, role := label(o.w.URL()), o.w.Role().String()
		ch <- upDesc.Of(one01(o.status == StatusReady), url, o.w.ID(), role)
		ch <- suspectDesc.Of(one01(o.suspect), url, o.w.ID(), role)
		ch <- deadDesc.Of(one01(o.dead), url, o.w.ID(), role)
		ch <- loadUnknownDesc.Of(one01(o.unknown), url, o.w.ID(), role)
		if l := o.w.loads.Load(); l != nil && c.f.counts(l, now) {
			for _, r := range o.w.Ranks() {
				if one, ok := rankLoad(&l.Loads, r.dp); ok {
					ch <- reportedRequestsDesc.Of(float64(one.Running), label(r.id), role, "running")
					ch <- reportedRequestsDesc.Of(float64(one.Waiting), label(r.id), role, "waiting")
					ch <- reportedTokensDesc.Of(float64(one.UsedTokens), label(r.id), role)
					ch <- reportedUsageDesc.Of(one.Usage, label(r.id), role)
				}
			}
		}
		for _, status := range allStatuses {
			ch <- stateDesc.Of(one01(o.status == status), url, o.w.ID(), role, string(status))
		}
		if o.text != "" {
			for _, state := range allTextStates {
				ch <- textStateDesc.Of(one01(o.text == state), url, o.w.ID(), role, state)
			}
		}
		m := &o.w.meter
		for outcome := range m.legs {
			ch <- legsDesc.Of(float64(m.legs[outcome].Load()), url, role, LegOutcome(outcome).String())
		}
		if o.w.Role() == admission.RolePrefill {
			ch <- prefillsDesc.Of(float64(m.prefill.n.Load()), url)
			ch <- prefillTimeDesc.Of(m.prefill.seconds(), url)
		}
		ch <- firstsDesc.Of(float64(m.first.n.Load()), url, role)
		ch <- firstTimeDesc.Of(m.first.seconds(), url, role)
		for _, r := range o.ranks {
			ch <- wedgedDesc.Of(one01(r.wedged), label(r.id), role)
			ch <- wedgesDesc.Of(float64(r.wedges), label(r.id), role)
			ch <- warmingDesc.Of(one01(r.warming), label(r.id), role)
			ch <- quietDesc.Of(r.quiet, label(r.id), role)
			ch <- oldestPrefillDesc.Of(r.prefill, label(r.id), role)
			ch <- oldestDecodeDesc.Of(r.decode, label(r.id), role)
		}
		for _, r := range o.w.Ranks() {
			now, _ := r.breaker.get()
			for _, state := range allBreakers {
				ch <- breakerDesc.Of(one01(now == state), label(r.ID()), role, breakerLabel(state))
			}
		}
	}
	for _, role := range allRoles {
		for _, status := range allStatuses {
			ch <- workersDesc.Of(float64(counts[group{role, status}]), role.String(), string(status))
		}
	}
}

// rankProgress is the progress of a rank's requests, for the metrics.
type rankProgress struct {
	id                     string
	wedged                 bool
	wedges                 int64
	warming                bool
	quiet, prefill, decode float64 // in seconds
}

func (f *Fleet) progressOfLocked(w *Worker, now admission.Instant) []rankProgress {
	f.lookLocked(w)
	list := make([]rankProgress, 0, len(w.Ranks()))
	for _, r := range w.Ranks() {
		p := rankProgress{id: r.id, wedged: r.hang.state == wedged, wedges: r.hang.total, warming: r.warmth.until != 0}
		p.quiet, p.prefill, p.decode = r.ages(now)
		list = append(list, p)
	}
	return list
}

// breakerLabel is a state as it can stand in a query without quoting.
func breakerLabel(b admission.Breaker) string { return strings.ReplaceAll(b.String(), "-", "_") }

// label is text as Prometheus takes it.
func label(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func one01(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
