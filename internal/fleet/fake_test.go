package fleet

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/config/configtest"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/policy"
)

// The names of the dialects.
var dialectSGLang, dialectVLLM = engine.SGLang{}.Name(), engine.VLLM{}.Name()

// fakeProber answers from a script instead of a network. It must not be changed
// while the lock is not held.
type fakeProber struct {
	mu    sync.Mutex
	up    map[string]checkResult
	delay map[string]time.Duration
	said  map[string]*Facts
	asked map[string]int
	at    map[string]time.Time
	load  map[string]*loads
	// losses are the connections that workers have ended, by URL.
	losses map[string]int64
	// by URL: what the question for the connector finds or why not, how often it
	// was asked, what the bootstrap server says
	connects map[string]string
	mute     map[string]error
	probed   map[string]int
	moon     map[string]*engine.MooncakePeer
	looks    int // for changes, at all workers
	// events is what workers say of their KV events, askedEvents how often they were asked.
	events      map[string]kvEventSources
	askedEvents int
	// hangs are workers that do not answer some of what they are asked.
	hangs map[string]*hang
	// loadLost: no answer about it, for once.
	loadLost bool
	// loadReads counts the readings of the load, onLoad is called with each.
	loadReads int
	onLoad    func()
	// schedulers are those of workers by URL; without one, the worker's answers, and it
	// has no counters.
	schedulers map[string]*fakeScheduler
}

// fakeScheduler is what the probes of a worker's scheduler find.
type fakeScheduler struct {
	hangs    bool     // health route and small work are not answered
	mute     bool     // nor are the counters
	noHealth bool     // there is no health route
	unread   bool     // the counters cannot be read, though the front answers
	refuses  []string // paths of small pieces of work that it has not
	load     RankLoad
	ranks    int  // with such counters; 0: one
	noLoads  bool // there are no counters
	computes bool // each read finds that the counters have moved
	asked    map[string]int
}

var (
	well     = checkResult{health: outcomeOK, alive: outcomeOK}
	busy     = checkResult{health: outcomeBusy, alive: outcomeOK, reason: "busy"}
	vanished = checkResult{health: outcomeUnreachable, alive: outcomeUnreachable, reason: "gone"}
)

func newFakeProber() *fakeProber {
	return &fakeProber{
		up: map[string]checkResult{}, delay: map[string]time.Duration{}, said: map[string]*Facts{},
		asked: map[string]int{}, at: map[string]time.Time{}, load: map[string]*loads{},
		hangs: map[string]*hang{}, connects: map[string]string{}, mute: map[string]error{}, probed: map[string]int{}, moon: map[string]*engine.MooncakePeer{},
	}
}

func (p *fakeProber) set(c checkResult, urls ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range urls {
		p.up[u] = c
	}
}

func (p *fakeProber) says(url string, f *Facts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said[url] = f
}

// hang is how a worker answers in time: after a delay, never if that is negative.
type hang struct{ health, alive time.Duration }

func (h *hang) check(ctx context.Context, o *config.Health, l checkParams) checkResult {
	after := func(d time.Duration, late outcome) func(context.Context) probeResult {
		return func(ctx context.Context) probeResult {
			r, wait := probeResult{outcome: late, timedOut: true, reason: "no answer in time"}, o.Timeout
			if d >= 0 && d < o.Timeout {
				r, wait = probeResult{outcome: outcomeOK}, d
			}
			select {
			case <-time.After(wait):
				return r
			case <-ctx.Done():
				return probeResult{}
			}
		}
	}
	if !l.inService {
		return vanished
	}
	return probeInParallel(ctx, o, l, after(h.health, outcomeBusy), after(h.alive, outcomeUnreachable))
}

func (p *fakeProber) hang(url string, h *hang) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hangs[url] = h; h == nil {
		delete(p.hangs, url)
	}
}

func (p *fakeProber) takes(url string, d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay[url] = d
}

func (p *fakeProber) count(url string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked[url]
}

func (p *fakeProber) last(url string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.at[url]
}

func (p *fakeProber) check(ctx context.Context, w *Worker, l checkParams) checkResult {
	p.mu.Lock()
	if how, ok := p.hangs[w.URL()]; ok {
		p.mu.Unlock()
		return how.check(ctx, &w.fleet.cfg.Health, l)
	}
	c, ok := p.up[w.URL()]
	d := p.delay[w.URL()]
	p.asked[w.URL()]++
	p.at[w.URL()] = time.Now()
	p.mu.Unlock()
	if d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return checkResult{}
		}
	}
	if !ok {
		return vanished
	}
	return c
}

func (p *fakeProber) scheduling(w *Worker, what string) fakeScheduler {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.schedulers[w.URL()]
	if s == nil {
		return fakeScheduler{noLoads: true}
	}
	if s.asked == nil {
		s.asked = map[string]int{}
	}
	if s.asked[what]++; s.computes {
		s.load.Mark++
	}
	return *s
}

// schedule sets how a worker's scheduler answers.
func (p *fakeProber) schedule(url string, set func(s *fakeScheduler)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.schedulers == nil {
		p.schedulers = map[string]*fakeScheduler{}
	}
	if p.schedulers[url] == nil {
		p.schedulers[url] = &fakeScheduler{}
	}
	set(p.schedulers[url])
}

func fakeAnswer(ctx context.Context, hangs bool, within, delay time.Duration) probeResult {
	r := probeResult{outcome: outcomeOK}
	if hangs {
		r, delay = probeResult{outcome: outcomeUnreachable}, within
	}
	select {
	case <-time.After(delay):
		return r
	case <-ctx.Done():
		return probeResult{}
	}
}

func (p *fakeProber) scheduler(ctx context.Context, w *Worker, _ engine.Dialect, within time.Duration) probeResult {
	s := p.scheduling(w, "health")
	if s.noHealth {
		return probeResult{outcome: outcomeDenied}
	}
	return fakeAnswer(ctx, s.hangs, within, time.Second)
}

func (p *fakeProber) answers(ctx context.Context, w *Worker, q engine.Question, within time.Duration) probeResult {
	s := p.scheduling(w, "work")
	if slices.Contains(s.refuses, q.Path) {
		return probeResult{outcome: outcomeDenied}
	}
	return fakeAnswer(ctx, s.hangs, within, 100*time.Millisecond)
}

func (p *fakeProber) counters(ctx context.Context, w *Worker, _ engine.Dialect, within time.Duration) (*engine.Loads, outcome) {
	s := p.scheduling(w, "counters")
	r := fakeAnswer(ctx, s.mute, within, 0)
	switch {
	case s.noLoads:
		r.outcome = outcomeDenied
	case s.unread:
		r.outcome = outcomeBusy
	}
	return &engine.Loads{Ranks: slices.Repeat([]RankLoad{s.load}, max(s.ranks, 1))}, r.outcome
}

func (p *fakeProber) lost(w *Worker) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.losses[w.URL()]
}

func (p *fakeProber) loses(url string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.losses == nil {
		p.losses = map[string]int64{}
	}
	p.losses[url]++
}

func (p *fakeProber) facts(_ context.Context, w *Worker) *Facts {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.said[w.URL()]; f != nil {
		c := *f
		return &c
	}
	return &Facts{}
}

func (p *fakeProber) kvEvents(_ context.Context, w *Worker, _ *Facts) kvEventSources {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.askedEvents++
	k := p.events[w.URL()]
	k.asked = true
	return k
}

func (p *fakeProber) changed(ctx context.Context, w *Worker, before *Facts) bool {
	now := p.facts(ctx, w)
	p.mu.Lock()
	p.looks++
	p.mu.Unlock()
	return !now.SameModels(&before.Facts) || now.Fingerprint != before.Fingerprint
}

func (p *fakeProber) loads(_ context.Context, w *Worker, _ engine.Dialect) (*loads, bool) {
	p.mu.Lock()
	p.loadReads++
	if f := p.onLoad; f != nil {
		p.mu.Unlock()
		f()
		p.mu.Lock()
	}
	defer p.mu.Unlock()
	l := p.load[w.URL()]
	if l == nil {
		return nil, !p.loadLost
	}
	c := *l
	return &c, false
}

func (p *fakeProber) connector(_ context.Context, w *Worker, _ *Facts) (engine.Found, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.probed[w.URL()]++
	return engine.Found{Connector: p.connects[w.URL()]}, p.mute[w.URL()]
}

func (p *fakeProber) peer(_ context.Context, w *Worker, _ engine.Dialect, connector string) (engine.Peer, bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if connector != engine.ConnectorMooncake {
		return nil, false, nil
	}
	if m := p.moon[w.URL()]; m != nil {
		return m, true, nil
	}
	return nil, true, errors.New("no answer")
}

func (p *fakeProber) loaded(url string, l *loads) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.load[url], p.loadLost = l, l == nil
}

// bench is a gate and a fleet in virtual time.
type testbed struct {
	*Fleet
	t      *testing.T
	prober *fakeProber
	gate   *admission.Gate
}

var defaultHealthInterval = config.Default().Health.Interval

// settings are what a test's fleet differs in from the default configuration.
type settings struct {
	ModelID      string
	DPAware      bool
	PairLabel    config.LabelKey
	Health       config.Health
	Breaker      config.CircuitBreaker
	apiKey       config.Secret
	config       func(c *config.Config)
	Log          *slog.Logger
	drainTimeout time.Duration
	maxProbes    int
	dialects     *engine.Registry

	tokensPerByte func(model string) float64
}

func (s settings) options() Options {
	return Options{
		Config: configtest.New(func(c *config.Config) {
			c.Fleet.ModelID, c.Fleet.DPAware, c.Auth.WorkerAPIKey = s.ModelID, s.DPAware, s.apiKey
			c.Fleet.PairLabel = s.PairLabel
			c.Health.LoadMonitor = 0 // but in tests of it
			configtest.Overlay(&c.Health, s.Health)
			configtest.Overlay(&c.CircuitBreaker, s.Breaker)
			if s.config != nil {
				s.config(c)
			}
		}),
		Dialects: s.dialects, Index: kv.New(kv.Options{}), TokensPerByte: s.tokensPerByte, Log: s.Log, drainTimeout: s.drainTimeout, maxProbes: s.maxProbes,
	}
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, o settings, f func(b *testbed)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		clock := admission.NewSystemClock()
		newPolicy, err := policy.New(policy.PowerOfTwo, 1)
		if err != nil {
			t.Fatal(err)
		}
		gate := admission.NewGate(admission.Options{NewPolicy: newPolicy}, clock, nil)
		defer gate.Close()
		b := &testbed{t: t, prober: newFakeProber(), gate: gate}
		b.Fleet = newFleet(gate, o.options(), clock, b.prober)
		b.start()
		defer b.Close()
		f(b)
	})
}

func (b *testbed) add(spec WorkerSpec) *Worker {
	b.t.Helper()
	w, _, err := b.Add(b.t.Context(), spec)
	if err != nil {
		b.t.Fatal(err)
	}
	return w
}

// pass lets virtual time pass.
func (b *testbed) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// candidates are the ids of the gate's candidate ranks, sorted.
func (b *testbed) candidates() []string {
	ids := []string{}
	for _, r := range b.gate.Stats().Ranks {
		if r.Candidate {
			ids = append(ids, r.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

func (b *testbed) wantCandidates(want ...string) {
	b.t.Helper()
	if got := b.candidates(); !slices.Equal(got, want) {
		b.t.Errorf("candidates %q, want %q", got, want)
	}
}

// acquire is granted an aggregated request, or nil.
func (b *testbed) acquire(model string) *admission.Ticket {
	b.t.Helper()
	target := b.gate.Resolve(admission.TargetSpec{Model: b.Pool(model)})
	if target == nil {
		return nil
	}
	t := &admission.Ticket{Target: target}
	if err := b.gate.Acquire(context.Background(), t); err != nil {
		return nil
	}
	t.StartDecode()
	return t
}

// models are the pools of the gate's ranks, by rank.
func (b *testbed) models() map[string]string {
	m := map[string]string{}
	for _, r := range b.gate.Stats().Ranks {
		names := slices.Clone(r.Models)
		m[r.ID] = ""
		for i, n := range names {
			if i > 0 {
				m[r.ID] += ","
			}
			m[r.ID] += n
		}
	}
	return m
}

func (b *testbed) wantModels(want map[string]string) {
	b.t.Helper()
	if got := b.models(); !maps.Equal(got, want) {
		b.t.Errorf("models of ranks %v, want %v", got, want)
	}
}

func serves(names ...string) *Facts {
	f := &Facts{}
	for _, n := range names {
		f.Models = append(f.Models, ModelInfo{ID: n})
	}
	return f
}

func (p *fakeProber) total() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, k := range p.asked {
		n += k
	}
	return n
}
