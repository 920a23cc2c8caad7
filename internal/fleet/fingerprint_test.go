package fleet

import (
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
)

// stand is an engine whose process can be exchanged between two checks, without a
// connection that breaks.
type stand struct {
	atomic.Pointer[http.HandlerFunc]
	url string
}

func newStand(t *testing.T, h http.HandlerFunc) *stand {
	s := &stand{}
	s.Store(&h)
	s.url = serve(t, func(w http.ResponseWriter, r *http.Request) { (*s.Load())(w, r) }).URL
	return s
}

func routes(m map[string]string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, ok := m[r.URL.Path]
		if !ok && r.URL.Path != "/health" {
			w.WriteHeader(404)
		}
		_, _ = w.Write([]byte(body))
	}
}

// TestExchangedEngine guards against the port, ranks, dialect and capacity of an engine
// that is not there any more: they were read every five minutes. No check fails
// between.
func TestExchangedEngine(t *testing.T) {
	models := func(owner, name string) string {
		return fmt.Sprintf(`{"data":[{"id":%q,"owned_by":%q,"created":%d}]}`, name, owner, time.Now().UnixNano())
	}
	server := func(port, dp, running int) string {
		return fmt.Sprintf(`{"random_seed":7,"disaggregation_mode":"prefill","disaggregation_bootstrap_port":%d,"dp_size":%d,"max_running_requests":%d,"internal_states":[{"load":%d}]}`,
			port, dp, running, time.Now().UnixNano())
	}
	metrics := func(started, blocks int) string {
		return fmt.Sprintf("process_start_time_seconds %d.5\nvllm:num_requests_running{engine=\"0\"} 0\nvllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"%d\"} 1\n", started, blocks)
	}
	sglang := map[string]string{"/v1/models": models("sglang", "m"), "/server_info": server(9000, 1, 8)}
	vllm := map[string]string{"/v1/models": models("vllm", "m"), "/version": `{"version":"1"}`, "/metrics": metrics(100, 500)}
	for _, tc := range []struct {
		name     string
		from, to map[string]string
		settled  func(w *Worker) bool
		same     bool // the engine, though it serves something else
	}{
		{"port", sglang, map[string]string{"/v1/models": models("sglang", "m"), "/server_info": server(9001, 1, 8)},
			func(w *Worker) bool { _, port, _ := w.Bootstrap(); return port == 9001 }, false},
		{"ranks", sglang, map[string]string{"/v1/models": models("sglang", "m"), "/server_info": server(9000, 2, 8)},
			func(w *Worker) bool { return len(w.Ranks()) == 2 }, false},
		{"capacity", sglang, map[string]string{"/v1/models": models("sglang", "m"), "/server_info": server(9000, 1, 9)},
			func(w *Worker) bool { return w.Ranks()[0].Capacity().MaxRunning == 9 }, false},
		{"model", sglang, map[string]string{"/v1/models": models("sglang", "other"), "/server_info": server(9000, 1, 8)},
			func(w *Worker) bool { return slices.Equal(w.Info().Models, []string{"other"}) }, true},
		{"dialect", sglang, vllm, func(w *Worker) bool { return w.Backend() == dialectVLLM }, false},
		{"dialect back", vllm, sglang, func(w *Worker) bool { return w.Backend() == dialectSGLang }, false},
		{"process", vllm, map[string]string{"/v1/models": models("vllm", "m"), "/version": `{"version":"2"}`, "/metrics": metrics(200, 500)},
			func(w *Worker) bool { return w.Facts().Version == "2" }, false},
		{"blocks", vllm, map[string]string{"/v1/models": models("vllm", "m"), "/version": `{"version":"1"}`, "/metrics": metrics(100, 700)},
			func(w *Worker) bool { return w.Ranks()[0].Capacity().KVBlocks == 700 }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := newStand(t, routes(tc.from))
			f := live(t, settings{Health: quick, DPAware: true})
			w := mustAdd(t, f, WorkerSpec{URL: e.url, Type: config.WorkerPrefill, KVConnector: engine.ConnectorNIXL})
			ready(t, w)
			if tc.settled(w) {
				t.Fatal("it is so before")
			}
			generation := w.Generation()
			h := routes(tc.to)
			e.Store(&h)
			until(t, "the facts are those of the new engine", func() bool { return tc.settled(w) })
			if (w.Generation() == generation) != tc.same {
				t.Errorf("generation %d, was %d", w.Generation(), generation)
			}
			if w.Status() != StatusReady {
				t.Errorf("status %s", w.Status())
			}
		})
	}
}

// TestAdaptersComeAndGo guards against a list of models that is minutes old: with no
// request at all it is read again with each check.
func TestAdaptersComeAndGo(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlA)
		b.prober.says(urlA, serves("m"))
		b.add(WorkerSpec{URL: urlA})
		b.pass(time.Minute)
		with := serves("m")
		with.Adapters = []ModelInfo{{ID: "lora", Parent: "m"}}
		served := func() bool { _, a := b.Resolve("lora"); return a == "lora" }
		for _, tc := range []struct {
			says *Facts
			want bool
		}{{with, true}, {serves("m"), false}} {
			b.prober.says(urlA, tc.says)
			b.pass(2 * defaultHealthInterval)
			if served() != tc.want {
				t.Errorf("served %t after two intervals, want %t", served(), tc.want)
			}
		}
	})
}

// In a large fleet, whose idle workers are looked at every half minute, a request
// for an unknown name has them looked at; many such requests do so once an interval.
func TestUnknownNamesAreLookedFor(t *testing.T) {
	inBubble(t, settings{ModelID: "m"}, func(b *testbed) {
		for i := range 1000 {
			u := fmt.Sprintf("http://w-%d:1", i)
			b.prober.set(well, u)
			b.add(WorkerSpec{URL: u})
		}
		b.pass(2 * time.Minute)
		n := b.prober.total()
		b.pass(30 * time.Second)
		if n = b.prober.total() - n; n < 1000 || n > 1250 {
			t.Errorf("%d looks at 1,000 idle workers in 30 s", n)
		}
		n = b.prober.total()
		for range 100 {
			b.RediscoverModels()
			b.pass(defaultHealthInterval / 100)
		}
		b.pass(defaultHealthInterval)
		if n = b.prober.total() - n; n < 1000 || n > 1500 {
			t.Errorf("%d looks after requests for unknown names", n)
		}
	})
}

// An address behind which engines take turns is no storm of questions: all is read
// at most twice in an interval.
func TestAddressOfManyEngines(t *testing.T) {
	var checks, versions, seed atomic.Int64
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
			checks.Add(1)
		case "/server_info":
			_, _ = fmt.Fprintf(w, `{"random_seed":%d}`, seed.Add(1))
		case "/model_info": // part of a whole reading only
			versions.Add(1)
		}
	})
	f := live(t, settings{Health: config.Health{Interval: 100 * time.Millisecond}})
	w := mustAdd(t, f, WorkerSpec{URL: s.URL})
	ready(t, w)
	begun := time.Now()
	until(t, "it was looked at", func() bool { return seed.Load() > 20 })
	if most := int64(time.Since(begun)/(50*time.Millisecond)) + 3; versions.Load() > most || w.Status() != StatusReady {
		t.Errorf("status %s, read %d times in %s (%d checks)", w.Status(), versions.Load(), time.Since(begun), checks.Load())
	}
}
