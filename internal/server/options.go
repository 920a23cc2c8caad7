package server

import (
	"errors"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/dispatch"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/telemetry"
	"github.com/sluice-router/sluice/internal/upstream"
)

// Options are what a server is told and what it is made of.
type Options struct {
	// Config is the whole configuration, complete.
	Config *config.Config

	// MaxFiles is the number of files this process may have open; near it
	// requests are refused rather than broken. 0: what the system says.
	MaxFiles int

	// Engines are the connections to engines. Nil: they are not known, but for those
	// that running requests take.
	Engines *upstream.Sockets

	Gate       *admission.Gate
	Fleet      *fleet.Fleet
	Dispatcher *dispatch.Dispatcher
	// Requests counts the requests that end here, beside those of dispatch.
	Requests *dispatch.Metrics
	// Registry is what /metrics shows; the server's own metrics are added to it.
	Registry *telemetry.Registry
	Log      *telemetry.Log
	// Reload reads the configuration again when a client orders it. Nil: there
	// is nothing to read.
	Reload Reloader
}

const (
	// maxHeaderBytes bounds a request's head.
	maxHeaderBytes = 64 << 10
	// shutdownGrace is how long requests that were told to end at the end of a
	// drain may take for it.
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
