package server

import (
	"errors"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/dispatch"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/telemetry"
	"github.com/sluice-router/sluice/internal/upstream"
)

// Options are what a server is told and what it is made of.
type Options struct {
	// Addr and MetricsAddr are "host:port"; port 0 takes a free one.
	Addr, MetricsAddr string

	// Disaggregated: requests run as a prefill and a decode leg.
	Disaggregated bool

	// APIKeys are the keys of which a client must present one; none: clients
	// are not asked. AdminKey is the key of routes that change the fleet; "":
	// those answer clients on this machine only.
	// KeyNames are the names of APIKeys in their order, "" for none; it may be shorter.
	// SetKeys changes all three.
	APIKeys, KeyNames []string
	AdminKey          string

	// TrustTransferParams lets clients set the fields by which engines hand KV
	// cache over: they are routers that have paired the engines themselves. Not
	// with Disaggregated, where those fields are this router's.
	TrustTransferParams bool

	// MaxPayload bounds one request body, MaxBuffered the memory of all bodies
	// together, in bytes.
	MaxPayload, MaxBuffered int64

	// HeaderTimeout is how long a client may take for a request's head,
	// BodyIdleTimeout how long it may send nothing of the body, RequestTimeout
	// how long head and body may take together (0: no limit). IdleTimeout closes
	// connections without a request. WriteTimeout is how long a client's machine
	// may leave data unacknowledged (0: the system's limit).
	HeaderTimeout, BodyIdleTimeout, RequestTimeout, IdleTimeout, WriteTimeout time.Duration

	// PreDrainWait is how long requests are taken after Run's context ended;
	// DrainTimeout how long running and waiting ones go on after that.
	PreDrainWait, DrainTimeout time.Duration

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

// Defaults of the options.
const (
	DefaultMaxPayload      = 512 << 20
	DefaultMaxBuffered     = 2 << 30
	DefaultHeaderTimeout   = 10 * time.Second
	DefaultBodyIdleTimeout = 30 * time.Second
	DefaultIdleTimeout     = 120 * time.Second

	// maxHeaderBytes bounds a request's head.
	maxHeaderBytes = 64 << 10
	// shutdownGrace is how long requests that were told to end at the end of a
	// drain may take for it.
	shutdownGrace = 5 * time.Second
)

func (o *Options) setDefaults() error {
	if o.Gate == nil || o.Fleet == nil || o.Dispatcher == nil || o.Requests == nil || o.Registry == nil {
		return errors.New("BUG: a part of the server is missing")
	}
	if o.Log == nil {
		o.Log = telemetry.Discard()
	}
	if o.Engines == nil {
		o.Engines = new(upstream.Sockets)
	}
	def(&o.MaxPayload, DefaultMaxPayload)
	def(&o.MaxBuffered, DefaultMaxBuffered)
	def(&o.HeaderTimeout, DefaultHeaderTimeout)
	def(&o.BodyIdleTimeout, DefaultBodyIdleTimeout)
	def(&o.IdleTimeout, DefaultIdleTimeout)
	if o.MaxFiles == 0 {
		o.MaxFiles = openFilesLimit()
	}
	return nil
}

func def[T int64 | time.Duration](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}
