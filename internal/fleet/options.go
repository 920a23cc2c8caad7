package fleet

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/upstream"
	"github.com/sluice-router/sluice/internal/workerurl"
)

// Options of a fleet.
type Options struct {
	// Config is the whole configuration, complete. The fleet reads the groups fleet,
	// health and circuit_breaker, the key for engines, and the timeouts of their
	// connections.
	Config *config.Config
	// Sockets counts the connections to engines. Nil: nobody does.
	Sockets *upstream.Sockets
	// Log takes state changes of workers. Nil: none.
	Log *slog.Logger

	// Bounds that are no settings. Zero: the constants below.
	drainTimeout time.Duration // a removed worker is kept so long for the requests that it still has
	maxProbes    int           // of checks that run at once; half are kept for workers that answered last time
}

const (
	maxProbes    = 512
	drainTimeout = 5 * time.Minute

	// maxIdleRate bounds the checks begun in a second of workers that are well and
	// have no requests, so that a fleet of any size is idle cheaply: a check costs
	// half a millisecond, most of it for a new connection, since engines close
	// idle ones after 5 s. With more than interval × rate workers, 185 by default,
	// those are checked less often: 1,000 are looked at within 30 s.
	maxIdleRate = 37
	// hurryPause is the least time between two checks of a worker that fails
	// requests.
	hurryPause = time.Second
	// firstRetry is the pause after the first failed look at a worker that is
	// not healthy; it doubles up to the interval.
	firstRetry = time.Second
	// askPause is the least time after which a worker that was away is asked for its
	// connector again.
	askPause = 10 * time.Second
	// factsEvery is how often a healthy worker is asked again what it serves.
	factsEvery = 5 * time.Minute
	// expectFor is how long a registered worker that was never seen may still
	// turn out to serve a model nobody else serves.
	expectFor = 10 * time.Minute
)

func (o *Options) complete() {
	o.Config.MustBeComplete()
	if o.maxProbes == 0 {
		o.maxProbes = maxProbes
	}
	if o.drainTimeout == 0 {
		o.drainTimeout = drainTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// Special values of WorkerSpec.BootstrapPort.
const (
	// BootstrapAuto takes the port that the worker's /server_info names, else
	// DefaultBootstrapPort.
	BootstrapAuto = 0
	// BootstrapNone sends null.
	BootstrapNone = -1
	// DefaultBootstrapPort is SGLang's (server_args,
	// disaggregation_bootstrap_port).
	DefaultBootstrapPort = 8998
)

// WorkerSpec is what is registered.
type WorkerSpec struct {
	// URL is the engine's base URL in any spelling that workerurl.Parse takes.
	URL  string
	Role admission.Role
	// ModelID names the model it serves. Empty: Options.ModelID, else what the
	// worker says.
	ModelID string
	// BootstrapPort is where decode workers find this prefill worker: a port,
	// BootstrapAuto or BootstrapNone.
	BootstrapPort int
	// DPSize overrides the number of data-parallel ranks that the worker names.
	// It counts only where Options.DPAware is set. Zero: what the worker says.
	DPSize int
	// Backend is the engine's dialect, DialectSGLang or DialectVLLM. Empty or
	// "auto": the label "backend", else found out, SGLang in doubt.
	Backend string
	// Connector is how a vLLM worker hands KV cache over, one of Connectors or the
	// engine's name for it. Empty or "auto": the label "kv_connector", else prefill
	// workers are asked and decode workers take that of their prefill workers.
	Connector string
	Labels    map[string]string
	// TopologyDomain is where it stands for the transfer of KV cache. Workers
	// without one are in one together.
	TopologyDomain string
	// Adapters are LoRA adapters that it serves besides those it tells of.
	Adapters []string
	// Capacity is that of each rank. Zero fields: what the worker says.
	Capacity admission.Capacity

	// Transport, where it differs from Options.Upstream: a key, TLS settings,
	// HTTP/2.
	APIKey string
	TLS    *upstream.TLS
	HTTP2  bool
}

// SpecError tells that a worker cannot be registered as it was described.
type SpecError struct {
	// Field is the setting, as "url" or "bootstrap_port".
	Field string
	Err   error
}

func (e *SpecError) Error() string {
	return fmt.Sprintf("cannot register the worker: %s: %s", e.Field, e.Err)
}

func (e *SpecError) Unwrap() error { return e.Err }

const (
	maxNameLen  = 512 // of models, labels
	maxLabels   = 64
	maxDPSize   = 1024
	maxModels   = 16   // pools that one worker may be in
	maxAdapters = 4096 // a worker
	// maxCapacity and maxBlockSize bound what an operator may set.
	maxCapacity  = 1 << 40
	maxBlockSize = 65536
)

// check refuses what no worker can be, and returns the spec in its one
// spelling.
func (s WorkerSpec) check() (WorkerSpec, workerurl.URL, error) {
	base, err := workerurl.Parse(s.URL)
	if err != nil {
		return s, base, &SpecError{"url", fmt.Errorf("it %w", err)}
	}
	s.URL = base.String()
	switch s.Role {
	case admission.RoleRegular, admission.RolePrefill, admission.RoleDecode:
	default:
		return s, base, &SpecError{"worker_type", fmt.Errorf("%s is none of regular, prefill, decode", s.Role)}
	}
	if s.BootstrapPort < BootstrapNone || s.BootstrapPort > 65535 {
		return s, base, &SpecError{"bootstrap_port", fmt.Errorf("%d is not between 1 and 65535", s.BootstrapPort)}
	}
	if err := s.checkDialect(); err != nil {
		return s, base, err
	}
	if s.DPSize < 0 || s.DPSize > maxDPSize {
		return s, base, &SpecError{"dp_size", fmt.Errorf("%d is not between 0 and %d", s.DPSize, maxDPSize)}
	}
	if s.ModelID != "" && !goodName(s.ModelID) {
		return s, base, &SpecError{"model_id", fmt.Errorf("it is longer than %d bytes or holds a control character", maxNameLen)}
	}
	if len(s.Labels) > maxLabels {
		return s, base, &SpecError{"labels", fmt.Errorf("there are more than %d", maxLabels)}
	}
	for k, v := range s.Labels {
		if !goodName(k) || v != "" && !goodName(v) {
			return s, base, &SpecError{"labels", fmt.Errorf("%.64q is longer than %d bytes or holds a control character", k, maxNameLen)}
		}
	}
	s.Labels = maps.Clone(s.Labels)
	if s.TopologyDomain != "" && !goodName(s.TopologyDomain) {
		return s, base, &SpecError{"topology_domain", fmt.Errorf("it is longer than %d bytes or holds a control character", maxNameLen)}
	}
	if len(s.Adapters) > maxAdapters {
		return s, base, &SpecError{"adapters", fmt.Errorf("there are more than %d", maxAdapters)}
	}
	for _, a := range s.Adapters {
		if !goodName(a) {
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
		{capBatched, s.Capacity.MaxBatchedTokens, maxCapacity}, {capBlocks, s.Capacity.KVBlocks, maxCapacity},
		{"block_size", s.Capacity.BlockSize, maxBlockSize}, {"max_running_requests", s.Capacity.MaxRunning, maxCapacity},
	} {
		if c.v < 0 || c.v > c.most {
			return s, base, &SpecError{c.field, fmt.Errorf("%d is not between 0 and %d", c.v, c.most)}
		}
	}
	return s, base, nil
}

func (s WorkerSpec) equal(o WorkerSpec) bool {
	return s.Role == o.Role && s.ModelID == o.ModelID && s.BootstrapPort == o.BootstrapPort &&
		s.DPSize == o.DPSize && s.Backend == o.Backend && s.Connector == o.Connector && maps.Equal(s.Labels, o.Labels) &&
		s.TopologyDomain == o.TopologyDomain && slices.Equal(s.Adapters, o.Adapters) && s.Capacity == o.Capacity && s.sameTransport(o)
}

// sameTransport tells whether both reach one engine in one way.
func (s WorkerSpec) sameTransport(o WorkerSpec) bool {
	if (s.TLS == nil) != (o.TLS == nil) || s.TLS != nil && *s.TLS != *o.TLS {
		return false
	}
	return s.URL == o.URL && s.APIKey == o.APIKey && s.HTTP2 == o.HTTP2
}

func (s WorkerSpec) endpoint(c upstream.Config) (*upstream.Endpoint, error) {
	c.URL = s.URL
	if s.APIKey != "" {
		c.APIKey = s.APIKey
	}
	if s.TLS != nil {
		c.TLS = *s.TLS
	}
	c.HTTP2 = c.HTTP2 || s.HTTP2
	ep, err := upstream.NewEndpoint(c)
	if err != nil {
		return nil, &SpecError{"url", err}
	}
	return ep, nil
}

// goodName tells whether an engine or an operator may call something so.
func goodName(s string) bool {
	if s == "" || len(s) > maxNameLen {
		return false
	}
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}
