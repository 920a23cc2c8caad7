package fleet

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
)

// warnings are what an operator should know of, including the warnings of the facts.
func (w *Worker) warnings() []string {
	f := w.Facts()
	list := slices.Clone(f.Warnings)
	if w.health.misconfigured != "" {
		list = append(list, w.health.misconfigured)
	}
	if !f.read {
		return list
	}
	warn := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	want := map[admission.Role]string{
		admission.RoleRegular: "null", admission.RolePrefill: "prefill", admission.RoleDecode: "decode",
	}[w.role]
	if f.Mode != "" && f.Mode != want && w.roleProblem() == "" {
		warn("it is registered as %s, but reports disaggregation_mode %q", w.role, f.Mode)
	}
	switch {
	case w.modelProblem != "":
		list = append(list, w.modelProblem)
	case len(f.Names()) == 0 && w.setModel() == "":
		warn("it does not report which model it serves; set model_id")
	}
	if !f.Answered && !f.Incomplete && len(f.Missing) > 1 {
		path := w.base.Path
		if path == "" {
			path = "/"
		}
		warn("all its routes answer 404: the path of its URL, %q, is probably wrong", path)
	}
	if why := w.loadUnknownLocked(); why != "" {
		list = append(list, why)
	}
	list = append(list, w.textWarningsLocked()...)
	list = append(list, w.dialectWarnings()...)
	list = append(list, w.kvEventWarnings()...)
	if f.connectorNote != "" && w.setConnector() == "" {
		list = append(list, f.connectorNote)
	}
	if w.fleet.cfg.Fleet.DPAware && w.spec.Load().DPSize == 0 && f.DPSize == 0 {
		warn("it does not report its dp_size; it is scheduled as one rank")
	}
	if w.fleet.gate.NeedsCapacity(w.role) {
		for _, name := range w.missingCapacity() {
			warn("its %s is not known; classes that go by it count its requests instead. Set %s", name, name)
		}
	}
	return list
}

// dialectWarnings are what is odd about how its dialect and connector were set, and
// what the dialect knows to say.
func (w *Worker) dialectWarnings() (list []string) {
	if l := w.spec.Load().Labels[labelConnector]; l != "" && w.setConnector() == "" {
		list = append(list, fmt.Sprintf("its label %s=%.64q is not the name of a connector and is ignored", labelConnector, l))
	}
	if c := w.setConnector(); c != "" && w.Dialect().Connectors().Named(c) == "" {
		list = append(list, fmt.Sprintf("its kv_connector is set to %s, but it speaks %s and has none", c, w.Backend()))
	}
	// By HTTP the port is asked for the connector, at least.
	if port, ok := w.spec.Load().BootstrapPort.Port(); ok && w.base.GRPC() && !w.factsInsufficient() && !w.Dialect().UsesBootstrap(w.Connector()) {
		list = append(list, fmt.Sprintf("its bootstrap_port, %d, is not used: pairs do not meet there with the KV connector %s; leave it out", port, cmp.Or(w.Connector(), engine.ConnectorNone)))
	}
	return append(list, w.Dialect().Warnings(w.pairKnowledge())...)
}
