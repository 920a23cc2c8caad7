package fleet

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/engine/dialects"
	"github.com/sluice-router/sluice/internal/sim"
	"github.com/sluice-router/sluice/internal/upstream"
)

// quick are checks for tests that wait for their outcome.
var quick = config.Health{Interval: 50 * time.Millisecond, Timeout: 300 * time.Millisecond}

// live is a fleet in real time, over real connections.
func live(t *testing.T, o settings) *Fleet {
	t.Helper()
	clock := admission.NewSystemClock()
	gate := admission.NewGate(admission.Options{}, clock, nil)
	t.Cleanup(gate.Close)
	f := New(gate, o.options(), clock)
	t.Cleanup(f.Close)
	return f
}

func mustAdd(t *testing.T, f *Fleet, spec WorkerSpec) *Worker {
	t.Helper()
	w, _, err := f.Add(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// until waits for a state that must come about.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: never", what)
		}
	}
}

func ready(t *testing.T, w *Worker) {
	t.Helper()
	until(t, w.URL()+" is ready", func() bool { return w.Status() == StatusReady })
}

func simFleet(t *testing.T, o sim.Options) *sim.Fleet {
	t.Helper()
	s, err := sim.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func TestFactsOfASimulatedEngine(t *testing.T) {
	s := simFleet(t, sim.Options{Prefill: 1, Decode: 1, Worker: sim.WorkerOptions{
		Model: "org/model", Adapters: []string{"lora"}, DPSize: 2, HealthDelay: -1, MaxRunning: 77, PageSize: 16,
	}})
	f := live(t, settings{Health: quick, DPAware: true})
	p := mustAdd(t, f, WorkerSpec{URL: s.Prefill(0).URL(), Type: config.WorkerPrefill})
	d := mustAdd(t, f, WorkerSpec{URL: s.Decode(0).URL(), Type: config.WorkerDecode})
	ready(t, p)
	ready(t, d)
	if !f.Ready(true) {
		t.Error("not ready")
	}
	if host, port, ok := p.Bootstrap(); host != "127.0.0.1" || port != s.Prefill(0).BootstrapPort() || !ok {
		t.Errorf("bootstrap %s %d %t", host, port, ok)
	}
	facts := p.Facts()
	for i, r := range p.Ranks() {
		want := admission.Capacity{MaxBatchedTokens: 8192, KVBlocks: 16 << 20 / 16, BlockSize: 16, MaxRunning: 77}
		if got := r.Capacity(); got != want || f.gate.RankStats(r.adm).Capacity != want {
			t.Errorf("capacity of rank %d: %+v, at the gate %+v", i, got, f.gate.RankStats(r.adm).Capacity)
		}
		if _, _, ok := r.Reported(); !ok {
			t.Errorf("no load of rank %d", i)
		}
	}
	if pool, adapter := f.Resolve("org/model:lora"); pool != "org/model" || adapter != "lora" {
		t.Errorf("pool %q, adapter %q", pool, adapter)
	}
	if facts.Mode != "prefill" || facts.MaxRunningRequests != 77 || facts.PageSize != 16 || facts.ModelPath != "org/model" {
		t.Errorf("facts %+v", facts)
	}
	if pool, n := f.SolePool(); pool != "org/model" || n != 1 {
		t.Errorf("sole pool %q of %d", pool, n)
	}
	if f.Pool("lora") != "org/model" {
		t.Error("the adapter is not its base model's")
	}
	i := p.Info()
	if i.DPSize != 2 || len(i.Ranks) != 2 || i.BootstrapPort == nil || len(i.Warnings) > 0 || len(i.MissingRoutes) > 0 {
		t.Errorf("info %+v", i)
	}
	if b, err := json.Marshal(i); err != nil || !strings.Contains(string(b), `"worker_type":"prefill"`) {
		t.Errorf("%s %v", b, err)
	}
}

func TestRoleOfAnotherModeIsSaid(t *testing.T) {
	s := simFleet(t, sim.Options{Decode: 1, Worker: sim.WorkerOptions{HealthDelay: -1}})
	f := live(t, settings{Health: quick})
	w := mustAdd(t, f, WorkerSpec{URL: s.Decode(0).URL(), Type: config.WorkerPrefill})
	until(t, "the warning", func() bool {
		got := w.Info().Warnings
		return len(got) == 1 && strings.Contains(got[0], `"decode"`)
	})
}

func TestMissingRoutesDoNotMatter(t *testing.T) {
	all := []string{"/health", "/v1/loads", "/v1/models", "/server_info", "/get_server_info", "/model_info", "/get_model_info"}
	for _, missing := range append([][]string{all}, chunk(all)...) {
		t.Run(strings.Join(missing, " "), func(t *testing.T) {
			s := simFleet(t, sim.Options{Regular: 1, Worker: sim.WorkerOptions{HealthDelay: -1, Disable: missing}})
			f := live(t, settings{Health: quick})
			ready(t, mustAdd(t, f, WorkerSpec{URL: s.Regular(0).URL()}))
			want := "sim-model"
			if len(missing) == len(all) {
				want = ""
			}
			if pool, n := f.SolePool(); n != 1 || pool != want {
				t.Errorf("sole pool %q of %d", pool, n)
			}
		})
	}
}

func chunk(all []string) (each [][]string) {
	for i := range all {
		each = append(each, all[i:i+1])
	}
	return each
}

func TestOddAnswersDoNotMatter(t *testing.T) {
	for _, odd := range []string{
		``, `null`, `[]`, `7`, `"x"`, `{`, `{}`, `{"data":null}`, `{"data":{}}`, `{"data":[null,1]}`,
		`{"data":[{"id":7},{"id":""},{"id":null},{"parent":"x"}]}`,
		`{"model_path":{},"served_model_name":["x"],"dp_size":"2","disaggregation_bootstrap_port":1e99,"scheduler_info":[]}`,
		`{"dp_size":-1,"disaggregation_bootstrap_port":70000,"max_running_requests":1.5}`,
		`{"dp_size":100000}`, strings.Repeat(`[`, 100000), `{"data":[{"id":"` + strings.Repeat("x", 2000) + `"}]}`,
		`{"data":[{"id":"a\u0000b"}]}`,
	} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/health" {
				_, _ = w.Write([]byte(odd))
			}
		})
		f := live(t, settings{Health: quick, DPAware: true})
		w := mustAdd(t, f, WorkerSpec{URL: s.URL})
		ready(t, w)
		if pool, n := f.SolePool(); pool != "" || n != 1 || len(w.Ranks()) != 1 {
			t.Errorf("%.60s: sole pool %q of %d, %d ranks", odd, pool, n, len(w.Ranks()))
		}
		f.Close()
	}
}

func TestEndlessAnswerIsBounded(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for line := strings.Repeat("x", 64<<10); r.Context().Err() == nil; {
			if _, err := fmt.Fprint(w, line); err != nil {
				return
			}
		}
	})
	f := live(t, settings{Health: config.Health{Interval: 50 * time.Millisecond, Timeout: 5 * time.Second}})
	w := mustAdd(t, f, WorkerSpec{URL: s.URL})
	ready(t, w)
	if len(w.Info().Warnings) == 0 {
		t.Error("nothing is said about it")
	}
}

// TestBasePathIsPrependedToEachPath guards against a path that is doubled, or left out where
// the health route lies under it.
func TestBasePathIsPrependedToEachPath(t *testing.T) {
	s := simFleet(t, sim.Options{Regular: 1, Worker: sim.WorkerOptions{HealthDelay: -1, BasePath: "/base"}})
	f := live(t, settings{Health: quick})
	w := mustAdd(t, f, WorkerSpec{URL: "http://" + s.Regular(0).Addr() + "/base/v1/"})
	ready(t, w)
	if len(w.Info().MissingRoutes) > 0 || w.Info().ModelID != "sim-model" {
		t.Errorf("info %+v", w.Info())
	}

	t.Run("health at the root", func(t *testing.T) {
		sick := make(chan struct{})
		srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-sick:
				if r.URL.Path == "/health" {
					w.WriteHeader(503)
					return
				}
			default:
			}
			if r.URL.Path != "/health" {
				w.WriteHeader(404)
			}
		})
		w := mustAdd(t, f, WorkerSpec{URL: srv.URL + "/base", ModelID: "sim-model"})
		ready(t, w)
		close(sick)
		until(t, "the root's route is asked", func() bool { return w.Status() == StatusUnhealthy })
	})
}

// TestIPv6AddressesKeepTheirBrackets guards against addresses without their brackets.
func TestIPv6AddressesKeepTheirBrackets(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here:", err)
	}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	port := l.Addr().(*net.TCPAddr).Port
	f := live(t, settings{Health: quick, ModelID: "m"})
	w := mustAdd(t, f, WorkerSpec{URL: fmt.Sprintf("http://[0:0::1]:%d/", port), Type: config.WorkerPrefill})
	ready(t, w)
	if want := fmt.Sprintf("http://[::1]:%d", port); w.URL() != want || w.Ranks()[0].ID() != want {
		t.Errorf("URL %s, rank %s, want %s", w.URL(), w.Ranks()[0].ID(), want)
	}
	if host, _, _ := w.Bootstrap(); host != "[::1]" {
		t.Errorf("bootstrap host %s", host)
	}
}

// TestTLSHoldsForChecks guards against checks and look-ups that do not
// follow a worker's own TLS settings.
func TestTLSHoldsForChecks(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			_, _ = w.Write([]byte(`{"data":[{"id":"tls-model"}]}`))
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // refused handshakes are the point
	s.StartTLS()
	t.Cleanup(s.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		tls  config.WorkerTLS
		why  string // empty: it works
	}{
		{"own authority and name", config.WorkerTLS{CAFile: ca, ServerName: "example.com"}, ""},
		{"no check", config.WorkerTLS{InsecureSkipVerify: true}, ""},
		{"nothing set", config.WorkerTLS{}, "tls"},
		{"wrong name", config.WorkerTLS{CAFile: ca, ServerName: "other.example"}, "tls"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := live(t, settings{Health: quick})
			w := mustAdd(t, f, WorkerSpec{URL: s.URL, TLS: tc.tls})
			if tc.why == "" {
				ready(t, w)
				if w.Info().ModelID != "tls-model" {
					t.Errorf("model %q", w.Info().ModelID)
				}
				return
			}
			until(t, "the reason is shown", func() bool { return strings.Contains(w.Info().Reason, tc.why) })
			if w.Status() != StatusPending {
				t.Errorf("status %s", w.Status())
			}
		})
	}
}

func TestKeyIsPresentedAndItsRefusalShown(t *testing.T) {
	s := simFleet(t, sim.Options{Regular: 1, Worker: sim.WorkerOptions{HealthDelay: -1, APIKey: "secret-1"}})
	f := live(t, settings{Health: quick, apiKey: "wrong-key"})
	w := mustAdd(t, f, WorkerSpec{URL: s.Regular(0).URL()})
	ready(t, w)
	if got := fmt.Sprint(w.Info().Warnings); !strings.Contains(got, "refuses the key") || strings.Contains(got, "wrong-key") {
		t.Errorf("warnings %s", got)
	}
	w = mustAdd(t, f, WorkerSpec{URL: s.Regular(0).URL(), APIKey: "secret-1"})
	until(t, "the new key works", func() bool { return w.Info().ModelID == "sim-model" })
	if got := w.Info().Warnings; len(got) > 0 {
		t.Errorf("warnings %q", got)
	}
}

// Slow health routes and broken workers, told apart over the wire.
func TestCheckTellsBusyFromGone(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	at := func(health, alive http.HandlerFunc) string {
		return serve(t, func(w http.ResponseWriter, r *http.Request) {
			h := alive
			if r.URL.Path == "/health" {
				h = health
			}
			if h != nil {
				h(w, r)
			}
		}).URL
	}
	silent := func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	}
	status := func(n int) http.HandlerFunc { return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(n) } }
	reset := func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	for _, tc := range []struct {
		name, url     string
		health, alive outcome
		suspect       outcome // of health, when it was in doubt before
	}{
		{"well", at(nil, nil), outcomeOK, outcomeOK, outcomeOK},
		{"no health route", at(status(404), nil), outcomeOK, outcomeOK, outcomeOK},
		{"silent scheduler", at(silent, nil), outcomeBusy, outcomeOK, outcomeBusy},
		{"503", at(status(503), nil), outcomeBusy, outcomeOK, outcomeBusy},
		{"503, no other route", at(status(503), status(404)), outcomeBusy, outcomeOK, outcomeBusy},
		{"wrong key", at(status(401), nil), outcomeDenied, outcomeOK, outcomeDenied},
		{"all silent", at(silent, silent), outcomeUnreachable, outcomeUnreachable, outcomeUnreachable},
		{"health breaks", at(reset, nil), outcomeUnreachable, outcomeOK, outcomeUnreachable},
		{"all break", at(reset, reset), outcomeUnreachable, outcomeUnreachable, outcomeUnreachable},
		{"a proxy with nobody behind", at(status(503), status(503)), outcomeUnreachable, outcomeBusy, outcomeUnreachable},
		{"refused", "http://" + l.Addr().String(), outcomeUnreachable, outcomeUnreachable, outcomeUnreachable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := quick
			o.Endpoint, o.FailureThreshold = "/health", 2
			p := &httpProber{cfg: &o}
			spec, base, err := checkSpec(WorkerSpec{URL: tc.url}, dialects.All())
			if err != nil {
				t.Fatal(err)
			}
			ep, err := endpointOf(&spec, upstream.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer ep.Close()
			w := &Worker{fleet: &Fleet{opts: Options{Dialects: dialects.All()}}, url: spec.URL, base: base, endpoint: ep}
			w.spec.Store(&spec)
			w.updateState(noFacts)
			if c := p.check(t.Context(), w, checkParams{}); c.health != tc.health || c.alive != tc.alive || (c.reason == "") != (c.health == outcomeOK) {
				t.Errorf("check %+v, want health %d, alive %d", c, tc.health, tc.alive)
			}
			beside := p.check(t.Context(), w, checkParams{inService: true, deadAfter: 2})
			if beside.health != tc.health || beside.alive != tc.alive || (beside.reason == "") != (beside.health == outcomeOK) {
				t.Errorf("check of one that is given work %+v, want health %d, alive %d", beside, tc.health, tc.alive)
			}
			if c := p.check(t.Context(), w, checkParams{failing: true}); c.health != tc.suspect {
				t.Errorf("check in doubt %+v, want health %d", c, tc.suspect)
			}
		})
	}
}

// TestOneSilentWorkerDoesNotStopTheFleet guards against a fleet that stands still, or says that
// all is well, when one node drops off.
func TestOneSilentWorkerDoesNotStopTheFleet(t *testing.T) {
	s := simFleet(t, sim.Options{Regular: 3, Worker: sim.WorkerOptions{HealthDelay: -1}})
	f := live(t, settings{Health: quick})
	var ws []*Worker
	for _, sw := range s.Workers() {
		ws = append(ws, mustAdd(t, f, WorkerSpec{URL: sw.URL()}))
	}
	for _, w := range ws {
		ready(t, w)
	}
	life := ws[0].Alive()
	s.Regular(0).Freeze()
	until(t, "the silent one is out", func() bool { return ws[0].Status() == StatusUnhealthy })
	<-life.Done()
	for _, w := range ws[1:] {
		if w.Status() != StatusReady {
			t.Errorf("%s is %s", w.URL(), w.Status())
		}
	}
	s.Regular(0).Thaw()
	ready(t, ws[0])

	t.Run("killed and restarted", func(t *testing.T) {
		s.Regular(1).Kill()
		until(t, "the killed one is dead", func() bool { return ws[1].Alive().Err() != nil })
		if err := s.Regular(1).Restart(); err != nil {
			t.Fatal(err)
		}
		ready(t, ws[1])
	})
}

// A worker that comes back with another model and size is not the one it was.
func TestRestartWithOtherFacts(t *testing.T) {
	model, dp, down := "old", 1, false
	var mu sync.Mutex
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case down:
			w.WriteHeader(503)
		case r.URL.Path == "/v1/models":
			_, _ = fmt.Fprintf(w, `{"data":[{"id":%q}]}`, model)
		case r.URL.Path == "/server_info":
			_, _ = fmt.Fprintf(w, `{"dp_size":%d}`, dp)
		}
	})
	f := live(t, settings{Health: quick, DPAware: true})
	w := mustAdd(t, f, WorkerSpec{URL: s.URL})
	ready(t, w)
	mu.Lock()
	down = true
	mu.Unlock()
	until(t, "it is down", func() bool { return w.Status() == StatusUnhealthy })
	mu.Lock()
	model, dp, down = "new", 2, false
	mu.Unlock()
	ready(t, w)
	if i := w.Info(); !slices.Equal(i.Models, []string{"new"}) || len(i.Ranks) != 2 {
		t.Errorf("info %+v", i)
	}
	if f.gate.Resolve(admission.TargetSpec{Model: "old"}) != nil {
		t.Error("the old model has a pool")
	}
}

// TestConcurrentUseOfAllMethods runs everything at once for the race detector.
func TestConcurrentUseOfAllMethods(t *testing.T) {
	s := simFleet(t, sim.Options{Regular: 3, Worker: sim.WorkerOptions{HealthDelay: -1}})
	f := live(t, settings{Health: config.Health{Interval: time.Millisecond, Timeout: time.Second}, Breaker: config.CircuitBreaker{TimeoutDuration: time.Millisecond}})
	done := make(chan struct{})
	n := 0
	run := func(g func(i int)) {
		n++
		go func() {
			for i := range 150 {
				g(i)
			}
			done <- struct{}{}
		}()
	}
	for k, sw := range s.Workers() {
		run(func(i int) {
			_, _, _ = f.Add(t.Context(), WorkerSpec{URL: sw.URL(), Labels: map[string]string{"n": fmt.Sprint(i)}})
			if i%7 == k {
				f.Remove(sw.URL())
			}
		})
		run(func(i int) {
			priority := i % 3
			_, _ = f.Patch(t.Context(), sw.URL(), &Patch{
				Values: WorkerSpec{Priority: &priority, APIKey: config.Secret(fmt.Sprint("k", i%5/4)), Labels: map[string]string{"p": fmt.Sprint(i)}},
				Set:    []string{"priority", "api_key"},
			})
			_, _ = f.SetDrained(sw.URL(), i%2 == 0)
			if i%11 == k {
				f.RemoveWithin(sw.URL(), time.Duration(i%2)*time.Millisecond)
			}
			for _, r := range f.Registrations() {
				if err := f.AddRegistration(t.Context(), r); err != nil && !errors.Is(err, ErrLeaving) && !errors.Is(err, ErrUnknownWorker) {
					t.Error(err)
				}
			}
		})
	}
	run(func(int) {
		select {
		case <-f.RegistrationsChanged():
		default:
		}
		f.SetAliases(config.ModelAliases{"x": "sim-model"})
		if err := f.Reconcile(t.Context(), "pods", []Declared{{Worker: WorkerSpec{URL: s.Workers()[0].URL(), Type: config.WorkerRegular}}}); err != nil && !strings.Contains(err.Error(), "already registered") {
			t.Error(err)
		}
	})
	for range 2 {
		run(func(i int) {
			for _, w := range f.List() {
				for _, r := range w.Ranks() {
					r.NoteProgress()
					r.ReportFailure(Proven, 0)
					r.ReportSuccess()
					_ = r.Alive().Err()
				}
				_ = w.Info()
			}
			_ = f.Infos()
			_, _, _ = f.ResolvePin(fmt.Sprint(i%4), admission.RoleRegular)
			_, _ = f.SolePool()
			_ = f.Expecting()
			_ = f.Models()
			if target := f.gate.Resolve(admission.TargetSpec{Model: "sim-model"}); target != nil {
				tk := &admission.Ticket{Target: target}
				if f.gate.Acquire(t.Context(), tk) == nil {
					tk.Release()
				}
			}
		})
	}
	for range n {
		<-done
	}
	for _, w := range f.List() {
		f.Remove(w.ID())
	}
	until(t, "all are gone", func() bool { return len(f.List()) == 0 && len(f.gate.Stats().Ranks) == 0 })
}

func FuzzFacts(f *testing.F) {
	f.Add([]byte(`{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"sglang","root":"m","parent":null,"max_model_len":4096}]}`))
	f.Add([]byte(`{"data":[{"id":"lora","parent":"m"}]}`))
	f.Add([]byte(`{"served_model_name":"m","dp_size":2,"disaggregation_bootstrap_port":8998,"scheduler_info":{"max_total_num_tokens":1000}}`))
	f.Add([]byte(`{"model_path":"/m","dp_size":1e400}`))
	f.Add([]byte(`{"chunked_prefill_size":-1,"max_prefill_tokens":16384,"page_size":64,"internal_states":[{"dp_rank":1,"memory_usage":{"token_capacity":7}}]}`))
	f.Add([]byte(`{"loads":[{"dp_rank":0,"max_total_num_tokens":1000,"max_running_requests":8,"num_running_reqs":1},{"dp_rank":9007199254740993}]}`))
	f.Add([]byte(`[[[[`))
	f.Fuzz(func(t *testing.T, body []byte) {
		ask := func(context.Context, engine.Question) (int, []byte, error) { return 200, body, nil }
		facts := &Facts{Facts: *dialects.All().Speaking("http").ReadFacts(t.Context(), ask, nil)}
		if l, err := (engine.SGLang{}).ReadLoads(body); err == nil {
			facts.loads = l.Capacities
		}
		for _, dp := range []int{-1, 0, 7, maxDPSize - 1} {
			if c := facts.capacity(dp, admission.Capacity{}); c.MaxBatchedTokens < 0 || c.KVBlocks < 0 || c.BlockSize < 0 || c.MaxRunning < 0 {
				t.Errorf("capacity of rank %d: %+v", dp, c)
			}
		}
		for _, n := range facts.Names() {
			if !engine.ValidName(n) {
				t.Errorf("name %q", n)
			}
		}
		if len(facts.Names()) > engine.MaxModels || len(facts.Adapters) > config.MaxAdapters || facts.DPSize < 0 || facts.DPSize > maxDPSize ||
			facts.BootstrapPort < 0 || facts.BootstrapPort > 65535 || facts.MaxTotalTokens < 0 {
			t.Errorf("facts out of bounds: %+v", facts)
		}
	})
}

// An engine that was started for one half of the requests gets none of the other half, and
// no whole ones: they would wait for a peer until they time out. Registered by its right
// role it serves at once.
func TestEngineOfAnotherRoleGetsNoRequests(t *testing.T) {
	e := newStand(t, routes(map[string]string{
		"/v1/models":   `{"data":[{"id":"m","owned_by":"sglang"}]}`,
		"/server_info": `{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":9000,"internal_states":[{}]}`,
	}))
	f := live(t, settings{Health: quick})
	for _, role := range []config.WorkerType{config.WorkerDecode, config.WorkerRegular, config.WorkerPrefill} {
		w := mustAdd(t, f, WorkerSpec{URL: e.url, Type: role})
		right := role == config.WorkerPrefill
		until(t, string(role), func() bool {
			i := w.Info()
			return right == (i.Status == StatusReady) && right != strings.Contains(i.Reason, `reports disaggregation_mode "prefill": it gets no requests`)
		})
		if n := f.gate.Candidates(role.Role()); (n > 0) != right {
			t.Errorf("%s: %d candidates", role, n)
		}
	}
}
