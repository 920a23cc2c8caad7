package config

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// files is a ReadFile of names to contents.
type files map[string]string

func (f files) read(name string) ([]byte, error) {
	if s, ok := f[name]; ok {
		return []byte(s), nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

func words(s string) []string { return strings.Fields(s) }

func mustLoad(t *testing.T, args string, environ []string, f files) *Config {
	t.Helper()
	c, _, err := Load(words(args), environ, f.read)
	if err != nil {
		t.Fatalf("Load(%q, %q): %v", args, environ, err)
	}
	return c
}

// loadErrors returns the errors of a configuration that must be refused, one a line.
func loadErrors(t *testing.T, args string, environ []string, f files) string {
	t.Helper()
	c, _, err := Load(words(args), environ, f.read)
	var es Errors
	if !errors.As(err, &es) {
		t.Fatalf("Load(%q, %q) = %v, %v; want Errors", args, environ, c, err)
	}
	return es.Error()
}

func TestDefaults(t *testing.T) {
	c := mustLoad(t, "", nil, nil)
	got := fmt.Sprint(c.Server.Addr(), " ", c.Server.PrometheusAddr(), " ", c.Server.MaxPayloadSize, " ", c.Timeouts.Request, " ",
		c.Routing.Policy, " ", c.Routing.PrefillPolicy, " ", c.Routing.DecodePolicy, " ", c.Admission.PrefillMaxInflight, " ", c.Admission.Enabled(), " ",
		c.Health.Interval, " ", c.Retry.MaxRetries, " ", c.Retry.MaxBackoff, " ", c.Retry.BackoffMultiplier, " ", c.CircuitBreaker.FailureThreshold, " ", len(c.Workers))
	want := "0.0.0.0:30000 0.0.0.0:29000 536870912 30m0s power_of_two power_of_two power_of_two -1 false 5s 5 30s 1.5 10 0"
	if got != want {
		t.Errorf("defaults\n got %s\nwant %s", got, want)
	}
	if o := c.Origin("server.port"); o.Kind != FromDefault {
		t.Errorf("origin of a default = %v", o)
	}
}

func TestPrecedencePerSetting(t *testing.T) {
	f := files{"s.yaml": "server:\n  port: 1\n  host: file\nlog:\n  log_level: debug\n"}
	c := mustLoad(t, "--config s.yaml --port 3", []string{"SLUICE_PORT=2", "SLUICE_HOST=env"}, f)
	got := []string{
		fmt.Sprint(c.Server.Port), c.Origin("server.port").String(),
		c.Server.Host, c.Origin("server.host").String(),
		c.Log.Level, c.Origin("log.log_level").String(),
		fmt.Sprint(c.Server.PrometheusPort), c.Origin("server.prometheus_port").String(),
		c.File,
	}
	want := []string{"3", "flag --port", "env", "environment SLUICE_HOST", "debug", "s.yaml:5", "29000", "default", "s.yaml"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestPDWorkersFromFlags(t *testing.T) {
	c := mustLoad(t, "--pd-disaggregation --prefill http://P1:30000/ 8999 --prefill http://p2 none --prefill=http://p3 --decode http://d1 --prefill-max-inflight-requests-per-worker 4 --prefill-queue-timeout-secs 7", nil, nil)
	want := []Worker{
		{URL: "http://p1:30000", Type: WorkerPrefill, BootstrapPort: 8999},
		{URL: "http://p2", Type: WorkerPrefill, BootstrapPort: BootstrapNone},
		{URL: "http://p3", Type: WorkerPrefill},
		{URL: "http://d1", Type: WorkerDecode},
	}
	if d := cmp.Diff(want, c.Workers); d != "" {
		t.Error(d)
	}
	if a := c.Admission; !a.Enabled() || a.PrefillMaxInflight != 4 || a.PrefillQueueSize != 100 || a.PrefillQueueTimeout != 7*time.Second {
		t.Errorf("admission = %+v", a)
	}
}
