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
		Name: "sluice_key_requests_total", Help: "Requests that presented a key that has a name (--api-key-file), on any route that asks for one.",
	}, []string{"key"})
	reg.MustRegister(
		s.keyUses,
		gauge("sluice_buffered_bytes", "Bytes of memory that request bodies hold now.",
			func() float64 { return float64(s.buffers.used.Load()) }),
		gauge("sluice_buffered_bytes_limit", "Most bytes of memory that all request bodies together may hold (--max-buffered-bytes).",
			func() float64 { return float64(s.buffers.limit) }),
		gauge("sluice_client_connections", "Connections of clients that are open now.",
			func() float64 { return float64(s.conns.Load()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sluice_client_connections_evicted_total",
			Help: "Connections of clients, without a request that runs, that were closed because almost all files that may be open (ulimit -n) were.",
		}, func() float64 { return float64(s.evicted.Load()) }),
		gauge("sluice_engine_connections", "Connections to engines that are open now, those kept warm and those of checks included.",
			func() float64 { return float64(s.opts.Engines.Open()) }),
		gauge("sluice_open_files_limit", "Files, sockets among them, that this process may have open at once (ulimit -n); near it requests are refused.",
			func() float64 { return float64(s.opts.MaxFiles) }),
		gauge("sluice_ready", "1 when readiness probes are answered with 200, else 0.",
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

// netHTTPLog takes what net/http has to say.
func netHTTPLog(l *telemetry.Log) *log.Logger {
	return slog.NewLogLogger(l.Handler(), slog.LevelWarn)
}
