//go:build realengine

package main

import (
	"flag"
	"os"
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
	if *record {
		needPair(t)
		if err := os.WriteFile("conformance/vllm.golden", []byte(conformance.Format(results)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, d := range conformance.Diff(conformance.Golden, results) {
		t.Error(d)
	}
	report.say(t, "%d requests answered as written down", len(results))
}
