package config

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-router/sluice/admission"
)

func ptr[T any](v T) *T { return &v }

// publicFile has every group and key of the public schema.
const publicFile = `# policy classes of a fleet
router:
  use_kv_events: true
  host_cache_hit_weight: 0.75
  router_track_output_blocks: false
default_policy_family: standard
uncached_isl_buckets:
  - min_tokens: 0
    bucket: cached
  - min_tokens: 4096
    bucket: uncached
policy_classes:
  - name: standard_cached
    policy_family: standard
    cache_bucket: cached
    queue_policy: fcfs
    quantum: 512
    prefill_busy_threshold: 1536
    prefill_busy_threshold_frac: 16.0
    request_queue_limit_per_worker: 1024
    raw_isl_token_queue_limit_per_worker: 100000
    cached_token_queue_limit_per_worker: 50000
  - name: standard_uncached
    policy_family: standard
    cache_bucket: uncached
    queue_policy: wspt
    quantum: 128
    prefill_busy_threshold_frac: 5e-1
    prefill_busy_threshold: null
    decode_busy_threshold_frac: 0.9
    busy_worker_ratio: .5
  - name: agents
    quantum: 64
    max_wait_secs: 1.5
models:
  org/model:v1:
    default_policy_family: all
    uncached_isl_buckets: [{min_tokens: 0, bucket: any}]
    policy_classes: [{name: all, policy_family: all, cache_bucket: any, quantum: 1, request_queue_limit_per_worker: 0}]
worker_selection:
  prefill: mine
  instances:
    - name: mine
      type: dynamo-two-tier-cost-fn
      parameters: {cache_threshold: 0.5, anything: [a, {b: c}]}
request_classifier:
  type: acme
  parameters:
    max_wait_ms: 2000
`

func publicClasses() *admission.Classes {
	return &admission.Classes{
		Root: &admission.Profile{
			DefaultFamily: "standard",
			Buckets:       []admission.Bucket{{Name: "cached"}, {MinTokens: 4096, Name: "uncached"}},
			Classes: []admission.Class{
				{
					Name: "standard_cached", Family: "standard", Bucket: "cached", Order: admission.FCFS, Quantum: 512,
					PrefillBusyTokens: ptr(int64(1536)), PrefillBusyFrac: ptr(16.0),
					RequestLimitPerWorker: ptr(1024.0), RawTokenLimitPerWorker: ptr(100000.0), CachedTokenLimitPerWorker: ptr(50000.0),
				},
				{
					Name: "standard_uncached", Family: "standard", Bucket: "uncached", Order: admission.WSPT, Quantum: 128,
					PrefillBusyFrac: ptr(0.5), DecodeBusyFrac: ptr(0.9), BusyWorkerRatio: ptr(0.5),
				},
				{Name: "agents", Order: admission.FCFS, Quantum: 64, MaxWait: 1500 * time.Millisecond},
			},
		},
		Models: map[string]*admission.Profile{"org/model:v1": {
			DefaultFamily: "all",
			Buckets:       []admission.Bucket{{Name: "any"}},
			Classes: []admission.Class{
				{Name: "all", Family: "all", Bucket: "any", Order: admission.FCFS, Quantum: 1, RequestLimitPerWorker: ptr(0.0)},
			},
		}},
	}
}

// indented is a class file as a part of the admission group.
func indented(file string) string {
	return "admission:\n  " + strings.ReplaceAll(strings.TrimSpace(file), "\n", "\n  ") + "\n"
}

func TestPublicClassFileLoadsUnchanged(t *testing.T) {
	f := files{"classes.yaml": publicFile, "s.yaml": indented(publicFile)}
	for _, tc := range []struct{ args, where, prefix string }{
		{"--router-policy-config classes.yaml", "classes.yaml", ""},
		{"--config s.yaml", "s.yaml", "admission."},
	} {
		c, warnings, err := Load(words(tc.args), nil, f.read)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(publicClasses(), c.Classes); d != "" {
			t.Errorf("%s: %s", tc.args, d)
		}
		extra := 0
		if tc.prefix != "" {
			extra = 1 // the heading
		}
		want := []string{
			fmt.Sprintf("%s:%d: %srouter.use_kv_events: ignored: it has no meaning here", tc.where, 3+extra, tc.prefix),
			fmt.Sprintf("%s:%d: %srouter.host_cache_hit_weight: ignored: it has no meaning here", tc.where, 4+extra, tc.prefix),
			fmt.Sprintf("%s:%d: %srouter.router_track_output_blocks: ignored: it has no meaning here; admission.track_output_blocks is the setting", tc.where, 5+extra, tc.prefix),
			fmt.Sprintf("%s:%d: %sworker_selection: ignored: it has no meaning here; routing.policy is the setting", tc.where, 40+extra, tc.prefix),
			fmt.Sprintf("%s:%d: %srequest_classifier: ignored: it has no meaning here", tc.where, 46+extra, tc.prefix),
		}
		var got []string
		for _, w := range warnings {
			got = append(got, w.String())
		}
		if d := cmp.Diff(want, got[:min(len(got), len(want))]); d != "" {
			t.Errorf("%s: %s", tc.args, d)
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d warnings: %v", tc.args, len(got), got)
		}
	}
}

func TestEveryIgnoredKeyIsAWarning(t *testing.T) {
	b := "router:\n"
	for _, k := range ignoredRouterKeys {
		b += "  " + k + ": [1, {a: b}]\n"
	}
	c, warnings, err := Load(words("--router-policy-config c"), nil, files{"c": b}.read)
	if err != nil || len(warnings) != len(ignoredRouterKeys) || c.Classes != nil {
		t.Errorf("%v, %d warnings, classes %v", err, len(warnings), c)
	}
}

func TestClassFileInJSON(t *testing.T) {
	f := files{"c.json": "{\n\t\"default_policy_family\": \"a\",\n\t\"uncached_isl_buckets\": [{\"min_tokens\": 0, \"bucket\": \"all\"}],\n" +
		"\t\"policy_classes\": [\n\t\t{\"name\": \"a\", \"policy_family\": \"a\", \"cache_bucket\": \"all\", \"quantum\": 1, \"prefill_busy_threshold\": null, \"prefill_busy_threshold_frac\": 1.0e0}\n\t],\n\t\"models\": {\"org\\/m\": {\"default_policy_family\": \"b\",\"uncached_isl_buckets\":[{\"min_tokens\":0,\"bucket\":\"all\"}],\"policy_classes\":[{\"name\":\"b\",\"policy_family\":\"b\",\"cache_bucket\":\"all\",\"quantum\":2}]}}\n}"}
	c := mustLoad(t, "--router-policy-config c.json", nil, f)
	one := func(name string, quantum int64, frac *float64) *admission.Profile {
		return &admission.Profile{DefaultFamily: name, Buckets: []admission.Bucket{{Name: "all"}}, Classes: []admission.Class{
			{Name: name, Family: name, Bucket: "all", Order: admission.FCFS, Quantum: quantum, PrefillBusyFrac: frac}}}
	}
	want := &admission.Classes{Root: one("a", 1, ptr(1.0)), Models: map[string]*admission.Profile{"org/m": one("b", 2, nil)}}
	if d := cmp.Diff(want, c.Classes); d != "" {
		t.Error(d)
	}
}

// minimal is a valid class file, one thing a line, for tests to spoil.
const minimal = `default_policy_family: f
uncached_isl_buckets:
- {min_tokens: 0, bucket: a}
- {min_tokens: 100, bucket: b}
policy_classes:
- {name: fa, policy_family: f, cache_bucket: a, quantum: 10}
- {name: fb, policy_family: f, cache_bucket: b, quantum: 10}
`

func TestClassFileRefusals(t *testing.T) {
	together := "default_policy_family, uncached_isl_buckets and policy_classes go together, or none of them"
	for _, tc := range []struct {
		name, old, new string // a replacement in minimal
		args           string
		want           string
	}{
		{"unknown key", "default_policy_family: f", "default_policy_family: f\ndefault_policy_famly: x", "", `c.yaml:2: default_policy_famly: unknown key; did you mean default_policy_family?`},
		{"unknown key of a class", "name: fa,", "name: fa, slo_ms: 1,", "", `c.yaml:6: policy_classes[0].slo_ms: unknown key`},
		{"misspelt key of a class", "name: fa,", "name: fa, decode_busy_treshold_frac: 1,", "", `c.yaml:6: policy_classes[0].decode_busy_treshold_frac: unknown key; did you mean decode_busy_threshold_frac?`},
		{"unknown key of a bucket", "bucket: a}", "bucket: a, max_tokens: 1}", "", `c.yaml:3: uncached_isl_buckets[0].max_tokens: unknown key; did you mean min_tokens?`},
		{"unknown router key", "default_policy", "router: {use_kv_event: true, block_size: 1}\ndefault_policy", "", "c.yaml:1: router.use_kv_event: unknown key; did you mean use_kv_events?\nc.yaml:1: router.block_size: unknown key"},
		{"unknown selection key", "default_policy", "worker_selection: {default: x, instances: [{nam: y}], prefill: [z]}\ndefault_policy", "", "c.yaml:1: worker_selection.default: unknown key\nc.yaml:1: worker_selection.instances[0].nam: unknown key; did you mean name?\nc.yaml:1: worker_selection.prefill: must be a single value, not a list"},
		{"unknown classifier key", "default_policy", "request_classifier: {typ: x}\ndefault_policy", "", `c.yaml:1: request_classifier.typ: unknown key; did you mean type?`},
		{"merge", "default_policy_family: f", "default_policy_family: f\n<<: {}", "", `c.yaml:2: <<: merge keys are not supported`},
		{"set twice", "default_policy_family: f", "default_policy_family: f\ndefault_policy_family: g", "", `c.yaml:2: default_policy_family: is set twice, first in line 1`},
		{"default family missing", "default_policy_family: f\n", "", "", `c.yaml:1: default_policy_family: is missing: ` + together},
		{"default family unknown", "family: f\n", "family: g\n", "", `c.yaml:1: default_policy_family: "g": is the policy_family of no class`},
		{"no buckets", "- {min_tokens: 0, bucket: a}\n- {min_tokens: 100, bucket: b}\n", "", "", `c.yaml:2: uncached_isl_buckets: is missing or empty: ` + together},
		{"first bucket", "min_tokens: 0", "min_tokens: 1", "", `c.yaml:3: uncached_isl_buckets[0].min_tokens: "1": must be 0: the first bucket begins there`},
		{"buckets not rising", "min_tokens: 100", "min_tokens: 0", "", `c.yaml:4: uncached_isl_buckets[1].min_tokens: "0": must be more than that of the bucket before, which is 0`},
		{"bucket negative", "min_tokens: 100", "min_tokens: -1", "", `c.yaml:4: uncached_isl_buckets[1].min_tokens: "-1": must be more than that of the bucket before, which is 0`},
		{"bucket without tokens", "min_tokens: 100, ", "", "", `c.yaml:4: uncached_isl_buckets[1].min_tokens: is missing`},
		{"bucket fraction", "min_tokens: 100", "min_tokens: 1.5", "", `c.yaml:4: uncached_isl_buckets[1].min_tokens: "1.5": must be a whole number`},
		{"bucket name", "bucket: a}", "bucket: a b}", "", `c.yaml:3: uncached_isl_buckets[0].bucket: "a b": must be of letters, digits, '_', '.' and '-'
c.yaml:6: policy_classes[0].cache_bucket: "a": is no bucket of uncached_isl_buckets`},
		{"bucket twice", "bucket: b}", "bucket: a}", "", `c.yaml:4: uncached_isl_buckets[1].bucket: "a": is the name of uncached_isl_buckets[0] too
c.yaml:7: policy_classes[1].cache_bucket: "b": is no bucket of uncached_isl_buckets`},
		{"class name missing", "name: fa, ", "", "", `c.yaml:6: policy_classes[0].name: is missing`},
		{"class name", "name: fa", "name: f/a", "", `c.yaml:6: policy_classes[0].name: "f/a": must be of letters, digits, '_', '.' and '-'`},
		{"class name twice", "name: fb", "name: fa", "", `c.yaml:7: policy_classes[1].name: "fa": is the name of policy_classes[0] too`},
		{"quantum missing", ", quantum: 10", "", "", `c.yaml:6: policy_classes[0].quantum: is missing`},
		{"quantum zero", "quantum: 10", "quantum: 0", "", `c.yaml:6: policy_classes[0].quantum: "0": must be from 1 to 1099511627776 tokens`},
		{"quantum text", "quantum: 10", "quantum: ten", "", `c.yaml:6: policy_classes[0].quantum: "ten": must be a whole number`},
		{"quantum quoted", "quantum: 10", "quantum: '10'", "", `c.yaml:6: policy_classes[0].quantum: "10": must stand without quotes`},
		{"family alone", ", cache_bucket: a", "", "", `c.yaml:6: policy_classes[0].policy_family: "f": is set without cache_bucket; a class has both, or neither and is reached by its name alone`},
		{"bucket alone", "policy_family: f, cache_bucket: a", "cache_bucket: a", "", `c.yaml:5: policy_classes: policy_family "f" has no class for cache_bucket "a"; every family needs one for each bucket
c.yaml:6: policy_classes[0].cache_bucket: "a": is set without policy_family; a class has both, or neither and is reached by its name alone`},
		{"unknown bucket", "cache_bucket: a", "cache_bucket: c", "", `c.yaml:6: policy_classes[0].cache_bucket: "c": is no bucket of uncached_isl_buckets`},
		{"family without bucket", "- {name: fb, policy_family: f, cache_bucket: b, quantum: 10}\n", "", "", `c.yaml:5: policy_classes: policy_family "f" has no class for cache_bucket "b"; every family needs one for each bucket`},
		{"cell twice", "name: fb, policy_family: f, cache_bucket: b", "name: fb, policy_family: f, cache_bucket: a", "", `c.yaml:5: policy_classes: policy_family "f" has no class for cache_bucket "b"; every family needs one for each bucket
c.yaml:7: policy_classes[1]: "fb": is for policy_family "f" and cache_bucket "a" like policy_classes[0]`},
		{"order", "quantum: 10", "quantum: 10, queue_policy: lifo", "", `c.yaml:6: policy_classes[0].queue_policy: "lifo": must be one of fcfs, wspt, lcfs; did you mean lcfs?`},
		{"order latest", "quantum: 10", "quantum: 10, queue_policy: lcfs", "", `c.yaml:6: policy_classes[0].queue_policy: "lcfs": needs --allow-lcfs`},
		{"prefill tokens", "quantum: 10", "quantum: 10, prefill_busy_threshold: -1", "", `c.yaml:6: policy_classes[0].prefill_busy_threshold: "-1": must be from 0 to 1099511627776 tokens`},
		{"prefill part", "quantum: 10", "quantum: 10, prefill_busy_threshold_frac: -0.5", "", `c.yaml:6: policy_classes[0].prefill_busy_threshold_frac: "-0.5": must be from 0 to 1099511627776`},
		{"prefill part infinite", "quantum: 10", "quantum: 10, prefill_busy_threshold_frac: .inf", "", `c.yaml:6: policy_classes[0].prefill_busy_threshold_frac: ".inf": must be a number`},
		{"decode part", "quantum: 10", "quantum: 10, decode_busy_threshold_frac: 0", "", `c.yaml:6: policy_classes[0].decode_busy_threshold_frac: "0": must be more than 0 and at most 1`},
		{"decode part over", "quantum: 10", "quantum: 10, decode_busy_threshold_frac: 1.1", "", `c.yaml:6: policy_classes[0].decode_busy_threshold_frac: "1.1": must be more than 0 and at most 1`},
		{"worker ratio", "quantum: 10", "quantum: 10, prefill_busy_threshold: 1, busy_worker_ratio: 2", "", `c.yaml:6: policy_classes[0].busy_worker_ratio: "2": must be more than 0 and at most 1`},
		{"limits", "quantum: 10", "quantum: 10, request_queue_limit_per_worker: -1, raw_isl_token_queue_limit_per_worker: -1, cached_token_queue_limit_per_worker: -1", "", `c.yaml:6: policy_classes[0].request_queue_limit_per_worker: "-1": must be from 0 to 1099511627776
c.yaml:6: policy_classes[0].raw_isl_token_queue_limit_per_worker: "-1": must be from 0 to 1099511627776
c.yaml:6: policy_classes[0].cached_token_queue_limit_per_worker: "-1": must be from 0 to 1099511627776`},
		{"wait", "quantum: 10", "quantum: 10, max_wait_secs: 0", "", `c.yaml:6: policy_classes[0].max_wait_secs: "0": must be 0.001 seconds or more`},
		{"class as text", "- {name: fa, policy_family: f, cache_bucket: a, quantum: 10}", "- fa", "", `c.yaml:6: policy_classes[0]: "fa": must be a mapping, not a single value`},
		{"classes as a mapping", "- {name: fa, policy_family: f, cache_bucket: a, quantum: 10}\n- {name: fb, policy_family: f, cache_bucket: b, quantum: 10}", "  fa: {quantum: 1}", "", `c.yaml:6: policy_classes: must be a list, not a mapping`},
		{"model", "default_policy_family: f", "models: {org/m: {default_policy_family: x, clases: []}}\ndefault_policy_family: f", "", `c.yaml:1: models.org/m.clases: unknown key; did you mean policy_classes?
c.yaml:1: models.org/m.uncached_isl_buckets: is missing or empty: ` + together},
		{"model name", "default_policy_family: f", "models: {\"\": {}}\ndefault_policy_family: f", "", `c.yaml:1: models.: must be a model's name, of 1 to 512 bytes`},
		{"second document", "default_policy_family: f", "{}\n---\ndefault_policy_family: f", "", `c.yaml:2: holds a second YAML document; a configuration is one`},
		{"empty", minimal, "{}", "", `c.yaml: holds nothing; a class file has at least one of router, default_policy_family, uncached_isl_buckets, policy_classes, models, worker_selection, request_classifier`},
		{"nothing at all", minimal, "", "", `c.yaml:1: must be a mapping, not a single value`},
		{"a list", minimal, "- a", "", `c.yaml:1: must be a mapping, not a list`},
		{"no YAML", minimal, "a: [", "", ""},

		// Beside other settings.
		{"threshold beside classes", "", "", "--router-queue-threshold 1 --router-queue-policy wspt", `flag --router-queue-threshold: admission.router_queue_threshold: "1": makes a class, and there are classes already (c.yaml:1); each of them has its own thresholds and queue_policy
flag --router-queue-policy: admission.router_queue_policy: "wspt": makes a class, and there are classes already (c.yaml:1); each of them has its own thresholds and queue_policy`},
		{"router-wide bounds beside slots", "", "", pd + "--prefill-max-inflight-requests-per-worker 2 --max-waiting 5", `flag --max-waiting: admission.max_waiting: "5": is not in force together with --prefill-max-inflight-requests-per-worker; prefill_queue_size and prefill_queue_timeout_secs are the bounds then`},

		// All at once, from every source.
		{"everything is told", "quantum: 10", "quantum: 0, decode_busy_threshold_frac: 3", "--port x", `c.yaml:6: policy_classes[0].quantum: "0": must be from 1 to 1099511627776 tokens
c.yaml:6: policy_classes[0].decode_busy_threshold_frac: "3": must be more than 0 and at most 1
flag --port: server.port: "x": must be a whole number`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := files{"c.yaml": strings.Replace(minimal, tc.old, tc.new, 1)}
			got := loadErrors(t, "--router-policy-config c.yaml "+tc.args, nil, f)
			if tc.want == "" {
				if !strings.HasPrefix(got, "c.yaml: cannot read it as YAML: ") {
					t.Errorf("got %s", got)
				}
			} else if got != tc.want {
				t.Errorf("\n got %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestClassSettingsRefusals(t *testing.T) {
	for _, tc := range []struct{ name, args, yaml, want string }{
		{"file missing", "--router-policy-config nowhere", "", `nowhere: cannot read the class file: open nowhere: file does not exist`},
		{"class file as the configuration", "", minimal, `c.yaml:1: default_policy_family: unknown key; a class file is given with --router-policy-config, and its keys can stand under admission
c.yaml:2: uncached_isl_buckets: unknown key; a class file is given with --router-policy-config, and its keys can stand under admission
c.yaml:5: policy_classes: unknown key; a class file is given with --router-policy-config, and its keys can stand under admission`},
		{"file and group", "", indented(minimal) + "  router_policy_config: m.yaml\n", `c.yaml:9: admission.router_policy_config: "m.yaml": the group has classes of its own, first in line 2; set one of them`},
		{"in the group", "", "admission:\n  policy_classes:\n  - {name: a, quantum: 0}\n", `c.yaml:2: admission.default_policy_family: is missing: default_policy_family, uncached_isl_buckets and policy_classes go together, or none of them
c.yaml:2: admission.uncached_isl_buckets: is missing or empty: default_policy_family, uncached_isl_buckets and policy_classes go together, or none of them
c.yaml:3: admission.policy_classes[0].quantum: "0": must be from 1 to 1099511627776 tokens`},
		{"threshold beside the group", "--router-queue-threshold 1", indented(minimal), `flag --router-queue-threshold: admission.router_queue_threshold: "1": makes a class, and there are classes already (c.yaml:2); each of them has its own thresholds and queue_policy`},
		{"threshold negative", "--router-queue-threshold -1", "", `flag --router-queue-threshold: admission.router_queue_threshold: "-1": must be 0 or more`},
		{"threshold text", "--router-queue-threshold x", "", `flag --router-queue-threshold: admission.router_queue_threshold: "x": must be a number`},
		{"queue policy", "--router-queue-policy fifo", "", `flag --router-queue-policy: admission.router_queue_policy: "fifo": must be one of fcfs, wspt, lcfs; did you mean fcfs?`},
		{"queue policy latest", "--router-queue-threshold 1 --router-queue-policy lcfs", "", `flag --router-queue-policy: admission.router_queue_policy: "lcfs": needs --allow-lcfs`},
		{"bounds without classes", "--max-waiting 1 --max-waiting-bytes 1 --max-wait-secs 1", "", `flag --max-waiting: admission.max_waiting: "1": needs classes (--router-policy-config, or --router-queue-threshold for one): without them nothing waits
flag --max-waiting-bytes: admission.max_waiting_bytes: "1": needs classes (--router-policy-config, or --router-queue-threshold for one): without them nothing waits
flag --max-wait-secs: admission.max_wait_secs: "1": needs classes (--router-policy-config, or --router-queue-threshold for one): without them nothing waits`},
		{"overload status", "--overload-status 503", "", `flag --overload-status: admission.overload_status: "503": must be one of 429, 529`},
		{"queue order", "--queue-order lane", "", `flag --queue-order: admission.queue_order: "lane": must be one of auto, strict, lanes; did you mean lanes?`},
		{"guard", "--starvation-guard-secs -1", "", `flag --starvation-guard-secs: admission.starvation_guard_secs: "-1": must be from 0 to 1000000000 seconds`},
		{"client waits", "--client-max-queue-min-ms 10 --client-max-queue-max-ms 5", "", `flag --client-max-queue-min-ms: admission.client_max_queue_min_ms: "10": must not be more than --client-max-queue-max-ms, which is 5`},
		{"decode blocks", "--active-decode-blocks-threshold 1.5", "", `flag --active-decode-blocks-threshold: admission.active_decode_blocks_threshold: "1.5": must be from 0 to 1`},
		{"prefill tokens", "--active-prefill-tokens-threshold -1 --active-prefill-tokens-threshold-frac -1", "", `flag --active-prefill-tokens-threshold: admission.active_prefill_tokens_threshold: "-1": must be 0 or more
flag --active-prefill-tokens-threshold-frac: admission.active_prefill_tokens_threshold_frac: "-1": must be 0 or more`},
		{"bypass outside PD", "--router-conditional-disagg", "", `flag --conditional-disagg-enabled: conditional_disagg.conditional_disagg_enabled: "true": needs --pd-disaggregation; without it every request runs whole on one worker`},
		{"bypass settings without it", pd + "--conditional-disagg-eff-isl-threshold 1", "", `flag --conditional-disagg-eff-isl-threshold: conditional_disagg.conditional_disagg_eff_isl_threshold: "1": needs --conditional-disagg-enabled`},
		{"bypass by load without a threshold", pd + "--conditional-disagg-enabled --conditional-disagg-policy isl_or_load", "", `flag --conditional-disagg-policy: conditional_disagg.conditional_disagg_policy: "isl_or_load": needs --conditional-disagg-prefill-busy-threshold or --router-queue-threshold`},
		{"topology outside PD", "--kv-transfer-topology required", "", `flag --kv-transfer-topology: fleet.kv_transfer_topology: "required": needs --pd-disaggregation; without it no KV cache is transferred`},
		{"topology weight", pd + "--kv-transfer-topology required --kv-transfer-preferred-weight 1", "", `flag --kv-transfer-preferred-weight: fleet.kv_transfer_preferred_weight: "1": needs --kv-transfer-topology to be preferred; it is required`},
		{"worker", "", "workers:\n- url: http://a\n  labels: {a b: c, d: ' e', f: 1}\n  adapters: [x, x, '']\n  block_size: 0\n  total_kv_blocks: -1\n  topology_domain: ' z'\n", `c.yaml:2: workers[0].topology_domain: " z": must be 1 to 253 characters of ASCII, without spaces at the ends
c.yaml:2: workers[0].adapters[1]: "x": is named twice
c.yaml:2: workers[0].adapters[2]: must be a model's name, of 1 to 512 bytes
c.yaml:3: workers[0].labels.a b: a label's name is of letters, digits, '_', '.', '-' and '/', 253 at most
c.yaml:3: workers[0].labels.d: " e": must be 1 to 253 characters of ASCII, without spaces at the ends
c.yaml:5: workers[0].block_size: "0": must be from 1 to 65536
c.yaml:6: workers[0].total_kv_blocks: "-1": must be 1 or more`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := tc.args
			if tc.yaml != "" {
				args += " --config c.yaml"
			}
			if got := loadErrors(t, args, nil, files{"c.yaml": tc.yaml, "m.yaml": minimal}); got != tc.want {
				t.Errorf("\n got %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestClassSettingsInForce(t *testing.T) {
	f := files{"m.yaml": minimal, "only": "worker_selection: {}\n", "group.yaml": indented(publicFile),
		"w.yaml": "workers:\n- {url: http://a, labels: {pool: x, n: 1}, adapters: [l1], topology_domain: z, max_num_batched_tokens: 8192, total_kv_blocks: 1000, block_size: 16, max_running_requests: 8}\n"}
	for _, tc := range []struct {
		args string
		get  func(*Config) any
		want any
	}{
		{"", func(c *Config) any { return c.Classes }, (*admission.Classes)(nil)},
		{"", func(c *Config) any { return c.Admission.QueueOrder }, QueueAuto},
		{"", func(c *Config) any { return c.Admission.RejectThresholds() }, admission.RejectThresholds{}},
		{"--active-decode-blocks-threshold 0.9 --active-prefill-tokens-threshold 100 --active-prefill-tokens-threshold-frac 2",
			func(c *Config) any { return c.Admission.RejectThresholds() },
			admission.RejectThresholds{ActiveDecodeBlocks: ptr(0.9), ActivePrefillTokens: ptr(int64(100)), ActivePrefillTokensFrac: ptr(2.0)}},
		{"--router-queue-threshold 1.5", func(c *Config) any { return c.Classes }, admission.SyntheticClasses(ptr(1.5), admission.FCFS)},
		{"--router-queue-threshold 0 --router-queue-policy wspt", func(c *Config) any { return c.Classes }, admission.SyntheticClasses(ptr(0.0), admission.WSPT)},
		{"--router-queue-threshold 0 --router-queue-policy lcfs --allow-lcfs", func(c *Config) any { return c.Classes }, admission.SyntheticClasses(ptr(0.0), admission.LCFS)},
		{"--router-queue-policy wspt", func(c *Config) any { return c.Classes }, (*admission.Classes)(nil)},
		{pd + "--router-queue-policy wspt --prefill-max-inflight-requests-per-worker 1", func(c *Config) any { return c.Classes }, admission.SyntheticClasses(nil, admission.WSPT)},
		// A file that only chooses code has no classes, so the threshold goes with it.
		{"--router-policy-config only --router-queue-threshold 1", func(c *Config) any { return c.Classes }, admission.SyntheticClasses(ptr(1.0), admission.FCFS)},
		{"--router-policy-config m.yaml --queue-order strict", func(c *Config) any { return c.Admission.QueueOrder }, QueueStrict},
		{"--router-policy-config m.yaml --max-waiting 7", func(c *Config) any { return c.Admission.MaxWaiting }, 7},
		// A flag's class file wins over the group of the file.
		{"--config group.yaml --router-policy-config m.yaml", func(c *Config) any { return c.Classes.Root.DefaultFamily }, "f"},
		{"--overload-status 529", func(c *Config) any { return c.Admission.OverloadStatus }, 529},
		{"", func(c *Config) any {
			a := c.Admission
			return fmt.Sprint(a.MaxWaiting, a.MaxWaitingBytes, a.MaxWait, a.StarvationGuard, a.AssumedMaxRequests, a.OverloadStatus, a.TrackOutputBlocks, a.ReserveOutputTokens, a.ClientQueueMin, a.ClientQueueMax)
		}, "10000 1073741824 1m0s 5s 64 429 false auto 0s 0s"},
		{pd + "--router-conditional-disagg --conditional-disagg-policy isl_or_load --router-queue-threshold 3 --conditional-disagg-decode-busy-threshold 0.8", func(c *Config) any { return c.ConditionalDisagg },
			ConditionalDisagg{Enabled: true, Policy: ConditionalISLOrLoad, EffISL: 2048, EffISLRatio: 0.7, PrefillBusy: ptr(3.0), DecodeBusy: ptr(0.8)}},
		{"--config w.yaml", func(c *Config) any { return c.Workers }, []Worker{{URL: "http://a", Type: WorkerRegular, Labels: map[string]string{"pool": "x", "n": "1"},
			Adapters: []string{"l1"}, TopologyDomain: "z", MaxNumBatchedTokens: 8192, TotalKVBlocks: 1000, BlockSize: 16, MaxRunningRequests: 8}}},
	} {
		if d := cmp.Diff(tc.want, tc.get(mustLoad(t, tc.args, nil, f))); d != "" {
			t.Errorf("%s: %s", tc.args, d)
		}
	}
	_, warnings, err := Load(words("--router-queue-policy wspt"), nil, nil)
	if got, want := fmt.Sprint(warnings, err), "[flag --router-queue-policy: admission.router_queue_policy: has no effect without --router-queue-threshold or --prefill-max-inflight-requests-per-worker: nothing waits] <nil>"; got != want {
		t.Errorf("got %s", got)
	}
}

// The classes in force are printed with their places, and load again as the same.
func TestEffectiveClassesLoadAgain(t *testing.T) {
	f := files{"classes.yaml": publicFile, "group.yaml": indented(publicFile)}
	for _, args := range []string{"--router-policy-config classes.yaml", "--config group.yaml"} {
		c := mustLoad(t, args, nil, f)
		var b bytes.Buffer
		if err := c.WriteEffective(&b); err != nil {
			t.Fatal(err)
		}
		f["again.yaml"] = b.String()
		if d := cmp.Diff(c.Classes, mustLoad(t, "--config again.yaml", nil, f).Classes); d != "" {
			t.Errorf("%s: %s\n%s", args, d, b.String())
		}
		if args == "--config group.yaml" {
			continue
		}
		for _, line := range []string{
			"  # router_policy_config: classes.yaml  # flag --router-policy-config\n",
			"  default_policy_family: standard  # classes.yaml:6\n",
			"  policy_classes:  # classes.yaml:12\n    - name: standard_cached\n      policy_family: standard\n",
			"  models:\n    org/model:v1:\n      default_policy_family: all  # classes.yaml:37\n",
			"        - min_tokens: 0\n          bucket: any\n",
		} {
			if !strings.Contains(b.String(), line) {
				t.Errorf("%q is missing in\n%s", line, b.String())
			}
		}
	}
}

// A small file full of aliases costs no more than a large one.
func TestClassFileIsBounded(t *testing.T) {
	many := func(s string) string { return strings.TrimSuffix(strings.Repeat(s+", ", 1000), ", ") }
	for name, tc := range map[string]struct{ file, want string }{
		"classes": {strings.Replace(minimal, "quantum: 10}", "quantum: 10}\n"+strings.Repeat("- {name: x, quantum: 1}\n", 1024), 1),
			"c.yaml:6: policy_classes: has more than 1024 entries"},
		"aliases in what is ignored": {"request_classifier: {parameters: {a: &a [" + many("x") + "], b: &b [" + many("*a") + "], c: [" + many("*b") + "]}}\n",
			"c.yaml: has more than 500000 values, aliases included"},
		"long names": {strings.Replace(minimal, "name: fa", "name: "+strings.Repeat("x", 1<<20), 1),
			"c.yaml:6: policy_classes[0].name: \"" + strings.Repeat("x", 120) + "…\": is longer than 4096 bytes"},
		"models": {func() string {
			b := "models:\n"
			for i := range 1026 {
				b += fmt.Sprintf("  m%d: {default_policy_family: f, uncached_isl_buckets: [{min_tokens: 0, bucket: a}], policy_classes: [{name: f, policy_family: f, cache_bucket: a, quantum: 1}]}\n", i)
			}
			return b
		}(), "c.yaml:1026: models: has more than 1024 models\nc.yaml:1027: models: has more than 1024 models"},
	} {
		if got := loadErrors(t, "--router-policy-config c.yaml", nil, files{"c.yaml": tc.file}); got != tc.want {
			t.Errorf("%s: got %s", name, clip(got))
		}
	}
}

func TestClassKeysAreDocumentedAndConverted(t *testing.T) {
	// Every field of a class takes part in both conversions.
	class := reflect.TypeFor[admission.Class]()
	if got, want := len(profileSchema().option("policy_classes").structList.options), class.NumField(); got != want {
		t.Errorf("a class has %d keys and %d fields", got, want)
	}
	if d := cmp.Diff(publicClasses().Root, writtenProfile(publicClasses().Root).profile()); d != "" {
		t.Error(d)
	}
}

// FuzzLoadClassFile: no class file makes the loader panic or hang, and what it
// accepts is valid, prints and loads again as the same.
func FuzzLoadClassFile(f *testing.F) {
	for _, s := range []string{publicFile, minimal, "{}", "", "router: &a {use_kv_events: *a}\n", "models: {a: &m {default_policy_family: x}, b: *m}\n",
		`{"default_policy_family":"a","uncached_isl_buckets":[{"min_tokens":0,"bucket":"b"}],"policy_classes":[{"name":"a","policy_family":"a","cache_bucket":"b","quantum":1}]}`,
		"policy_classes: [[[]]]\n", "worker_selection: {instances: [{parameters: {a: [b]}}]}\n", "? {a: b}\n: c\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		read := files{"c.yaml": string(data)}
		c, _, err := Load([]string{"--router-policy-config=c.yaml", "--allow-lcfs"}, nil, read.read)
		if err != nil || c.Classes == nil {
			return
		}
		if err := c.Classes.Validate(); err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := c.WriteEffective(&b); err != nil {
			t.Fatal(err)
		}
		read["s.yaml"] = b.String()
		again, _, err := Load([]string{"--config=s.yaml"}, nil, read.read)
		if err != nil {
			t.Fatalf("%v\n%s", err, b.String())
		}
		if d := cmp.Diff(c.Classes, again.Classes); d != "" {
			t.Errorf("%s\n%s", d, b.String())
		}
	})
}
