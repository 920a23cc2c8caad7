package server

import (
	"log"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/telemetry"
)

// registerMetrics adds the server's metrics. All are read from their owner at
// scrape time.
func (s *Server) registerMetrics(reg prometheus.Registerer) {
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, read)
	}
	s.keyUses = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_key_requests_total", Help: "Requests with a named key (--api-key-file), on any route that requires a key.",
	}, []string{"key"})
	reg.MustRegister(
		s.keyUses,
		gauge("sluice_buffered_bytes", "Bytes of memory held by request bodies.",
			func() float64 { return float64(s.buffers.used.Load()) }),
		gauge("sluice_buffered_bytes_limit", "Maximum of sluice_buffered_bytes (--max-buffered-bytes).",
			func() float64 { return float64(s.buffers.limit) }),
		gauge("sluice_client_connections", "Open client connections.",
			func() float64 { return float64(s.conns.Load()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sluice_client_connections_evicted_total",
			Help: "Idle client connections that were closed because the limit on open files (ulimit -n) was almost reached.",
		}, func() float64 { return float64(s.evicted.Load()) }),
		gauge("sluice_engine_connections", "Open connections to engines, idle ones and those of health checks included.",
			func() float64 { return float64(s.opts.Engines.Open()) }),
		gauge("sluice_open_files_limit", "Limit on open files, sockets included, of this process (ulimit -n); requests are refused near it.",
			func() float64 { return float64(s.opts.MaxFiles) }),
		gauge("sluice_ready", "1 while readiness probes are answered with 200, else 0.",
			func() float64 {
				if why, _ := s.notReady(); why != "" {
					return 0
				}
				return 1
			}),
	)
}

// metricsHandler serves /metrics, on a port of its own.
func (s *Server) metricsHandler() http.Handler {
	page := telemetry.MetricsHandler(s.opts.Registry, s.log.Logger)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != pathMetrics:
			http.Error(w, "only /metrics is here", http.StatusNotFound)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD are methods of /metrics", http.StatusMethodNotAllowed)
		default:
			page.ServeHTTP(w, r)
		}
	})
}

// netHTTPLog is a logger for net/http's own messages.
func netHTTPLog(l *telemetry.Log) *log.Logger {
	return slog.NewLogLogger(l.Handler(), slog.LevelWarn)
}
