package server

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/config/configtest"
	"github.com/sluice-router/sluice/internal/dispatch"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/policy"
	"github.com/sluice-router/sluice/internal/sim"
	"github.com/sluice-router/sluice/internal/telemetry"
	"github.com/sluice-router/sluice/internal/upstream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come. It is no measure of
// speed.
const patience = 30 * time.Second

// testStack, if set, is the HTTP stack of all rigs: SLUICE_TEST_HTTP_STACK=net.
var testStack = os.Getenv("SLUICE_TEST_HTTP_STACK")

// rig is a router in front of simulated workers, all in this process and on real
// sockets.
type rig struct {
	t     *testing.T
	sim   *sim.Fleet
	gate  *admission.Gate
	fleet *fleet.Fleet
	srv   *Server
	log   *logBuffer
	url   string

	stop context.CancelFunc
	done chan struct{}
	err  error // of Run; valid after done
}

// setup changes what a rig is made of.
type setup struct {
	sim    sim.Options
	cfg    *config.Config
	server Options
	limits admission.Limits
	policy string    // empty: round_robin
	index  *kv.Index // of engines' KV caches; nil: there is none
	// late: the workers are not registered.
	late bool
	// unready: the rig does not wait until it is ready.
	unready bool
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer // guarded by mu
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// start starts a rig; with no workers asked for it has a prefill and a decode
// worker.
func start(t *testing.T, change func(*setup)) *rig {
	t.Helper()
	s := setup{
		limits: admission.Limits{QueueSize: 10000, QueueTimeout: time.Minute},
		cfg: configtest.New(func(c *config.Config) {
			c.Server.Host, c.Server.Port, c.Server.PrometheusHost, c.Server.PrometheusPort = "127.0.0.1", 0, "127.0.0.1", 0
			c.Server.DrainTimeout, c.Server.PreDrainWait = patience, 0
			c.Health.Interval = 100 * time.Millisecond
			c.Retry.Disabled, c.Admission.ReserveOutputTokens = true, 0
		}),
	}
	s.sim.Worker.HealthDelay = -1
	if change != nil {
		change(&s)
	}
	if s.sim.Prefill+s.sim.Decode+s.sim.Regular == 0 {
		s.sim.Prefill, s.sim.Decode = 1, 1
	}
	if testStack != "" {
		s.cfg.Server.HTTPStack = testStack
	}
	pd := s.sim.Regular == 0
	r := &rig{t: t, log: &logBuffer{}, done: make(chan struct{})}
	var err error
	if r.sim, err = sim.Start(s.sim); err != nil {
		t.Fatal(err)
	}
	log := telemetry.NewLog(telemetry.LogOptions{Out: r.log, Level: -4})
	clock := admission.NewSystemClock()
	reg := telemetry.NewRegistry()
	newPolicy, err := policy.New(cmp.Or(s.policy, policy.RoundRobin), 1)
	if err != nil {
		t.Fatal(err)
	}
	gm := admission.NewMetrics(reg)
	r.gate = admission.NewGate(admission.Options{Limits: s.limits, NewPolicy: newPolicy, HealthInterval: 5 * time.Second}, clock, gm)
	gm.Watch(r.gate)
	s.cfg.Fleet.PDDisaggregation = pd
	s.cfg.Admission.PrefillMaxInflight = max(s.limits.PrefillSlots, -1)
	s.server.Engines = new(upstream.Sockets)
	r.fleet = fleet.New(r.gate, fleet.Options{Config: s.cfg, Sockets: s.server.Engines, Index: s.index, Log: log.Logger}, clock)
	reg.MustRegister(fleet.NewCollector(r.fleet))
	requests := dispatch.NewMetrics(reg)
	o := &s.server
	o.Config, o.Gate, o.Fleet, o.Requests, o.Registry, o.Log = s.cfg, r.gate, r.fleet, requests, reg, log
	o.Dispatcher = dispatch.New(r.gate, clock, r.fleet, dispatch.Options{Config: s.cfg, Index: s.index}, requests, log.Logger)
	if r.srv, err = New(*o); err != nil {
		t.Fatal(err)
	}
	if err := r.srv.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.url = "http://" + r.srv.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() {
		r.err = r.srv.Run(ctx)
		close(r.done)
	}()
	if !s.late {
		for _, w := range r.sim.Workers() {
			r.register(w, "")
		}
	}
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		r.waitDone()
		if r.err != nil {
			t.Error(r.err)
		}
		if used := r.srv.buffers.used.Load(); used != 0 {
			t.Errorf("%d bytes of bodies are still accounted for at the end", used)
		}
		r.fleet.Close()
		r.gate.Close()
		r.sim.Close()
		log.Close(patience)
		if n := r.sim.Violated(); n != 0 {
			t.Errorf("%d violations of the engines' protocol, as %v", n, r.sim.Violations()[0])
		}
		if t.Failed() {
			t.Logf("the router's log:\n%s", r.log)
		}
	})
	if !s.late && !s.unready {
		r.waitFor("all workers", func() bool {
			for _, i := range r.fleet.Infos() {
				if !i.IsHealthy {
					return false
				}
			}
			return r.status("GET", "/readyz", "") == 200
		})
	}
	return r
}

func (r *rig) waitDone() {
	select {
	case <-r.done:
	case <-time.After(2 * patience):
		r.t.Error("Run did not return")
	}
}

// register adds a simulated worker.
func (r *rig) register(w *sim.Worker, model string) *fleet.Worker {
	r.t.Helper()
	spec := fleet.WorkerSpec{URL: w.URL(), ModelID: model}
	switch w.Role() {
	case sim.Prefill:
		spec.Type, spec.BootstrapPort = config.WorkerPrefill, config.BootstrapPort(w.BootstrapPort())
	case sim.Decode:
		spec.Type = config.WorkerDecode
	}
	fw, _, err := r.fleet.Add(r.t.Context(), spec)
	if err != nil {
		r.t.Fatal(err)
	}
	return fw
}

// waitFor waits until something is so.
func (r *rig) waitFor(what string, so func() bool) {
	r.t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// answer is a whole answer.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request; headers are pairs.
func (r *rig) do(method, path, body string, headers ...string) answer {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body == "" {
		req.Body = nil
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	return answer{resp.StatusCode, resp.Header, string(b)}
}

func (r *rig) status(method, path, body string, headers ...string) int {
	r.t.Helper()
	return r.do(method, path, body, headers...).status
}

// refused checks that an answer is an error of the router's own.
func (a answer) refused(t *testing.T, status int, code string) errorObject {
	t.Helper()
	var e struct{ Error errorObject }
	if err := json.Unmarshal([]byte(a.body), &e); err != nil {
		t.Errorf("status %d, want %d %s; no error object: %v: %q", a.status, status, code, err, a.body)
		return e.Error
	}
	if a.status != status || e.Error.Code != code || a.header.Get("X-Smg-Error-Code") != code || a.header.Get("X-Request-Id") == "" {
		t.Errorf("status %d, headers %v, want %d %s: %s", a.status, a.header, status, code, a.body)
	}
	return e.Error
}

type errorObject struct {
	Message, Type, Code string
	Param               *string
}

const chat = `{"model":"sim-model","messages":[{"role":"user","content":"hello"}],"max_tokens":3}`

const chatStream = `{"model":"sim-model","messages":[{"role":"user","content":"hello"}],"max_tokens":3,"stream":true}`

// metric is the value of a series on the page of metrics, 0 if it is not there.
func (r *rig) metric(series string) float64 {
	r.t.Helper()
	for _, line := range strings.Split(r.metricsPage(), "\n") {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			var f float64
			if _, err := fmt.Sscan(v, &f); err != nil {
				r.t.Fatal(err)
			}
			return f
		}
	}
	return 0
}

func (r *rig) metricsPage() string {
	r.t.Helper()
	resp, err := http.Get("http://" + r.srv.MetricsAddr().String() + "/metrics")
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		r.t.Fatalf("status %d: %v", resp.StatusCode, err)
	}
	return string(b)
}

// line waits for the access line of a request and returns it.
func (r *rig) line(id string) string {
	r.t.Helper()
	var found string
	r.waitFor("the access line of "+id, func() bool {
		for _, l := range strings.Split(r.log.String(), "\n") {
			if strings.Contains(l, "msg=request id="+id+" ") {
				found = l
				return true
			}
		}
		return false
	})
	return found
}

// raw is a connection on which a test says exactly what it wants.
type raw struct {
	*net.TCPConn
	t *testing.T
	r *bufio.Reader
}

func (r *rig) dial() *raw {
	r.t.Helper()
	c, err := net.Dial("tcp", r.srv.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() }) // it may be closed already
	_ = c.SetDeadline(time.Now().Add(patience))
	return &raw{c.(*net.TCPConn), r.t, bufio.NewReader(c)}
}

func (c *raw) send(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// post sends a request head with a length, and as much of a body as given.
func (c *raw) post(path string, length int, body string, headers ...string) {
	c.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n", path, length)
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	c.send(b.String() + "\r\n" + body)
}

// read reads one answer.
func (c *raw) read() answer {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatalf("cannot read an answer: %v", err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatalf("cannot read the answer's body: %v", err)
	}
	h := resp.Header
	if resp.Close {
		h.Set("Connection", "close")
	}
	return answer{resp.StatusCode, h, string(b)}
}

// ended checks that the connection ends without another byte.
func (c *raw) ended() {
	c.t.Helper()
	if b, err := io.ReadAll(c.r); len(b) > 0 || isTimeoutErr(err) {
		c.t.Errorf("want the connection's end, got %q, %v", b, err)
	}
}

func isTimeoutErr(err error) bool {
	ne, ok := err.(net.Error)
	return ok && ne.Timeout()
}

// endless is an engine whose answers do not end by themselves within a test.
var endless = sim.Timing{DecodeStep: 20 * time.Millisecond, OutputTokens: 1 << 20}
