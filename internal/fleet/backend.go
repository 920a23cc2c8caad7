package fleet

import (
	"fmt"
	"strings"

	"github.com/sluice-router/sluice/internal/engine"
)

// The dialects and connectors, by the names that package engine has for them.
// SGLang's workers have no connector: theirs is empty.
const (
	// DialectSGLang is the backend of workers that say nothing else.
	DialectSGLang = "sglang"
	DialectVLLM   = "vllm"

	ConnectorNIXL          = engine.ConnectorNIXL
	ConnectorNIXLPush      = engine.ConnectorNIXLPush
	ConnectorMooncake      = engine.ConnectorMooncake
	ConnectorMoRIIO        = engine.ConnectorMoRIIO
	ConnectorLMCache       = engine.ConnectorLMCache
	ConnectorSharedStorage = engine.ConnectorShared
	ConnectorNone          = engine.ConnectorNone
	ConnectorUnknown       = engine.ConnectorUnknown
)

// connectorOf maps every spelling of a connector, in lower case, to its name
// here. Besides those names they are the classes that vLLM's
// --kv-transfer-config takes.
var connectorOf = map[string]string{
	ConnectorNIXL: ConnectorNIXL, "nixlconnector": ConnectorNIXL, "nixlpullconnector": ConnectorNIXL,
	ConnectorNIXLPush: ConnectorNIXLPush, "nixlpushconnector": ConnectorNIXLPush,
	ConnectorMooncake: ConnectorMooncake, "mooncakeconnector": ConnectorMooncake,
	ConnectorMoRIIO: ConnectorMoRIIO, "moriioconnector": ConnectorMoRIIO,
	ConnectorLMCache: ConnectorLMCache, "lmcacheconnectorv1": ConnectorLMCache, "lmcachempconnector": ConnectorLMCache,
	ConnectorSharedStorage: ConnectorSharedStorage, "sharedstorageconnector": ConnectorSharedStorage, "exampleconnector": ConnectorSharedStorage,
	ConnectorNone: ConnectorNone,
}

// Connectors are the values of WorkerSpec.KVConnector.
var Connectors = []string{ConnectorNIXL, ConnectorNIXLPush, ConnectorMooncake, ConnectorMoRIIO, ConnectorLMCache, ConnectorSharedStorage, ConnectorNone}

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
	if _, ok := dialects.Named(s.Backend); s.Backend != "" && !ok {
		return &SpecError{"backend", fmt.Errorf("%.64q is none of auto, %s", s.Backend, strings.Join(dialects.Names(), ", "))}
	}
	if s.KVConnector == "auto" || s.KVConnector == "" {
		s.KVConnector = ""
		return nil
	}
	c, ok := connectorOf[strings.ToLower(s.KVConnector)]
	if !ok {
		return &SpecError{"kv_connector", fmt.Errorf("%.64q is none of auto, %s", s.KVConnector, strings.Join(Connectors, ", "))}
	}
	if s.Backend == DialectSGLang {
		return &SpecError{"kv_connector", fmt.Errorf("%q is for vLLM workers; this one is set to be %s", s.KVConnector, s.Backend)}
	}
	s.KVConnector = c
	return nil
}

// setBackend is the dialect that the operator says, by setting or label; empty
// for none.
func (w *Worker) setBackend() string {
	s := &w.spec
	if s.Backend != "" {
		return s.Backend
	}
	b := strings.ToLower(s.Labels[labelBackend])
	if _, ok := w.fleet.opts.Dialects.Named(b); ok {
		return b
	}
	return ""
}

// setConnector is the connector that the operator says, by setting or label;
// empty for none.
func (w *Worker) setConnector() string {
	s := &w.spec
	if s.KVConnector != "" {
		return s.KVConnector
	}
	return connectorOf[strings.ToLower(s.Labels[labelConnector])]
}

// Dialects are those that workers may have.
func (f *Fleet) Dialects() *engine.Registry { return f.opts.Dialects }

// Dialect is the engine's: as set, else as found out, else SGLang's.
func (w *Worker) Dialect() engine.Dialect { return w.state.Load().dialect }

// Backend is the name of the engine's dialect.
func (w *Worker) Backend() string { return w.Dialect().Name() }

// vllm reports whether the worker speaks vLLM's dialect.
func (w *Worker) vllm() bool { return w.Backend() == DialectVLLM }

// vllm reports whether w speaks vLLM's dialect by these facts of it.
func (f *Facts) vllm(w *Worker) bool {
	if b := w.setBackend(); b != "" {
		return b == DialectVLLM
	}
	return f.Backend == DialectVLLM
}

// Connector is how the worker hands KV cache over: empty for SGLang, else one of
// the Connector constants. A decode worker cannot be asked; without a setting it
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

// Connector is Worker.Connector.
func (r *Rank) Connector() string { return r.worker.Connector() }
