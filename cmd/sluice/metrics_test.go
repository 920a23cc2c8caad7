package main

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/spf13/pflag"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/telemetry"
)

// TestReloadsAreMetrics keeps away a reload that failed and that nobody is
// alerted of.
func TestReloadsAreMetrics(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("admission: {prefill_max_inflight_requests_per_worker: 4}\nfleet: {pd_disaggregation: true}\n")
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags := config.AddFlags(fs)
	if err := fs.Parse([]string{"--config", file}); err != nil {
		t.Fatal(err)
	}
	cfg, warnings, err := config.LoadFlags(flags, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var r reload
	r.reader.Store(config.NewReloader(flags, nil, cfg, warnings, config.ReloadOptions{Apply: func(config.Change) error { return nil }}))
	check := func(ok, failed, good, generation string) {
		t.Helper()
		want := "# HELP sluice_config_generation " + "Number of the configuration in force, from 1 at the start; each reload that changes something adds 1.\n# TYPE sluice_config_generation gauge\nsluice_config_generation " + generation + "\n" +
			"# HELP sluice_config_last_reload_successful 0 if the last reload failed, so that the files differ from what is in force; else 1.\n# TYPE sluice_config_last_reload_successful gauge\nsluice_config_last_reload_successful " + good + "\n" +
			"# HELP sluice_config_reloads_total Reloads of the configuration, by result: ok, or failed (the previous configuration stays in force).\n# TYPE sluice_config_reloads_total counter\n" +
			`sluice_config_reloads_total{result="failed"} ` + failed + "\n" + `sluice_config_reloads_total{result="ok"} ` + ok + "\n"
		if err := testutil.CollectAndCompare(&r, strings.NewReader(want), "sluice_config_generation", "sluice_config_last_reload_successful", "sluice_config_reloads_total"); err != nil {
			t.Error(err)
		}
	}
	check("0", "0", "1", "1")
	before := r.reader.Load().Status().Hash

	put("admission: {prefill_max_inflight_requests_per_worker: many}\n")
	if r.Reload() == nil {
		t.Fatal("a broken file is taken")
	}
	check("0", "1", "0", "1")
	if now := r.reader.Load().Status().Hash; now != before {
		t.Errorf("the hash of the files in force changed from %s to %s", before, now)
	}

	put("admission: {prefill_max_inflight_requests_per_worker: 5}\nfleet: {pd_disaggregation: true}\n")
	if err := r.Reload(); err != nil {
		t.Fatal(err)
	}
	check("1", "1", "1", "2")
	if r.reader.Load().Status().Hash == before {
		t.Error("other files have the same hash")
	}
}

// TestCachesAreKnownIfSomebodyAsks shows that there is an index of KV caches, for which events
// are followed, where a choice goes by it, and else none.
func TestCachesAreKnownIfSomebodyAsks(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want bool
	}{
		{nil, true},
		{[]string{"--policy", "round_robin"}, false},
		{[]string{"--pd-disaggregation", "--policy", "round_robin", "--prefill-policy", "cache_aware"}, true},
		{[]string{"--pd-disaggregation", "--policy", "cache_aware", "--prefill-policy", "round_robin"}, false},
	} {
		cfg, _, err := config.Load(tc.args, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := newRouter(cfg, telemetry.NewLog(telemetry.LogOptions{Out: io.Discard}))
		if err != nil {
			t.Fatal(err)
		}
		families, err := r.registry.Families()
		if err != nil {
			t.Fatal(err)
		}
		got := slices.ContainsFunc(families, func(f telemetry.Family) bool { return strings.HasPrefix(f.Name, "sluice_kv_index_") })
		if got != tc.want {
			t.Errorf("%v: an index %t, want %t", tc.args, got, tc.want)
		}
		r.close()
		r.log.Close(logFlush)
	}
}
