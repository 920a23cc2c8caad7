package fleet

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/sluice-router/sluice/internal/engine"
)

// Labels that stand for settings, where those are not made.
const (
	labelBackend   = "backend"
	labelConnector = "kv_connector"
)

// checkDialect brings Backend and KVConnector into their one spelling.
func checkDialect(s *WorkerSpec, dialects *engine.Registry) error {
	if s.Backend == "auto" {
		s.Backend = ""
	}
	if d, ok := dialects.Named(s.Backend); s.Backend != "" && !ok {
		return &SpecError{"backend", fmt.Errorf("%.64q must be one of auto, %s", s.Backend, strings.Join(dialects.Names(), ", "))}
	} else if scheme := schemeOf(s.URL); ok && !d.Speaks(scheme) {
		return &SpecError{"backend", fmt.Errorf("%q is not spoken by %s://; use auto, or one of %s", s.Backend, scheme, strings.Join(dialects.Speaking(scheme).Names(), ", "))}
	}
	if s.KVConnector == "auto" || s.KVConnector == "" {
		s.KVConnector = ""
		return nil
	}
	if d, ok := dialects.Named(s.Backend); ok {
		if c := d.Connectors().Named(s.KVConnector); c != "" {
			s.KVConnector = c
			return nil
		}
	}
	c, of := dialects.Connector(s.KVConnector)
	switch {
	case of == nil:
		return &SpecError{"kv_connector", fmt.Errorf("%.64q must be one of auto, %s", s.KVConnector, strings.Join(dialects.ConnectorNames(), ", "))}
	case s.Backend != "":
		return &SpecError{"kv_connector", fmt.Errorf("%q is for %s workers; this one is set to be %s", s.KVConnector, of.Of, s.Backend)}
	}
	s.KVConnector = c
	return nil
}

// schemeOf is the scheme of a worker's URL in its one spelling.
func schemeOf(url string) string {
	scheme, _, _ := strings.Cut(url, "://")
	return scheme
}

// dialects are those that speak the scheme of the worker's URL.
func (w *Worker) dialects() *engine.Registry { return w.fleet.opts.Dialects.Speaking(w.base.Scheme) }

// setBackend is the dialect that the operator says, by setting or label; empty
// for none.
func (w *Worker) setBackend() string {
	s := w.spec.Load()
	if s.Backend != "" {
		return s.Backend
	}
	b := strings.ToLower(s.Labels[labelBackend])
	if _, ok := w.dialects().Named(b); ok {
		return b
	}
	return ""
}

// setConnector is the connector that the operator says, by setting or label;
// empty for none.
func (w *Worker) setConnector() string {
	s := w.spec.Load()
	if s.KVConnector != "" {
		return s.KVConnector
	}
	c, _ := w.fleet.opts.Dialects.Connector(s.Labels[labelConnector])
	return c
}

// setDialect is the dialect that the operator says; nil for none.
func (w *Worker) setDialect() engine.Dialect {
	d, _ := w.dialects().Named(w.setBackend())
	return d
}

// dialectBy is the engine's dialect by these facts of it: as set, else as found out,
// else the default.
func (w *Worker) dialectBy(f *Facts) engine.Dialect {
	dialects := w.dialects()
	if d, ok := dialects.Named(cmp.Or(w.setBackend(), f.Backend)); ok {
		return d
	}
	return dialects.Default()
}

// Dialects are those that workers may have.
func (f *Fleet) Dialects() *engine.Registry { return f.opts.Dialects }

// Dialect is the engine's: as set, else as found out, else the default.
func (w *Worker) Dialect() engine.Dialect { return w.state.Load().dialect }

// Backend is the name of the engine's dialect.
func (w *Worker) Backend() string { return w.Dialect().Name() }

// Connector is how the worker hands KV cache over: empty for dialects without
// connectors, else one of theirs. A decode worker cannot be asked; without a setting it
// has that of the prefill workers of its model.
func (w *Worker) Connector() string { return w.state.Load().connector }

// ownConnector is the connector that is known of the worker itself; empty for
// none.
func (w *Worker) ownConnector() string {
	if c := w.setConnector(); c != "" {
		return c
	}
	return w.Facts().Connector
}

// Dialect is Worker.Dialect.
func (r *Rank) Dialect() engine.Dialect { return r.worker.Dialect() }

// Backend is Worker.Backend.
func (r *Rank) Backend() string { return r.worker.Backend() }

// Peer is what decode must be told of the rank's worker. It is read with the worker's
// facts, and again after the worker was away; nil while it is not known.
func (r *Rank) Peer() engine.Peer {
	if p := r.worker.peer.Load(); p != nil {
		return *p
	}
	return nil
}

// setPeer takes over what was read; nil for nothing.
func (w *Worker) setPeer(p engine.Peer) {
	if p == nil {
		w.peer.Store(nil)
		return
	}
	w.peer.Store(&p)
}

// Connector is Worker.Connector.
func (r *Rank) Connector() string { return r.worker.Connector() }
