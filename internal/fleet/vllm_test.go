package fleet

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/sim"
)

func FuzzMetrics(f *testing.F) {
	f.Add([]byte(`vllm:num_requests_running{engine="0",model_name="a\"b"} 3.0`))
	f.Add([]byte("vllm:cache_config_info{block_size=\"65536\",engine=\"1023\",num_gpu_blocks=\"9223372036854775807\"} 1\nvllm:kv_cache_usage_perc 9e99"))
	f.Add([]byte(`vllm:external_prefix_cache_hits_total{a="\n\\",} -1`))
	f.Fuzz(func(t *testing.T, body []byte) {
		l, err := engine.VLLM{}.ReadLoads(body)
		if err != nil {
			return
		}
		facts := &Facts{}
		facts.setLoads(&loads{Loads: *l})
		c := facts.capacity(-1, admission.Capacity{})
		if len(l.Ranks) > maxDPSize || len(l.Capacities) != len(l.Ranks) || c.KVBlocks < 0 || c.BlockSize < 0 || l.External < 0 {
			t.Errorf("%+v: %+v", l, c)
		}
		for _, r := range l.Ranks {
			if r.Running < 0 || r.Waiting < 0 || r.UsedTokens < 0 || r.UsedTokens > maxCapacity {
				t.Errorf("%+v", r)
			}
		}
	})
}

// Each of the simulated connectors is found by the prefill's own words, and taken
// over by the decode worker; what cannot be found must be set.
func TestConnectorIsFound(t *testing.T) {
	for _, tc := range []struct {
		c    sim.Connector
		want string
	}{
		{sim.NIXL, engine.ConnectorNIXL}, {sim.MoRIIO, ""}, {sim.LMCache, engine.ConnectorNone}, {sim.NoConnector, engine.ConnectorNone},
	} {
		t.Run(string(tc.c), func(t *testing.T) {
			s := simFleet(t, sim.Options{Prefill: 1, Decode: 1, Worker: sim.WorkerOptions{
				Backend: sim.VLLM, Connector: tc.c, Model: "m", Adapters: []string{"lora"}, KVTokens: 16000, HealthDelay: -1}})
			f := live(t, settings{Health: quick})
			d := mustAdd(t, f, WorkerSpec{URL: s.Decode(0).URL(), Type: config.WorkerDecode})
			p := mustAdd(t, f, WorkerSpec{URL: s.Prefill(0).URL(), Type: config.WorkerPrefill})
			ready(t, p)
			ready(t, d)
			if p.Backend() != dialectVLLM || d.Backend() != dialectVLLM {
				t.Errorf("backends %q, %q", p.Backend(), d.Backend())
			}
			if c := p.Connector(); c != d.Connector() || tc.want != "" && c != tc.want {
				t.Errorf("connectors %q and %q, want %q", c, d.Connector(), tc.want)
			}
			facts := p.Facts()
			if facts.Version == "" || facts.MaxModelLen() == 0 || len(facts.Adapters) != 1 || f.Pool("lora") != "m" || len(facts.Missing) > 0 {
				t.Errorf("facts %+v", facts)
			}
			if c := d.Ranks()[0].Capacity(); c.KVBlocks != 1000 || c.BlockSize != 16 {
				t.Errorf("capacity %+v", c)
			}
			until(t, "the load is read", func() bool { _, _, ok := d.Ranks()[0].Reported(); return ok })
			if notes := d.Info().Pairing; len(notes) > 0 {
				t.Errorf("notes %q", notes)
			}
			if !f.Ready(true) {
				t.Error("not ready")
			}
		})
	}
}

// In its development mode the engine tells all.
func TestConnectorOfDevelopmentMode(t *testing.T) {
	s := simFleet(t, sim.Options{Decode: 1, Worker: sim.WorkerOptions{
		Backend: sim.VLLM, Connector: sim.LMCache, DevMode: true, MaxRunning: 33, HealthDelay: -1}})
	f := live(t, settings{Health: quick})
	d := mustAdd(t, f, WorkerSpec{URL: s.Decode(0).URL(), Type: config.WorkerDecode})
	ready(t, d)
	if c := d.Ranks()[0].Capacity(); d.Connector() != engine.ConnectorLMCache || c.MaxRunning != 33 || c.MaxBatchedTokens != 8192 {
		t.Errorf("connector %q, capacity %+v", d.Connector(), c)
	}
}

// The engine ids of Mooncake come from the bootstrap server, and again after a
// restart.
func TestMooncakeEngineIDs(t *testing.T) {
	s := simFleet(t, sim.Options{Prefill: 1, Worker: sim.WorkerOptions{Backend: sim.VLLM, Connector: sim.Mooncake, DPSize: 2, HealthDelay: -1}})
	f := live(t, settings{Health: quick, DPAware: true})
	p := mustAdd(t, f, WorkerSpec{URL: s.Prefill(0).URL(), Type: config.WorkerPrefill, BootstrapPort: config.BootstrapPort(s.Prefill(0).BootstrapPort())})
	ready(t, p)
	until(t, "both ranks", func() bool { return len(p.Ranks()) == 2 })
	if p.Connector() != engine.ConnectorMooncake {
		t.Fatalf("connector %q", p.Connector())
	}
	ids := func() (list [2]string) {
		for i, r := range p.Ranks() {
			if m, _ := r.Peer().(*engine.MooncakePeer); m != nil {
				list[i] = m.EngineIDs[i]
			}
		}
		return list
	}
	first := ids()
	if !strings.HasSuffix(first[0], "_dp0") || !strings.HasSuffix(first[1], "_dp1") {
		t.Fatalf("ids %q", first)
	}
	if got, want := p.bootstrapAddr(), fmt.Sprintf("http://127.0.0.1:%d", s.Prefill(0).BootstrapPort()); got != want {
		t.Errorf("address %q, want %q", got, want)
	}
	s.Prefill(0).Kill()
	until(t, "unhealthy", func() bool { return p.Status() == StatusUnhealthy })
	if err := s.Prefill(0).Restart(); err != nil {
		t.Fatal(err)
	}
	until(t, "new ids", func() bool {
		now := ids()
		return now[0] != "" && now[0] != first[0] && now[1] != first[1]
	})
}

// vllmStub answers as a vLLM engine does, with the given kv_transfer_params.
func vllmStub(t *testing.T, params string, probes *atomic.Int32, last *atomic.Value) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
		case "/version":
			_, _ = io.WriteString(w, `{"version":"0.32.0"}`)
		case "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"m","owned_by":"vllm","parent":null,"max_model_len":100}]}`)
		case "/v1/completions":
			body, _ := io.ReadAll(r.Body)
			last.Store(string(body))
			probes.Add(1)
			_, _ = fmt.Fprintf(w, `{"id":"cmpl-1","choices":[{"text":"x"}],"kv_transfer_params":%s}`, params)
		default:
			w.WriteHeader(404)
			_, _ = io.WriteString(w, `{"detail":"Not Found"}`)
		}
	}
}

func TestProbe(t *testing.T) {
	for _, tc := range []struct {
		name, params, want, warning string
	}{
		{"nixl", `{"remote_host":"127.0.0.1","remote_port":15601,"transfer_mode":"pull"}`, engine.ConnectorNIXL, ""},
		{"push", `{"remote_host":"127.0.0.1","transfer_mode":"push"}`, engine.ConnectorNIXLPush, ""},
		{"moriio", `{"remote_host":"127.0.0.1","remote_notify_port":1}`, engine.ConnectorMoRIIO, ""},
		{"no host", `{"remote_port":1}`, engine.ConnectorUnknown, "remote_host"},
		{"null", `null`, engine.ConnectorNone, "kv_connector"},
		{"text", `"x"`, engine.ConnectorUnknown, "remote_host"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var probes atomic.Int32
			var last atomic.Value
			s := serve(t, vllmStub(t, tc.params, &probes, &last))
			f := live(t, settings{Health: quick})
			w := mustAdd(t, f, WorkerSpec{URL: s.URL, Type: config.WorkerPrefill, BootstrapPort: 1})
			ready(t, w)
			if w.Connector() != tc.want {
				t.Errorf("connector %q, want %q", w.Connector(), tc.want)
			}
			text := strings.Join(w.Info().Warnings, "\n")
			if tc.warning == "" && text != "" || !strings.Contains(text, tc.warning) {
				t.Errorf("warnings %q, want %q", text, tc.warning)
			}
			var ask struct {
				Model     string         `json:"model"`
				Prompt    []int          `json:"prompt"`
				MaxTokens int            `json:"max_tokens"`
				Stream    *bool          `json:"stream"`
				Params    map[string]any `json:"kv_transfer_params"`
			}
			if err := json.Unmarshal([]byte(last.Load().(string)), &ask); err != nil || ask.Model != "m" || len(ask.Prompt) != 17 ||
				ask.MaxTokens != 1 || ask.Stream == nil || *ask.Stream || ask.Params["do_remote_decode"] != true {
				t.Errorf("probe %s %v", last.Load(), err)
			}
			// Checks go on and do not repeat it.
			for range 5 {
				before := w.lastCheck.Load()
				until(t, "another check", func() bool { return w.lastCheck.Load() > before })
			}
			if n := probes.Load(); n != 1 {
				t.Errorf("%d probes", n)
			}
		})
	}
}

// What the operator says is not asked for.
func TestSetConnectorIsNotProbed(t *testing.T) {
	for name, spec := range map[string]WorkerSpec{
		"setting": {KVConnector: "NixlConnector"},
		"label":   {Labels: map[string]string{"kv_connector": "nixl"}},
	} {
		t.Run(name, func(t *testing.T) {
			var probes atomic.Int32
			var last atomic.Value
			s := serve(t, vllmStub(t, "null", &probes, &last))
			f := live(t, settings{Health: quick})
			spec.URL, spec.Type = s.URL, config.WorkerPrefill
			w := mustAdd(t, f, spec)
			ready(t, w)
			if w.Connector() != engine.ConnectorNIXL || probes.Load() != 0 || len(w.Info().Warnings) > 0 {
				t.Errorf("connector %q, %d probes, warnings %q", w.Connector(), probes.Load(), w.Info().Warnings)
			}
		})
	}
}

func TestBackendIsFound(t *testing.T) {
	for _, tc := range []struct{ models, info, want string }{
		{`{"data":[{"id":"m","owned_by":"sglang"}]}`, `{}`, dialectSGLang},
		{`{"data":[{"id":"m","owned_by":"vllm"}]}`, ``, dialectVLLM},
		{`{"data":[{"id":"m","owned_by":"me"}]}`, `{"vllm_config":{}}`, dialectVLLM},
		{`{"data":[{"id":"m","owned_by":"me"}]}`, `{"disaggregation_mode":"null"}`, dialectSGLang},
		{`{"data":[{"id":"m","owned_by":"me"}]}`, ``, dialectSGLang}, // in doubt
		{``, ``, dialectSGLang},
	} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			body := map[string]string{"/v1/models": tc.models, "/server_info": tc.info}[r.URL.Path]
			if body == "" && r.URL.Path != "/health" {
				w.WriteHeader(404)
			}
			_, _ = io.WriteString(w, body)
		})
		f := live(t, settings{Health: quick})
		w := mustAdd(t, f, WorkerSpec{URL: s.URL})
		ready(t, w)
		if w.Backend() != tc.want {
			t.Errorf("%s %s: %q, want %q", tc.models, tc.info, w.Backend(), tc.want)
		}
	}
}

func TestWrongDialectIsRefused(t *testing.T) {
	f := live(t, settings{})
	for field, spec := range map[string]WorkerSpec{
		"backend":      {URL: urlA, Backend: "trt"},
		"kv_connector": {URL: urlA, KVConnector: "fax"},
	} {
		_, _, err := f.Add(t.Context(), spec)
		if e, ok := err.(*SpecError); !ok || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, _, err := f.Add(t.Context(), WorkerSpec{URL: urlA, Backend: dialectSGLang, KVConnector: engine.ConnectorNIXL}); err == nil {
		t.Error("an SGLang worker with a connector is taken")
	}
}

// What is wrong with a registration is said, at the worker and in the log.
func TestWrongRegistrationIsSaid(t *testing.T) {
	refuse := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
	}
	secure := serveTLS(t, refuse(200))
	for _, tc := range []struct{ name, url, want string }{
		{"certificate", secure.URL, "check its certificate"},
		{"key", serve(t, refuse(401)).URL, "refuses the key; set its api_key"},
		{"forbidden", serve(t, refuse(403)).URL, "refuses the key; set its api_key"},
		{"path", serve(t, refuse(404)).URL + "/base", `"/base", is probably wrong`},
		{"key of the API alone", serve(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/v1/") {
				w.WriteHeader(401)
			}
		}).URL, "/v1/models answers 401: the worker refuses the key"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			log := &logBook{}
			f := live(t, settings{Health: quick, Log: log.logger()})
			w := mustAdd(t, f, WorkerSpec{URL: tc.url, APIKey: "hush-hush"})
			until(t, "it is said", func() bool {
				return strings.Contains(strings.Join(w.Info().Warnings, "\n"), tc.want) && strings.Contains(log.String(), strings.ReplaceAll(tc.want, `"`, `\"`))
			})
			if strings.Contains(log.String(), "hush-hush") {
				t.Error("the key is in the log")
			}
		})
	}
}

// A worker that is registered again with other settings kept its connector, which is
// not asked for again, and forgot where its push peer is: its decode workers computed
// every prompt themselves.
func TestReplacedWorkerKeepsItsPeer(t *testing.T) {
	var probes atomic.Int32
	var last atomic.Value
	s := serve(t, vllmStub(t, `{"remote_host":"127.0.0.1","remote_engine_id":"e","remote_port":5,"tp_size":1,"transfer_mode":"push"}`, &probes, &last))
	f := live(t, settings{Health: quick})
	spec := WorkerSpec{URL: s.URL, Type: config.WorkerPrefill}
	ready(t, mustAdd(t, f, spec))
	spec.TopologyDomain = "rack-1"
	w := mustAdd(t, f, spec)
	for range 3 {
		before := w.lastCheck.Load()
		until(t, "another check", func() bool { return w.lastCheck.Load() > before })
		p, _ := w.Ranks()[0].Peer().(*engine.PushPeer)
		if want := (engine.PushPeer{EngineID: "e", Host: "127.0.0.1", Port: 5, TPSize: 1, PPSize: 1}); p == nil || *p != want {
			t.Fatalf("peer %+v, want %+v", p, want)
		}
	}
	if n := probes.Load(); n != 1 || w.Connector() != engine.ConnectorNIXLPush {
		t.Errorf("connector %q, %d probes", w.Connector(), n)
	}
}
