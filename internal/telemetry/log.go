package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/metric"
)

// LogOptions say where a log goes and what it looks like.
type LogOptions struct {
	Out   io.Writer
	Level slog.Level
	// JSON writes one object a line instead of text.
	JSON bool
	// Access says which requests have a line. Empty: AccessAll.
	Access AccessMode
	// MaxPending bounds the lines that wait to be written, in bytes. 0:
	// DefaultMaxPending.
	MaxPending int
}

// Log is a process's log. Its methods never wait for the output.
type Log struct {
	*slog.Logger
	w       *asyncWriter // nil: the log goes nowhere
	json    bool
	access  slog.Level // the least level of a request's line
	dropped metric.Desc
}

// AccessMode says which requests have an access line.
type AccessMode string

// The modes.
const (
	AccessAll      AccessMode = "all"
	AccessFailures AccessMode = "failures" // what is logged at slog.LevelWarn
	AccessOff      AccessMode = "off"
)

// least is the least level of the lines that are written.
func (m AccessMode) least() slog.Level {
	switch m {
	case AccessFailures:
		return slog.LevelWarn
	case AccessOff:
		return slog.Level(math.MaxInt)
	}
	return slog.Level(math.MinInt)
}

// seconds writes durations in JSON as a number of seconds, where slog would write
// nanoseconds; in text they are like "1.5s".
func seconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
	}
	return a
}

// NewLog makes a log. Close it, or its last lines may be lost.
func NewLog(o LogOptions) *Log {
	l := &Log{json: o.JSON, access: o.Access.least(), dropped: metric.Counter("sluice_log_lines_dropped_total",
		"Log lines that were dropped because standard error did not accept them in time.")}
	made := make(chan struct{})
	l.w = newAsyncWriter(o.Out, o.MaxPending, func(n uint64) {
		<-made
		l.Warn("log lines were dropped because the output took no more", "lines", n)
	})
	ho := &slog.HandlerOptions{Level: o.Level}
	var h slog.Handler
	if o.JSON {
		ho.ReplaceAttr = seconds
		h = slog.NewJSONHandler(l.w, ho)
	} else {
		h = slog.NewTextHandler(l.w, ho)
	}
	l.Logger = slog.New(h)
	close(made)
	return l
}

// Discard is a log that goes nowhere, for tests and tools. It needs no Close.
func Discard() *Log {
	return &Log{Logger: slog.New(slog.DiscardHandler)}
}

// Dropped is the number of lines dropped so far.
func (l *Log) Dropped() uint64 {
	if l.w == nil {
		return 0
	}
	return l.w.dropped.Load()
}

// Close writes out what is pending. It waits at most so long, because an output
// that hangs must not keep the process from ending, and reports whether that was
// enough. Lines logged afterwards are dropped.
func (l *Log) Close(limit time.Duration) bool {
	return l.w == nil || l.w.close(limit)
}

// Describe implements prometheus.Collector: the metric is the number of dropped lines.
func (l *Log) Describe(ch chan<- *prometheus.Desc) { l.Metrics().Describe(ch) }

// Metrics is of metric.Collector.
func (l *Log) Metrics() metric.Descs { return metric.Descs{l.dropped} }

// Collect is of prometheus.Collector.
func (l *Log) Collect(ch chan<- prometheus.Metric) {
	ch <- l.dropped.Of(float64(l.Dropped()))
}

// ParseLevel reads debug, info, warn or error.
func ParseLevel(s string) (slog.Level, error) {
	switch s {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn", "warning":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("cannot use the log level %q: it must be debug, info, warn or error", s)
}
