package config

import (
	"strings"
	"testing"
)

const pd = "--pd-disaggregation "

// TestRefusals holds every refusal with its place, its value and what is
// allowed: these lines are what an operator has to work with.
func TestRefusals(t *testing.T) {
	for _, tc := range []struct {
		name, args string
		env        []string
		yaml       string
		want       string // all of the errors
	}{
		// The options of bounded prefill.
		{name: "queue size without limit", args: pd + "--prefill-queue-size 5",
			want: `flag --prefill-queue-size: admission.prefill_queue_size: "5": needs a positive --prefill-max-inflight-requests-per-worker, which is -1: without that limit nothing waits for prefill`},
		{name: "queue timeout without limit", args: pd + "--prefill-queue-timeout-secs 5 --prefill-max-inflight-requests-per-worker 0",
			want: `flag --prefill-queue-timeout-secs: admission.prefill_queue_timeout_secs: "5": needs a positive --prefill-max-inflight-requests-per-worker, which is 0: without that limit nothing waits for prefill`},
		{name: "queue options from file and environment", yaml: "admission:\n  prefill_queue_size: 5\n", env: []string{"SLUICE_PREFILL_QUEUE_TIMEOUT_SECS=6"},
			want: `c.yaml:2: admission.prefill_queue_size: "5": needs a positive admission.prefill_max_inflight_requests_per_worker, which is -1: without that limit nothing waits for prefill
environment SLUICE_PREFILL_QUEUE_TIMEOUT_SECS: admission.prefill_queue_timeout_secs: "6": needs a positive SLUICE_PREFILL_MAX_INFLIGHT_REQUESTS_PER_WORKER, which is -1: without that limit nothing waits for prefill`},
		{name: "limit outside PD", args: "--prefill-max-inflight-requests-per-worker 4",
			want: `flag --prefill-max-inflight-requests-per-worker: admission.prefill_max_inflight_requests_per_worker: "4": needs --pd-disaggregation; it bounds requests in prefill, and without disaggregation no worker has a prefill of its own`},
		{name: "zero timeout with a queue", args: pd + "--prefill-max-inflight-requests-per-worker 4 --prefill-queue-timeout-secs 0",
			want: `flag --prefill-queue-timeout-secs: admission.prefill_queue_timeout_secs: "0": must be positive while --prefill-queue-size is 100: nothing could wait in that queue. To refuse at once, set the size to 0`},
		{name: "transfer params of another router in PD", args: pd + "--trust-upstream-transfer-params",
			want: `flag --trust-upstream-transfer-params: server.trust_upstream_transfer_params: "true": does not go with --pd-disaggregation; there sluice itself sets these fields`},
		{name: "negative size", args: pd + "--prefill-max-inflight-requests-per-worker 4 --prefill-queue-size -1",
			want: `flag --prefill-queue-size: admission.prefill_queue_size: "-1": must be a whole number, not negative: the most requests that wait, or 0 to refuse at once`},
		{name: "fractional size", args: pd + "--prefill-max-inflight-requests-per-worker 4 --prefill-queue-size 1.5",
			want: `flag --prefill-queue-size: admission.prefill_queue_size: "1.5": must be a whole number, not negative: the most requests that wait, or 0 to refuse at once`},
		{name: "fractional timeout", args: pd + "--prefill-max-inflight-requests-per-worker 4 --prefill-queue-timeout-secs 0.5",
			want: `flag --prefill-queue-timeout-secs: admission.prefill_queue_timeout_secs: "0.5": must be a whole number of seconds, not negative: the longest wait of one request`},
		{name: "negative timeout", args: pd + "--prefill-max-inflight-requests-per-worker 4 --prefill-queue-timeout-secs -3",
			want: `flag --prefill-queue-timeout-secs: admission.prefill_queue_timeout_secs: "-3": must be a whole number of seconds, not negative: the longest wait of one request`},
		{name: "fractional limit", args: pd + "--prefill-max-inflight-requests-per-worker 2.5",
			want: `flag --prefill-max-inflight-requests-per-worker: admission.prefill_max_inflight_requests_per_worker: "2.5": must be a whole number: the most requests in prefill on one worker, or -1 for no limit`},
		{name: "priority scheduler", args: "--priority-scheduler-enabled",
			want: `flag --priority-scheduler-enabled: admission.priority_scheduler_enabled: "true": is not an option here, whatever its value: request classes do its job. A class is a queue of its own with an order, a weight and limits, and a request names its class in the header x-sluice-class. Leave the option out`},
		{name: "priority scheduler switched off", yaml: "admission: {priority_scheduler_enabled: false}",
			want: `c.yaml:1: admission.priority_scheduler_enabled: "false": is not an option here, whatever its value: request classes do its job. A class is a queue of its own with an order, a weight and limits, and a request names its class in the header x-sluice-class. Leave the option out`},

		// Single values.
		{name: "port", args: "--port 65536", want: `flag --port: server.port: "65536": must be from 0 to 65535`},
		{name: "port text", env: []string{"SLUICE_PORT=http"}, want: `environment SLUICE_PORT: server.port: "http": must be a whole number`},
		{name: "same ports", args: "--port 29000", want: `flag --port: server.port: "29000": clients and metrics cannot share one port, and --prometheus-port is the same`},
		{name: "host with port", args: "--host 0.0.0.0:80", want: `flag --host: server.host: "0.0.0.0:80": must be an address or a host name, without a port`},
		{name: "policy", args: "--policy power_of_too", want: `flag --policy: routing.policy: "power_of_too": must be one of random, round_robin, power_of_two, least_load, consistent_hashing, cache_aware, prefix_hash; did you mean power_of_two?`},
		{name: "policy of later", args: "--policy manual", want: `flag --policy: routing.policy: "manual": is not available yet; use one of random, round_robin, power_of_two, least_load, consistent_hashing, cache_aware, prefix_hash`},
		{name: "phase policy outside PD", args: "--decode-policy random", want: `flag --decode-policy: routing.decode_policy: "random": needs --pd-disaggregation; without it --policy is the one policy`},
		{name: "duration with unit", args: "--drain-timeout 1m30s", want: `flag --drain-timeout: server.drain_timeout: "1m30s": must be a number of seconds, without a unit: write 90`},
		{name: "duration in milliseconds", args: "--retry-max-backoff-ms 2s", want: `flag --retry-max-backoff-ms: retry.retry_max_backoff_ms: "2s": must be a number of milliseconds, without a unit: write 2000`},
		{name: "duration negative", args: "--connect-timeout-secs -1", want: `flag --connect-timeout-secs: timeouts.connect_timeout_secs: "-1": must be from 0 to 1000000000 seconds`},
		{name: "duration zero", args: "--request-timeout-secs 0", want: `flag --request-timeout-secs: timeouts.request_timeout_secs: "0": must be 0.001 seconds or more`},
		{name: "duration huge", args: "--connect-timeout-secs 99999999999999999999", want: `flag --connect-timeout-secs: timeouts.connect_timeout_secs: "99999999999999999999": must be from 0 to 1000000000 seconds`},
		{name: "duration infinite", args: "--connect-timeout-secs inf", want: `flag --connect-timeout-secs: timeouts.connect_timeout_secs: "inf": must be a number of seconds`},
		{name: "bytes", args: "--max-payload-size 10MB", want: `flag --max-payload-size: server.max_payload_size: "10MB": must be a number of bytes, or of KiB, MiB or GiB: 1048576 or 1MiB`},
		{name: "bytes overflow", args: "--max-payload-size 9999999999GiB", want: `flag --max-payload-size: server.max_payload_size: "9999999999GiB": must be a number of bytes, or of KiB, MiB or GiB: 1048576 or 1MiB`},
		{name: "payload over buffer", args: "--max-payload-size 3GiB", want: `flag --max-payload-size: server.max_payload_size: "3GiB": must not exceed --max-buffered-bytes, which is 2GiB and bounds all bodies together`},
		{name: "bool", args: "--log-json=yes", want: `flag --log-json: log.log_json: "yes": must be true or false`},
		{name: "factor", args: "--retry-jitter-factor 1.5", want: `flag --retry-jitter-factor: retry.retry_jitter_factor: "1.5": must be from 0 to 1`},
		{name: "backoffs", args: "--retry-max-backoff-ms 10", want: `flag --retry-max-backoff-ms: retry.retry_max_backoff_ms: "10": must not be less than --retry-initial-backoff-ms, which is 50`},
		{name: "endpoint", args: "--health-check-endpoint health", want: `flag --health-check-endpoint: health.health_check_endpoint: "health": must be a path that begins with /`},
		{name: "key with a space", env: []string{"SLUICE_ADMIN_API_KEY=top secret"}, want: `environment SLUICE_ADMIN_API_KEY: auth.admin_api_key: "<hidden>": has a space or another character that a header cannot carry`},
		{name: "printed key", yaml: "auth: {worker_api_key: <hidden>}", want: `c.yaml:1: auth.worker_api_key: "<hidden>": is the placeholder for a secret in a printed configuration, not a key`},
		{name: "short key of hashes", args: "--access-log-hash-key 0123456789", want: `flag --access-log-hash-key: log.access_log_hash_key: "<hidden>": is a key of less than 16 bytes`},
		{name: "key and file", args: "--api-key a --api-key-file k", want: `flag --api-key-file: auth.api_key_file: "k": auth.api_key is set as well; set one of them`},
		{name: "key file missing", args: "--api-key-file nowhere", want: `flag --api-key-file: auth.api_key_file: "nowhere": cannot read it: open nowhere: file does not exist`},
		{name: "key file empty", args: "--api-key-file empty", want: `flag --api-key-file: auth.api_key_file: "empty": holds no key`},
		{name: "key file with two", args: "--admin-api-key-file two", want: `flag --admin-api-key-file: auth.admin_api_key_file: "two": holds more than one line`},
		{name: "key file with a wrong one", args: "--api-key-file spaced", want: `flag --api-key-file: auth.api_key_file: "spaced": line 2 has a space or another character that a header cannot carry`},

		// Workers.
		{name: "prefill outside PD, told once", args: "--prefill http://a --prefill http://b",
			want: `flag --prefill: workers[0].worker_type: "prefill": needs --pd-disaggregation; without it every worker runs whole requests (--worker-urls)`},
		{name: "regular in PD", args: pd + "--worker-urls http://a",
			want: `flag --worker-urls: workers[0].worker_type: "regular": with --pd-disaggregation every worker is prefill or decode (--prefill, --decode)`},
		{name: "bootstrap port", args: pd + "--prefill http://a 0", want: `flag --prefill: workers[0].bootstrap_port: "0": must be a port from 1 to 65535, or none`},
		{name: "second prefill in one flag", args: pd + "--prefill http://a http://b",
			want: `flag --prefill: workers[0].bootstrap_port: "http://b": must be a bootstrap port or none; for another worker repeat --prefill`},
		{name: "bootstrap port of decode", yaml: "fleet: {pd_disaggregation: true}\nworkers:\n- {url: http://a, worker_type: decode, bootstrap_port: 1}",
			want: `c.yaml:3: workers[0].bootstrap_port: "1": is only for prefill workers; this one is decode`},
		{name: "no scheme", args: "--worker-urls a:1", want: `flag --worker-urls: workers[0].url: "a:1": must begin with http:// or https://, or with grpc:// or grpcs://`},
		{name: "duplicate", args: "--worker-urls http://a http://A:80/",
			want: `flag --worker-urls: workers[1].url: "http://a": is the same worker as workers[0] (flag --worker-urls)`},
		{name: "password in URL", args: "--worker-urls http://u:hunter2@a",
			want: `flag --worker-urls: workers[0].url: "http://<hidden>@a": must have no user name or password; give the key with api_key`},
		{name: "password with a slash in URL", args: "--worker-urls http://u:hun/ter2@a",
			want: `flag --worker-urls: workers[0].url: "http://<hidden>@a": must have a port from 1 to 65535 after the colon`},
		{name: "password in URL without a scheme", args: "--worker-urls u:hunter2@a:1",
			want: `flag --worker-urls: workers[0].url: "<hidden>@a:1": must begin with http:// or https://, or with grpc:// or grpcs://`},
		{name: "token in URL", yaml: "workers:\n- url: http://a/?token=hunter2\n",
			want: `c.yaml:2: workers[0].url: "http://a/?<hidden>": must have no query and no fragment`},
		{name: "worker without url", yaml: "workers:\n- model_id: m\n", want: `c.yaml:2: workers[0].url: is missing`},
		{name: "worker as text", yaml: "workers:\n- http://a\n", want: `c.yaml:2: workers[0]: "http://a": must be a mapping, not a single value`},
		{name: "worker key and file", yaml: "workers:\n- {url: http://a, api_key: x, api_key_file: k}\n",
			want: `c.yaml:2: workers[0].api_key_file: "k": api_key is set as well; set one of them`},
		{name: "worker unknown key", yaml: "workers:\n- {url: http://a, modelid: x, tls: {cafile: y}}\n",
			want: `c.yaml:2: workers[0].modelid: unknown key; did you mean model_id?
c.yaml:2: workers[0].tls.cafile: unknown key; did you mean tls.ca_file?`},
		{name: "worker type", yaml: "workers:\n- {url: http://a, worker_type: Decode}\n",
			want: `c.yaml:2: workers[0].worker_type: "Decode": must be one of regular, prefill, decode; did you mean decode?`},
		{name: "tls on http", yaml: "workers:\n- {url: http://a, tls: {server_name: b}}\n", want: `c.yaml:2: workers[0].tls: "http://a": is only for https and grpcs URLs`},
		{name: "tls halves", yaml: "workers:\n- {url: https://a, tls: {cert_file: two}}\n", want: `c.yaml:2: workers[0].tls: "two": cert_file and key_file go together; one is missing`},
		{name: "tls files", yaml: "workers:\n- {url: https://a, tls: {ca_file: two, cert_file: two, key_file: nowhere}}\n",
			want: `c.yaml:2: workers[0].tls.ca_file: "two": holds no certificate in PEM form
c.yaml:2: workers[0].tls.key_file: "nowhere": cannot read it: open nowhere: file does not exist`},

		// The file as such.
		{name: "file missing", args: "--config nowhere.yaml", want: `nowhere.yaml: cannot read the configuration: open nowhere.yaml: file does not exist`},
		{name: "two documents", yaml: "log: {log_json: true}\n---\nserver: {port: 1}\n", want: `c.yaml:2: holds a second YAML document; a configuration is one`},
		{name: "an empty second document", yaml: "log: {log_json: true}\n---\n", want: `c.yaml:2: holds a second YAML document; a configuration is one`},
		{name: "not a mapping", yaml: "- a\n", want: `c.yaml:1: must be a mapping, not a list`},
		{name: "unknown group", yaml: "sever: {port: 1}\n", want: `c.yaml:1: sever: unknown key; did you mean server?`},
		{name: "unknown key", yaml: "server:\n  prot: 1\n", want: `c.yaml:2: server.prot: unknown key; did you mean server.port?`},
		{name: "key of another group", yaml: "prefill_queue_size: 1\n", want: `c.yaml:1: prefill_queue_size: unknown key; did you mean admission.prefill_queue_size?`},
		{name: "key with dashes", yaml: "admission:\n  prefill-queue-size: 1\n", want: `c.yaml:2: admission.prefill-queue-size: unknown key; did you mean admission.prefill_queue_size?`},
		{name: "unknown key like none", yaml: "server: {zzzzzzzzzz: 1}\n", want: `c.yaml:1: server.zzzzzzzzzz: unknown key`},
		{name: "set twice", yaml: "server:\n  port: 1\n  port: 2\n", want: `c.yaml:3: server.port: is set twice, first in line 2`},
		{name: "merge key", yaml: "server:\n  <<: {port: 1}\n", want: `c.yaml:2: server.<<: merge keys are not supported`},
		{name: "quoted number", yaml: "server: {port: '1'}\n", want: `c.yaml:1: server.port: "1": must stand without quotes`},
		{name: "no value", yaml: "server:\n  port:\n", want: `c.yaml:2: server.port: has no value; leave the key out to keep the default`},
		{name: "tagged", yaml: "server: {port: !!str 1}\n", want: `c.yaml:1: server.port: "1": must have no YAML tag`},
		{name: "list for a value", yaml: "server: {port: [1]}\n", want: `c.yaml:1: server.port: must be a single value, not a list`},
		{name: "value for a group", yaml: "server: 1\n", want: `c.yaml:1: server: "1": must be a mapping, not a single value`},
		{name: "hexadecimal", yaml: "server: {port: 0x10}\n", want: `c.yaml:1: server.port: "0x10": must be a whole number`},
		{name: "YAML 1.1 bool", yaml: "log: {log_json: on}\n", want: `c.yaml:1: log.log_json: "on": must be true or false`},
		{name: "workers as a mapping", yaml: "workers: {url: http://a}\n", want: `c.yaml:1: workers: must be a list, not a mapping`},

		// The command line.
		{name: "argument", args: "start", want: `command line: "start": unexpected argument`},
		{name: "unknown flag", args: "--prefill_queue_size 1", want: `command line: unknown flag: --prefill_queue_size; did you mean --prefill-queue-size?`},
		{name: "flag without its word", args: "--port", want: `command line: flag needs an argument: --port`},
		{name: "prefill without its word", args: "--prefill", want: `command line: flag needs an argument: --prefill`},

		// What a setting needs is named as the setting itself was written.
		{name: "limit outside PD, in the file", yaml: "admission: {prefill_max_inflight_requests_per_worker: 2}\n",
			want: `c.yaml:1: admission.prefill_max_inflight_requests_per_worker: "2": needs fleet.pd_disaggregation: true; it bounds requests in prefill, and without disaggregation no worker has a prefill of its own`},
		{name: "phase policy outside PD, in the environment", env: []string{"SLUICE_DECODE_POLICY=random"},
			want: `environment SLUICE_DECODE_POLICY: routing.decode_policy: "random": needs SLUICE_PD_DISAGGREGATION=true; without it SLUICE_POLICY is the one policy`},
		{name: "prefill outside PD, in the file", yaml: "workers:\n- {url: http://a, worker_type: prefill}\n",
			want: `c.yaml:2: workers[0].worker_type: "prefill": needs fleet.pd_disaggregation: true; without it every worker runs whole requests`},
		{name: "regular in PD, in the file", yaml: "fleet: {pd_disaggregation: true}\nworkers:\n- {url: http://a}\n",
			want: `c.yaml:3: workers[0].worker_type: "regular": with fleet.pd_disaggregation: true every worker is prefill or decode`},
		{name: "a flag needs what the file switches off", args: "--decode-policy random", yaml: "fleet: {pd_disaggregation: false}\n",
			want: `flag --decode-policy: routing.decode_policy: "random": needs fleet.pd_disaggregation: true; without it --policy is the one policy`},

		// One mistake makes one error.
		{name: "mistyped key that others need", yaml: "fleet: {pd_disagregation: true}\nadmission: {prefill_max_inflight_requests_per_worker: 2}\nworkers:\n- {url: http://a, worker_type: prefill}\n",
			want: `c.yaml:1: fleet.pd_disagregation: unknown key; did you mean fleet.pd_disaggregation?`},
		{name: "mistyped value that others need", args: "--decode-policy random --prefill http://a", yaml: "fleet: {pd_disaggregation: yes}\n",
			want: `c.yaml:1: fleet.pd_disaggregation: "yes": must be true or false`},
		{name: "mistyped group that others need", args: "--prefill http://a", yaml: "fleeet: {pd_disaggregation: true}\n",
			want: `c.yaml:1: fleeet: unknown key; did you mean fleet?`},
		{name: "key in another group that others need", args: "--prefill http://a", yaml: "pd_disaggregation: true\n",
			want: `c.yaml:1: pd_disaggregation: unknown key; did you mean fleet.pd_disaggregation?`},
		{name: "limit mistyped", yaml: "fleet: {pd_disaggregation: true}\nadmission:\n  prefill_max_inflight_request_per_worker: 2\n  prefill_queue_size: 5\n",
			want: `c.yaml:3: admission.prefill_max_inflight_request_per_worker: unknown key; did you mean admission.prefill_max_inflight_requests_per_worker?`},
		{name: "worker type mistyped", yaml: "fleet: {pd_disaggregation: true}\nworkers:\n- {url: http://a, worker_tpye: decode}\n",
			want: `c.yaml:3: workers[0].worker_tpye: unknown key; did you mean worker_type?`},
		{name: "file that cannot be read", args: "--prefill http://a", yaml: "fleet: {pd_disaggregation: true}\n---\n{}\n",
			want: `c.yaml:2: holds a second YAML document; a configuration is one`},

		// All at once, in the order of the lines.
		{name: "checks across settings stand at their lines", yaml: "admission:\n  prefill_queue_size: 5\nhealth: {health_check_endpoint: health}\nlog: {log_json: 1}\nserver: {host: 'a:1'}\n",
			want: `c.yaml:2: admission.prefill_queue_size: "5": needs a positive admission.prefill_max_inflight_requests_per_worker, which is -1: without that limit nothing waits for prefill
c.yaml:3: health.health_check_endpoint: "health": must be a path that begins with /
c.yaml:4: log.log_json: "1": must be true or false
c.yaml:5: server.host: "a:1": must be an address or a host name, without a port`},
		{name: "everything is told", args: "--port x", env: []string{"SLUICE_LOG_LEVEL=loud"}, yaml: "server: {porrt: 1}\nlog: {log_json: 1}\n",
			want: `c.yaml:1: server.porrt: unknown key; did you mean server.port?
c.yaml:2: log.log_json: "1": must be true or false
environment SLUICE_LOG_LEVEL: log.log_level: "loud": must be one of debug, info, warn, error
flag --port: server.port: "x": must be a whole number`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := files{"empty": "\n", "two": "a\nb\n", "spaced": "a\nb c\n", "k": "key"}
			args := tc.args
			if tc.yaml != "" {
				f["c.yaml"] = tc.yaml
				args += " --config c.yaml"
			}
			if got := loadErrors(t, args, tc.env, f); got != tc.want {
				t.Errorf("\n got %s\nwant %s", got, tc.want)
			}
		})
	}
}

func TestErrorsAreBounded(t *testing.T) {
	var b strings.Builder
	b.WriteString("server:\n")
	for i := range 5000 {
		b.WriteString("  k" + strings.Repeat("x", i%300) + string(rune('a'+i%26)) + ": 1\n")
	}
	got := strings.Split(loadErrors(t, "--config c.yaml", nil, files{"c.yaml": b.String()}), "\n")
	if len(got) != maxErrors+1 || !strings.HasPrefix(got[maxErrors], "more than 100 errors") {
		t.Errorf("%d lines, the last is %q", len(got), got[len(got)-1])
	}
	for _, line := range got {
		if len(line) > 400 {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
}

func TestFileIsBounded(t *testing.T) {
	got := loadErrors(t, "--config c.yaml", nil, files{"c.yaml": strings.Repeat("#", maxConfigBytes+1)})
	if want := "c.yaml: is larger than 8388608 bytes"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, deep := range []string{strings.Repeat("[", 100_000), strings.Repeat("a: {", 50_000), strings.Repeat("- ", 50_000)} {
		if got := loadErrors(t, "--config c.yaml", nil, files{"c.yaml": deep}); len(got) > 1000 {
			t.Errorf("an error of %d bytes", len(got))
		}
	}
}
