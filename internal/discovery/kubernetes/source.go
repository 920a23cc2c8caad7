package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/discovery"
	"github.com/sluice-router/sluice/internal/kubeapi"
)

const (
	// reportPause is the least time between two readings, and reportShare how much longer
	// than a reading itself took: events that come one after the other cost no more than a
	// tenth of a core. It is maxReportPause at most, or a busy machine would hear of a
	// deletion late.
	reportPause    = 100 * time.Millisecond
	maxReportPause = time.Second
	reportShare    = 10
)

// Options of a [Source].
type Options struct {
	Config *config.Config
	// UserAgent is the name by which the API server knows the router.
	UserAgent string
	Log       *slog.Logger

	// Tests have others than the client of Config, pingAfter and maxObjects.
	client     *rest.Config
	ping       time.Duration
	maxObjects int
}

// Source declares the pods that the configuration's selectors match.
type Source struct {
	rules   *rules
	clients *clients
	most    int // objects of one kind
	pods    *watcher
	slices  *watcher // nil where EndpointSlices are not watched
	changed chan struct{}
}

var _ discovery.Source = (*Source)(nil)

// New makes a source. The error says what of the configuration is wrong; the API server
// is not asked yet.
func New(o Options) (*Source, error) {
	rules, err := newRules(o.Config)
	if err != nil {
		return nil, err
	}
	if o.Log != nil {
		kubeapi.RedirectLog(o.Log)
	}
	k := &o.Config.Kubernetes
	client := o.client
	if client == nil {
		if client, err = kubeapi.LoadConfig(k.Kubeconfig); err != nil {
			return nil, fmt.Errorf("--service-discovery: cannot find the API server of Kubernetes: %w", err)
		}
	}
	s := &Source{rules: rules, most: cmp.Or(o.maxObjects, maxObjects), changed: make(chan struct{}, 1)}
	if s.clients, err = newClients(client, o.UserAgent, cmp.Or(o.ping, pingAfter)); err != nil {
		return nil, fmt.Errorf("--service-discovery: cannot use the credentials for the API server of Kubernetes: %w", err)
	}
	s.pods = s.newWatcher(pods, s.clients.core, k.Namespace)
	if k.EndpointSlices {
		s.slices = s.newWatcher(endpointSlices, s.clients.slices, k.Namespace)
	}
	return s, nil
}

func (s *Source) newWatcher(k kind, client rest.Interface, namespace string) *watcher {
	return &watcher{
		kind: k, rules: s.rules, client: client, namespace: namespace, selector: s.rules.roles.serverSelector(), most: s.most,
		closeIdle: s.clients.closeIdle, changed: s.noteChange,
	}
}

// noteChange asks for a reading.
func (s *Source) noteChange() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Name implements discovery.Source.
func (s *Source) Name() string { return "kubernetes" }

// Run implements discovery.Source. It is to be called once.
func (s *Source) Run(ctx context.Context, report func(discovery.Reading)) {
	defer s.clients.closeIdle()
	var watchers sync.WaitGroup
	defer watchers.Wait()
	watchers.Go(func() { s.pods.run(ctx) })
	if s.slices != nil {
		watchers.Go(func() { s.slices.run(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
		}
		began := time.Now()
		if r, ok := s.read(began); ok {
			report(r)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(reportPause, min(reportShare*time.Since(began), maxReportPause))):
		}
	}
}

// read puts together what the watchers know. ok is false while that is nothing yet.
func (s *Source) read(now time.Time) (r discovery.Reading, ok bool) {
	pods := s.pods.state()
	if pods.err != nil {
		return discovery.Reading{Err: pods.err}, true
	}
	if !pods.listed {
		return r, false
	}
	var endpoints state
	if s.slices != nil {
		endpoints = s.slices.state()
	}
	warnings := slices.Concat(pods.warnings, endpoints.warnings)
	if endpoints.err != nil {
		// What is known of pods is worth having without them.
		warnings = append(warnings, endpoints.err.Error()+"; what was last known of them is used")
	}
	departed := slices.Concat(pods.departed, endpoints.departed)
	if len(departed) > 0 {
		s.noteChange() // the next reading does not have them
	}
	r = read(pods.objects, endpoints.objects, departed, now)
	r.Warnings = bounded(append(warnings, r.Warnings...))
	return r, true
}
