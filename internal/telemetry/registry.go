package telemetry

import (
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/sluice-router/sluice/internal/metric"
)

// Registry is a registry that remembers what was registered, so that the metrics
// can be listed before they have a series.
type Registry struct {
	*prometheus.Registry
	ours []prometheus.Collector
}

// NewRegistry makes a registry that has the metrics of the process and of the Go
// runtime.
func NewRegistry() *Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewGoCollector(),
	)
	return &Registry{Registry: reg}
}

// Register does what prometheus.Registerer asks for.
func (r *Registry) Register(c prometheus.Collector) error {
	if err := r.Registry.Register(c); err != nil {
		return err
	}
	r.ours = append(r.ours, c)
	return nil
}

// MustRegister does what prometheus.Registerer asks for.
func (r *Registry) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// Family is a metric with all its series.
type Family struct {
	Name, Kind, Help string
	Labels           []string
}

// Families are the registered metrics beside those of the process and of the Go
// runtime, in the order in which they were registered.
func (r *Registry) Families() ([]Family, error) {
	var all []Family
	for _, c := range r.ours {
		fs, err := familiesOf(c)
		if err != nil {
			return nil, err
		}
		all = append(all, fs...)
	}
	return all, nil
}

func familiesOf(c prometheus.Collector) ([]Family, error) {
	if own, ok := c.(metric.Collector); ok {
		var all []Family
		for _, d := range own.Metrics() {
			f, err := familyOf(d.Desc, d.Kind())
			if err != nil {
				return nil, err
			}
			all = append(all, f)
		}
		return all, nil
	}
	kind, err := kindOf(c)
	if err != nil {
		return nil, err
	}
	ch := make(chan *prometheus.Desc, 1)
	c.Describe(ch)
	f, err := familyOf(<-ch, kind)
	return []Family{f}, err
}

// kindOf is the kind of a collector of Prometheus's own, which has one metric.
func kindOf(c prometheus.Collector) (string, error) {
	switch c := c.(type) {
	case *prometheus.CounterVec:
		return "counter", nil
	case *prometheus.GaugeVec:
		return "gauge", nil
	case *prometheus.HistogramVec:
		return "histogram", nil
	case prometheus.Metric:
		var m dto.Metric
		if err := c.Write(&m); err != nil {
			return "", fmt.Errorf("cannot read a metric: %w", err)
		}
		switch {
		case m.Counter != nil:
			return "counter", nil
		case m.Gauge != nil:
			return "gauge", nil
		case m.Histogram != nil:
			return "histogram", nil
		}
	}
	return "", fmt.Errorf("cannot tell the kinds of the metrics of a %T: it is no metric.Collector", c)
}

// descText parses a description's String, the only access to its parts.
var descText = regexp.MustCompile(`^Desc\{fqName: ("(?:[^"\\]|\\.)*"), help: ("(?:[^"\\]|\\.)*"),.* variableLabels: \{(.*)\}\}$`)

func familyOf(d *prometheus.Desc, kind string) (Family, error) {
	m := descText.FindStringSubmatch(d.String())
	if m == nil {
		return Family{}, fmt.Errorf("cannot read the description of a metric: %s", d)
	}
	f := Family{Kind: kind}
	var err error
	if f.Name, err = strconv.Unquote(m[1]); err != nil {
		return Family{}, fmt.Errorf("cannot read the name of a metric: %s", d)
	}
	if f.Help, err = strconv.Unquote(m[2]); err != nil {
		return Family{}, fmt.Errorf("cannot read the help of a metric: %s", d)
	}
	if m[3] != "" {
		f.Labels = strings.Split(m[3], ",")
	}
	return f, nil
}

const (
	// maxScrapes bounds scrapes at one time; each holds the whole page.
	maxScrapes = 4
	// scrapeTimeout bounds one.
	scrapeTimeout = 10 * time.Second
)

// MetricsHandler answers scrapes of g. A metric that cannot be collected leaves
// the others readable and is logged. A scraper that leaves is one line at debug.
func MetricsHandler(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	return http.TimeoutHandler(scrapes(g, log), scrapeTimeout, "the metrics could not be collected within "+scrapeTimeout.String()+"\n")
}

func scrapes(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	page := promhttp.HandlerFor(g, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: maxScrapes,
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := &scrapeWriter{ResponseWriter: w}
		page.ServeHTTP(out, r)
		if out.err != nil {
			log.Debug("a scrape of the metrics was cut off", "client", r.RemoteAddr, "error", out.err)
		}
	})
}

// scrapeWriter discards output after the first write error, which would otherwise be
// logged for each family.
type scrapeWriter struct {
	http.ResponseWriter
	err error // the first one
}

func (w *scrapeWriter) Write(b []byte) (int, error) {
	if w.err == nil {
		_, w.err = w.ResponseWriter.Write(b)
	}
	return len(b), nil
}
