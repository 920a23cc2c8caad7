//go:build realengine

package main

import (
	"os"
	"testing"

	"github.com/sluice-router/sluice/test/real-engine/conformance"
)

// The engines answer the table by gRPC as the simulator is held to.
func TestGRPCConformance(t *testing.T) {
	results, err := conformance.RunGRPC(t.Context(), map[string]string{
		"one": grpcOne.addr(), "prefill": grpcPrefill.addr(), "decode": grpcDecode.addr(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if *record {
		if err := os.WriteFile("conformance/grpc.golden", []byte(conformance.Format(results)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, d := range conformance.Diff(conformance.GoldenGRPC, results) {
		t.Error(d)
	}
	report.say(t, "%d requests answered as written down", len(results))
}
