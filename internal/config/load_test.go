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
	want := "0.0.0.0:30000 0.0.0.0:29000 536870912 30m0s cache_aware cache_aware cache_aware -1 false 5s 5 30s 1.5 10 0"
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

func TestWorkersOfTheFile(t *testing.T) {
	f := files{"key": "from-file\n", "s.yaml": `
fleet: {pd_disaggregation: true, model_id: m}
auth: {worker_api_key: shared}
workers:
  - &p
    url: http://p0:8000/base//
    worker_type: prefill
    bootstrap_port: none
    api_key_file: key
  - url: https://[0:0:0:0:0:0:0:1]:443
    worker_type: decode
    model_id: 4.5
    http2: true
    tls: {server_name: engine, insecure_skip_verify: true}
`}
	c, warnings, err := Load(words("--config s.yaml"), nil, f.read)
	if err != nil {
		t.Fatal(err)
	}
	want := []Worker{
		{URL: "http://p0:8000/base", Type: WorkerPrefill, BootstrapPort: BootstrapNone, ModelID: "m", APIKey: "from-file", APIKeyFile: "key"},
		{URL: "https://[::1]", Type: WorkerDecode, ModelID: "4.5", HTTP2: true, TLS: WorkerTLS{ServerName: "engine", InsecureSkipVerify: true}},
	}
	if d := cmp.Diff(want, c.Workers); d != "" {
		t.Error(d)
	}
	if got := c.Workers[0].APIKey.Reveal() + " " + c.Auth.WorkerAPIKey.Reveal(); got != "from-file shared" {
		t.Errorf("keys = %s", got)
	}
	wantWarnings := "[s.yaml:10: workers[1].tls.insecure_skip_verify: the certificate of https://[::1] is not checked]"
	if got := fmt.Sprint(warnings); got != wantWarnings {
		t.Errorf("warnings = %s", got)
	}
}

func TestLimitsAndPriorityOfWorkers(t *testing.T) {
	f := files{"s.yaml": `
fleet: {pd_disaggregation: true}
workers:
  - {url: http://a, worker_type: prefill, priority: 0, max_running_requests: 4, prefill_max_inflight_requests: 2}
  - {url: http://b, worker_type: decode}
`}
	c := mustLoad(t, "--config s.yaml", nil, f)
	if w := c.Workers[0]; w.Priority == nil || *w.Priority != 0 || w.MaxRunningRequests != 4 || w.PrefillMaxInflight != 2 || c.Workers[1].Priority != nil {
		t.Errorf("workers %+v", c.Workers)
	}
	var b strings.Builder
	if err := c.WriteEffective(&b); err != nil {
		t.Fatal(err)
	}
	again := mustLoad(t, "--config s.yaml", nil, files{"s.yaml": b.String()})
	if d := cmp.Diff(c.Workers, again.Workers); d != "" {
		t.Errorf("printed as\n%s%s", b.String(), d)
	}
	for _, wrong := range []string{"priority: 1001", "priority: -1", "priority: high", "prefill_max_inflight_requests: 0", "prefill_max_inflight_requests: 1", "max_running_requests: 0"} {
		f := files{"s.yaml": "workers:\n  - {url: http://a, " + wrong + "}\n"}
		if _, _, err := Load(words("--config s.yaml"), nil, f.read); err == nil || !strings.Contains(err.Error(), "workers[0]."+wrong[:strings.IndexByte(wrong, ':')]) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
}

// A list is one setting: the winning source replaces it whole, whichever of
// its flags are used.
func TestWorkersAreReplacedWhole(t *testing.T) {
	f := files{"s.yaml": "fleet: {pd_disaggregation: true}\nworkers:\n- {url: http://file, worker_type: decode}\n"}
	env := []string{"SLUICE_PREFILL=http://env1 8998,http://env2 none , http://env3", "SLUICE_DECODE=http://env4, http://env5"}
	urls := func(c *Config) string {
		var s []string
		for _, w := range c.Workers {
			s = append(s, strings.TrimPrefix(w.URL, "http://")+"/"+w.BootstrapPort.String())
		}
		return strings.Join(s, " ") + " from " + c.Origin("workers").String()
	}
	for _, tc := range []struct {
		args string
		env  []string
		want string
	}{
		{"--config s.yaml", nil, "file/ from s.yaml:3"},
		{"--config s.yaml", env, "env1/8998 env2/none env3/ env4/ env5/ from environment SLUICE_PREFILL"},
		{"--config s.yaml --decode http://flag", env, "flag/ from flag --decode"},
	} {
		if got := urls(mustLoad(t, tc.args, tc.env, f)); got != tc.want {
			t.Errorf("%s %q:\n got %s\nwant %s", tc.args, tc.env, got, tc.want)
		}
	}
	if got := urls(mustLoad(t, "--worker-urls http://a http://b --worker-urls=http://c http://d", nil, nil)); got != "a/ b/ c/ d/ from flag --worker-urls" {
		t.Errorf("got %s", got)
	}
}

func TestExpandArgs(t *testing.T) {
	for _, tc := range [][2]string{
		{"", ""},
		{"--prefill A", "--prefill=A"},
		{"--prefill A 1 --prefill B none --port 3", "--prefill=A+1 --prefill=B+none --port 3"},
		{"--prefill=A 1 --x", "--prefill=A+1 --x"},
		{"--prefill A 1 2", "--prefill=A+1 2"},
		{"--prefill", "--prefill"},
		{"--prefill --decode", "--prefill --decode"},
		{"--decode A B", "--decode=A+B"},
		{"--worker-urls A B C --log-json", "--worker-urls=A+B+C --log-json"},
		{"--worker-urls=A B -- C", "--worker-urls=A+B -- C"},
		{"-- --prefill A 1", "-- --prefill A 1"},
		{"--prefill-policy random x", "--prefill-policy random x"},
	} {
		got := ExpandArgs(words(tc[0]))
		for i := range got {
			got[i] = strings.ReplaceAll(got[i], " ", "+")
		}
		if s := strings.Join(got, " "); s != tc[1] {
			t.Errorf("ExpandArgs(%s) = %s, want %s", tc[0], s, tc[1])
		}
	}
}

// Kubernetes sets SLUICE_PORT=tcp://… for a service named sluice; taking it for
// the port keeps the router from starting in exactly the usual deployment.
func TestKubernetesVariablesAreIgnored(t *testing.T) {
	env := []string{
		"SLUICE_PORT=tcp://10.0.0.1:30000", "SLUICE_PORT_30000_TCP=tcp://10.0.0.1:30000", "SLUICE_PORT_30000_TCP_PROTO=tcp",
		"SLUICE_PORT_30000_TCP_PORT=30000", "SLUICE_PORT_30000_TCP_ADDR=10.0.0.1", "SLUICE_SERVICE_HOST=10.0.0.1", "SLUICE_SERVICE_PORT=30000",
		"SLUICE_SERVICE_PORT_HTTP=30000", "SLUICE_PROMETHEUS_PORT=tcp://10.0.0.2:29000", "SLUICE_PROMETHEUS_SERVICE_HOST=10.0.0.2",
		"SLUICE_HOST=", "SLUICE_POLICI=random", "SLUICE_NOTHING_LIKE_IT=1", "OTHER=1", "SLUICE=1", "SLUICE_LOG_LEVEL=debug",
	}
	c, warnings, err := Load(nil, env, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.Server.Port != 30000 || c.Server.PrometheusPort != 29000 || c.Server.Host != "0.0.0.0" || c.Log.Level != "debug" {
		t.Errorf("server = %+v, log = %+v", c.Server, c.Log)
	}
	var got []string
	for _, w := range warnings {
		got = append(got, w.String())
	}
	k := ` is one that Kubernetes sets for a service of that name (enableServiceLinks: false in the pod keeps it away)`
	want := []string{
		"environment SLUICE_NOTHING_LIKE_IT: ignored: no such setting",
		"environment SLUICE_POLICI: ignored: no such setting; did you mean SLUICE_POLICY?",
		`environment SLUICE_PORT: ignored: its value "tcp://10.0.0.1:30000"` + k,
		`environment SLUICE_PROMETHEUS_PORT: ignored: its value "tcp://10.0.0.2:29000"` + k,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestValuesInForce(t *testing.T) {
	f := files{"keys": "one\n\n two \n", "admin": "secret", "s.yaml": "auth: {api_key: [a, b], admin_api_key: file}\n"}
	for _, tc := range []struct {
		args string
		env  []string
		get  func(*Config) any
		want any
	}{
		{"--request-timeout-secs 0.25", nil, func(c *Config) any { return c.Timeouts.Request }, 250 * time.Millisecond},
		{"--retry-initial-backoff-ms 1.5", nil, func(c *Config) any { return c.Retry.InitialBackoff }, 1500 * time.Microsecond},
		{"--shutdown-grace-period-secs 9", nil, func(c *Config) any { return c.Server.DrainTimeout }, 9 * time.Second},
		{"--max-payload-size 1048576", nil, func(c *Config) any { return c.Server.MaxPayloadSize }, int64(1 << 20)},
		{"--max-buffered-bytes 1MiB", nil, func(c *Config) any { return c.Server.MaxPayloadSize }, int64(1 << 20)},
		{"--host [::1] --port 0", nil, func(c *Config) any { return c.Server.Addr() }, "[::1]:0"},
		{"--port 1 --port 2", nil, func(c *Config) any { return c.Server.Port }, 2},
		{"--port 29000 --host 10.0.0.1 --prometheus-host 127.0.0.1", nil, func(c *Config) any { return c.Server.Port }, 29000},
		{"--prefill-max-inflight-requests-per-worker -7", nil, func(c *Config) any { return c.Admission.PrefillMaxInflight }, -1},
		{"--prefill-max-inflight-requests-per-worker 0", nil, func(c *Config) any { return c.Admission.Enabled() }, false},
		{pd + "--prefill-max-inflight-requests-per-worker 1 --prefill-queue-size 0 --prefill-queue-timeout-secs 0", nil, func(c *Config) any { return c.Admission.PrefillQueueSize }, 0},
		{pd + "--policy random --decode-policy round_robin", nil, func(c *Config) any {
			return [...]Policy{c.Routing.Policy, c.Routing.PrefillPolicy, c.Routing.DecodePolicy}
		}, [...]Policy{PolicyRandom, PolicyRandom, PolicyRoundRobin}},
		{"--cache-threshold 0.3", nil, func(c *Config) any { return c.Routing.CacheMinMatch }, 0.3},
		{"--log-json=false", []string{"SLUICE_LOG_JSON=true"}, func(c *Config) any { return c.Log.JSON }, false},
		{"", []string{"SLUICE_CONFIG=s.yaml"}, func(c *Config) any { return c.File }, "s.yaml"},
		// Keys: the stronger source wins over the weaker, whichever of the two forms it has.
		{"--config s.yaml", nil, func(c *Config) any { return c.Auth.APIKeys }, []Secret{"a", "b"}},
		{"--config s.yaml", []string{"SLUICE_API_KEY=c d"}, func(c *Config) any { return c.Auth.APIKeys }, []Secret{"c", "d"}},
		{"--config s.yaml --api-key x --api-key y", nil, func(c *Config) any { return c.Auth.APIKeys }, []Secret{"x", "y"}},
		{"--config s.yaml --api-key-file keys", nil, func(c *Config) any { return c.Auth.APIKeys }, []Secret{"one", "two"}},
		{"--config s.yaml", []string{"SLUICE_ADMIN_API_KEY_FILE=admin"}, func(c *Config) any { return c.Auth.AdminAPIKey }, Secret("secret")},
		{"--admin-api-key flag", []string{"SLUICE_ADMIN_API_KEY_FILE=nowhere"}, func(c *Config) any { return c.Auth.AdminAPIKey }, Secret("flag")},
	} {
		if d := cmp.Diff(tc.want, tc.get(mustLoad(t, tc.args, tc.env, f))); d != "" {
			t.Errorf("%s %q: %s", tc.args, tc.env, d)
		}
	}
}

func TestEmptyFiles(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n", "---\n", "null\n", "{}\n", "server:\nworkers:\n", "workers: []\n", "\ufeffserver: {}\n"} {
		mustLoad(t, "--config s.yaml", nil, files{"s.yaml": text})
	}
}

// It is known what is cached of a prompt, so that none of the rules is without effect.
func TestConditionalDisaggregationWarnsOfNothing(t *testing.T) {
	base := []string{"--pd-disaggregation", "--conditional-disagg-enabled"}
	for _, policy := range []string{"", "isl_bounding", "isl_or_load", "prefill_load"} {
		args := append(base[:len(base):len(base)], "--conditional-disagg-prefill-busy-threshold", "0.5")
		if policy != "" {
			args = append(args, "--conditional-disagg-policy", policy)
		}
		_, warnings, err := Load(args, nil, nil)
		if strings.Contains(fmt.Sprint(warnings), "skips prefill") || err != nil {
			t.Errorf("%q: %v %v", policy, warnings, err)
		}
	}
}
