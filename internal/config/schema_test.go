package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestEverySettingIsDeclaredWell(t *testing.T) {
	flags, paths := map[string]string{"config": "config"}, map[string]bool{}
	for _, w := range workerFlags {
		flags[w.name] = "workers"
	}
	check := func(o *option) {
		if o.help == "" || !strings.HasSuffix(o.help, ".") {
			t.Errorf("%s: the help must be sentences", o.path)
		}
		if strings.ContainsAny(o.help, "|\n") {
			t.Errorf("%s: the help would break its table", o.path)
		}
		for _, name := range append([]string{o.flag}, o.aliases...) {
			if by, taken := flags[name]; taken && name != "" {
				t.Errorf("%s: flag --%s is that of %s", o.path, name, by)
			}
			flags[name] = o.path
		}
		if paths[o.path] {
			t.Errorf("%s is declared twice", o.path)
		}
		paths[o.path] = true
		if kubernetesName.MatchString(o.env) {
			t.Errorf("%s: Kubernetes uses names like %s", o.path, o.env)
		}
		if o.fileOf != "" && o.typ.Kind() != reflect.String {
			t.Errorf("%s: a path is text", o.path)
		}
	}
	schema().walk(func(o *option) {
		check(o)
		if o.structList != nil {
			paths = map[string]bool{}
			o.structList.walk(func(e *option) {
				e2 := *e
				e2.flag, e2.env = "", "" // an element has no flags
				check(&e2)
			})
		}
	})
}

// TestPublicNames holds the names people bring with them from the SGLang model
// gateway, and their defaults here.
func TestPublicNames(t *testing.T) {
	want := map[string]string{
		"prefill-max-inflight-requests-per-worker": "-1", "prefill-queue-size": "100", "prefill-queue-timeout-secs": "60",
		"priority-scheduler-enabled": "false", "pd-disaggregation": "false", "policy": "cache_aware", "prefill-policy": "", "decode-policy": "",
		"prefix-token-count": "256", "prefix-hash-load-factor": "1.25", "prefix-hash-balance-abs-threshold": "10",
		"host": "0.0.0.0", "port": "30000", "prometheus-host": "0.0.0.0", "prometheus-port": "29000", "request-timeout-secs": "1800",
		"max-payload-size": "512MiB", "log-level": "info", "log-json": "false", "api-key": "", "worker-api-key": "", "admin-api-key": "",
		"dp-aware": "false", "no-worker-wait-secs": "0", "drain-timeout": "180", "pre-drain-wait": "5",
		"health-failure-threshold": "3", "health-success-threshold": "2", "health-check-timeout-secs": "5", "health-check-interval-secs": "5",
		"health-check-endpoint": "/health", "disable-health-check": "false",
		"retry-max-retries": "5", "retry-initial-backoff-ms": "50", "retry-max-backoff-ms": "30000", "retry-backoff-multiplier": "1.5",
		"retry-jitter-factor": "0.2", "disable-retries": "false",
		"cb-failure-threshold": "10", "cb-success-threshold": "3", "cb-timeout-duration-secs": "60", "cb-window-duration-secs": "120",
		"disable-circuit-breaker": "false", "stream-idle-timeout-secs": "300", "sse-keepalive-secs": "15", "max-buffered-bytes": "2GiB",
		"service-discovery": "false", "selector": "", "prefill-selector": "", "decode-selector": "", "service-discovery-port": "80",
		"service-discovery-namespace": "", "model-id-from": "", "kv-connector-annotation": "smg.ai/kv-connector",
		"kv-engine-id-annotation": "smg.ai/kv-engine-id", "bootstrap-port-annotation": "sglang.ai/bootstrap-port",
	}
	got := map[string]string{}
	schema().walk(func(o *option) {
		if _, held := want[o.flag]; held {
			got[o.flag] = o.def
		}
	})
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestReferenceIsUpToDate(t *testing.T) {
	var b bytes.Buffer
	if err := WriteReference(&b); err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(committed), b.String()); d != "" {
		t.Errorf("docs/configuration.md is behind the settings; run make docs\n%s", d)
	}
}

// What check-config prints is a configuration: loaded again it is the same.
func TestEffectiveConfigurationLoadsAgain(t *testing.T) {
	f := files{"k": "key", "ca": "x"}
	for _, args := range []string{
		"",
		"--worker-urls http://a https://b --policy random --model-id yes --log-level error --admin-api-key-file k",
		pd + "--prefill http://a 1 --prefill http://b none --prefill http://c --decode http://d --prefill-max-inflight-requests-per-worker 3 --request-timeout-secs 0.5 --decode-policy random --model-id org/model:v1",
		"--config w.yaml",
	} {
		f["w.yaml"] = `
workers:
- {url: "http://a", model_id: "007", api_key_file: k}
- {url: "https://b", http2: true, tls: {server_name: "true", insecure_skip_verify: true}}
- {url: "https://c", tls: {insecure_skip_verify: true}, model_id: 'a "quoted" \ name'}
`
		c := mustLoad(t, args, nil, f)
		var b bytes.Buffer
		if err := c.WriteEffective(&b); err != nil {
			t.Fatal(err)
		}
		f["again.yaml"] = b.String()
		again := mustLoad(t, "--config again.yaml", nil, f)
		if d := cmp.Diff(c, again, cmpopts.IgnoreUnexported(Config{}), cmpopts.IgnoreFields(Config{}, "File")); d != "" {
			t.Errorf("%s: %s\n%s", args, d, b.String())
		}
	}
}

func TestSecretsAreHidden(t *testing.T) {
	const secret = "hunter2hunter2"
	f := files{"k": secret, "s.yaml": "auth: {api_key: [" + secret + ", " + secret + "], worker_api_key: " + secret + "}\nworkers:\n- {url: http://a, api_key: " + secret + "}\n- {url: http://b, api_key_file: k}\n"}
	c := mustLoad(t, "--config s.yaml --admin-api-key-file k", nil, f)
	if got := c.Auth.APIKeys[1].Reveal() + c.Auth.AdminAPIKey.Reveal() + c.Workers[1].APIKey.Reveal(); got != strings.Repeat(secret, 3) {
		t.Fatalf("keys = %s", got)
	}
	var b bytes.Buffer
	if err := c.WriteEffective(&b); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
		fmt.Fprintf(&b, format+"\n", *c)
		fmt.Fprintf(&b, format+"\n", c.Auth.AdminAPIKey)
	}
	if err := json.NewEncoder(&b).Encode(c); err != nil {
		t.Fatal(err)
	}
	for _, h := range []slog.Handler{slog.NewTextHandler(&b, nil), slog.NewJSONHandler(&b, nil)} {
		slog.New(h).Info("configuration", "auth", c.Auth, "key", c.Auth.AdminAPIKey)
	}
	for _, form := range []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret)} {
		if i := strings.Index(b.String(), form); i >= 0 {
			t.Errorf("the secret is shown: …%s", b.String()[max(0, i-80):i+len(form)])
		}
	}
	// Nor in the errors of a configuration that is refused.
	got := loadErrors(t, "--config s.yaml --admin-api-key a/"+secret+"\x01 --worker-urls http://me:"+secret+"@x --port y", nil, f)
	if strings.Contains(got, secret) {
		t.Errorf("the secret is shown: %s", got)
	}
}

// FuzzLoadFile: no file makes the loader panic or hang, and what it accepts is
// a configuration that prints and loads again.
func FuzzLoadFile(f *testing.F) {
	for _, s := range []string{
		"", "server: {port: 1}\n", "workers:\n- &a {url: http://a}\n- *a\n", "a: &a [*a]\n", "server: &s\n  port: *s\n",
		"fleet: {pd_disaggregation: true}\nworkers:\n- {url: http://a, worker_type: prefill, bootstrap_port: none}\nadmission:\n  prefill_max_inflight_requests_per_worker: 2\n",
		"auth: {api_key: [a, b]}\n", "---\n---\n", "? [a]\n: b\n", "<<: {a: b}\n", "server: !!map {port: !!int 1}\n", "%YAML 1.2\n---\nlog: {log_json: true}\n",
		"admission: {policy_classes: [{name: a, quantum: 1}], router: {use_kv_events: 1}, router_queue_threshold: 2, max_waiting: 3}\n",
		"workers:\n- {url: http://a, labels: {a: b, c: '1'}, adapters: [x, \"y z\"], block_size: 16}\n",
		"timeouts: {request_timeout_secs: 1e9}\n", "x: \"\\xff\"\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		read := files{"s.yaml": string(data)}
		c, _, err := Load([]string{"--config=s.yaml"}, nil, read.read)
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := c.WriteEffective(&b); err != nil {
			t.Fatal(err)
		}
		if len(c.Auth.APIKeys) > 0 || c.Auth.AdminAPIKey != "" || c.Auth.WorkerAPIKey != "" || strings.Contains(b.String(), hidden) {
			return // printed hidden, so it cannot be loaded again
		}
		read["s.yaml"] = b.String()
		if _, _, err := Load([]string{"--config=s.yaml"}, nil, read.read); err != nil {
			t.Errorf("%v\n%s", err, b.String())
		}
	})
}
