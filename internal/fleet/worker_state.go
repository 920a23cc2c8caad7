package fleet

import (
	"cmp"
	"strings"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
)

// workerState is what requests ask of a worker, worked out once from its registration,
// its facts and those of the others. It fills one cache line. Immutable.
type workerState struct {
	facts     *Facts
	dialect   engine.Dialect
	connector string // see Worker.Connector
	host      string // see Worker.Bootstrap
	port      int32
	hasPort   bool
}

// updateState computes the state anew from facts and the registration. Once w is
// registered the caller must hold Fleet.mu.
func (w *Worker) updateState(facts *Facts) {
	k := &workerState{facts: facts, dialect: w.dialectBy(facts)}
	if c := k.dialect.Connectors(); c != nil {
		k.connector = w.connector(facts, c)
	}
	k.host, k.port, k.hasPort = w.bootstrap(facts)
	w.state.Store(k)
}

// connector is how w, whose dialect has connectors, hands KV cache over.
func (w *Worker) connector(facts *Facts, of *engine.Connectors) string {
	switch c := cmp.Or(w.setConnector(), facts.Connector); {
	case c != "":
		return c
	case w.inheritedConnector != "" && w.role == admission.RoleDecode:
		return w.inheritedConnector
	}
	return of.Unknown
}

func (w *Worker) bootstrap(facts *Facts) (host string, port int32, ok bool) {
	host, _, _ = strings.Cut(w.base.Host, "%")
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if w.spec.Load().BootstrapPort == config.BootstrapNone {
		return host, 0, false
	}
	port = int32(max(w.spec.Load().BootstrapPort, 0))
	return host, cmp.Or(port, cmp.Or(int32(max(facts.BootstrapPort, 0)), defaultBootstrapPort)), true
}
