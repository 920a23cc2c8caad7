package main

import (
	"path/filepath"
	"strings"
	"testing"
)

const checkedClasses = `router: {use_kv_events: true}
default_policy_family: f
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
- {name: fast, policy_family: f, cache_bucket: all, quantum: 512, decode_busy_threshold_frac: 0.9}
`

func TestCheckConfigOfClasses(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	write(t, good, checkedClasses)
	write(t, bad, strings.NewReplacer("0.9", "1.9", "512", "0").Replace(checkedClasses))

	code, stdout, stderr := sluice(t, nil, "check-config", "--router-policy-config", good)
	if code != exitOK || stderr != "sluice: warning: "+good+":1: router.use_kv_events: ignored: it has no meaning here\n" {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, line := range []string{
		"  # router_policy_config: " + good + "  # flag --router-policy-config\n",
		"  default_policy_family: f  # " + good + ":2\n",
		"  policy_classes:  # " + good + ":4\n    - name: fast\n      policy_family: f\n      cache_bucket: all\n      queue_policy: fcfs\n      quantum: 512\n      decode_busy_threshold_frac: 0.9\n",
		"  max_waiting: 10000  # default\n",
	} {
		if !strings.Contains(stdout, line) {
			t.Errorf("%q is missing in\n%s", line, stdout)
		}
	}

	code, stdout, stderr = sluice(t, nil, "check-config", "--router-policy-config", bad)
	want := "sluice: warning: " + bad + ":1: router.use_kv_events: ignored: it has no meaning here\n" +
		"sluice: " + bad + ":5: policy_classes[0].quantum: \"0\": must be from 1 to 1099511627776 tokens\n" +
		"sluice: " + bad + ":5: policy_classes[0].decode_busy_threshold_frac: \"1.9\": must be more than 0 and at most 1\n"
	if code != exitFailure || stdout != "" || stderr != want {
		t.Errorf("exit %d, %q\n got %s\nwant %s", code, stdout, stderr, want)
	}
}

func TestCheckConfigReadsTheFileOfWorkers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "workers.yaml")
	for content, want := range map[string]string{
		"workers: [{url: \"http://a\"}, {url: \"http://b\"}]": "sluice: " + file + ": workers that can be used: 2\n",
		"workers: [{url: \"http://a\"}, {url: \"ftp://b\"}]":  "sluice: " + file + ": workers that can be used: 1\n",
		"workers: [{url: \"http://a\", worker_type: prefil}]": "did you mean prefill?",
		"workers: [{url: \"http://a\"":                        "cannot read it as YAML",
	} {
		write(t, file, content)
		code, _, stderr := sluice(t, nil, "check-config", "--discovery-file", file)
		if code != exitOK || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, %s", content, code, stderr)
		}
	}
}
