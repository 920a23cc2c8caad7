package fleet

import (
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-router/sluice/internal/config"
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

// A URL with the wrong scheme is told as that, whichever of the four is there and whichever is asked for.
func TestWrongSchemeIsNamed(t *testing.T) {
	engines, err := sim.Start(sim.Options{Regular: 1, Worker: sim.WorkerOptions{Backend: sim.VLLM, GRPC: true}})
	if err != nil {
		t.Fatal(err)
	}
	defer engines.Close()
	grpcAddr := strings.TrimPrefix(engines.Regular(0).URL(), "grpc://")
	httpAddr := strings.TrimPrefix(serve(t, func(http.ResponseWriter, *http.Request) {}).URL, "http://")
	alerts, err := net.Listen("tcp", "127.0.0.1:0") // refuses what is no handshake, as servers of TLS do
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer alerts.Close()
	serving.Go(func() {
		for {
			c, err := alerts.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1))
			_, _ = c.Write([]byte("\x15\x03\x01\x00\x02\x02\x46"))
			_ = c.Close()
		}
	})
	for _, tc := range []struct{ url, want string }{
		{"http://" + grpcAddr, "speaks HTTP/2: "},
		{"http://" + grpcAddr, "its URL begins with grpc://"},
		{"grpc://" + httpAddr, "speaks HTTP/1: "},
		{"grpc://" + httpAddr, "its URL begins with http://"},
		{"grpcs://" + grpcAddr, "without TLS it begins with grpc://"},
		{"https://" + httpAddr, "without TLS it begins with http://"},
		{"http://" + alerts.Addr().String(), "its URL begins with https://"},
	} {
		spec, base, err := checkSpec(WorkerSpec{URL: tc.url}, dialects.All())
		if err != nil {
			t.Fatal(err)
		}
		ep, err := endpointOf(&spec, upstream.Config{OpenChannel: grpcchannel.Open})
		if err != nil {
			t.Fatal(err)
		}
		o := quick
		o.Endpoint = "/health"
		p := &httpProber{cfg: &o}
		w := &Worker{fleet: &Fleet{opts: Options{Dialects: dialects.All()}}, url: spec.URL, base: base, endpoint: ep}
		w.spec.Store(&spec)
		w.updateState(noFacts)
		if c := p.check(t.Context(), w, checkParams{}); c.health == outcomeOK || !strings.Contains(c.misconfigured, tc.want) {
			t.Errorf("%s: %+v, want %q", tc.url, c, tc.want)
		} else if strings.Contains(c.reason, "tls: tls:") || strings.Count(c.reason, "cannot ") > 1 {
			t.Errorf("%s: the reason says it twice: %s", tc.url, c.reason)
		}
		ep.Close()
	}
}

// A bootstrap port that no leg of a pair looks for is told to be of no use.
func TestBootstrapPortThatIsNotUsedIsAWarning(t *testing.T) {
	for _, tc := range []struct {
		connector string
		port      config.BootstrapPort
		warned    bool
	}{
		{"nixl", 8998, true},
		{"mooncake", 8998, false},
		{"nixl", config.BootstrapAuto, false},
		{"nixl", config.BootstrapNone, false},
	} {
		engines, err := sim.Start(sim.Options{Prefill: 1, Worker: sim.WorkerOptions{Backend: sim.VLLM, GRPC: true, Connector: sim.Connector(tc.connector)}})
		if err != nil {
			t.Fatal(err)
		}
		defer engines.Close()
		f := live(t, settings{Health: quick})
		w := mustAdd(t, f, WorkerSpec{URL: engines.Prefill(0).URL(), Type: config.WorkerPrefill, BootstrapPort: tc.port})
		ready(t, w)
		until(t, "its connector is known", func() bool { return w.Info().Connector == tc.connector })
		if got := strings.Contains(strings.Join(w.Info().Warnings, "\n"), "bootstrap_port"); got != tc.warned {
			t.Errorf("%s with port %d: warnings %q", tc.connector, tc.port, w.Info().Warnings)
		}
	}
}
