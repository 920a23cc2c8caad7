package conformance

import (
	"flag"
	"os"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// Only where no engine is at hand; what it writes must be read against what one did.
var fromSim = flag.Bool("grpc-from-sim", false, "write grpc.golden from the simulator's answers")

// The simulator's engine answers the table over gRPC as the real one did.
func TestGRPCSimulator(t *testing.T) {
	fleet, err := sim.Start(sim.Options{Prefill: 1, Decode: 1, Regular: 1, Worker: sim.WorkerOptions{
		GRPC: true, Model: "tiny", ContextLength: 1024, PageSize: 32, MaxRunning: 16, KVTokens: 16384, TransferTimeout: 1,
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer fleet.Close()
	results, err := RunGRPC(t.Context(), map[string]string{
		"one": fleet.Regular(0).Addr(), "prefill": fleet.Prefill(0).Addr(), "decode": fleet.Decode(0).Addr(),
	})
	if err != nil {
		t.Fatal(err)
	}
	if *fromSim {
		if err := os.WriteFile("grpc.golden", []byte(Format(results)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for _, d := range Diff(GoldenGRPC, results) {
		t.Error(d)
	}
	if len(Parse(GoldenGRPC)) != len(results) {
		t.Errorf("%d answers in the golden file, %d requests: record it anew", len(Parse(GoldenGRPC)), len(results))
	}
}
