//go:build realengine

package main

import (
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/test/real-engine/conformance"
)

var record = flag.Bool("record", false, "write down what the engines answer to the table of requests")

// The engines answer the table as the simulator is held to.
func TestConformance(t *testing.T) {
	engines := map[string]string{"one": one.URL()}
	if prefill != nil {
		engines["prefill"], engines["decode"] = prefill.URL(), decode.URL()
	}
	results, err := conformance.Run(t.Context(), engines)
	if err != nil {
		t.Fatal(err)
	}
	metrics := map[string]bool{}
	for _, url := range engines {
		list, err := conformance.Metrics(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range list {
			metrics[m] = true
		}
	}
	if *record {
		needPair(t)
		list := strings.Join(slices.Sorted(maps.Keys(metrics)), "\n") + "\n"
		if err := os.WriteFile("conformance/metrics.golden", []byte(list), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("conformance/vllm.golden", []byte(conformance.Format(results)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, d := range conformance.Diff(conformance.Golden, results) {
		t.Error(d)
	}
	if prefill != nil {
		for line := range strings.Lines(conformance.GoldenMetrics) {
			if !metrics[strings.TrimSpace(line)] {
				t.Errorf("there is no metric %s any more", strings.TrimSpace(line))
			}
		}
	}
	report.say(t, "%d requests answered as written down", len(results))
}
