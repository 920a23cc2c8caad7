package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
	"github.com/sluice-router/sluice/internal/cluster/node"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/discovery"
	"github.com/sluice-router/sluice/internal/discovery/dns"
	"github.com/sluice-router/sluice/internal/discovery/file"
	"github.com/sluice-router/sluice/internal/discovery/kubernetes"
	"github.com/sluice-router/sluice/internal/discovery/saved"
	"github.com/sluice-router/sluice/internal/dispatch"
	"github.com/sluice-router/sluice/internal/engine/dialects"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/policy"
	"github.com/sluice-router/sluice/internal/server"
	"github.com/sluice-router/sluice/internal/telemetry"
	"github.com/sluice-router/sluice/internal/textmodel"
	"github.com/sluice-router/sluice/internal/tokenizer/queue"
	"github.com/sluice-router/sluice/internal/upstream"
)

func newServe(environ []string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve clients until SIGTERM or SIGINT",
		Long: `Serve clients until SIGTERM or SIGINT.

Each setting is a flag, an environment variable (SLUICE_ and the flag's name in
capitals, with _ for -) and a key of the YAML file named by --config; a flag wins
over the environment, which wins over the file.

On the first signal sluice reports that it is not ready, takes requests for
--pre-drain-wait more, then refuses new ones and lets the others go on for
--drain-timeout; its exit code is 0. A second signal ends it at once, with exit
code 128 and the signal's number: 130 for SIGINT, 143 for SIGTERM.`,
		Example: `  sluice serve --worker-urls http://10.0.0.1:30000 http://10.0.0.2:30000

  sluice serve --pd-disaggregation \
    --prefill http://10.0.0.1:30000 8998 --decode http://10.0.0.2:30000 \
    --prefill-max-inflight-requests-per-worker 8`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	flags := addConfigFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, warnings, err := config.LoadFlags(flags, environ, nil)
		if err != nil {
			printWarnings(cmd.ErrOrStderr(), warnings)
			return err
		}
		return runServe(cmd.Context(), flags, environ, cfg, warnings, cmd.ErrOrStderr())
	}
	return cmd
}

// logFlush is how long the process waits at its end for a blocked standard error.
const logFlush = 2 * time.Second

// runServe serves with the configuration until ctx ends or a signal arrives. On a second
// signal it returns at once, whatever is still running.
func runServe(ctx context.Context, flags *config.Flags, environ []string, cfg *config.Config, warnings []config.Warning, stderr io.Writer) error {
	tuneGC()
	level, err := telemetry.ParseLevel(cfg.Log.Level)
	if err != nil {
		return err
	}
	// The reader of the log may end, such as a log collector that restarts. A write to
	// the broken pipe would then end a Go process, unless the signal is ignored; the
	// log counts the lines that it drops.
	signal.Ignore(syscall.SIGPIPE)
	log := telemetry.NewLog(telemetry.LogOptions{Out: stderr, Level: level, JSON: cfg.Log.JSON, Access: telemetry.AccessMode(cfg.Log.Access)})
	defer log.Close(logFlush)
	for _, w := range warnings {
		log.Warn("configuration", "warning", w.String())
	}

	r, err := newRouter(cfg, log)
	if err != nil {
		return err
	}
	limitMemory(r.server.MemoryBound())
	if err := r.server.Listen(ctx); err != nil {
		r.close()
		return err
	}
	// From here on a signal starts a drain. Before, it ends the process: no client was
	// served yet.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	if err := r.startMember(ctx, cfg); err != nil {
		r.close()
		return err
	}
	if err := r.addWorkers(ctx, cfg); err != nil {
		r.close()
		return err
	}
	if cfg.Discovery.WorkersState != "" {
		r.saved = saved.New(cfg, r.fleet, log.Logger)
		r.saved.Restore(ctx)
		r.saved.Start()
	}
	if err := r.startSources(cfg); err != nil {
		r.close()
		return err
	}
	r.announce(cfg)
	stopReload := r.startReload(ctx, config.NewReloader(flags, environ, cfg, warnings, config.ReloadOptions{Apply: r.apply, Done: r.reloaded, Log: log.Logger}))
	defer stopReload()

	running, stop := context.WithCancel(ctx)
	defer stop()
	go tellHotPrefixes(running, r.hotPrefixes, log.Logger)
	done := make(chan error, 1)
	go func() {
		err := r.server.Run(running)
		r.close()
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case s := <-signals:
		log.Info("signal received: shutting down; a second signal ends the process at once", "signal", s.String())
		stop()
		go r.handOver()
	}
	select {
	case err := <-done:
		return err
	case s := <-signals:
		log.Warn("second signal: exiting at once", "signal", s.String())
		return killedError{s}
	}
}

// killedError is returned after a second signal.
type killedError struct{ signal os.Signal }

func (e killedError) Error() string { return "ended at once by a second signal: " + e.signal.String() }

// ExitCode is the one that a shell reports for a process that the signal ended.
func (e killedError) ExitCode() int {
	if s, ok := e.signal.(syscall.Signal); ok {
		return 128 + int(s)
	}
	return exitFailure
}

// router is the parts of a running sluice.
type router struct {
	log        *telemetry.Log
	gate       *admission.Gate
	fleet      *fleet.Fleet
	sources    *discovery.Manager
	saved      *saved.File        // nil: registrations are not kept
	kubernetes *kubernetes.Source // nil without --service-discovery
	dispatcher *dispatch.Dispatcher
	server     *server.Server
	reload     reload
	registry   *telemetry.Registry
	node       *node.Node        // of a cluster; nil: this router is alone
	member     cluster.Collector // its metrics

	hotPrefixes chan policy.HotPrefix
}

// Bounds of the queue while admission is off: requests then wait only for a
// half-open breaker's probe, or for a worker to appear.
const (
	openQueueSize    = 10000
	openQueueTimeout = 60 * time.Second
)

// gateSettings are the gate's settings that a reload may change.
func gateSettings(cfg *config.Config) admission.Settings {
	return admission.Settings{Limits: gateLimits(cfg), Classes: cfg.Classes, Reject: cfg.Admission.RejectThresholds()}
}

// gateLimits are the gate's bounds: those of prefill slots where there are any,
// else those of classes where there are any.
func gateLimits(cfg *config.Config) admission.Limits {
	a := cfg.Admission
	l := admission.Limits{
		QueueSize: openQueueSize, QueueTimeout: openQueueTimeout,
		NoWorkerWait: cfg.Fleet.NoWorkerWait, StarvationGuard: a.StarvationGuard,
		OverloadWaiting: value(a.OverloadWaiting), OverloadUsage: value(a.OverloadUsage),
		RefuseEarly:       cfg.Classes != nil && a.RefuseEarly == config.RefuseEarlyAuto,
		AffinityLookahead: cfg.Lookahead(), AffinityMaxPasses: a.AffinityMaxPasses, AffinityWait: a.AffinityWait,
	}
	switch {
	case a.Enabled():
		l.PrefillSlots, l.QueueSize, l.QueueTimeout = a.PrefillMaxInflight, a.PrefillQueueSize, a.PrefillQueueTimeout
	case cfg.Classes != nil:
		l.QueueSize, l.QueueTimeout, l.MaxWaitingBytes = a.MaxWaiting, a.MaxWait, a.MaxWaitingBytes
	}
	return l
}

// value is what p points to, zero for nothing.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func queueMode(o config.QueueOrder) admission.QueueMode {
	switch o {
	case config.QueueStrict:
		return admission.QueueStrict
	case config.QueueLanes:
		return admission.QueueLanes
	}
	return admission.QueueAuto
}

// newRouter creates the parts and connects them. No port is open yet.
func newRouter(cfg *config.Config, log *telemetry.Log) (*router, error) {
	return newRouterIn(cfg, log, openStore)
}

// newRouterIn is newRouter with the store of a cluster made by openStore.
func newRouterIn(cfg *config.Config, log *telemetry.Log, openStore storeOpener) (*router, error) {
	if err := checkTokenizers(cfg); err != nil {
		return nil, err
	}
	hot := make(chan policy.HotPrefix, maxHotPrefixes)
	newPolicy, err := policies(cfg.Routing, hot)
	if err != nil {
		return nil, err
	}
	reg := telemetry.NewRegistry()
	r := &router{log: log, registry: reg, hotPrefixes: hot}
	reg.MustRegister(log, &r.reload, &r.member)
	if cfg.Kubernetes.Enabled {
		v, _ := built()
		if r.kubernetes, err = kubernetes.New(kubernetes.Options{Config: cfg, UserAgent: "sluice/" + v, Log: log.Logger}); err != nil {
			return nil, err
		}
	}
	clock, memberClock := newClusterClock(cfg)
	gateMetrics := admission.NewMetrics(reg)
	gateOptions := admission.Options{
		Limits: gateLimits(cfg), Classes: cfg.Classes, Reject: cfg.Admission.RejectThresholds(),
		NewPolicy: newPolicy, HealthInterval: cfg.Health.Interval,
		QueueMode: queueMode(cfg.Admission.QueueOrder), AssumedMaxRequests: cfg.Admission.AssumedMaxRequests,
	}
	gate := admission.NewGate(gateOptions, clock, gateMetrics)
	gateMetrics.Watch(gate)
	r.gate = gate
	if cfg.Cluster.Enabled() {
		s, err := openStore(cfg, log)
		if err != nil {
			return nil, err
		}
		if err := r.joinCluster(cfg, memberClock, gateOptions, s); err != nil {
			return nil, err
		}
	}
	engines := new(upstream.Sockets)
	if key := cfg.Log.AccessHashKey; key != "" {
		kv.SetHashKey([]byte(key))
	}
	var index *kv.Index // none where nobody asks what engines have cached
	if dispatch.UsesCaches(cfg) {
		index = kv.New(kv.Options{MaxBytes: cfg.KV.IndexMemory})
		reg.MustRegister(kv.NewCollector(index))
	}
	r.fleet = fleet.New(gate, fleet.Options{
		Config: cfg, Sockets: engines, Dialects: dialects.All(), Index: index, Log: log.Logger,
		TokensPerByte: func(model string) float64 { return r.dispatcher.TokensPerByte(model) }, // there is one before the first worker
	}, clock)
	r.sources = discovery.NewManager(discovery.Options{Fleet: r.fleet, Hold: cfg.Discovery.SourceHold, Log: log.Logger})
	if r.node != nil {
		r.fleet.JoinCluster(r.node, r.node.Self())
	}
	reg.MustRegister(fleet.NewCollector(r.fleet), discovery.NewCollector(r.sources))
	requests := dispatch.NewMetrics(reg)
	texts := queue.New(cfg.Text.Workers, cfg.Text.QueueMemory)
	texts.Register(reg)
	options := dispatch.Options{Config: cfg, Index: index, TextQueue: texts}
	if url := cfg.Text.RendererURL; url != "" {
		renderer, err := textmodel.NewRenderer(url, cfg.Text.RendererLimit)
		if err != nil {
			r.close()
			return nil, fmt.Errorf("--renderer-url: %w", err)
		}
		options.Renderer = renderer
	}
	r.dispatcher = dispatch.New(gate, clock, r.fleet, options, requests, log.Logger)
	serverOptions := server.Options{
		Config: cfg, Engines: engines,
		Gate: gate, Fleet: r.fleet, Dispatcher: r.dispatcher, Requests: requests, Registry: reg, Log: log, Reload: &r.reload, Sources: r.sources,
	}
	if r.node != nil {
		serverOptions.Cluster = r.node
	}
	if r.server, err = server.New(serverOptions); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// addWorkers registers the workers of the configuration. Any of them may be
// down.
func (r *router) addWorkers(ctx context.Context, cfg *config.Config) error {
	if err := r.fleet.Reconcile(ctx, sourceConfiguration, fleet.Declare(cfg.Workers)); err != nil {
		return fmt.Errorf("workers of the configuration: %w", err)
	}
	r.takeConfigured(cfg)
	return nil
}

// startSources starts the sources of workers that the configuration names.
func (r *router) startSources(cfg *config.Config) error {
	names, err := dns.New(cfg)
	if err != nil {
		return err
	}
	if cfg.Discovery.Provider == config.DiscoveryFile {
		r.sources.Run(file.New(cfg))
	}
	if r.kubernetes != nil {
		r.sources.Run(r.kubernetes)
	}
	for _, name := range names {
		r.sources.Run(name)
	}
	return nil
}

// hasSources reports whether startSources starts any.
func hasSources(cfg *config.Config) bool {
	return cfg.Kubernetes.Enabled || cfg.Discovery.Provider != config.DiscoveryNone || len(cfg.Discovery.DNSNames) > 0
}

// takeConfigured puts the list of workers of the configuration in force, as a reading of
// a source.
func (r *router) takeConfigured(cfg *config.Config) {
	r.sources.Take(sourceConfiguration, discovery.Reading{Workers: fleet.Declare(cfg.Workers)})
}

// sourceConfiguration owns the workers of the list in the configuration.
const sourceConfiguration = "configuration"

// missingWorkers returns a message if no request can be served for lack of workers, else
// "". Known are the roles of the workers that there are.
func missingWorkers(cfg *config.Config, known map[config.WorkerType]bool) string {
	prefill, decode := known[config.WorkerPrefill], known[config.WorkerDecode]
	switch {
	case hasSources(cfg):
		return "" // they come with the first reading
	case !cfg.Fleet.PDDisaggregation && len(known) == 0:
		return "no worker is known yet: add some with POST /workers, or name them with --worker-urls"
	case !cfg.Fleet.PDDisaggregation || prefill && decode:
		return ""
	case prefill:
		return "no decode worker is known yet, so that nothing can be served: add one with POST /workers, or name it with --decode"
	case decode:
		return "no prefill worker is known yet, so that nothing can be served: add one with POST /workers, or name it with --prefill"
	}
	return "no worker is known yet: add some with POST /workers, or name them with --prefill and --decode"
}

// rolesOf are the roles that occur among workers of the configuration.
func rolesOf(workers []config.Worker) map[config.WorkerType]bool {
	known := map[config.WorkerType]bool{}
	for _, w := range workers {
		known[w.Type] = true
	}
	return known
}

// announce logs what is served and how. Workers that were registered by request before a
// restart are there already.
func (r *router) announce(cfg *config.Config) {
	mode := "aggregated"
	if cfg.Fleet.PDDisaggregation {
		mode = "prefill/decode"
	}
	workers := r.fleet.List()
	known := map[config.WorkerType]bool{}
	for _, w := range workers {
		known[w.Spec().Type] = true
	}
	r.log.Info("serving", "version", versionLine(), "address", r.server.Addr().String(), "metrics", r.server.MetricsAddr().String(),
		"mode", mode, "workers", len(workers))
	if missing := missingWorkers(cfg, known); missing != "" {
		r.log.Warn(missing)
	}
	if note := newDefaultPolicy(cfg); note != "" {
		r.log.Info(note)
	}
	order := config.QueueStrict
	if cfg.Lanes() {
		order = config.QueueLanes
	}
	if a := cfg.Admission; a.Enabled() {
		r.log.Info("admission: on", "prefill_max_inflight_requests_per_worker", a.PrefillMaxInflight,
			"prefill_queue_size", a.PrefillQueueSize, "prefill_queue_timeout", a.PrefillQueueTimeout, "queue_order", order, "affinity_lookahead", cfg.Lookahead())
	}
	if cfg.Classes != nil {
		r.log.Info("admission: by policy classes", "file", cfg.Admission.RouterPolicyConfig, "classes", len(r.gate.Classes()), "queue_order", order, "affinity_lookahead", cfg.Lookahead())
	}
	if advice := cfg.LookaheadAdvice(); advice != "" {
		r.log.Warn(advice)
	}
	if cfg.Admission.Enabled() {
		return
	}
	if cfg.Classes == nil {
		r.log.Info(withoutAdmission(cfg.Fleet.PDDisaggregation))
	}
}

// withoutAdmission is the log message that requests are not limited, with the option
// that would limit them in this mode.
func withoutAdmission(pd bool) string {
	if pd {
		return "admission: off; prefill is not bounded (--prefill-max-inflight-requests-per-worker)"
	}
	return "admission: off; all requests go to the workers at once (policy classes bound them: --router-policy-config)"
}

// close ends the parts that do not end with the server.
func (r *router) close() {
	r.sources.Close()
	if r.saved != nil {
		r.saved.Close()
	}
	r.leaveCluster()
	r.fleet.Close()
	r.gate.Close()
}

// exitCode is the exit code of an error that has its own.
func exitCode(err error) int {
	var e interface{ ExitCode() int }
	if errors.As(err, &e) {
		return e.ExitCode()
	}
	return exitFailure
}
