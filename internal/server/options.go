package server

import (
	"errors"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/discovery"
	"github.com/sluice-router/sluice/internal/dispatch"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/telemetry"
	"github.com/sluice-router/sluice/internal/upstream"
)

// Options are the configuration of a server and the parts that it uses.
type Options struct {
	// Config is the whole configuration, complete.
	Config *config.Config

	// MaxFiles is the number of files this process may have open; near it
	// requests are refused. 0: the system's limit.
	MaxFiles int

	// Engines counts the connections to engines. Nil: only those that running requests
	// take are counted.
	Engines *upstream.Sockets

	Gate       *admission.Gate
	Fleet      *fleet.Fleet
	Dispatcher *dispatch.Dispatcher
	// Requests counts the requests that do not reach dispatch, as dispatch counts its own.
	Requests *dispatch.Metrics
	// Registry is what /metrics shows; the server's own metrics are added to it.
	Registry *telemetry.Registry
	Log      *telemetry.Log
	// Reload reads the configuration again on POST /admission/reload. Nil: there is
	// nothing to read.
	Reload Reloader
	// Sources are where workers are declared, for GET /workers. Nil: there are none.
	Sources *discovery.Manager
	// Cluster makes the gate one of several routers. Nil: this one is alone.
	Cluster Cluster
}

const (
	// maxHeaderBytes bounds a request's head.
	maxHeaderBytes = 64 << 10
	// shutdownGrace is how long requests that are ended after the drain timeout may
	// take to finish.
	shutdownGrace = 5 * time.Second
)

func (o *Options) complete() error {
	o.Config.MustBeComplete()
	if o.Gate == nil || o.Fleet == nil || o.Dispatcher == nil || o.Requests == nil || o.Registry == nil {
		return errors.New("BUG: a part of the server is missing")
	}
	if o.Log == nil {
		o.Log = telemetry.Discard()
	}
	if o.Engines == nil {
		o.Engines = new(upstream.Sockets)
	}
	if o.MaxFiles == 0 {
		o.MaxFiles = openFilesLimit()
	}
	return nil
}
