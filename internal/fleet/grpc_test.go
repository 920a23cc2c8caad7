package fleet

import (
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/engine/dialects"
	"github.com/sluice-router/sluice/internal/grpcchannel"
	"github.com/sluice-router/sluice/internal/sim"
	"github.com/sluice-router/sluice/internal/upstream"
)

// A worker is of a dialect that speaks its URL's scheme, set or not.
func TestBackendsByScheme(t *testing.T) {
	for _, tc := range []struct{ url, backend, label, want string }{
		{"grpc://a:1", "", "", "vllm-grpc"},
		{"grpcs://a:1", "vllm-grpc", "", "vllm-grpc"},
		{"grpc://a:1", "", "vllm", "vllm-grpc"}, // a label that cannot be meant for it
		{"http://a:1", "", "", "sglang"},
		{"http://a:1", "vllm", "", "vllm"},
		{"http://a:1", "", "vllm-grpc", "sglang"},
		{"grpc://a:1", "vllm", "", ""},
		{"http://a:1", "vllm-grpc", "", ""},
		{"https://a:1", "vllm-grpc", "", ""},
	} {
		spec := WorkerSpec{URL: tc.url, Backend: tc.backend}
		if tc.label != "" {
			spec.Labels = map[string]string{labelBackend: tc.label}
		}
		spec, base, err := checkSpec(spec, dialects.All())
		if err != nil {
			if tc.want != "" || !strings.Contains(err.Error(), "is not spoken by") {
				t.Errorf("%+v: %v", tc, err)
			}
			continue
		}
		w := &Worker{fleet: &Fleet{opts: Options{Dialects: dialects.All()}}, url: spec.URL, base: base}
		w.spec.Store(&spec)
		if got := w.dialectBy(noFacts).Name(); got != tc.want {
			t.Errorf("%+v: the dialect is %q", tc, got)
		}
	}
}

// The process that answers outlives its engine: that it answers is no health.
func TestServerThatOutlivesItsEngine(t *testing.T) {
	engines, err := sim.Start(sim.Options{Regular: 1, Worker: sim.WorkerOptions{Backend: sim.VLLM, GRPC: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer engines.Close()
	spec, base, err := checkSpec(WorkerSpec{URL: engines.Regular(0).URL()}, dialects.All())
	if err != nil {
		t.Fatal(err)
	}
	ep, err := endpointOf(&spec, upstream.Config{OpenChannel: grpcchannel.Open})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	o := quick
	o.Endpoint, o.FailureThreshold = "/health", 2
	p := &httpProber{cfg: &o}
	w := &Worker{fleet: &Fleet{opts: Options{Dialects: dialects.All()}}, url: spec.URL, base: base, endpoint: ep}
	w.spec.Store(&spec)
	w.updateState(noFacts)
	if c := p.check(t.Context(), w, checkParams{}); c.health != outcomeOK || c.alive != outcomeOK {
		t.Errorf("check %+v", c)
	}
	engines.Regular(0).EndEngine()
	if c := p.check(t.Context(), w, checkParams{}); c.health == outcomeOK || c.alive == outcomeOK || !strings.Contains(c.reason, "HealthCheck") {
		t.Errorf("check of one whose engine is dead: %+v", c)
	}
}
