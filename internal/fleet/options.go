package fleet

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/engine/dialects"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/upstream"
	"github.com/sluice-router/sluice/internal/wire"
	"github.com/sluice-router/sluice/internal/workerurl"
)

// Options of a fleet.
type Options struct {
	// Config is the whole configuration, complete. The fleet reads the groups fleet,
	// health and circuit_breaker, the key for engines, and the timeouts of their
	// connections.
	Config *config.Config
	// Sockets counts the connections to engines. Nil: they are not counted.
	Sockets *upstream.Sockets
	// Dialects are the engines that workers may be. Nil: all that there are.
	Dialects *engine.Registry
	// Index is told which ranks there are, and when their caches are empty. Nil: there is
	// none.
	Index *kv.Index
	// TokensPerByte is how many tokens of a model a byte of a prompt is, as far as that is
	// learned; 0: it is not known. It is called under a lock. Nil: nothing is learned.
	TokensPerByte func(model string) float64
	// Log takes state changes of workers. Nil: none.
	Log *slog.Logger

	// Bounds that are no settings. Zero: the constants below.
	drainTimeout time.Duration // the longest time that a removed worker is kept for its requests
	maxProbes    int           // of checks that run at once; half are kept for workers that answered last time
}

const (
	maxProbes    = 512
	drainTimeout = 5 * time.Minute

	// maxIdleCheckRate bounds the checks begun in a second of workers that are well and
	// have no requests, so that a fleet of any size is idle cheaply: a check costs
	// half a millisecond, most of it for a new connection, since engines close
	// idle ones after 5 s. With more than interval × rate workers, 185 by default,
	// those are checked less often: 1,000 are looked at within 30 s.
	maxIdleCheckRate = 37
	// gatherPause is how far apart the times are at which they are.
	gatherPause = 250 * time.Millisecond
	// checkSoonPause is the least time between two checks of a worker that fails
	// requests.
	checkSoonPause = time.Second
	// firstRetry is the pause after the first failed check of a worker that is
	// not healthy; it doubles up to the interval.
	firstRetry = time.Second
	// connectorProbePause is the least time after which a worker that was away is asked for its
	// connector again.
	connectorProbePause = 10 * time.Second
	// factsInterval is how often a healthy worker is asked again what it serves.
	factsInterval = 5 * time.Minute
	// maxModelWait is how long a registered worker that was never seen may still
	// turn out to serve a model nobody else serves.
	maxModelWait = 10 * time.Minute
)

func (o *Options) complete() {
	o.Config.MustBeComplete()
	if o.maxProbes == 0 {
		o.maxProbes = maxProbes
	}
	if o.drainTimeout == 0 {
		o.drainTimeout = drainTimeout
	}
	if o.Dialects == nil {
		o.Dialects = dialects.All()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// defaultBootstrapPort is SGLang's (server_args, disaggregation_bootstrap_port).
const defaultBootstrapPort = 8998

// WorkerSpec is what is registered: a worker as the configuration and requests
// describe it. Its URL may have any spelling that workerurl.Parse takes.
type WorkerSpec = config.Worker

// SpecError is returned for a worker that cannot be registered as specified.
type SpecError struct {
	// Field is the setting, as "url" or "bootstrap_port".
	Field string
	Err   error
}

func (e *SpecError) Error() string {
	return fmt.Sprintf("the settings of the worker cannot be used: %s: %s", e.Field, e.Err)
}

func (e *SpecError) Unwrap() error { return e.Err }

const (
	maxNameLen = engine.MaxName // of models, labels
	maxDPSize  = engine.MaxDPSize
	// maxCapacity and maxBlockSize bound what an operator may set.
	maxCapacity  = engine.MaxCapacity
	maxBlockSize = engine.MaxBlockSize
)

// check refuses what no worker can be, and returns the spec in its one
// spelling.
func checkSpec(s WorkerSpec, dialects *engine.Registry) (WorkerSpec, workerurl.URL, error) {
	base, err := workerurl.Parse(s.URL)
	if err != nil {
		return s, base, &SpecError{"url", fmt.Errorf("it %w", err)}
	}
	s.URL = base.String()
	switch s.Type {
	case "", config.WorkerRegular, config.WorkerPrefill, config.WorkerDecode:
	default:
		return s, base, &SpecError{"worker_type", fmt.Errorf("%.64q must be one of regular, prefill, decode", s.Type)}
	}
	if s.BootstrapPort < config.BootstrapNone || s.BootstrapPort > 65535 {
		return s, base, &SpecError{"bootstrap_port", fmt.Errorf("%d is not between 1 and 65535", s.BootstrapPort)}
	}
	if err := checkDialect(&s, dialects); err != nil {
		return s, base, err
	}
	if s.DPSize < 0 || s.DPSize > maxDPSize {
		return s, base, &SpecError{"dp_size", fmt.Errorf("%d is not between 0 and %d", s.DPSize, maxDPSize)}
	}
	if !wire.ValidValue(s.APIKey.Reveal()) {
		return s, base, &SpecError{fieldAPIKey, errors.New("it holds a control character")}
	}
	if s.ModelID != "" && !engine.ValidName(s.ModelID) {
		return s, base, &SpecError{"model_id", fmt.Errorf("it is longer than %d bytes or holds a control character", maxNameLen)}
	}
	if len(s.Labels) > config.MaxLabels {
		return s, base, &SpecError{"labels", fmt.Errorf("there are more than %d", config.MaxLabels)}
	}
	for k, v := range s.Labels {
		if !engine.ValidName(k) || v != "" && !engine.ValidName(v) {
			return s, base, &SpecError{"labels", fmt.Errorf("%.64q is longer than %d bytes or holds a control character", k, maxNameLen)}
		}
	}
	s.Labels = maps.Clone(s.Labels)
	if s.TopologyDomain != "" && !engine.ValidName(s.TopologyDomain) {
		return s, base, &SpecError{"topology_domain", fmt.Errorf("it is longer than %d bytes or holds a control character", maxNameLen)}
	}
	if len(s.Adapters) > config.MaxAdapters {
		return s, base, &SpecError{"adapters", fmt.Errorf("there are more than %d", config.MaxAdapters)}
	}
	for _, a := range s.Adapters {
		if !engine.ValidName(a) {
			return s, base, &SpecError{"adapters", fmt.Errorf("%.64q is empty, longer than %d bytes or holds a control character", a, maxNameLen)}
		}
	}
	// Their order means nothing, and a repetition neither.
	s.Adapters = slices.Clone(s.Adapters)
	slices.Sort(s.Adapters)
	s.Adapters = slices.Compact(s.Adapters)
	for _, c := range []struct {
		field string
		v     int64
		most  int64
	}{
		{capBatched, s.MaxNumBatchedTokens, maxCapacity}, {capBlocks, s.TotalKVBlocks, maxCapacity},
		{"block_size", s.BlockSize, maxBlockSize}, {"max_running_requests", s.MaxRunningRequests, maxCapacity},
		{"prefill_max_inflight_requests", s.PrefillMaxInflight, maxCapacity},
	} {
		if c.v < 0 || c.v > c.most {
			return s, base, &SpecError{c.field, fmt.Errorf("%d is not between 0 and %d", c.v, c.most)}
		}
	}
	if s.PrefillMaxInflight > 0 && s.Type != config.WorkerPrefill {
		return s, base, &SpecError{"prefill_max_inflight_requests", fmt.Errorf("it is for prefill workers, and this one is %s; max_running_requests limits it", s.Type.Role())}
	}
	if p := s.Priority; p != nil && (*p < 0 || *p > config.MaxPriority) {
		return s, base, &SpecError{"priority", fmt.Errorf("%d is not between 0 and %d", *p, config.MaxPriority)}
	}
	return s, base, nil
}

// capacityOf is what a spec says of the capacity of each rank; zero: what the worker
// says.
func capacityOf(s *WorkerSpec) admission.Capacity {
	return admission.Capacity{MaxBatchedTokens: s.MaxNumBatchedTokens, KVBlocks: s.TotalKVBlocks, BlockSize: s.BlockSize, MaxRunning: s.MaxRunningRequests}
}

// equalSpecs reports whether checked specs describe one worker.
func equalSpecs(a, b *WorkerSpec) bool {
	return a.Type.Role() == b.Type.Role() && a.ModelID == b.ModelID && a.BootstrapPort == b.BootstrapPort &&
		a.DPSize == b.DPSize && a.Backend == b.Backend && a.KVConnector == b.KVConnector && maps.Equal(a.Labels, b.Labels) &&
		a.PrefillMaxInflight == b.PrefillMaxInflight && priorityOf(a) == priorityOf(b) &&
		a.TopologyDomain == b.TopologyDomain && slices.Equal(a.Adapters, b.Adapters) && capacityOf(a) == capacityOf(b) && sameTransport(a, b)
}

// priorityOf is the priority of a worker with these settings.
func priorityOf(s *WorkerSpec) int {
	if s.Priority == nil {
		return config.DefaultPriority
	}
	return *s.Priority
}

// sameTransport reports whether both specs use the same URL, key and TLS settings.
func sameTransport(a, b *WorkerSpec) bool {
	return a.URL == b.URL && a.APIKey == b.APIKey && a.HTTP2 == b.HTTP2 && a.TLS == b.TLS
}

// endpointOf connects to the worker as c says, where the spec says nothing else.
func endpointOf(s *WorkerSpec, c upstream.Config) (*upstream.Endpoint, error) {
	c.URL = s.URL
	if s.APIKey != "" {
		c.APIKey = s.APIKey.Reveal()
	}
	if !s.TLS.IsZero() {
		c.TLS = upstream.TLS{
			CAFile: s.TLS.CAFile, CertFile: s.TLS.CertFile, KeyFile: s.TLS.KeyFile,
			ServerName: s.TLS.ServerName, SkipVerify: s.TLS.InsecureSkipVerify,
		}
	}
	c.HTTP2 = c.HTTP2 || s.HTTP2
	ep, err := upstream.NewEndpoint(c)
	if err != nil {
		return nil, &SpecError{"url", err}
	}
	return ep, nil
}
