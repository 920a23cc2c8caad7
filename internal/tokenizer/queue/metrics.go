package queue

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/metric"
)

// Stats is what a queue holds and has done. Counters never go back.
type Stats struct {
	Workers, Running, Waiting, Keys int
	// Bytes is what the texts that wait or run count, Limit the bound on it (0: none).
	Bytes, Limit int64
	// Refused are texts for which there was no memory, Left those whose context ended while
	// they waited.
	Refused, Left uint64
}

// Stats returns what the queue holds.
func (q *Queue) Stats() Stats {
	q.mu.Lock()
	defer q.mu.Unlock()
	return Stats{
		Workers: q.workers, Running: q.running, Waiting: q.waiting, Keys: len(q.keys),
		Bytes: q.bytes, Limit: q.maxBytes, Refused: q.refused, Left: q.left,
	}
}

var (
	workersDesc = metric.Gauge("sluice_tokenizer_queue_workers",
		"How many texts may be tokenized at one time.")
	runningDesc = metric.Gauge("sluice_tokenizer_queue_running",
		"Texts that are being tokenized.")
	waitingDesc = metric.Gauge("sluice_tokenizer_queue_waiting",
		"Texts that wait to be tokenized.")
	bytesDesc = metric.Gauge("sluice_tokenizer_queue_bytes",
		"Bytes of texts that wait or are being tokenized.")
	limitDesc = metric.Gauge("sluice_tokenizer_queue_bytes_limit",
		"Maximum of sluice_tokenizer_queue_bytes; 0: none.")
	refusedDesc = metric.Counter("sluice_tokenizer_queue_refused_total",
		"Texts that were not tokenized as there was no memory for them in the queue.")
	leftDesc = metric.Counter("sluice_tokenizer_queue_left_total",
		"Texts that were not tokenized as their request ended while they waited.")
)

// collector reads a queue when it is scraped.
type collector struct{ q *Queue }

// Register registers the metrics of a queue.
func (q *Queue) Register(reg prometheus.Registerer) { reg.MustRegister(collector{q}, q.waited) }

// Metrics is of metric.Collector.
func (collector) Metrics() metric.Descs {
	return metric.Descs{workersDesc, runningDesc, waitingDesc, bytesDesc, limitDesc, refusedDesc, leftDesc}
}

// Describe is of prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) { c.Metrics().Describe(ch) }

// Collect is of prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	s := c.q.Stats()
	ch <- workersDesc.Of(float64(s.Workers))
	ch <- runningDesc.Of(float64(s.Running))
	ch <- waitingDesc.Of(float64(s.Waiting))
	ch <- bytesDesc.Of(float64(s.Bytes))
	ch <- limitDesc.Of(float64(s.Limit))
	ch <- refusedDesc.Of(float64(s.Refused))
	ch <- leftDesc.Of(float64(s.Left))
}
