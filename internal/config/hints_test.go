package config

import (
	"strings"
	"testing"
)

// TestHints: the usual slips are told with what to write instead.
func TestHints(t *testing.T) {
	for text, want := range map[string]string{
		"listen: {port: 1}\n":                               "listen: unknown key; there are workers, config_generation, server, auth, log,",
		"prefill: [http://a]\n":                             "workers are listed under workers, each with its worker_type",
		"admission: {active_decode_blocks_threshold: 90}\n": "write 0.9 for 90 %",
		"admission: {max_wait: 20}\n":                       "did you mean admission.max_wait_secs?",
		"health: {health_check_timeout: 3}\n":               "did you mean health.health_check_timeout_secs?",
	} {
		_, _, err := Load([]string{"--config", "f"}, nil, files{"f": text}.read)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s%v\nwant %s", text, err, want)
		}
	}
	_, _, err := Load(words("--pd-disaggregation --router-policy-config c"), nil, files{"c": strings.ReplaceAll(minimal, "quantum: 10", "quantum: 10, max_wait: 20, decode_busy_threshold_frac: 90")}.read)
	for _, want := range []string{"max_wait: unknown key; did you mean max_wait_secs?", "write 0.9 for 90 %"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

// TestWarningIsALevel: Python and SMG call it so.
func TestWarningIsALevel(t *testing.T) {
	cfg, _, err := Load(words("--log-level warning"), nil, nil)
	if err != nil || cfg.Log.Level != "warn" {
		t.Fatalf("%v", err)
	}
}

// TestSlowChecksAreHinted: a check that may last longer than the interval delays the
// next.
func TestSlowChecksAreHinted(t *testing.T) {
	for args, want := range map[string]bool{
		"--health-check-timeout-secs 30": true, "--health-check-interval-secs 1": true, "--health-check-interval-secs 1 --health-check-timeout-secs 1": false,
		"": false, "--health-check-timeout-secs 30 --disable-health-check": false,
	} {
		_, warnings, err := Load(words(args), nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		got := false
		for _, w := range warnings {
			got = got || strings.Contains(w.String(), "a check may take")
		}
		if got != want {
			t.Errorf("%q: warnings %v", args, warnings)
		}
	}
}
