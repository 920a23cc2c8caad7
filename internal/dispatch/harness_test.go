package dispatch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/config/configtest"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/policy"
	"github.com/sluice-router/sluice/internal/sim"
	"github.com/sluice-router/sluice/internal/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what must happen; it is never what a test measures.
const patience = time.Minute

// rig is a router without its front: the gate, a fleet of simulated workers and
// a dispatcher behind a plain HTTP server.
type rig struct {
	t      *testing.T
	sim    *sim.Fleet
	gate   *admission.Gate
	fleet  *fleet.Fleet
	d      *Dispatcher
	server *httptest.Server
	client *http.Client
	reg    *prometheus.Registry
	id     string // of every request; empty: each has its own

	memory Memory // of every request; set while none runs

	calls, freed atomic.Int64
	// ending is over when a drain's time is.
	ending context.Context
	end    context.CancelFunc

	mu      sync.Mutex
	records []Record // guarded by mu
	ended   chan struct{}
}

type rigOptions struct {
	sim    sim.Options
	limits admission.Limits
	pd     bool
	// config changes the configuration; bounds has what is no setting.
	config  func(c *config.Config)
	bounds  Options
	policy  string
	dpAware bool
	retries int
	breaker config.CircuitBreaker
	health  config.Health
	specs   func(w *sim.Worker, s *fleet.WorkerSpec)
	// dialects are those of workers; nil: the engines' own.
	dialects *engine.Registry
	// index is that of the engines' KV caches; nil: there is none.
	index *kv.Index
	// gate changes the gate before it is used.
	gate func(g *admission.Gate)
}

// rarely makes health checks see a worker once: for tests in which a worker
// that does not answer is to stay a candidate.
var rarely = config.Health{Interval: time.Hour}

// firstFault opens a breaker at its first failure and keeps it open, so that a
// test sees who was charged.
var firstFault = config.CircuitBreaker{FailureThreshold: 1, TimeoutDuration: time.Hour}

func pd(o rigOptions) rigOptions {
	if o.sim.Prefill == 0 {
		o.sim.Prefill = 1
	}
	if o.sim.Decode == 0 {
		o.sim.Decode = 1
	}
	o.pd = true
	return o
}

// setLimits sets the limits in time of each leg.
func setLimits(c *config.Config, l upstream.Limits) {
	c.Timeouts.ResponseHeader, c.Timeouts.FirstByte, c.Timeouts.StreamIdle = l.Header, l.FirstByte, l.StreamIdle
}

func newRig(t *testing.T, o rigOptions) *rig {
	t.Helper()
	o.sim.Worker.HealthDelay = -1
	sf, err := sim.Start(o.sim)
	if err != nil {
		t.Fatal(err)
	}
	if o.limits == (admission.Limits{}) {
		o.limits = admission.Limits{QueueSize: 10_000, QueueTimeout: 2 * patience}
	}
	if o.policy == "" {
		o.policy = policy.RoundRobin
	}
	newPolicy, err := policy.New(o.policy, 1)
	if err != nil {
		t.Fatal(err)
	}
	if o.bounds.PrefillGrace == 0 {
		o.bounds.PrefillGrace = 2 * patience // nothing that comes soon waits for it
	}
	if o.health == (config.Health{}) {
		o.health = config.Health{Interval: 100 * time.Millisecond, Timeout: 2 * time.Second}
	}
	cfg := configtest.New(func(c *config.Config) {
		c.Fleet.PDDisaggregation, c.Fleet.DPAware = o.pd, o.dpAware
		c.Admission.PrefillMaxInflight = max(o.limits.PrefillSlots, -1)
		c.Admission.ReserveOutputTokens = 0
		c.Timeouts.Request, c.Server.SSEKeepalive = 2*patience, 0
		c.Retry = config.Retry{MaxRetries: o.retries, InitialBackoff: time.Millisecond, MaxBackoff: 10 * time.Millisecond, BackoffMultiplier: 1.5}
		configtest.Overlay(&c.Health, o.health)
		configtest.Overlay(&c.CircuitBreaker, o.breaker)
		if o.config != nil {
			o.config(c)
		}
	})
	o.bounds.Config, o.bounds.Index = cfg, o.index
	clock := admission.NewSystemClock()
	gate := admission.NewGate(admission.Options{Limits: o.limits, NewPolicy: newPolicy, HealthInterval: time.Second}, clock, nil)
	if o.gate != nil {
		o.gate(gate)
	}
	fl := fleet.New(gate, fleet.Options{Config: cfg, Dialects: o.dialects, Index: o.index}, clock)
	reg := prometheus.NewRegistry()
	d := New(gate, clock, fl, o.bounds, NewMetrics(reg), slog.New(slog.DiscardHandler))
	r := &rig{t: t, sim: sf, gate: gate, fleet: fl, d: d, reg: reg, ended: make(chan struct{}, 10_000)}
	r.ending, r.end = context.WithCancel(context.Background())
	r.server = httptest.NewServer(http.HandlerFunc(r.handle))
	r.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000}}
	roles := map[sim.Role]config.WorkerType{sim.Prefill: config.WorkerPrefill, sim.Decode: config.WorkerDecode, sim.Regular: config.WorkerRegular}
	for _, w := range sf.Workers() {
		spec := fleet.WorkerSpec{URL: w.URL(), Type: roles[w.Role()]}
		if o.health.Timeout > 0 && o.health.Timeout < time.Second {
			// With checks this hasty a busy machine may miss what the worker says.
			spec.ModelID = w.Options().Model
			if w.Role() == sim.Prefill {
				spec.BootstrapPort = config.BootstrapPort(w.BootstrapPort())
			}
		}
		if o.specs != nil {
			o.specs(w, &spec)
		}
		if _, _, err := fl.Add(context.Background(), spec); err != nil {
			t.Fatal(err)
		}
	}
	r.ready()
	t.Cleanup(r.close)
	return r
}

// ready waits until every worker can be given work.
func (r *rig) ready() {
	r.t.Helper()
	r.until("all workers are candidates", func() bool {
		in := map[string]bool{}
		for _, s := range r.gate.Stats().Ranks {
			if s.Candidate {
				in[s.Worker] = true
			}
		}
		return len(in) >= len(r.sim.Workers())
	})
}

func (r *rig) close() {
	r.client.CloseIdleConnections()
	r.server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.d.Wait(ctx); err != nil {
		r.t.Errorf("a leg outlives its request: %v", err)
	}
	r.end()
	if calls, freed := r.calls.Load(), r.freed.Load(); calls != freed {
		r.t.Errorf("%d of %d bodies were given back", freed, calls)
	}
	for _, s := range r.gate.Stats().Ranks {
		if s.PrefillSlots != 0 || s.PrefillLegs != 0 || s.PendingDecode != 0 || s.ActiveDecode != 0 {
			r.t.Errorf("holds left on %s: %+v", s.ID, s)
		}
	}
	if n := r.d.rooms.Live(); n != 0 {
		r.t.Errorf("%d rooms left in use", n)
	}
	r.fleet.Close()
	r.gate.Close()
	r.sim.Close()
}

// handle is the least a front must do.
func (r *rig) handle(w http.ResponseWriter, req *http.Request) {
	route := map[string]openai.Route{
		"/v1/chat/completions": openai.RouteChatCompletions, "/v1/completions": openai.RouteCompletions, "/generate": openai.RouteGenerate,
		"/v1/messages": openai.RouteMessages, "/v1/responses": openai.RouteResponses,
		"/v1/embeddings": openai.RouteEmbeddings, "/v1/audio/transcriptions": openai.RouteAudio,
		"/tokenize": openai.RouteTokenize, "/detokenize": openai.RouteDetokenize, "/v1/messages/count_tokens": openai.RouteCountTokens, "/rerank": openai.RouteRerank,
	}[req.URL.Path]
	body, err := io.ReadAll(req.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	p, err := openai.Peek(route, body, openai.PeekOptions{Refuse: openai.ControlledFields})
	if err != nil {
		var e *openai.Error
		errors.As(err, &e)
		_ = e.WriteResponse(w, route.Shape())
		return
	}
	r.calls.Add(1)
	free := func() {
		// Whoever still looks at the body sends what no engine can read.
		for i := range body {
			body[i] = '!'
		}
		r.freed.Add(1)
		p.Release()
	}
	call := &Call{Route: route, Path: req.URL.RequestURI(), Header: req.Header, Peeked: p, Free: free,
		ID: r.requestID(), Arrived: time.Now(), Passing: route > openai.RouteMessages, Client: req.Header.Get("X-Client"), Memory: r.memory}
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	stop := context.AfterFunc(r.ending, func() { cancel(ErrShutdown) })
	defer stop()
	req = req.WithContext(ctx)
	defer func() {
		r.mu.Lock()
		r.records = append(r.records, call.Record)
		r.mu.Unlock()
		r.ended <- struct{}{}
	}()
	r.d.Serve(w, req, call)
}

func (r *rig) requestID() string {
	if r.id != "" {
		return r.id
	}
	return "req-" + fmt.Sprint(time.Now().UnixNano())
}

// until waits for a condition that events elsewhere bring about.
func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	deadline := time.Now().Add(patience)
	for !cond() {
		if time.Now().After(deadline) {
			r.t.Fatalf("did not happen within %s: %s", patience, what)
		}
		time.Sleep(time.Millisecond)
	}
}

// waitRecord returns the record of the n-th request to end, from 0.
func (r *rig) waitRecord(n int) Record {
	r.t.Helper()
	r.until(fmt.Sprintf("request %d ends", n), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.records) > n
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.records[n]
}

type answer struct {
	status int
	header http.Header
	body   string
	err    error
	took   time.Duration
}

func (a answer) code() string {
	var e struct {
		Error struct {
			Code any `json:"code"`
		} `json:"error"`
	}
	_ = json.Unmarshal([]byte(a.body), &e)
	return fmt.Sprint(e.Error.Code)
}

const chat = `{"model":"sim-model","messages":[{"role":"user","content":"hi"}],"max_tokens":3%s}`

func chatBody(extra string) string { return fmt.Sprintf(chat, extra) }

func (r *rig) do(ctx context.Context, path, body string, header ...string) answer {
	start := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.server.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Error(err)
		return answer{err: err}
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return answer{err: err, took: time.Since(start)}
	}
	defer resp.Body.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: b.String(), err: err, took: time.Since(start)}
}

func (r *rig) chat(extra string, header ...string) answer {
	return r.do(context.Background(), "/v1/chat/completions", chatBody(extra), header...)
}

// idle waits until the router and every engine have nothing to do.
func (r *rig) idle() {
	r.t.Helper()
	r.until("all holds end", func() bool {
		for _, s := range r.gate.Stats().Ranks {
			if s.PrefillLegs != 0 || s.PendingDecode != 0 || s.ActiveDecode != 0 {
				return false
			}
		}
		return r.gate.Waiting() == 0
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, w := range r.sim.Workers() {
		if !w.Running() {
			continue
		}
		if err := w.WaitIdle(ctx); err != nil {
			r.t.Fatalf("%s is not idle: %v", w.ID(), err)
		}
	}
}

// noViolations checks that the engines saw no misuse of their protocol.
func (r *rig) noViolations() {
	r.t.Helper()
	for _, v := range r.sim.Violations() {
		r.t.Errorf("violation: %+v", v)
	}
}
