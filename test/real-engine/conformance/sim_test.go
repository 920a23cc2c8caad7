package conformance

import (
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/sim"
)

// known are the requests to which the simulator answers differently, with what is
// missing from it. Each but the last is a fault of the simulator's.
var known = map[string]string{
	"chat, continuous usage":        "stream_options.continuous_usage_stats: usage in each event",
	"completions, continuous usage": "the same",
	"chat, too hot":                 "sampling parameters are not checked",
	"chat, top_p of 2":              "the same",
	"completions, too hot":          "the same",
	"completions, top_p of 2":       "the same",
	"chat, not JSON":                "the place of the mistake is one further",
	"completions, not JSON":         "the same",
	"responses, not JSON":           "the same",
	"messages, not JSON":            "the same",
	"chat, nothing":                 "an empty body is a missing one: param body",
	"completions, nothing":          "the same",
	"responses, nothing":            "the same",
	"messages, nothing":             "the same",
	"chat, much too long":           "a text of more than 8 characters a token of the context is refused uncounted",
	"responses, prefill streamed":   "the last event has kv_transfer_params",
	"detokenize":                    "the numbers mean nothing to it, since it has no tokenizer",
}

// The simulator's vLLM answers the table as the real one did.
func TestSimulator(t *testing.T) {
	fleet, err := sim.Start(sim.Options{Prefill: 1, Decode: 1, Regular: 1, Worker: sim.WorkerOptions{
		Backend: sim.VLLM, Model: "tiny", ContextLength: 1024, PageSize: 32, MaxRunning: 16, HealthDelay: -1, TransferTimeout: 1, CacheReport: true, KVEvents: &sim.KVEvents{Topic: "kv"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer fleet.Close()
	results, err := Run(t.Context(), map[string]string{
		"one": fleet.Regular(0).URL(), "prefill": fleet.Prefill(0).URL(), "decode": fleet.Decode(0).URL(),
	})
	if err != nil {
		t.Fatal(err)
	}
	differs := map[string]bool{}
	for _, d := range Diff(Golden, results) {
		name, _, _ := strings.Cut(d, ":")
		differs[name] = true
		if known[name] == "" {
			t.Error(d)
		}
	}
	for name, why := range known {
		if !differs[name] {
			t.Errorf("%s is answered alike by now, though %q: take it off the list", name, why)
		}
	}
	for _, w := range []*sim.Worker{fleet.Regular(0), fleet.Prefill(0), fleet.Decode(0)} {
		metrics, err := Metrics(t.Context(), w.URL())
		if err != nil {
			t.Fatal(err)
		}
		if len(metrics) == 0 {
			t.Error("the simulator has no metrics of vLLM's")
		}
		for _, m := range metrics {
			if !HasMetric(GoldenMetrics, m) {
				t.Errorf("the engine has no metric %s", m)
			}
		}
	}
	if len(Parse(Golden)) != len(results) {
		t.Errorf("%d answers in the golden file, %d requests: record it anew", len(Parse(Golden)), len(results))
	}
}
