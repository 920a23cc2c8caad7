package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/telemetry"
)

func TestMetricsReferenceIsUpToDate(t *testing.T) {
	code, stdout, stderr := sluice(t, nil, "metrics-reference")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	committed, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(committed), stdout); d != "" {
		t.Errorf("docs/metrics.md is behind the code; run make docs\n%s", d)
	}
}

// What a scrape shows is listed, with the kind and the help it has there.
func TestScrapedMetricsAreListed(t *testing.T) {
	cfg, _, err := config.Load(nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	log := telemetry.NewLog(telemetry.LogOptions{Out: io.Discard})
	defer log.Close(logFlush)
	r, err := newRouter(cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	families, err := r.registry.Families()
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]telemetry.Family{}
	for _, f := range families {
		if _, twice := listed[f.Name]; twice {
			t.Errorf("%s is listed twice", f.Name)
		}
		if !strings.HasPrefix(f.Name, "sluice_") && !strings.HasPrefix(f.Name, "smg_") {
			t.Errorf("%s has a name of nobody's", f.Name)
		}
		if !strings.HasSuffix(f.Help, ".") {
			t.Errorf("%s: the help must be sentences: %q", f.Name, f.Help)
		}
		listed[f.Name] = f
	}
	scraped, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, m := range scraped {
		name := m.GetName()
		if strings.HasPrefix(name, "go_") || strings.HasPrefix(name, "process_") {
			continue
		}
		seen++
		f, ok := listed[name]
		if !ok {
			t.Errorf("%s is scraped and not listed", name)
			continue
		}
		if kind := strings.ToLower(m.GetType().String()); kind != f.Kind || m.GetHelp() != f.Help {
			t.Errorf("%s: listed as %s %q, scraped as %s %q", name, f.Kind, f.Help, kind, m.GetHelp())
		}
	}
	if seen == 0 {
		t.Error("nothing was scraped")
	}
}
